"""Several planners on one question: run them, store what they say, lay it side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from planner.answer import figures
from planner.cost import price
from planner.curves import curves_of, whole_curve
from planner.evaluate import with_bound
from planner.problem import Problem
from planner.race import Race, Task
from planner.result import Budget, PlanResult, Status
from specs.errors import PlanError, ProfileMissing
from specs.layer import LayerKind
from specs.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from db.records import ComparisonRow, NewComparison, StoredComparison
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
    "gpus_idle",
    "depth",
    "templates",
    "fits",
    "stages",
    "refused",
    "plan_id",
    "reason",
)

# Planners whose templates our own fill completes, expert tiling with the rest.
OWN_FILL = frozenset({"arachne", "annealing", "exhaustive", "hetauto", "random"})
UNTILED = "untiled"  # planned without the expert dimension
RETILED = "retiled"  # the planner's own layout, its experts tiled by our fill


@dataclass(frozen=True)
class Answer:
    """What one planner said, and the id its plan is stored under.

    planner: its label, `metis`, `metis (retiled)` or `arachne (untiled)`.
    """

    planner: str
    result: PlanResult
    plan_id: int | None


@dataclass(frozen=True)
class Contest:
    """One question, who is asked, and by which rules.

    untiled: planners that also plan without the expert dimension. retile: whether the plans of
    planners that do not tile experts get our tiling as well. options: what plans are stored with.
    """

    title: str
    problem: Problem
    planners: tuple[str, ...]
    budget: Budget
    seed: int = 0
    suite: str = ""
    origin: str = "arachne-plan compare"
    untiled: tuple[str, ...] = ()
    retile: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> NewComparison:
        """The question as stored; what must be equal for `--resume` to go on with it."""
        from db.records import NewComparison

        return NewComparison(
            title=self.title,
            model=self.problem.model,
            workload=self.problem.workload,
            cluster=self.problem.cluster,
            suite=self.suite,
            origin=self.origin,
            options={
                **self.options,
                "budget_s": self.budget.seconds,
            },
        )

    @property
    def has_experts(self) -> bool:
        """Whether there is anything to tile."""
        return any(t.kind is LayerKind.MOE_BLOCK for t in self.problem.model.layer_types)

    def tasks(self) -> list[Task]:
        """A search per row, in the order of the rows; re-tiling follows its search."""
        tasks = []
        for name in self.planners:
            tasks.append(Task(name, name, self.problem, self.budget, self.seed))
            if name in self.untiled and self.has_experts:
                problem = replace(self.problem, expert_tiling=False)
                tasks.append(Task(labelled(name, UNTILED), name, problem, self.budget, self.seed))
        return tasks

    def retiling(self, label: str, plan: Plan | None) -> Task | None:
        """The task that tiles this answer's plan; None where there is nothing to do."""
        name, variant = planner_and_variant(label)
        if not self.retile or variant or plan is None or name in OWN_FILL or not self.has_experts:
            return None
        again = labelled(name, RETILED)
        return Task(again, name, self.problem, self.budget, self.seed, retile=plan)


def labelled(planner: str, variant: str) -> str:
    """How a row names a planner that was asked in another way."""
    return f"{planner} ({variant})"


def planner_and_variant(label: str) -> tuple[str, str]:
    """`metis (retiled)` -> metis, retiled; a plain name has no variant."""
    name, _, rest = label.partition(" (")
    return name, rest.removesuffix(")")


def run_contest(
    store: Store,
    race: Race,
    contest: Contest,
    bound_ms: float | None = None,
    *,
    resume: bool = False,
    said: Callable[[Answer], None] | None = None,
) -> tuple[int, list[Answer]]:
    """Ask all planners, store each answer as it comes; the comparison's id and its rows in order.

    resume: go on with the newest comparison of the same question, and ask only for the rows that
    it lacks, or whose plan the profiles of today price otherwise. bound_ms: the certificate, to
    stand in predictions. said: is told each new answer.
    """
    question = contest.question
    old = store.find_comparison(question) if resume else None
    comparison = old.id if old else store.add_comparison(question)
    kept = stored_answers(store, old) if old else []
    answers = {one.planner: one for one in kept if _still_so(contest.problem, one)}
    tasks = contest.tasks()
    order = []
    for task in tasks:
        name, variant = planner_and_variant(task.label)
        order += [task.label] if variant else [task.label, labelled(name, RETILED)]
    missing = [task for task in tasks if task.label not in answers]
    for task in tasks:
        if task.label in answers and labelled(task.planner, RETILED) not in answers:
            more = contest.retiling(task.label, answers[task.label].result.plan)
            missing += [more] if more else []
    for task, result in race.run(missing):
        answer = _store_answer(store, comparison, contest, task, result, bound_ms)
        answers[task.label] = answer
        more = contest.retiling(task.label, answer.result.plan)
        if more is not None:
            race.add(more)
        if said is not None:
            said(answer)
    return comparison, [answers[label] for label in order if label in answers]


