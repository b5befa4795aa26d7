"""The cost model against the golden plans, and against sums worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost import pipeline_ms, price_filled
from specs.errors import PlanError
from tests.planner.reference import golden_plans, golden_templates, reference_problem

GOLDEN = golden_plans()


@pytest.mark.parametrize("number", range(len(GOLDEN)))
def test_a_golden_plan_costs_what_the_independent_implementation_says(number: int) -> None:
    entry: dict[str, Any] = GOLDEN[number]
    problem = reference_problem(entry["model"], entry["cluster"], entry["plan"]["global_batch"])
    got = price_filled(problem, golden_templates(entry))
    want = entry["expected"]
    near = lambda value: pytest.approx(value, rel=1e-6)  # noqa: E731
    assert list(got.micro_batches) == want["micro_batches"]
    assert got.iteration_ms == near(want["iteration_ms"])
    assert max(got.pipe_ms) == near(want["pipe_ms"])
    assert got.fits == want["fits"]
    assert max(s.once_ms for t in got.stages for s in t) == near(want["sync_ms"])
    for k, template in enumerate(got.stages):
        assert [s.time_ms for s in template] == near(want["stage_ms"][k])
        assert [s.once_ms for s in template] == near(want["stage_sync_ms"][k])
        for stage, memory in zip(template, want["memory"][k], strict=True):
            part = stage.memory
            assert part.weights + part.gradients + part.optimizer == near(memory["state"])
            assert part.activations == near(memory["activations"])
            assert part.transient == near(memory["transient"])
            assert part.limit - part.framework == near(memory["limit"])


def test_one_stage_has_no_bubble() -> None:
    assert pipeline_ms([5.0], 8) == 40.0


def test_a_pipeline_fills_once_and_then_keeps_the_pace_of_its_slowest_stage() -> None:
    assert pipeline_ms([3.0, 6.0, 3.0], 4) == 30.0


def test_a_pipeline_without_a_stage_is_refused() -> None:
    with pytest.raises(PlanError, match="at least one stage"):
        pipeline_ms([], 4)
