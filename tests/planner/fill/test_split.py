"""The layer split: worked by hand, against all splits, and against the paper's proportional one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, product

import pytest

from planner.fill.split import Split, StageOption, split_blocks
from planner.refusal import Refusal

ROOM = 1000.0


def option(
    fixed: float,
    each: float,
    *,
    room: float = ROOM,
    block_bytes: float = 1.0,
    fixed_bytes: float = 0.0,
    tiling: tuple[int, int] = (1, 1),
) -> StageOption:
    return StageOption(fixed, (each,), fixed_bytes, (block_bytes,), 0.0, (0.0,), room, tiling)


def split_of(stages: Sequence[Sequence[StageOption]], blocks: int, batches: int) -> Split:
    found = split_blocks(stages, [0] * blocks, batches)
    assert isinstance(found, Split)
    return found


def pipe_ms(stages: Sequence[StageOption], blocks: Sequence[int], batches: int) -> float:
    times = [o.time_ms([n]) for o, n in zip(stages, blocks, strict=True)]
    return (batches - 1) * max(times) + sum(times)


def test_equal_stages_share_blocks_evenly() -> None:
    assert split_of([[option(0, 1)]] * 4, 12, 8).blocks == (3, 3, 3, 3)


def test_a_stage_twice_as_fast_gets_twice_the_blocks() -> None:
    assert split_of([[option(0, 2)], [option(0, 1)]], 12, 8).blocks == (4, 8)


def test_what_a_stage_does_besides_blocks_takes_blocks_from_it() -> None:
    # 6 blocks each would take 6 and 6 + 4; 8 and 4 take 8 and 8.
    assert split_of([[option(0, 1)], [option(4, 1)]], 12, 8).blocks == (8, 4)


def test_a_stage_takes_no_more_blocks_than_its_memory_holds() -> None:
    stages = [[option(0, 1, room=3)], [option(0, 1)]]
    assert split_of(stages, 12, 8).blocks == (3, 9)


def test_every_stage_gets_a_block_however_slow_it_is() -> None:
    assert split_of([[option(100, 50)], [option(0, 1)]], 12, 8).blocks == (1, 11)


def test_with_one_micro_batch_the_sum_counts_and_the_fast_stage_takes_all_it_may() -> None:
    # (2, 6) has the least maximum, 6, and sum 12; (1, 7) has maximum 7 and sum 10.
    # M = 1 counts the sum; M = 8 counts 7 * 6 + 12 = 54 against 7 * 7 + 10 = 59.
    assert split_of([[option(0, 3)], [option(0, 1)]], 8, 1).blocks == (1, 7)
    assert split_of([[option(0, 3)], [option(0, 1)]], 8, 8).blocks == (2, 6)


def test_a_stage_without_room_for_a_block_is_named_with_what_it_lacks() -> None:
    stages = [[option(0, 1)], [option(0, 1, room=10, fixed_bytes=6, block_bytes=7)]]
    found = split_blocks(stages, [0] * 4, 8)
    assert isinstance(found, Refusal)
    assert (found.reason, found.over_bytes) == ("memory at stage 1", 3.0)


def test_too_little_room_in_all_is_refused_at_the_stage_with_the_least() -> None:
    stages = [[option(0, 1, room=5)], [option(0, 1, room=3, block_bytes=1.5)]]
    found = split_blocks(stages, [0] * 9, 8)
    assert isinstance(found, Refusal)
    # 5 and 2 blocks fit: two are left over, 1.5 bytes each on the narrower stage.
    assert (found.reason, found.over_bytes) == ("memory at stage 1", 3.0)


def test_when_blocks_of_the_first_kind_run_out_the_stage_that_holds_no_other_is_named() -> None:
    # One dense block in front of three routed ones of 5 bytes: stages 0 and 1 hold 3 bytes each.
    small = StageOption(0, (1, 1), 0, (1, 5), 0, (0, 0), 3, (1, 1))
    large = StageOption(0, (1, 1), 0, (1, 5), 0, (0, 0), 99, (1, 1))
    found = split_blocks([[small], [small], [large]], [0, 1, 1, 1], 8)
    assert isinstance(found, Refusal)
    assert (found.reason, found.over_bytes) == ("memory at stage 1", 2.0)


def test_more_stages_than_blocks_are_refused() -> None:
    found = split_blocks([[option(0, 1)]] * 3, [0, 0], 8)
    assert isinstance(found, Refusal)
    assert found.reason == "fewer blocks than stages"


def test_the_slower_tiling_is_taken_only_where_memory_asks_for_it() -> None:
    fast = option(0, 1, room=4, tiling=(1, 1))
    small = option(0, 1.5, room=40, tiling=(4, 1))
    assert split_of([[small, fast]], 4, 8).options[0].tiling == (1, 1)
    assert split_of([[small, fast]], 5, 8).options[0].tiling == (4, 1)
    both = split_of([[small, fast], [small, fast]], 8, 8)
    assert both.blocks == (4, 4)
    assert [o.tiling for o in both.options] == [(1, 1), (1, 1)]


def random_stages(draw: random.Random, depth: int) -> list[list[StageOption]]:
    return [
        [
            option(
                draw.uniform(0, 5),
                draw.uniform(0.5, 4),
                room=draw.uniform(3, 14),
                fixed_bytes=draw.uniform(0, 2),
            )
        ]
        for _ in range(depth)
    ]


def all_splits(blocks: int, depth: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, blocks), depth - 1)
    return [tuple(b - a for a, b in zip((0, *cut), (*cut, blocks), strict=True)) for cut in cuts]


@pytest.mark.parametrize("batches", [1, 2, 5, 64, 1_000_000])
@pytest.mark.parametrize("seed", range(60))
def test_no_split_that_fits_is_faster(seed: int, batches: int) -> None:
    draw = random.Random(seed)
    depth, blocks = draw.randint(1, 4), draw.randint(4, 12)
    stages = random_stages(draw, depth)
    fitting = [
        split
        for split in all_splits(blocks, depth)
        if all(n <= o[0].cap(0) for o, n in zip(stages, split, strict=True))
    ]
    found = split_blocks(stages, [0] * blocks, batches)
    if not fitting:
        assert isinstance(found, Refusal)
        return
    assert isinstance(found, Split)
    chosen = [o[0] for o in stages]
    least = min(pipe_ms(chosen, split, batches) for split in fitting)
    assert pipe_ms(chosen, found.blocks, batches) == pytest.approx(least, rel=1e-12)


def proportional(stages: Sequence[StageOption], blocks: int) -> tuple[int, ...]:
    """The paper's split: blocks in proportion to speed, largest remainders first, at least one."""
    speed = [1 / o.block_ms[0] for o in stages]
    exact = [blocks * s / sum(speed) for s in speed]
    given = [max(1, int(e)) for e in exact]
    order = sorted(range(len(given)), key=lambda s: given[s] - exact[s])
    at = 0
    while sum(given) < blocks:
        given[order[at % len(order)]] += 1
        at += 1
    while sum(given) > blocks:
        given[given.index(max(given))] -= 1
    return tuple(given)


