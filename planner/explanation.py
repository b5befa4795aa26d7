"""Why a plan takes the time it takes: its parts, what limits it, what changes would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.answer import prediction_of
from planner.filled import FilledPlan
from planner.neighbours import Alternative, alternatives
from planner.packing import Demand, FreeGpus
from planner.passes import stage_passes
from planner.problem import Problem
from planner.simulate import simulate_1f1b
from specs.plan import Plan
from specs.units import human_bytes, human_ms

SHOWN = 5  # alternatives


@dataclass(frozen=True)
class Explanation:
    """What `arachne-plan explain` says beside the stage table.

    parts_ms: of the slowest template's iteration, adding up to the iteration time. simulated_ms:
    per template, 1F1B by the discrete-event simulator, beside the closed form. limits: in words.
    alternatives: the best neighbours of the plan, priced. refused: neighbours by reason.
    """

    parts_ms: dict[str, float]
    simulated_ms: tuple[float, ...]
    closed_form_ms: tuple[float, ...]
    limits: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    refused: dict[str, int]

    def to_json(self, iteration_ms: float) -> dict[str, Any]:
        """As `explain --json` prints it; loses_ms: what an alternative takes longer."""
        return {
            "parts_ms": self.parts_ms,
            "simulated_ms": list(self.simulated_ms),
            "closed_form_ms": list(self.closed_form_ms),
            "limits": list(self.limits),
            "alternatives": [
                {
                    "change": one.words,
                    "iteration_ms": one.iteration_ms,
                    "loses_ms": (one.iteration_ms or 0.0) - iteration_ms,
                }
                for one in self.alternatives
            ],
            "refused_alternatives": self.refused,
        }


def explain_plan(problem: Problem, plan: Plan) -> Explanation:
    """Parts, limits and neighbours of a priced plan. Raises ProfileMissing."""
    prediction = prediction_of(plan)
    filled = FilledPlan.of(plan).templates
    simulated = tuple(
        simulate_1f1b(stages, count).makespan_ms
        for stages, count in zip(
            stage_passes(problem, filled), prediction.micro_batches, strict=True
        )
    )
    free = FreeGpus.of(problem)
    kinds = [Demand(gpu, tp) for (gpu, tp), nodes in free.usable.items() if nodes]
    fitting: list[Alternative] = []
    refused: dict[str, int] = {}
    for one in alternatives(problem, filled, kinds):
        if one.iteration_ms is not None:
            fitting.append(one)
        elif one.refusal is not None:
            refused[one.refusal.reason] = refused.get(one.refusal.reason, 0) + 1
    fitting.sort(key=lambda one: one.iteration_ms or 0.0)
    return Explanation(
        parts_ms=iteration_parts(plan),
        simulated_ms=simulated,
        closed_form_ms=prediction.pipe_ms,
        limits=tuple(limits(plan)),
        alternatives=tuple(_distinct(fitting)[:SHOWN]),
        refused=dict(sorted(refused.items(), key=lambda item: -item[1])),
    )


def _distinct(found: Sequence[Alternative]) -> list[Alternative]:
    """One alternative of those that take exactly as long: mirrored changes are one change."""
    by_time: dict[float | None, Alternative] = {}
    for one in found:
        by_time.setdefault(one.iteration_ms, one)
    return list(by_time.values())


def slowest_stage(plan: Plan) -> tuple[int, int]:
    """Template and stage that set the pace: the slowest stage of the slowest template."""
    prediction = prediction_of(plan)
    k = max(range(len(plan.templates)), key=lambda k: prediction.pipe_ms[k])
    times = [stage.time_ms for stage in prediction.stages[k]]
    return k, times.index(max(times))


def iteration_parts(plan: Plan) -> dict[str, float]:
    """The iteration time in parts, in ms, along the slowest stage of the slowest template.

    M micro-batches on it in its parts, the fill of the pipeline (sum t - max t), then gradient
    synchronisation and update of the stage where they take longest. They add up to the iteration.
    """
    prediction = prediction_of(plan)
    k, s = slowest_stage(plan)
    stages, count = prediction.stages[k], prediction.micro_batches[k]
    stage = stages[s]
    last = max((one for row in prediction.stages for one in row), key=lambda one: one.once_ms)
    return {
        "compute": count * stage.compute_ms,
        "collectives": count * stage.comm_ms,
        "host": count * stage.host_ms,
        "transfers": count * stage.send_ms,
        "pipeline_fill": sum(one.time_ms for one in stages) - stage.time_ms,
        "gradient_sync": last.sync_ms,
        "update": last.update_ms,
    }


def limits(plan: Plan) -> list[str]:
    """What holds the plan back, largest first, in words."""
    prediction = prediction_of(plan)
    k, s = slowest_stage(plan)
    stage = plan.templates[k].stages[s]
    where = f"stage {s}" if len(plan.templates) == 1 else f"stage {s} of template {k}"
    parts = iteration_parts(plan)
    whole = prediction.iteration_ms
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    lines = [
        f"{where} ({stage.gpu}, tp={stage.tp}) sets the pace: "
        + ", ".join(
            f"{name.replace('_', ' ')} {value / whole:.0%}"
            for name, value in ranked
            if value / whole >= 0.005
        )
        + f" of {human_ms(whole)}"
    ]
    fullest = max(
        (
            (one.memory.total / one.memory.limit, k, s, one.memory)
            for k, row in enumerate(prediction.stages)
            for s, one in enumerate(row)
        ),
        key=lambda item: item[0],
    )
    share, k, s, memory = fullest
    lines.append(
        f"the fullest GPUs are those of stage {s} of template {k}: {share:.0%} of "
        f"{human_bytes(memory.limit)}"
        + (", so memory limits the split or the micro-batch there" if share > 0.9 else "")
    )
    return lines
