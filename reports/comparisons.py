"""Planners asked the same question: one row per answer, with where its plan lies in the space."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.comparison import layout
from reports.accuracy import gpus_held, layout_label
from specs.errors import ProfileMissing
from specs.gpu import GPU_TYPES
from specs.profile import Source

if TYPE_CHECKING:
    from datetime import datetime

    from db.records import ComparisonRow, CurvePoint, StoredComparison, StoredCurve, StoredPlan
    from db.store import Store
    from planner.backdrop import RandomPlan


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """What one planner answered to one question.

    table: of its suite. iteration_ms: by the one cost model, None without a plan. relative:
    throughput over that of the best planner of the same question, 1 for the best, None for a plan
    that does not fit. depth: stages of the deepest template. mix: GPU types that the plan holds,
    with counts. fastest_type: of the cluster, by datasheet; fastest_share: of the plan's GPUs that
    are of it. stages: (type, TP) of every stage.
    """

    comparison_id: int
    question: str
    suite: str
    table: str
    model: str
    cluster: str
    gpus: int
    created: datetime
    planner: str
    status: str
    reason: str
    iteration_ms: float | None
    samples_per_s: float | None
    relative: float | None
    search_s: float
    evaluations: int
    rejected: Mapping[str, int]
    plan_id: int | None
    depth: int | None
    templates: int | None
    mix: str
    fastest_type: str
    fastest_share: float | None
    layout: str
    gpus_used: int | None
    gpus_idle: int | None
    fits: bool
    stages: str


@dataclass(frozen=True, slots=True)
class Growth:
    """Questions of one table whose clusters hold one another, smallest first.

    types: GPU types of each cluster, where every next one has more types; None where nodes join.
    """

    name: str
    comparisons: tuple[int, ...]
    gpus: tuple[int, ...]
    types: tuple[int, ...] | None


@dataclass(frozen=True)
class Comparisons:
    """All answers in the store, by comparison in the order they came, and the search curves.

    backdrop: priced random plans of questions, by comparison.
    """

    answers: tuple[AnswerRow, ...]
    curves: tuple[StoredCurve, ...]
    questions: dict[int, str]
    growths: tuple[Growth, ...] = ()
    backdrop: Mapping[int, Sequence[RandomPlan]] = field(default_factory=dict)


def read_comparisons(store: Store) -> Comparisons:
    """Every stored comparison."""
    found = store.comparisons()
    wanted = {row.plan_id for one in found for row in one.rows if row.plan_id is not None}
    plans = {plan.id: plan for plan in store.plans() if plan.id in wanted} if wanted else {}
    questions = question_names(found)
    answers = [row for one in found for row in answer_rows(one, questions[one.id], plans)]
    return Comparisons(
        tuple(answers), tuple(store.search_curves()), questions, tuple(growths_of(found))
    )


def growths_of(comparisons: Sequence[StoredComparison]) -> list[Growth]:
    """Tables of suites in which every cluster begins with the nodes of the one before it.

    Of questions that were asked more than once the newest counts.
    """
    tables: dict[tuple[str, str, str], dict[str, StoredComparison]] = defaultdict(dict)
    for one in comparisons:
        asked = one.comparison
        if asked.suite:
            key = (asked.suite, str(asked.options.get("table", "")), asked.model.name)
            tables[key][asked.cluster.name] = one
    found = []
    for (suite, table, model), by_cluster in tables.items():
        rows = sorted(by_cluster.values(), key=lambda one: one.comparison.cluster.gpus)
        clusters = [one.comparison.cluster for one in rows]
        nested = all(b.nodes[: len(a.nodes)] == a.nodes for a, b in pairwise(clusters))
        if len(rows) < 2 or not nested:
            continue
        types = tuple(len(cluster.gpus_by_type) for cluster in clusters)
        found.append(
            Growth(
                f"{suite}, {table}: {model}" if table else f"{suite}: {model}",
                tuple(one.id for one in rows),
                tuple(cluster.gpus for cluster in clusters),
                types if all(a < b for a, b in pairwise(types)) else None,
            )
        )
    return found


def with_backdrop(store: Store, found: Comparisons, count: int, seed: int = 0) -> Comparisons:
    """The same with up to `count` priced random plans behind every question.

    Questions whose profiles the store no longer holds get none.
    """
    from planner.backdrop import random_plans
    from planner.problem import Problem
    from planner.profiles import load_profiles

    backdrop = {}
    for one in store.comparisons():
        asked = one.comparison
        source = asked.options.get("source")
        try:
            profiles = load_profiles(
                store,
                asked.model,
                asked.workload,
                asked.cluster,
                source=Source(source) if source else None,
            )
            headroom = float(asked.options.get("headroom", 0.05))
            tiling = bool(asked.options.get("expert_tiling", True))
            problem = Problem(
                asked.model, asked.workload, asked.cluster, profiles, headroom, tiling
            )
            backdrop[one.id] = random_plans(problem, count, seed)
        except ProfileMissing:
            continue
    return replace(found, backdrop=backdrop)


def question_names(comparisons: Sequence[StoredComparison]) -> dict[int, str]:
    """A name for every question; where two would have the same, the id stands behind it."""
    names = {
        one.id: f"{one.comparison.model.name} on {one.comparison.cluster.name} "
        f"({one.comparison.cluster.gpus} GPUs)"
        for one in comparisons
    }
    counts: dict[str, int] = defaultdict(int)
    for name in names.values():
        counts[name] += 1
    return {i: f"{name} #{i}" if counts[name] > 1 else name for i, name in names.items()}


def answer_rows(
    stored: StoredComparison, question: str, plans: Mapping[int, StoredPlan]
) -> list[AnswerRow]:
    """The rows of one comparison."""
    asked = stored.comparison
    times = [row.iteration_ms for row in stored.rows if row.iteration_ms and _fits(row, plans)]
    best = min(times, default=None)
    fastest = fastest_type(asked.cluster.gpus_by_type)
    rows = []
    for row in stored.rows:
        stored_plan = plans.get(row.plan_id) if row.plan_id is not None else None
        plan = stored_plan.plan if stored_plan else None
        time = row.iteration_ms or None
        fits = time is not None and _fits(row, plans)
        rows.append(
            AnswerRow(
                comparison_id=stored.id,
                question=question,
                suite=asked.suite,
                table=str(asked.options.get("table", "")),
                model=asked.model.name,
                cluster=asked.cluster.name,
                gpus=asked.cluster.gpus,
                created=stored.created,
                planner=row.planner,
                status=row.status,
                reason=row.reason,
                iteration_ms=time,
                samples_per_s=1000 * asked.workload.global_batch / time if time else None,
                relative=best / time if fits and time and best else None,
                search_s=row.search_s,
                evaluations=row.evaluations,
                rejected=dict(row.rejected),
                plan_id=row.plan_id,
                depth=max(t.depth for t in plan.templates) if plan else None,
                templates=len(plan.templates) if plan else None,
                mix=" + ".join(f"{n} × {gpu}" for gpu, n in gpus_held(plan)) if plan else "",
                fastest_type=fastest,
                fastest_share=share_of(fastest, gpus_held(plan)) if plan else None,
                layout=layout_label(plan) if plan else "",
                gpus_used=plan.gpus_used if plan else None,
                gpus_idle=sum(plan.idle_gpus.values()) if plan else None,
                fits=fits,
                stages=layout(plan) if plan else "",
            )
        )
    return rows


def fastest_type(types: Iterable[str]) -> str:
    """The type with the highest dense 16-bit TFLOP/s of its datasheet; the first without any."""

    def rate(name: str) -> float:
        sheet = GPU_TYPES[name].datasheet if name in GPU_TYPES else None
        return sheet.tflops if sheet else 0.0

    return max(types, key=rate)


def share_of(gpu: str, held: Sequence[tuple[str, int]]) -> float:
    """The share of the GPUs held that are of a type: one number for the mix of a plan."""
    return dict(held).get(gpu, 0) / sum(count for _, count in held)


def _fits(row: ComparisonRow, plans: Mapping[int, StoredPlan]) -> bool:
    """Whether a row's plan fits; a plan that is not there any more is believed."""
    stored = plans.get(row.plan_id) if row.plan_id is not None else None
    return stored is None or stored.status != "does not fit"