@pytest.mark.parametrize("seed", range(300))
def test_the_split_is_never_slower_than_the_papers_proportional_one(seed: int) -> None:
    draw = random.Random(seed)
    depth = draw.randint(1, 8)
    blocks = draw.randint(depth, 40)
    batches = draw.choice([1, 2, 4, 16, 64])
    stages = [[option(draw.uniform(0, 3), draw.uniform(0.5, 4))] for _ in range(depth)]
    chosen = [o[0] for o in stages]
    ours = pipe_ms(chosen, split_of(stages, blocks, batches).blocks, batches)
    assert ours <= pipe_ms(chosen, proportional(chosen, blocks), batches) * (1 + 1e-12)


def two_kinds(fixed: float, dense: float, moe: float, room: float = ROOM) -> StageOption:
    return StageOption(fixed, (dense, moe), 0.0, (1.0, 4.0), 0.0, (0.0, 0.0), room)


def test_dense_blocks_stay_in_front_of_blocks_with_experts() -> None:
    # Kinds in order: 3 dense of 1 ms, 3 with experts of 4 ms; least maximum is 8 (7 + 8 or 3+.. ).
    stages = [[two_kinds(0, 1, 4)], [two_kinds(0, 1, 4)]]
    found = split_blocks(stages, [0, 0, 0, 1, 1, 1], 64)
    assert isinstance(found, Split)
    assert found.blocks == (4, 2)  # 3 * 1 + 4 = 7 and 8


@pytest.mark.parametrize("seed", range(100))
def test_no_contiguous_split_of_two_kinds_has_a_smaller_slowest_stage(seed: int) -> None:
    draw = random.Random(seed)
    depth = draw.randint(1, 4)
    kinds = [0] * draw.randint(1, 3) + [1] * draw.randint(depth, 7)
    stages = [
        [
            two_kinds(
                draw.uniform(0, 4), draw.uniform(0.5, 2), draw.uniform(1, 6), draw.uniform(8, 40)
            )
        ]
        for _ in range(depth)
    ]

    def cost(split: tuple[int, ...]) -> float:
        times, first = [], 0
        for o, n in zip(stages, split, strict=True):
            held = kinds[first : first + n]
            counts = [held.count(0), held.count(1)]
            if o[0].memory_bytes(counts) > o[0].limit_bytes:
                return float("inf")
            times.append(o[0].time_ms(counts))
            first += n
        return max(times)

    least = min(cost(split) for split in all_splits(len(kinds), depth))
    found = split_blocks(stages, kinds, 1_000_000)
    if least == float("inf"):
        assert isinstance(found, Refusal)
    else:
        assert isinstance(found, Split)
        assert cost(found.blocks) == pytest.approx(least, rel=1e-12)


def test_all_option_choices_are_considered_together_with_the_split() -> None:
    draw = random.Random(5)
    for _ in range(60):
        stages = [
            [
                option(0, draw.uniform(1, 3), room=draw.uniform(2, 9), tiling=(ep, 1))
                for ep in (1, 2, 4)
            ]
            for _ in range(3)
        ]
        best = float("inf")
        for chosen in product(*stages):
            for split in all_splits(9, 3):
                if all(n <= o.cap(0) for o, n in zip(chosen, split, strict=True)):
                    best = min(best, pipe_ms(chosen, split, 1_000_000))
        found = split_blocks(stages, [0] * 9, 1_000_000)
        if best == float("inf"):
            assert isinstance(found, Refusal)
        else:
            assert isinstance(found, Split)
            assert pipe_ms(found.options, found.blocks, 1_000_000) == pytest.approx(best)
