"""GPUs that a plan leaves idle, by name, with the reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

from planner.cost import price
from planner.fill.template import fill_template
from planner.filled import FilledPlan
from planner.packing import Demand, FreeGpus, replicas_by_counting
from planner.problem import Problem
from specs.plan import Plan
from specs.units import human_bytes, human_ms

MOST_STAGES = 4  # of a template tried on what is left over
MOST_TRIALS = 200


@dataclass(frozen=True)
class IdleGpus:
    """GPUs of one type that a plan does not use, and what using them would do."""

    gpu: str
    nodes: dict[str, int]  # node name -> idle GPUs
    reason: str

    def __str__(self) -> str:
        names = [f"{name} ({count})" for name, count in self.nodes.items()]
        more = f" and {len(names) - 6} more nodes" if len(names) > 6 else ""
        return (
            f"{sum(self.nodes.values())} {self.gpu} on {', '.join(names[:6])}{more}: {self.reason}"
        )

    def to_json(self) -> dict[str, Any]:
        """As it stands in the answer of `arachne-plan plan --json`."""
        return {"gpu": self.gpu, "nodes": self.nodes, "reason": self.reason}


def idle_reasons(problem: Problem, plan: Plan) -> list[IdleGpus]:
    """Per GPU type with idle GPUs: which, and why the plan is better without them.

    The reason is found by trying: templates of up to four stages of the idle types on what is
    left are filled beside the plan, and the best one tells what using them costs.
    """
    filled = FilledPlan.of(plan)
    nodes = problem.cluster.nodes
    idle: dict[str, dict[str, int]] = {}
    for i, node in enumerate(nodes):
        left = node.gpus - filled.used[i]
        if left:
            idle.setdefault(node.gpu, {})[node.name] = left
    return [IdleGpus(gpu, on, _reason(problem, plan, filled, gpu)) for gpu, on in idle.items()]


def _reason(problem: Problem, plan: Plan, filled: FilledPlan, gpu: str) -> str:
    free = FreeGpus.of(problem, filled.used)
    kinds = [
        Demand(kind, tp)
        for kind, tp in free.usable
        if any(free.free[i] >= tp for i in free.usable[kind, tp])
    ]
    best = float("inf")
    refusals: Counter[str] = Counter()
    closest = float("inf")
    trials = 0
    for depth in range(1, MOST_STAGES + 1):
        for structure in combinations_with_replacement(kinds, depth):
            if all(demand.gpu != gpu for demand in structure):
                continue
            if trials >= MOST_TRIALS or replicas_by_counting(free, structure) < 1:
                continue
            trials += 1
            fill = fill_template(problem, structure, filled.templates)
            if fill.best is not None:
                best = min(best, fill.best[1].iteration_ms)
            refusals.update(refusal.reason for refusal in fill.refusals)
            over = [refusal.over_bytes for refusal in fill.refusals if refusal.over_bytes]
            closest = min([closest, *over])
    now = price(problem, plan).iteration_ms
    if best < float("inf"):
        worse = best - now
        if worse >= 0:
            return (
                f"a straggler costs more than it adds: the best further template on them makes "
                f"the iteration {human_ms(worse)} longer"
            )
        return f"a further template on them would save {human_ms(-worse)}: search longer"
    if not trials:
        return "no profiled TP degree packs on what is left"
    by = f"; the closest lacks {human_bytes(closest)}" if closest < float("inf") else ""
    return f"no further template fits on them ({refusals.most_common(1)[0][0]}{by})"