def run_curves(
    store: Store, race: Race, contest: Contest, comparison: int, *, resume: bool = False
) -> dict[str, int]:
    """Follow searches by plans priced and store their curves; how many of each planner.

    Those of the contest's planners that planner/curves.py lists, to their ceilings or the budget's
    seconds. resume: curves that reach their ceiling stay.
    """
    from db.records import CurvePoint, SearchCurve

    reached = {
        (one.curve.planner, one.curve.seed): one.curve.points[-1].evaluations
        for one in store.search_curves(comparison)
    }
    tasks = [
        Task(
            f"{one.planner}, curve {seed}",
            one.planner,
            contest.problem,
            Budget(contest.budget.seconds, one.evaluations),
            seed,
            curve=True,
        )
        for one in curves_of(list(contest.planners))
        for seed in range(contest.seed, contest.seed + one.seeds)
        if not resume or reached.get((one.planner, seed), 0) < one.evaluations
    ]
    counts: dict[str, int] = {}
    for task, result in race.run(tasks):
        points = tuple(CurvePoint(count, best) for count, best in whole_curve(result))
        if points:
            store.add_search_curve(comparison, SearchCurve(task.planner, points, task.seed))
            counts[task.planner] = counts.get(task.planner, 0) + 1
    return counts


def _store_answer(
    store: Store,
    comparison: int,
    contest: Contest,
    task: Task,
    result: PlanResult,
    bound_ms: float | None,
) -> Answer:
    from db.records import ComparisonRow, CurvePoint, SearchCurve

    _, variant = planner_and_variant(task.label)
    plan_id = None
    if result.plan is not None:
        plan = with_bound(result.plan, bound_ms)
        result = replace(result, plan=plan)
        options = dict(contest.options)
        if variant:
            options["variant"] = variant
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
            planner=task.label,
            plan_id=plan_id,
            status=result.status.value,
            reason=result.reason,
            iteration_ms=prediction.iteration_ms if prediction else None,
            search_s=result.planning_s,
            evaluations=result.evaluations,
            rejected=dict(result.rejected),
        ),
    )
    points = tuple(CurvePoint(count, best) for count, best in whole_curve(result))
    if points:
        store.add_search_curve(comparison, SearchCurve(task.label, points, task.seed))
    return Answer(task.label, result, plan_id)


def stored_answers(store: Store, stored: StoredComparison) -> list[Answer]:
    """The answers of a comparison that was made before, with their plans."""
    return [_stored_answer(store, row) for row in stored.rows]


def _stored_answer(store: Store, row: ComparisonRow) -> Answer:
    plan = store.plan(row.plan_id).plan if row.plan_id is not None else None
    result = PlanResult(
        plan, row.search_s, row.evaluations, row.rejected, Status(row.status), row.reason
    )
    return Answer(row.planner, result, row.plan_id)


def _still_so(problem: Problem, answer: Answer) -> bool:
    """Whether the profiles of today price an answer's plan as it was priced; True without a plan.

    The runs that they are from may be others: an estimate for a larger cluster holds the same rows.
    """
    plan = answer.result.plan
    if plan is None or plan.prediction is None:
        return True
    try:
        now = price(problem, plan).iteration_ms
    except (PlanError, ProfileMissing):
        return False
    return math.isclose(now, plan.prediction.iteration_ms, rel_tol=1e-9)


def counts(answer: Answer) -> bool:
    """Whether an answer is a plan to be ranked: priced, and in memory."""
    plan = answer.result.plan
    return plan is not None and plan.prediction is not None and plan.prediction.fits


def comparison_rows(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """One row per planner, in the order asked.

    relative_to_best: the best fitting plan's iteration time over this one's, so 1 for the best and
    less for slower plans; None without a plan that fits. refused: candidates refused, of all
    reasons. stages: `layout`.
    """
    times = [
        answer.result.plan.prediction.iteration_ms
        for answer in answers
        if counts(answer)
        and answer.result.plan is not None
        and answer.result.plan.prediction is not None
    ]
    rows = []
    for answer in answers:
        result = answer.result
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        if result.plan is not None:
            row |= figures(result.plan)
            row["gpus_idle"] = sum(result.plan.idle_gpus.values())
            row["idle_gpus"] = dict(result.plan.idle_gpus)
            row["stages"] = layout(result.plan)
            if counts(answer):
                row["relative_to_best"] = min(times) / 1000 / row["iteration_s"]
        row |= {
            "planner": answer.planner,
            "plan_id": answer.plan_id,
            "status": result.status.value,
            "reason": result.reason,
            "search_s": result.planning_s,
            "evaluations": result.evaluations,
            "refused": sum(result.rejected.values()),
            "rejected": dict(result.rejected),
        }
        rows.append(row)
    return rows


def layout(plan: Plan) -> str:
    """The (type, TP) of every stage: `8 x [2 a6000:1, h100:2] + 4 x [a100-40gb:4]`.

    Before the bracket the replicas of a template, in it its stages in order, a count before equal
    neighbours; `:2e4x1` is TP 2 with experts tiled EP 4, ETP 1.
    """
    parts = []
    for template in plan.templates:
        runs: list[tuple[str, int]] = []
        for stage in template.stages:
            name = f"{stage.gpu}:{stage.tp}"
            if stage.ep * stage.etp > 1:
                name += f"e{stage.ep}x{stage.etp}"
            if runs and runs[-1][0] == name:
                runs[-1] = name, runs[-1][1] + 1
            else:
                runs.append((name, 1))
        stages = ", ".join(f"{count} {name}" if count > 1 else name for name, count in runs)
        parts.append(f"{len(template.replicas)} x [{stages}]")
    return " + ".join(parts)
