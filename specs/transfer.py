"""Which part of the training state each process sends to which when the plan changes.

Pure functions of layouts: every process computes the same moves and needs no word of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from specs.boxes import Box, Placement, atoms
from specs.layout import rank_placements, ranks_of
from specs.plan import Plan
from specs.workload import DType, Optimizer, Workload

Layout = dict[str, Placement]  # what one process holds, by the tensor's name in the whole model


@dataclass(frozen=True, slots=True)
class Move:
    """A box of a tensor that goes from one member to another; within a member it is a copy."""

    source: int
    target: int
    tensor: str
    box: Box


@dataclass(frozen=True)
class Transfer:
    """All moves, in one order for all members, and the boxes that nobody holds."""

    moves: tuple[Move, ...]
    missing: tuple[tuple[str, Box], ...]

    def received(self, members: int, element_bytes: int) -> tuple[int, ...]:
        """Bytes that each member gets from others, element_bytes of state an element."""
        found = [0] * members
        for move in self.moves:
            if move.source != move.target:
                found[move.target] += move.box.elements * element_bytes
        return tuple(found)


def layout_of(plan: Plan, rank: int) -> Layout:
    """What one rank of a plan holds."""
    place = ranks_of(plan)[rank]
    return {held.name: held for _, _, held in rank_placements(plan, place)}


def state_bytes(workload: Workload) -> int:
    """Bytes of weight and optimizer state of one element; gradients do not move.

    fp32 AdamW: weight 4 and two moments of 4. In 16 bits: weight 2, moments 8, and the fp32
    master 4 where there is one. SGD: the weight alone.
    """
    weight = 4 if workload.dtype is DType.FP32 else 2
    if workload.optimizer is Optimizer.SGD:
        return weight
    master = 4 if weight == 2 and workload.optimizer is Optimizer.ADAMW else 0
    return weight + master + 8


def transfer_between(before: Sequence[Layout | None], after: Sequence[Layout | None]) -> Transfer:
    """The moves that give every member what it holds after, from what they held before.

    before, after: by member; None: it has nothing, or is to have nothing. What a member has
    already it copies. All else comes from the member that has sent least so far (ties: the
    lowest), so that replicas share the sending.
    """
    holders: dict[str, list[tuple[int, Box]]] = defaultdict(list)
    wanted: dict[str, list[tuple[int, Box]]] = defaultdict(list)
    for layouts, by_tensor in ((before, holders), (after, wanted)):
        for member, layout in enumerate(layouts):
            for name, placement in (layout or {}).items():
                by_tensor[name].append((member, placement.box))
    sent = [0] * len(before)
    moves: list[Move] = []
    missing: list[tuple[str, Box]] = []
    for name in sorted(wanted):
        boxes = [box for _, box in (*holders[name], *wanted[name])]
        for part in atoms(boxes):
            have = [member for member, box in holders[name] if box.overlap(part) == part]
            want = [member for member, box in wanted[name] if box.overlap(part) == part]
            if want and not have:
                missing.append((name, part))
                continue
            for target in want:
                source = target
                if target not in have:
                    source = min(have, key=lambda member: (sent[member], member))
                    sent[source] += part.elements
                moves.append(Move(source, target, name, part))
    return Transfer(tuple(moves), tuple(missing))


def bytes_to_move(old: Plan, new: Plan) -> tuple[int, ...]:
    """Bytes that each rank of a new plan gets from others; devices are the same by node and number.

    What a rank's device holds already under the old plan does not move.
    """
    ranks = {(place.node, place.gpu): place.rank for place in ranks_of(new)}
    first = len(ranks)
    before: list[Layout | None] = [None] * first
    for place in ranks_of(old):
        layout = layout_of(old, place.rank)
        member = ranks.get((place.node, place.gpu))
        if member is None:
            before.append(layout)
        else:
            before[member] = layout
    after: list[Layout | None] = [layout_of(new, rank) for rank in range(first)]
    after += [None] * (len(before) - first)
    moved = transfer_between(before, after).received(len(before), state_bytes(new.workload))
    return moved[:first]


# Pauses of 27 M parameters on one host with workers warmed up were 1.1 to 1.5 s, their state went
# at 0.4 to 0.5 GB/s over loopback: where nothing else is known.
FIXED_PAUSE_MS = 1500.0
BYTES_PER_MS = 4e5


def pause_ms(
    received: Sequence[int],
    fixed_ms: float = FIXED_PAUSE_MS,
    bytes_per_ms: float = BYTES_PER_MS,
) -> float:
    """How long training stands while each rank gets so many bytes, in ms.

    fixed_ms + most bytes of a rank / bytes_per_ms: ranks receive at the same time, and the groups
    and layers of the new plan take the fixed part.
    """
    return fixed_ms + max(received, default=0) / bytes_per_ms
