"""All that a rank would lose if it went: weights and optimizer state, box by box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from runtime.executor import Executor
from specs.boxes import Box

WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class StatePart:
    """A box of one kind of state of one tensor of the whole model.

    kind: `weight`, `master`, `exp_avg` or `exp_avg_sq`. shape: of the whole tensor. values: a view
    of what training uses, in the box's shape: writing to it changes the rank's state.
    """

    kind: str
    tensor: str
    shape: tuple[int, ...]
    box: Box
    values: Tensor

    @property
    def key(self) -> str:
        """The name that the whole of this state has in a checkpoint."""
        return f"{self.kind}.{self.tensor}"


def state_of(executor: Executor) -> list[StatePart]:
    """Every part of a rank's state; the optimizer's only once it has any."""
    parts = []
    for parameter, placement in executor.model.held().values():
        kinds = {WEIGHT: parameter.data} | executor.optimizer.state(parameter)
        for kind, values in kinds.items():
            view = values.view(placement.box.size)
            parts.append(StatePart(kind, placement.name, placement.shape, placement.box, view))
    return parts


def kept_parts(executor: Executor) -> Iterator[StatePart]:
    """The state that this rank writes for all that hold it: each element is written once."""
    rank = executor.place.rank
    keeps: dict[str, list[Box]] = {}
    for bucket in executor.gradients.buckets:
        for segment in bucket.segments:
            if segment.keeper == rank:
                keeps.setdefault(segment.tensor, []).append(segment.box)
    for part in state_of(executor):
        for box in keeps.get(part.tensor, []):
            view = part.values[box.within(part.box)]
            yield StatePart(part.kind, part.tensor, part.shape, box, view)
