"""What an elastic run tells of itself; the door writes it to the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from specs.measurement import StageTimes
from specs.plan import Plan


@dataclass(frozen=True, slots=True)
class TrainedIteration:
    """One iteration: ms of the slowest rank, the loss of the global batch, peak memory by rank.

    stages: what each stage took; none where a rank was lost before it could say.
    """

    number: int
    ms: float
    loss: float
    peak_bytes: tuple[int, ...]
    stages: tuple[StageTimes, ...]


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A change of plan that went well.

    phases_ms: plan (training goes on meanwhile, unless a process was lost), start (workers that
    had to be started while training stood), release, rebuild, transfer, build: the slowest
    member of each. pause_ms: from the last rank's last step to the first's next, by the
    controller's clock. origin: `memory`, `checkpoint` or `seed`. iteration: the first under the
    new plan.
    """

    event: str
    old: Plan | None
    new: Plan
    phases_ms: Mapping[str, float]
    pause_ms: float
    received_bytes: tuple[int, ...]
    origin: str
    iteration: int
    reason: str


class Journal(Protocol):
    """Hears of everything as it happens, in the controller's own thread."""

    def say(self, text: str) -> None:
        """A line for people: what happened, and what was decided."""

    def trained(self, plan: Plan, iteration: TrainedIteration) -> None:
        """One iteration of a plan is done."""

    def reshaped(self, change: Reshaped) -> None:
        """The plan has changed, or its processes have."""

    def declined(self, event: str, old: Plan, new: Plan, reason: str) -> None:
        """A plan was found and not taken."""