@dataclass(frozen=True, slots=True)
class PlannerSummary:
    """One planner over all questions. wins: where nobody was faster, by 0.1 % or more."""

    planner: str
    questions: int
    answered: int
    wins: int
    median_relative_percent: float | None
    worst_relative_percent: float | None
    median_search_s: float | None
    evaluations: int


def by_planner(answers: Sequence[AnswerRow]) -> list[PlannerSummary]:
    """A line per planner, most wins first."""
    groups: dict[str, list[AnswerRow]] = defaultdict(list)
    for row in answers:
        groups[row.planner].append(row)
    found = []
    for planner, rows in groups.items():
        shares = [100 * row.relative for row in rows if row.relative is not None]
        searches = [row.search_s for row in rows if row.status != "unsupported"]
        found.append(
            PlannerSummary(
                planner=planner,
                questions=len(rows),
                answered=len(shares),
                wins=sum(share > 99.9 for share in shares),
                median_relative_percent=statistics.median(shares) if shares else None,
                worst_relative_percent=min(shares, default=None),
                median_search_s=statistics.median(searches) if searches else None,
                evaluations=sum(row.evaluations for row in rows),
            )
        )
    return sorted(found, key=lambda s: (-s.wins, -(s.median_relative_percent or 0), s.planner))


def median_curve(curves: Sequence[Sequence[CurvePoint]]) -> list[tuple[int, float]]:
    """The median over seeds of best-so-far, at every evaluation count at which one got better.

    A seed counts from its first plan on; before all have one, the median is over those that do.
    """
    counts = sorted({point.evaluations for curve in curves for point in curve})
    found = []
    for count in counts:
        bests = []
        for curve in curves:
            reached = [
                point.best_iteration_ms
                for point in curve
                if point.evaluations <= count and point.best_iteration_ms is not None
            ]
            if reached:
                bests.append(min(reached))
        if bests:
            found.append((count, statistics.median(bests)))
    return found
