"""The layer split that keeps the slowest stage fastest (DESIGN section 13, 18 and 19)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from planner.refusal import TOO_FEW_BLOCKS, Refusal

CEILINGS = 4  # of two kinds of block: ceilings that are priced, from the least feasible upwards


@dataclass(frozen=True, slots=True)
class StageOption:
    """One way to run a stage: what it takes without blocks, and what each block adds.

    fixed_ms: host overhead, transfers, and the embedding or head where the stage holds it.
    block_ms, block_bytes: per kind of block (dense, with experts); bytes are state and the
    activations in flight. fixed_bytes: framework, state and activations of embedding or head.
    transient_bytes: the largest of the stage's own end layer, and per kind of block.
    limit_bytes: memory a plan may fill. tiling: (EP, ETP) that the figures hold for.
    """

    fixed_ms: float
    block_ms: tuple[float, ...]
    fixed_bytes: float
    block_bytes: tuple[float, ...]
    end_transient_bytes: float
    block_transient_bytes: tuple[float, ...]
    limit_bytes: float
    tiling: tuple[int, int] = (1, 1)

    def time_ms(self, counts: Sequence[int]) -> float:
        """t_s with so many blocks of each kind."""
        return self.fixed_ms + sum(n * ms for n, ms in zip(counts, self.block_ms, strict=True))

    def memory_bytes(self, counts: Sequence[int]) -> float:
        """Memory with so many blocks of each kind; the largest transient counts once."""
        transient = self.end_transient_bytes
        total = self.fixed_bytes
        for n, size, extra in zip(
            counts, self.block_bytes, self.block_transient_bytes, strict=True
        ):
            total += n * size
            if n:
                transient = max(transient, extra)
        return total + transient

    def cap(self, kind: int) -> int:
        """The most blocks of one kind alone that fit: floor((room - fixed) / per block)."""
        room = self.limit_bytes - self.fixed_bytes
        room -= max(self.end_transient_bytes, self.block_transient_bytes[kind])
        return max(0, math.floor(room / self.block_bytes[kind]))


@dataclass(frozen=True, slots=True)
class Split:
    """Blocks of each stage, with the option it runs them by."""

    blocks: tuple[int, ...]
    options: tuple[StageOption, ...]


def split_blocks(
    stages: Sequence[Sequence[StageOption]], kinds: Sequence[int], micro_batches: int
) -> Split | Refusal:
    """The contiguous split with the smallest (M - 1) max t + sum t among the candidate ceilings.

    stages: the options of each stage. kinds: the kind of every block of the model, in order.
    Every stage gets at least one block. Of one kind, blocks below a ceiling go to the stages with
    the smallest time per block first, which makes their sum least, and ceilings are tried upwards
    until none above can be better: the best of all splits. Of two kinds, each stage from the left
    takes what it can, below the four least feasible ceilings.
    """
    if len(stages) > len(kinds):
        return Refusal(TOO_FEW_BLOCKS, detail=f"{len(kinds)} blocks for {len(stages)} stages")
    if len(set(kinds)) == 1:
        return _split_of_one_kind(stages, kinds[0], len(kinds), micro_batches)
    return _split_of_two_kinds(stages, kinds, micro_batches)


def _pipe_ms(times: Sequence[float], micro_batches: int) -> float:
    return (micro_batches - 1) * max(times) + sum(times)


def _least_feasible(candidates: Sequence[float], feasible: Callable[[float], bool]) -> int:
    """Index of the first of rising candidates that is feasible; their number if none is."""
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if feasible(candidates[middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _most_blocks(option: StageOption, kind: int, ceiling: float, blocks: int) -> int:
    """The most of the model's blocks below the ceiling in time and in memory."""
    cap, fixed, each = min(option.cap(kind), blocks), option.fixed_ms, option.block_ms[kind]
    if ceiling == math.inf:
        return cap
    count = min(cap, max(0, math.floor((ceiling - fixed) / each)))
    while count < cap and fixed + (count + 1) * each <= ceiling:
        count += 1
    while count > 0 and fixed + count * each > ceiling:
        count -= 1
    return count


def _split_of_one_kind(
    stages: Sequence[Sequence[StageOption]], kind: int, blocks: int, micro_batches: int
) -> Split | Refusal:
    caps = [max(option.cap(kind) for option in options) for options in stages]
    refusal = _too_small(stages, kind, caps, blocks)
    if refusal is not None:
        return refusal
    candidates = sorted(
        {
            option.fixed_ms + n * option.block_ms[kind]
            for options in stages
            for option in options
            for n in range(1, min(option.cap(kind), blocks) + 1)
        }
    )

    def most(options: Sequence[StageOption], ceiling: float) -> int:
        return max(_most_blocks(option, kind, ceiling, blocks) for option in options)

    def feasible(ceiling: float) -> bool:
        each = [most(options, ceiling) for options in stages]
        return min(each) >= 1 and sum(each) >= blocks

    def deal(ceiling: float) -> tuple[float, float, Split]:
        """Pipeline time and sum of stage times of the split below a ceiling."""
        most_each = [most(options, ceiling) for options in stages]
        given = _fastest_first(stages, kind, most_each, ceiling, blocks)
        chosen = [
            min(
                (option for option in options if option.cap(kind) >= n),
                key=lambda option: option.fixed_ms + n * option.block_ms[kind],
            )
            for options, n in zip(stages, given, strict=True)
        ]
        times = [o.fixed_ms + n * o.block_ms[kind] for o, n in zip(chosen, given, strict=True)]
        return _pipe_ms(times, micro_batches), sum(times), Split(tuple(given), tuple(chosen))

    first = _least_feasible(candidates, feasible)
    without, least_sum, answer = deal(math.inf)
    best = without
    for ceiling in candidates[first:]:
        if (micro_batches - 1) * ceiling + least_sum >= best:
            break  # no higher ceiling can do better: its slowest stage alone costs that much
        pipe, _, split = deal(ceiling)
        if pipe < best:
            best, answer = pipe, split
    return answer


