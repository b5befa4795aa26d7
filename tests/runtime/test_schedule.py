from __future__ import annotations

import pytest

from runtime.schedule import Pass, one_f_one_b


def _short(stage: int, depth: int, micro_batches: int) -> str:
    order = one_f_one_b(stage, depth, micro_batches)
    return " ".join(f"{way.value[0].upper()}{m}" for way, m in order)


def test_the_first_of_three_stages_fills_with_two_forwards() -> None:
    assert _short(0, 3, 4) == "F0 F1 F2 B0 F3 B1 B2 B3"


def test_the_last_stage_alternates() -> None:
    assert _short(2, 3, 3) == "F0 B0 F1 B1 F2 B2"


def test_fewer_micro_batches_than_stages_fill_with_what_there_is() -> None:
    assert _short(0, 4, 2) == "F0 F1 B0 B1"


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_stage_has_more_in_flight_than_the_memory_formula_counts(
    depth: int, micro_batches: int
) -> None:
    for stage in range(depth):
        order = one_f_one_b(stage, depth, micro_batches)
        assert sorted(m for way, m in order if way is Pass.FORWARD) == list(range(micro_batches))
        assert sorted(m for way, m in order if way is Pass.BACKWARD) == list(range(micro_batches))
        level = peak = 0
        for way, _ in order:
            level += 1 if way is Pass.FORWARD else -1
            peak = max(peak, level)
        assert peak == min(micro_batches, depth - stage)
