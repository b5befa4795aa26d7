"""What every search keeps: time, evaluations, rejections by reason, the best plans so far."""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from planner.assemble import assemble
from planner.filled import FilledTemplate
from planner.problem import Problem
from planner.refusal import Refusal
from planner.result import Budget, PlanResult, Status
from specs.layer import LayerKind
from specs.units import human_bytes
from specs.workload import Recompute

log = logging.getLogger(__name__)

SHOWN_EVERY_S = 0.25
KEPT = 4  # plans a search hands back: the best and the next best alternatives


@dataclass(order=True)
class _Kept:
    negative_ms: float
    number: int
    templates: tuple[FilledTemplate, ...] = field(compare=False)


@dataclass
class Search:
    """The running account of one search; give it every candidate."""

    problem: Problem
    planner: str
    budget: Budget
    started: float = field(default_factory=time.perf_counter)
    evaluations: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    closest: Refusal | None = None
    best_ms: float = float("inf")
    curve: list[tuple[int, float]] = field(default_factory=list)
    _kept: list[_Kept] = field(default_factory=list)
    _shown: float = 0.0
    _seen: set[tuple[FilledTemplate, ...]] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """Wall clock since the search began."""
        return time.perf_counter() - self.started

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.budget.spent(self.seconds, self.evaluations)

    def count(self, evaluations: int, refusals: Iterable[Refusal]) -> None:
        """Count candidates and why some were refused."""
        self.evaluations += evaluations
        watcher = WATCHER.get()
        if watcher is not None and self.seconds - self._shown > SHOWN_EVERY_S:
            self._shown = self.seconds
            watcher(self)
        for refusal in refusals:
            self.rejected[refusal.reason] += 1
            if refusal.over_bytes and (
                self.closest is None or refusal.over_bytes < self.closest.over_bytes
            ):
                self.closest = refusal

    def absorb(
        self, evaluations: int, rejected: Mapping[str, int], closest: Refusal | None
    ) -> None:
        """Take over totals that something else has counted since the search began."""
        self.rejected = Counter(rejected)
        self.closest = closest
        self.count(evaluations - self.evaluations, ())

    def offer(self, iteration_ms: float, templates: Sequence[FilledTemplate]) -> bool:
        """Show a plan that fits; whether it is the best so far."""
        plan = tuple(templates)
        if len(self._kept) == KEPT and -self._kept[0].negative_ms <= iteration_ms:
            return False
        if plan in self._seen:
            return False
        self._seen.add(plan)
        # A heap by negative time: the worst of the kept lies on top.
        heapq.heappush(self._kept, _Kept(-iteration_ms, -len(self._seen), plan))
        if len(self._kept) > KEPT:
            heapq.heappop(self._kept)
        if iteration_ms >= self.best_ms:
            return False
        self.best_ms = iteration_ms
        self.curve.append((self.evaluations, iteration_ms))
        log.debug("%s: %.1f ms after %d evaluations", self.planner, iteration_ms, self.evaluations)
        return True

    def result(self, *, reason: str, finished: bool) -> PlanResult:
        """The answer. reason: what the search covered; finished: it ended by itself."""
        took = self.seconds
        ranked = sorted(self._kept, reverse=True)
        plans = [assemble(self.problem, kept.templates, self.planner) for kept in ranked]
        if plans:
            status = Status.OK
        else:
            status = Status.NO_PLAN if finished else Status.BUDGET
            reason = f"{self.why_none()}; {reason}"
        return PlanResult(
            plan=plans[0] if plans else None,
            planning_s=took,
            evaluations=self.evaluations,
            rejected=dict(self.rejected.most_common()),
            status=status,
            reason=reason,
            curve=tuple(self.curve),
            alternatives=tuple(plans[1:]),
        )

    def why_none(self) -> str:
        """Why there is no plan, with the nearest thing that would make one possible."""
        if not self.rejected:
            return "no plan: nothing was tried"
        reason, count = self.rejected.most_common(1)[0]
        line = f"no plan: {count:,} of {self.evaluations:,} candidates refused for {reason}"
        if self.closest is not None:
            over = self.closest.over_bytes
            line += (
                f"; the closest one lacks {human_bytes(over)} ({self.closest.reason}) at least: "
                f"try {self._more_memory(over)}"
            )
        return line

    def _more_memory(self, over_bytes: float) -> str:
        """What could give so much more memory to a stage, in words for the user."""
        ways = ["more GPUs or larger ones"]
        moe = any(layer.kind is LayerKind.MOE_BLOCK for layer in self.problem.model.layer_types)
        if moe and not self.problem.expert_tiling:
            ways.insert(0, "expert tiling, without --no-expert-tiling,")
        if self.problem.workload.recompute is Recompute.NONE:
            ways.append("--recompute full")
        usable = max((h.usable_bytes for h in self.problem.profiles.hosts.values()), default=0)
        if over_bytes < self.problem.headroom * usable:
            ways.append("a smaller --headroom")
        return " or ".join(ways)


WATCHER: ContextVar[Callable[[Search], None] | None] = ContextVar("WATCHER", default=None)
"""Who is shown how a search goes; a door sets it, planners need not know."""
