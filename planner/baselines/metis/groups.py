"""How many GPUs each stage gets: the device groups that Metis enumerates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

Block = tuple[int, ...]


def device_groups(
    gpus: int, stages: int, variance: float, most_permuted: int, *, miscount: bool = False
) -> Iterator[tuple[int, ...]]:
    """GPUs of each stage, in pipeline order; every order of every fitting multiset.

    Groups are powers of two, none below variance * max(gpus // stages, stages // gpus): groups of
    like size perform alike. A multiset of more than most_permuted groups is permuted in blocks of
    equal groups; the limit is soft, as in the released code. Orders that read alike come once;
    with `miscount` (a fault of the released code) they come again.
    """
    least = variance * max(gpus // stages, stages // gpus)
    sizes = [size for k in range(gpus.bit_length()) if least <= (size := 1 << k) <= gpus]
    for multiset in _multisets(sizes, stages, gpus):
        blocks = _fused([(size,) for size in multiset], most_permuted, miscount)
        seen: set[tuple[int, ...]] = set()
        for order in _orders(blocks):
            flat = tuple(size for block in order for size in block)
            if miscount or flat not in seen:
                seen.add(flat)
                yield flat


def _multisets(sizes: Sequence[int], count: int, total: int) -> Iterator[tuple[int, ...]]:
    """Non-decreasing tuples of `count` sizes that sum to `total`."""
    if count == 0:
        if total == 0:
            yield ()
        return
    for n, size in enumerate(sizes):
        if size * count > total:
            return
        # The rest cannot sum to more than the largest size each.
        if size + sizes[-1] * (count - 1) < total:
            continue
        for rest in _multisets(sizes[n:], count - 1, total - size):
            yield (size, *rest)


def _fused(blocks: list[Block], most: int, miscount: bool) -> list[Block]:
    """Blocks after equal smallest neighbours were fused pairwise, until few enough or stuck.

    A round looks at the first `need` pairs (at least half of the leading equal blocks) and fuses
    those of which both halves are the smallest; the rest stays as it is.
    """
    before = None
    while len(blocks) > most:
        excess = len(blocks) - most
        if excess == before:
            break
        before = excess
        leading = 1
        for left, right in pairwise(blocks):
            if left != right:
                leading += miscount
                break
            leading += 1
        looked_at = max(excess, leading // 2)
        smallest = min(sum(block) for block in blocks)
        fused: list[Block] = []
        for n in range(0, len(blocks), 2):
            pair = blocks[n : n + 2]
            both = len(pair) == 2 and sum(pair[0]) == sum(pair[1]) == smallest
            fused += [pair[0] + pair[1]] if both and n // 2 < looked_at else pair
        blocks = fused
    return blocks


def _orders(blocks: Sequence[Block]) -> Iterator[tuple[Block, ...]]:
    """Distinct orders of the blocks, in lexicographic order."""
    counts: dict[Block, int] = {}
    for block in sorted(blocks):
        counts[block] = counts.get(block, 0) + 1

    def extend(order: tuple[Block, ...]) -> Iterator[tuple[Block, ...]]:
        if len(order) == len(blocks):
            yield order
            return
        for block in counts:
            if counts[block]:
                counts[block] -= 1
                yield from extend((*order, block))
                counts[block] += 1

    yield from extend(())
