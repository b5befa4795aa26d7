from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.elastic.stragglers import WINDOW, StragglerWatch
from runtime.elastic.weighing import Pauses, weigh
from tests.runtime.elastic.live import cluster_of, pipeline


def test_the_first_pause_is_predicted_by_what_others_took() -> None:
    # 1500 ms and 400 MB at 0.4 GB/s.
    assert Pauses().predicted_ms([0, 400_000_000]) == 2500


def test_later_pauses_are_predicted_by_those_of_this_run() -> None:
    pauses = Pauses()
    pauses.add(
        {"plan": 9000, "release": 100, "rebuild": 200, "transfer": 50, "build": 300}, [0, 5000]
    )
    # fixed 600 ms; 5000 bytes in 50 ms are 100 bytes/ms.
    assert pauses.predicted_ms([2000, 1000]) == 620
    pauses.add({"release": 100, "rebuild": 100, "build": 200, "transfer": 1}, [])
    assert pauses.predicted_ms([]) == 500


def test_a_plan_is_taken_where_it_saves_more_than_its_pause_until_the_end() -> None:
    old, new = pipeline(cluster_of(2), 100.0), pipeline(cluster_of(3), 80.0)
    # Measured 200 ms an iteration: the new one is expected to take 160, 40 ms less; the pause is
    # 1500 ms and a little: 37 iterations do not pay for it, 39 do.
    assert not weigh(old, new, 37, 200.0, Pauses(), 0.02).move
    verdict = weigh(old, new, 39, 200.0, Pauses(), 0.02)
    assert verdict.move
    assert verdict.saved_ms == pytest.approx(39 * 40)
    assert "saves 1.6 s in 39 iterations, the pause costs 1.5 s" in verdict.reason
    assert not weigh(old, new, 10_000, 200.0, Pauses(), 0.25).move  # less than asked for


def test_a_plan_that_is_the_same_or_cannot_be_weighed_is_not_taken() -> None:
    old = pipeline(cluster_of(2), 100.0)
    assert "the same plan" in weigh(old, old, 1000, None, Pauses(), 0.0).reason
    unpriced = replace(pipeline(cluster_of(3), 1.0), prediction=None)
    assert "without a prediction" in weigh(old, unpriced, 1000, None, Pauses(), 0.0).reason


def test_a_plan_without_the_straggler_is_weighed_against_what_the_straggler_costs() -> None:
    old, new = pipeline(cluster_of(3), 80.0), pipeline(cluster_of(2), 100.0)
    assert not weigh(old, new, 1000, 80.0, Pauses(), 0.02).move
    # Three times slower: 240 ms now, 100 without it.
    verdict = weigh(old, new, 1000, 240.0, Pauses(), 0.02, slowness=3.0)
    assert verdict.move
    assert verdict.saved_ms == pytest.approx(1000 * 140)


def test_a_straggler_is_named_when_it_was_slow_for_long_enough() -> None:
    plan = pipeline(cluster_of(3), 100.0)  # work 2, 1 and 3 layers
    watch = StragglerWatch(plan, 1.5)
    even = {0: 20.0, 1: 10.0, 2: 30.0}
    slow = {0: 20.0, 1: 40.0, 2: 30.0}  # rank 1 takes 4 times what its layer explains
    for _ in range(WINDOW):
        assert watch.add(even) is None
    for _ in range(WINDOW - 1):
        assert watch.add(slow) is None
    found = watch.add(slow)
    assert found is not None
    assert (found.rank, found.node, found.gpu) == (1, "cpu-1", 0)
    assert found.factor == pytest.approx(4.0)


def test_one_slow_iteration_is_no_straggler() -> None:
    watch = StragglerWatch(pipeline(cluster_of(2)), 1.5)
    for n in range(20):
        assert watch.add({0: 10.0, 1: 90.0 if n % 3 == 0 else 10.0}) is None
