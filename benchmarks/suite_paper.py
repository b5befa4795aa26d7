"""The paper's suite from a store: tables, search times, and where arachne is not first.

    arachne-plan compare --suite paper --estimate-missing --budget-s 10 --store suite.db --resume
    python -m benchmarks.suite_paper --store suite.db -o benchmarks/results/DATE-suite-paper.md

Reads what has been stored so far (of a cell that was run more than once the fullest, of equals the
first), says which cells and rows are missing, and runs nothing itself.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba

from db.records import SearchCurve, StoredComparison
from db.store import Store, open_store
from planner.baselines import PLANNERS
from planner.comparison import comparison_rows, planner_and_variant, stored_answers
from planner.published import Said, beside
from planner.suite import Suite, load_suite
from reports.comparisons import median_curve

# What is known of the originals' own search times (research notes of the project); s.
ORIGINALS = {
    "arachne": "1.6 to 8.4 (the paper)",
    "hexiscale": "under 120 at 64 to 320 GPUs (its paper)",
}

COUNTS = (100, 300, 1_000, 3_000, 10_000, 32_000, 100_000)

Row = dict[str, Any]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--store", required=True)
    options.add_argument("--suite", default="paper")
    options.add_argument("--curves", type=int, help="the comparison whose curves to show")
    options.add_argument("--peers", type=Path, help="what benchmarks.peer_times printed")
    options.add_argument("--note", default="", help="what else ran on the machine")
    options.add_argument("-o", "--output", type=Path)
    asked = options.parse_args()
    suite = load_suite(asked.suite)
    with open_store(asked.store) as store:
        fullest: dict[tuple[str, str], StoredComparison] = {}
        for stored in store.comparisons(suite=suite.name):
            key = str(stored.comparison.options.get("table", "")), stored.comparison.title
            if key not in fullest or len(stored.rows) > len(fullest[key].rows):
                fullest[key] = stored
        cells = {
            key: comparison_rows(stored_answers(store, stored)) for key, stored in fullest.items()
        }
        curves = curve_table(store, asked.curves) if asked.curves else []
    peers = asked.peers.read_text() if asked.peers else ""
    page = page_of(suite, fullest, cells, asked.note, curves, peers)
    if asked.output:
        asked.output.write_text(page)
    print(page)


def page_of(
    suite: Suite,
    stored: dict[tuple[str, str], StoredComparison],
    cells: dict[tuple[str, str], list[Row]],
    note: str,
    curves: list[str],
    peers: str,
) -> str:
    wanted = [(cell.table, cell.title) for cell in suite.cells]
    run = [key for key in wanted if cells.get(key)]
    budgets = sorted({str(one.comparison.options.get("budget_s")) for one in stored.values()})
    lines = [
        f"# The suite `{suite.name}`",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, numba {numba.__version__}. "
        f"{note}",
        f"Command: `python -m benchmarks.suite_paper`, after "
        f"`arachne-plan compare --suite {suite.name} --estimate-missing "
        f"--budget-s {' / '.join(budgets)} "
        "--certificate none --resume`. Profiles are estimated; every plan is priced by our cost "
        "model. Budgets are wall clock: a busy machine gives every planner less search.",
        "",
        f"Run: {len(run)} of {len(wanted)} cells. "
        + (
            f"Not run: {'; '.join(title for t, title in wanted if (t, title) not in run)}."
            if len(run) < len(wanted)
            else "None is missing."
        ),
    ]
    for table in suite.tables:
        keys = [
            (table.name, cell.title) for cell in table.cells if cells.get((table.name, cell.title))
        ]
        if not keys:
            continue
        lines += ["", f"## {table.title}", "", table.chosen, ""]
        lines += speed_table([(title, cells[t, title]) for t, title in keys])
    said = [
        Said(
            cell=title,
            table=table,
            planner=row["planner"],
            iteration_ms=1000 * row["iteration_s"] if row["fits"] else None,
            search_s=row["search_s"],
            refused=row["refused"],
        )
        for table, title in run
        for row in cells[table, title]
    ]
    lines += ["", "## Search time of each planner, s", ""]
    lines += search_table(said)
    if peers:
        lines += [
            "",
            "The originals on their recorded cases, and ours on the same inputs with the faults of "
            "the releases on (`python -m benchmarks.peer_times`):",
            "",
            peers.strip(),
        ]
    lines += ["", "## Where arachne is not first", ""]
    lines += not_first([(title, cells[table, title]) for table, title in run])
    lines += ["", "## Rows without a plan", ""]
    lines += ["| question | planner | status | reason |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {title} | {row['planner']} | {row['status']} | {row['reason']} |"
        for table, title in run
        for row in cells[table, title]
        if row["status"] != "ok"
    ]
    lines += curves
    lines += ["", "## The paper's figures and ours", ""]
    lines += [
        "Ours stand beside the paper's; none is a target. Where it is not known what exactly "
        "was compared there, the last column says so.",
        "",
    ]
    lines += ["| figure | paper | here | same thing |", "| --- | --- | --- | --- |"]
    for figure in beside(said):
        known = "as far as known" if figure.known else "not known"
        lines.append(f"| {figure.what} | {figure.paper} | {figure.here or '-'} | {known} |")
    return "\n".join(lines) + "\n"


def _place(label: str) -> tuple[int, str]:
    """Planners in the order of their dict, variants behind their planner."""
    return list(PLANNERS).index(planner_and_variant(label)[0]), label


def speed_table(cells: list[tuple[str, list[Row]]]) -> list[str]:
    """samples/s of every planner, the best in bold, in brackets % of the best."""
    planners = sorted({row["planner"] for _, rows in cells for row in rows}, key=_place)
    lines = [
        "samples/s (% of the best)",
        "",
        "| question | " + " | ".join(planners) + " |",
        "| --- |" + " ---: |" * len(planners),
    ]
    for title, rows in cells:
        by_planner = {row["planner"]: row for row in rows}
        shown = []
        for planner in planners:
            row = by_planner.get(planner)
            if row is None:
                shown.append("-")
            elif row["samples_per_s"] is None:
                shown.append(row["status"])
            elif not row["fits"]:
                shown.append("does not fit")
            else:
                share = 100 * row["relative_to_best"]
                text = f"{row['samples_per_s']:.4g} ({share:.1f})"
                shown.append(f"**{text}**" if share == 100 else text)
        lines.append(f"| {title} | " + " | ".join(shown) + " |")
    return lines


def search_table(said: list[Said]) -> list[str]:
    lines = [
        "| planner | cells | with a plan that fits | median | least | most | its original |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    by_planner: dict[str, list[Said]] = defaultdict(list)
    for one in said:
        by_planner[one.planner].append(one)
    for planner, found in sorted(by_planner.items(), key=lambda item: _place(item[0])):
        times = [one.search_s for one in found]
        answered = sum(one.iteration_ms is not None for one in found)
        lines.append(
            f"| {planner} | {len(found)} | {answered} | {statistics.median(times):.2f} | "
            f"{min(times):.2f} | {max(times):.2f} | {ORIGINALS.get(planner, '-')} |"
        )
    return lines


def curve_table(store: Store, comparison: int) -> list[str]:
    """Best iteration so far over the best of all searches, in percent, by plans priced."""
    stored = store.comparison(comparison)
    series: dict[str, list[SearchCurve]] = defaultdict(list)
    for one in store.search_curves(comparison):
        series[one.curve.planner].append(one.curve)
    medians = {name: median_curve([c.points for c in curves]) for name, curves in series.items()}
    shortest = min(best for curve in medians.values() for _, best in curve)
    lines = [
        "",
        f"## Best plan so far by plans priced: {stored.comparison.title}",
        "",
        "Throughput in % of the best that any of these searches met; `end`: where the search ended "
        f"(its ceiling, its own end, or {stored.comparison.options['budget_s']} s). For random the "
        "median over seeds.",
        "",
        "| search | seeds | " + " | ".join(f"{n:,}" for n in COUNTS) + " | end |",
        "| --- | ---: |" + " ---: |" * (len(COUNTS) + 1),
    ]
    for name, curve in medians.items():
        end = max(point.evaluations for one in series[name] for point in one.points)
        cells = []
        for n in COUNTS:
            reached = [best for count, best in curve if count <= n]
            past = n > end
            cells.append("" if past else f"{100 * shortest / min(reached):.1f}" if reached else "-")
        cells.append(f"{100 * shortest / curve[-1][1]:.1f} at {end:,}")
        lines.append(f"| {name} | {len(series[name])} | " + " | ".join(cells) + " |")
    return lines


def not_first(cells: list[tuple[str, list[Row]]]) -> list[str]:
    """A row per cell that another planner wins, with its plan."""
    lines = []
    for title, rows in cells:
        fitting = [row for row in rows if row["fits"]]
        best = min(fitting, key=lambda row: row["iteration_s"], default=None)
        mine = next((row for row in rows if row["planner"] == "arachne"), None)
        if best is None or mine is None or mine["relative_to_best"] == 1:
            continue
        relative = mine["relative_to_best"]
        behind = "no plan" if relative is None else f"{100 * (1 / relative - 1):.2f} %"
        lines.append(f"| {title} | {best['planner']} | {behind} | `{best['stages']}` |")
    if not lines:
        return [f"Nowhere, in {len(cells)} cells."]
    head = ["| question | first | ahead by | its plan |", "| --- | --- | ---: | --- |"]
    return [f"In {len(lines)} of {len(cells)} cells.", "", *head, *lines]


if __name__ == "__main__":
    main()
