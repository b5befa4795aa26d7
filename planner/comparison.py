"""Several planners on one question: run them, store what they say, lay it side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.answer import figures
from planner.baselines import planner_named
from planner.evaluate import with_bound
from planner.problem import Problem
from planner.result import Budget, PlanResult

if TYPE_CHECKING:
    from db.store import Store

COLUMNS = (
    "planner",
    "status",
    "iteration_s",
    "samples_per_s",
    "relative_to_best",
    "search_s",
    "evaluations",
    "gpus_used",
    "depth",
    "templates",
    "fits",
    "plan_id",
    "reason",
)


@dataclass(frozen=True)
class Answer:
    """What one planner said, and the id its plan is stored under."""

    planner: str
    result: PlanResult
    plan_id: int | None


def run_planner(
    store: Store,
    comparison: int,
    problem: Problem,
    name: str,
    budget: Budget,
    seed: int,
    options: Mapping[str, Any],
    bound_ms: float | None = None,
) -> Answer:
    """Let one planner search, and store its plan, its row and its curve at once.

    options: what the plan is stored with. bound_ms: the certificate, to stand in its prediction.
    """
    from db.records import ComparisonRow, CurvePoint, SearchCurve

    result = planner_named(name)(problem, budget, seed)
    plan_id = None
    if result.plan is not None:
        plan = with_bound(result.plan, bound_ms)
        result = replace(result, plan=plan)
        plan_id = store.add_plan(
            plan,
            planning_s=result.planning_s,
            evaluations=result.evaluations,
            rejected=result.rejected,
            options=options,
        )
    prediction = result.plan.prediction if result.plan else None
    store.add_comparison_row(
        comparison,
        ComparisonRow(
            planner=name,
            plan_id=plan_id,
            status=result.status.value,
            reason=result.reason,
            iteration_ms=prediction.iteration_ms if prediction else None,
            search_s=result.planning_s,
            evaluations=result.evaluations,
            rejected=dict(result.rejected),
        ),
    )
    if result.curve:
        points = tuple(CurvePoint(evaluations, best) for evaluations, best in result.curve)
        store.add_search_curve(comparison, SearchCurve(name, points, seed))
    return Answer(name, result, plan_id)


def comparison_rows(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """One row per planner, in the order asked.

    relative_to_best: the best plan's iteration time over this one's, so 1 for the best and less
    for slower plans; None without a plan.
    """
    times = [
        answer.result.plan.prediction.iteration_ms
        for answer in answers
        if answer.result.plan is not None and answer.result.plan.prediction is not None
    ]
    rows = []
    for answer in answers:
        result = answer.result
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        if result.plan is not None:
            row |= figures(result.plan)
            row["relative_to_best"] = min(times) / 1000 / row["iteration_s"]
        row |= {
            "planner": answer.planner,
            "plan_id": answer.plan_id,
            "status": result.status.value,
            "reason": result.reason,
            "search_s": result.planning_s,
            "evaluations": result.evaluations,
            "rejected": dict(result.rejected),
        }
        rows.append(row)
    return rows
