"""What every planner is given as a ceiling, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner.problem import Problem
from specs.errors import PlanError
from specs.plan import Plan


class Status(StrEnum):
    """How a planner's search ended (DESIGN section 12)."""

    OK = "ok"
    NO_PLAN = "no plan"
    BUDGET = "budget"  # the budget ended the search before a plan was found
    UNSUPPORTED = "unsupported"  # this planner's method cannot answer such a problem


@dataclass(frozen=True, slots=True)
class Budget:
    """A ceiling on a search; a planner with a natural end stops there.

    seconds: wall clock; evaluations: priced plans (DESIGN section 13, 27); None = no ceiling.
    """

    seconds: float | None = None
    evaluations: int | None = None

    def __post_init__(self) -> None:
        if (self.seconds is not None and not self.seconds > 0) or (
            self.evaluations is not None and self.evaluations < 1
        ):
            raise PlanError(
                f"a budget is more than 0 seconds and at least 1 evaluation, got "
                f"{self.seconds} seconds and {self.evaluations} evaluations"
            )

    def less(self, seconds: float) -> Budget:
        """What is left after something else took so many seconds; at least half, to plan at all."""
        if self.seconds is None:
            return self
        return Budget(max(self.seconds - seconds, self.seconds / 2), self.evaluations)

    def spent(self, seconds: float, evaluations: int) -> bool:
        """Whether a search that took this much must stop."""
        return (self.seconds is not None and seconds >= self.seconds) or (
            self.evaluations is not None and evaluations >= self.evaluations
        )


@dataclass(frozen=True)
class PlanResult:
    """The answer of one planner.

    plan: priced, None where there is none. planning_s: wall clock of the search, without imports
    and compilation. rejected: candidates by reason. reason: why there is no plan, or what the
    search covered. curve: (evaluations, best iteration_ms so far), each time it got better.
    alternatives: the next best plans found, best first.
    """

    plan: Plan | None
    planning_s: float
    evaluations: int
    rejected: Mapping[str, int]
    status: Status
    reason: str = ""
    curve: tuple[tuple[int, float], ...] = ()
    alternatives: tuple[Plan, ...] = field(default=(), repr=False)


Planner = Callable[[Problem, Budget, int], PlanResult]
