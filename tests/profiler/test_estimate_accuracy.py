"""The estimator against published iterations stays as good as it was."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from benchmarks.estimator_accuracy import (
    Scored,
    choices,
    host_once,
    plan_of,
    predict,
    quantile,
    rank_correlation,
    ranks,
    read_runs,
)


@pytest.fixture(scope="module")
def single_node() -> list[tuple[Scored, Scored]]:
    """Each vTrain row priced by the cost model, and with the host's overhead counted once."""
    found = []
    for run in read_runs("vtrain-single"):
        prediction = predict(run)
        found.append(
            (Scored(run, prediction.iteration_ms), Scored(run, host_once(run, prediction)))
        )
    return found


def test_half_of_the_published_iterations_are_within_five_percent(
    single_node: list[tuple[Scored, Scored]],
) -> None:
    assert len(single_node) == 999
    assert median(abs(priced.error) for priced, _ in single_node) < 0.05
    assert median(abs(once.error) for _, once in single_node) < 0.04
    assert rank_correlation([priced for priced, _ in single_node]) > 0.985


def test_the_plan_that_is_estimated_fastest_costs_little(
    single_node: list[tuple[Scored, Scored]],
) -> None:
    found = choices(priced for priced, _ in single_node)
    assert len(found) == 85
    assert fmean(choice.regret for choice in found) < 0.035
    assert median(choice.regret for choice in found) == 0.0
    # A plan at random costs ten times as much.
    assert fmean(choice.spread for choice in found) > 0.3


def test_large_published_runs_are_within_five_percent() -> None:
    scored = [Scored(run, predict(run).iteration_ms) for run in read_runs("sc21-megatron-table1")]
    assert len(scored) == 10
    assert median(abs(s.error) for s in scored) < 0.05
    assert {s.run.gpus for s in scored} >= {32, 3072}


def test_a_published_plan_is_built_as_it_was_run() -> None:
    run = next(r for r in read_runs("vtrain-single") if (r.tp, r.pp, r.dp) == (2, 2, 2))
    plan = plan_of(run)
    assert plan.gpus_used == run.gpus == 8
    template = plan.templates[0]
    assert [stage.tp for stage in template.stages] == [2, 2]
    assert len(template.stages[0].layers) == len(template.stages[1].layers)
    assert template.replicas[0].micro_batches == run.global_batch // (2 * run.micro_batch)


def test_the_statistics_are_what_they_are_called() -> None:
    assert ranks([3.0, 1.0, 1.0, 7.0]) == [2.0, 0.5, 0.5, 3.0]
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([5.0], 0.9) == 5.0
    runs = read_runs("vtrain-single")[:3]
    perfect = [Scored(run, run.measured_ms * 2) for run in runs]
    assert rank_correlation(perfect) == pytest.approx(1.0)
    assert {s.error for s in perfect} == {1.0}
