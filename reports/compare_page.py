"""The comparison page: throughput, search time and search efficiency of the planners."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.published import Beside, Said, beside, published
from reports import words
from reports.comparisons import AnswerRow, Comparisons, by_planner, median_curve, share_of
from reports.figures import Figure, Table, significant
from reports.growth_figures import growth_figures
from reports.packed import packed_table
from reports.page import Page, Provenance

if TYPE_CHECKING:
    from db.records import CurvePoint, StoredCurve

_COLUMNS = (
    *("comparison_id", "question", "suite", "table", "model", "cluster", "gpus", "planner"),
    *("status", "reason", "iteration_ms", "samples_per_s", "relative_percent", "search_s"),
    *("evaluations", "plan_id", "depth", "templates", "mix", "fastest_type"),
    *("fastest_share_percent", "layout", "gpus_used", "gpus_idle", "fits", "stages"),
)


def _row(answer: AnswerRow) -> tuple[Any, ...]:
    percent = {"relative_percent": answer.relative, "fastest_share_percent": answer.fastest_share}
    return tuple(
        _percent(percent[name]) if name in percent else getattr(answer, name) for name in _COLUMNS
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def compare_page(
    found: Comparisons,
    provenance: Provenance,
    *,
    plan_pages: Sequence[int] = (),
    links: Sequence[dict[str, str]] = (),
) -> Page:
    """The page of all stored comparisons."""
    refusals: Counter[tuple[str, str]] = Counter()
    for answer in found.answers:
        for reason, count in answer.rejected.items():
            refusals[(answer.planner, reason)] += count
    planners = list(dict.fromkeys(answer.planner for answer in found.answers))
    return Page(
        name="compare",
        title="Comparison",
        template="compare.html.j2",
        provenance=provenance,
        context={
            "answers": found.answers,
            "questions": found.questions,
            "summaries": by_planner(found.answers),
            "lead": _lead(found),
            "published": _published(found),
            "paper": published().source,
            "refusals": [
                (planner, reason, count) for (planner, reason), count in refusals.most_common(200)
            ],
            "links": links,
        },
        figures=_figures(found) if found.answers else (),
        data={
            "answers": packed_table(_COLUMNS, [_row(answer) for answer in found.answers]),
            "planners": planners,
            "curves": packed_curves(found),
            "plan_pages": sorted(set(plan_pages)),
            "backdrop": _packed_backdrop(found),
        },
        scripts=("compare.js",),
    )


def _lead(found: Comparisons) -> str:
    if not found.answers:
        return "Several planners, one question, one cost model, one memory check."
    questions = words.plural(len(found.questions), "question")
    planners = words.plural(len({answer.planner for answer in found.answers}), "planner")
    best = by_planner(found.answers)[0]
    return (
        f"{questions}, answered by {planners} and priced by one cost model. {best.planner} has the "
        "fastest plan, or one within 0.1 % of it, "
        f"in {best.wins} of {best.questions}."
    )


def _published(found: Comparisons) -> list[Beside]:
    """The paper's figures beside those of its suite; nothing where that was never asked."""
    said = [
        Said(
            cell=str(answer.comparison_id),
            table=answer.table,
            planner=answer.planner,
            iteration_ms=answer.iteration_ms if answer.fits else None,
            search_s=answer.search_s,
            refused=sum(answer.rejected.values()),
        )
        for answer in found.answers
        if answer.suite == published().suite
    ]
    return beside(said) if said else []


def _packed_backdrop(found: Comparisons) -> dict[int, list[tuple[int, str, float, float]]]:
    """Depth, GPU mix, iteration time, % of the fastest type of a question's random plans."""
    fastest = {answer.comparison_id: answer.fastest_type for answer in found.answers}
    return {
        comparison: [
            (
                plan.depth,
                " + ".join(f"{count} × {gpu}" for gpu, count in plan.gpus),
                significant(plan.iteration_ms, 5),
                significant(100 * share_of(fastest[comparison], plan.gpus), 4),
            )
            for plan in plans
        ]
        for comparison, plans in found.backdrop.items()
        if comparison in fastest
    }


def packed_curves(found: Comparisons) -> list[dict[str, Any]]:
    """Search curves by question, planner and phase: the median over seeds, and the spread."""
    groups: dict[tuple[int, str, str], list[StoredCurve]] = defaultdict(list)
    for stored in found.curves:
        groups[(stored.comparison_id, stored.curve.phase, stored.curve.planner)].append(stored)
    packed = []
    for (comparison, phase, planner), stored_curves in groups.items():
        series: list[Sequence[CurvePoint]] = [stored.curve.points for stored in stored_curves]
        median = median_curve(series)
        if median:
            packed.append(
                {
                    "comparison": comparison,
                    "question": found.questions.get(comparison, f"comparison {comparison}"),
                    "phase": phase,
                    "planner": planner,
                    "seeds": len(series),
                    "evaluations": [count for count, _ in median],
                    "best_ms": [significant(best) for _, best in median],
                }
            )
    return packed


def _figures(found: Comparisons) -> list[Figure]:
    table = Table(_COLUMNS, tuple(_row(answer) for answer in found.answers))
    figures = [
        Figure(
            "throughput",
            "Throughput of each planner's plan",
            "The plan of every planner; a missing mark means no plan that fits.",
            table,
            drawn_by="throughput",
            wide=True,
        ),
        Figure(
            "search",
            "Search time against quality",
            "Wall clock of the search on a logarithmic axis, throughput in percent of the best.",
            table,
            drawn_by="search",
            height=420,
        ),
        Figure(
            "space",
            "Where the plans lie",
            "Pipeline depth by GPU mix of each planner's plan."
            + ("" if found.backdrop else " arachne-report compare draws random plans behind them."),
            table,
            drawn_by="space",
            height=420,
        ),
    ]
    figures += growth_figures(found)
    curves = packed_curves(found)
    if curves:
        figures.append(
            Figure(
                "curves",
                "Search efficiency",
                "Best plan so far over plans priced; the median where there are several seeds.",
                Table(
                    ("question", "phase", "planner", "seeds", "evaluations", "best_iteration_ms"),
                    tuple(
                        (c["question"], c["phase"], c["planner"], c["seeds"], count, best)
                        for c in curves
                        for count, best in zip(c["evaluations"], c["best_ms"], strict=True)
                    ),
                ),
                drawn_by="curves",
                wide=True,
                height=420,
            )
        )
    return figures
