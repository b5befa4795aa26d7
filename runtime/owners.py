"""Who adds up which gradients: atoms of tensors and the ranks that own them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from specs.boxes import Box, Placement, Tag, atoms
from specs.layout import rank_placements, ranks_of
from specs.plan import Plan


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a tensor that all owners of a bucket hold, or a part of it.

    scale: what a rank's gradient counts for in the sum (a gradient that t ranks of a group
    hold alike counts 1/t on each). copies: how many ranks of the plan hold the segment in all.
    keeper: the lowest of them, which writes it to checkpoints.
    """

    tensor: str
    box: Box
    scale: float
    copies: int
    keeper: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Segments with one owner set: one all-reduce among `owners`, none where that is one rank."""

    owners: tuple[int, ...]
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class _Holder:
    rank: int
    tp_rank: int
    group: tuple[int, int, int]  # template, replica, stage: its tensor-parallel group
    placement: Placement


class Ownership:
    """The owner sets of a plan, the same on every rank because each computes them from the plan.

    sets: every set of two or more ranks, sorted: the order in which ranks form groups, and in which
    each reduces its buckets. One order for all cannot deadlock: of all the buckets still to do,
    the first has all its owners waiting for it or on the way to it.
    """

    def __init__(self, plan: Plan) -> None:
        holders: dict[str, list[_Holder]] = defaultdict(list)
        for place in ranks_of(plan):
            group = (place.template, place.replica, place.stage)
            for _, _, held in rank_placements(plan, place):
                holders[held.name].append(_Holder(place.rank, place.tp_rank, group, held))
        self._segments: dict[tuple[int, ...], list[tuple[Segment, dict[int, float]]]]
        self._segments = defaultdict(list)
        for name in sorted(holders):
            for atom in atoms([holder.placement.box for holder in holders[name]]):
                self._add(name, atom, [h for h in holders[name] if _holds(h, atom)])
        self.sets = tuple(sorted(owners for owners in self._segments if len(owners) > 1))

    def _add(self, name: str, atom: Box, own: list[_Holder]) -> None:
        keeper = min(holder.rank for holder in own)
        per_group = Counter(holder.group for holder in own)
        alike = all(holder.placement.tag is Tag.REPLICATED for holder in own)
        if alike and len(set(per_group.values())) == 1:
            # Every group has as many ranks with the same gradient: rank j adds up with the
            # ranks j alone, as it does for its shards, and nothing is counted twice.
            lanes: dict[int, list[int]] = defaultdict(list)
            for holder in own:
                lanes[holder.tp_rank].append(holder.rank)
            for ranks in lanes.values():
                segment = Segment(name, atom, 1.0, len(own), keeper)
                self._segments[tuple(sorted(ranks))].append((segment, {}))
            return
        scales = {
            holder.rank: 1.0 / per_group[holder.group]
            for holder in own
            if holder.placement.tag is Tag.REPLICATED
        }
        owners = tuple(sorted(holder.rank for holder in own))
        self._segments[owners].append((Segment(name, atom, 1.0, len(own), keeper), scales))

    def buckets(self, rank: int) -> tuple[Bucket, ...]:
        """The buckets of one rank, sorted by owners; all owners have the same segments in each."""
        return tuple(
            Bucket(
                owners,
                tuple(
                    Segment(s.tensor, s.box, scales.get(rank, 1.0), s.copies, s.keeper)
                    for s, scales in self._segments[owners]
                ),
            )
            for owners in sorted(self._segments)
            if rank in owners
        )


def _holds(holder: _Holder, atom: Box) -> bool:
    return holder.placement.box.overlap(atom) == atom
