from __future__ import annotations

import pytest

from specs.boxes import Box, Placement, Tag
from specs.transfer import (
    bytes_to_move,
    layout_of,
    state_bytes,
    transfer_between,
)
from specs.workload import DType, Optimizer, Workload
from tests.runtime.elastic.random_row import random_row
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model


def _rows(first: int, count: int) -> dict[str, Placement]:
    return {"w": Placement("w", (8, 2), Box((first, 0), (count, 2)), Tag.SHARDED)}


def test_what_a_member_has_it_copies_and_the_rest_comes_from_the_one_that_sent_least() -> None:
    # Members 0 and 1 hold rows 0-3 and all rows; 2 is new and wants rows 2-7, 0 wants all.
    found = transfer_between([_rows(0, 4), _rows(0, 8), None], [_rows(0, 8), None, _rows(2, 6)])
    assert found.missing == ()
    moves = {(m.source, m.target, m.box.offset[0], m.box.size[0]) for m in found.moves}
    assert moves == {
        (0, 0, 0, 2),
        (0, 0, 2, 2),
        (0, 2, 2, 2),  # rows 2-3 are on both: nobody has sent, the lower sends
        (1, 0, 4, 4),
        (1, 2, 4, 4),
    }
    # 0 gets rows 4-7, 2 gets rows 2-7, two columns each, 12 bytes an element.
    assert found.received(3, 12) == (96, 0, 144)


def test_what_nobody_holds_is_named() -> None:
    found = transfer_between([_rows(0, 4)], [_rows(2, 4)])
    assert found.missing == (("w", Box((4, 0), (2, 2))),)


def test_every_element_that_is_wanted_arrives_once() -> None:
    for seed in range(20):
        old, new = random_row(seed, 2)
        before = [layout_of(old, rank) for rank in range(old.gpus_used)]
        after = [layout_of(new, rank) for rank in range(new.gpus_used)]
        size = max(len(before), len(after))
        found = transfer_between(
            before + [None] * (size - len(before)), after + [None] * (size - len(after))
        )
        assert found.missing == ()
        for target, layout in enumerate(after):
            for name, placement in layout.items():
                parts = [m.box for m in found.moves if (m.target, m.tensor) == (target, name)]
                assert sum(part.elements for part in parts) == placement.box.elements
                assert all(placement.box.overlap(part) == part for part in parts)
                assert all(
                    a.overlap(b) is None for i, a in enumerate(parts) for b in parts[i + 1 :]
                )


@pytest.mark.parametrize(
    ("dtype", "optimizer", "expected"),
    [
        (DType.FP32, Optimizer.ADAMW, 12),
        (DType.FP32, Optimizer.SGD, 4),
        (DType.BF16, Optimizer.ADAMW, 14),
        (DType.BF16, Optimizer.ADAMW_NO_MASTER, 10),
        (DType.BF16, Optimizer.SGD, 2),
    ],
)
def test_gradients_do_not_move(dtype: DType, optimizer: Optimizer, expected: int) -> None:
    workload = Workload(4, 8, dtype, optimizer)
    assert state_bytes(workload) == expected


def test_the_same_plan_moves_nothing_and_a_second_replica_gets_the_whole_model() -> None:
    model = tiny_model("llama")
    one = make_plan(model, [Pipe(2, [(1, 2)], [(2, 2)])])
    two = make_plan(model, [Pipe(2, [(1, 2)], [(1, 2), (1, 2)])])
    parameters = sum(p.box.elements for p in layout_of(one, 0).values())
    assert bytes_to_move(one, one) == (0,)
    assert bytes_to_move(one, two) == (0, parameters * 12)
    assert bytes_to_move(two, one) == (0,)