def _too_small(
    stages: Sequence[Sequence[StageOption]], kind: int, caps: Sequence[int], blocks: int
) -> Refusal | None:
    """Why no split fits: a stage without room for a block, or too little room in all."""
    for s, (options, cap) in enumerate(zip(stages, caps, strict=True)):
        if cap < 1:
            over = min(
                o.fixed_bytes
                + o.block_bytes[kind]
                - o.limit_bytes
                + max(o.end_transient_bytes, o.block_transient_bytes[kind])
                for o in options
            )
            return Refusal.memory(s, over, "not one block fits")
    if sum(caps) < blocks:
        s = caps.index(min(caps))
        short = blocks - sum(caps)
        over = short * min(option.block_bytes[kind] for option in stages[s])
        return Refusal.memory(s, over, f"room for {sum(caps)} of {blocks} blocks in all")
    return None


def _fastest_first(
    stages: Sequence[Sequence[StageOption]],
    kind: int,
    most_each: Sequence[int],
    ceiling: float,
    blocks: int,
) -> list[int]:
    """One block for every stage, the rest to the smallest time per block first."""

    def per_block(s: int) -> float:
        return min(
            option.block_ms[kind]
            for option in stages[s]
            if _most_blocks(option, kind, ceiling, blocks) == most_each[s]
        )

    given = [1] * len(stages)
    left = blocks - len(stages)
    for s in sorted(range(len(stages)), key=per_block):
        take = min(left, most_each[s] - 1)
        given[s] += take
        left -= take
    return given


def _split_of_two_kinds(
    stages: Sequence[Sequence[StageOption]], kinds: Sequence[int], micro_batches: int
) -> Split | Refusal:
    number = max(kinds) + 1
    prefix = [[0] * number]
    for kind in kinds:
        prefix.append([n + (k == kind) for k, n in enumerate(prefix[-1])])

    def counts(first: int, end: int) -> list[int]:
        return [b - a for a, b in zip(prefix[first], prefix[end], strict=True)]

    def fits(option: StageOption, first: int, end: int) -> bool:
        return option.memory_bytes(counts(first, end)) <= option.limit_bytes

    def takes(options: Sequence[StageOption], first: int, end: int, ceiling: float) -> bool:
        return any(
            fits(o, first, end) and o.time_ms(counts(first, end)) <= ceiling for o in options
        )

    def last_weak_at(ceiling: float) -> int:
        """The last stage that cannot take one block of the second kind (or -1)."""
        if sorted(kinds) != list(kinds):
            return -1
        end = len(kinds)
        return max(
            (s for s, o in enumerate(stages) if not takes(o, end - 1, end, ceiling)), default=-1
        )

    def fill_from_left(ceiling: float) -> tuple[list[int], int]:
        """Ends of the stages, and the stage that cannot take even one block (or -1)."""
        blocks, last = len(kinds), len(stages) - 1
        # A stage that cannot take one block of the second kind must find one of the first kind:
        # it and all stages before it share those, at least one each.
        last_weak = last_weak_at(ceiling)
        ends: list[int] = []
        first = 0
        for s, options in enumerate(stages):
            furthest = blocks - (last - s)
            if s <= last_weak:
                furthest = min(furthest, kinds.count(kinds[0]) - (last_weak - s))
            end = first
            while end < furthest and takes(options, first, end + 1, ceiling):
                end += 1
            if end == first:
                return ends, s
            ends.append(end)
            first = end
        return ends, -1

    def feasible(ceiling: float) -> bool:
        ends, stuck = fill_from_left(ceiling)
        return stuck < 0 and ends[-1] == len(kinds)

    ends, stuck = fill_from_left(math.inf)
    if stuck >= 0 or ends[-1] < len(kinds):
        s = stuck if stuck >= 0 else len(stages) - 1
        first = ends[s - 1] if s else 0
        end = first + 1 if stuck >= 0 else len(kinds)
        over = min(o.memory_bytes(counts(first, end)) - o.limit_bytes for o in stages[s])
        if over <= 0:  # too few blocks of the first kind for all stages up to the last weak one
            s, first, end = last_weak_at(math.inf), len(kinds) - 1, len(kinds)
            one = counts(first, end)
            over = min(o.memory_bytes(one) - o.limit_bytes for o in stages[s])
        return Refusal.memory(s, over, f"with {end - first} of {len(kinds)} blocks")
    shapes = product(*(range(n + 1) for n in prefix[-1]))
    candidates = sorted(
        {
            option.time_ms(shape)
            for shape in shapes
            if any(shape)
            for options in stages
            for option in options
        }
    )
    first_feasible = _least_feasible(candidates, feasible)
    best: tuple[float, Split] | None = None
    for ceiling in candidates[first_feasible : first_feasible + CEILINGS]:
        ends, _ = fill_from_left(ceiling)
        bounds = list(zip([0, *ends[:-1]], ends, strict=True))
        chosen = [
            min(
                (o for o in options if fits(o, first, end)),
                key=lambda o: o.time_ms(counts(first, end)),
            )
            for options, (first, end) in zip(stages, bounds, strict=True)
        ]
        times = [
            o.time_ms(counts(first, end)) for o, (first, end) in zip(chosen, bounds, strict=True)
        ]
        pipe = _pipe_ms(times, micro_batches)
        if best is None or pipe < best[0]:
            best = pipe, Split(tuple(end - first for first, end in bounds), tuple(chosen))
    assert best is not None
    return best[1]
