"""Asking the planners of `compare`, and printing what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.cli.question import Question, stored_options
from specs.door import console, err_console, print_json
from specs.units import human_ms

if TYPE_CHECKING:
    from db.store import Store
    from planner.comparison import Answer, Contest
    from planner.race import Race
    from planner.suite import Cell, Suite, SuiteTable

DEFAULT_BUDGET_S = 600.0


@dataclass(frozen=True)
class Asking:
    """How planners are asked, whatever the question. planners, budget_s: None = not said."""

    question: Question
    planners: list[str] | None
    budget_s: float | None
    seed: int
    certificate: str
    resume: bool
    retile: bool
    curve: bool
    csv_file: str | None

    def names(self, otherwise: Sequence[str]) -> tuple[str, ...]:
        """Who is asked, the default planner first. Raises PlanError for one that is not there."""
        from planner.baselines import DEFAULT_PLANNER, PLANNERS, planner_named

        asked = self.planners or list(otherwise) or list(PLANNERS)
        names = tuple(dict.fromkeys([DEFAULT_PLANNER, *asked]))
        for name in names:
            planner_named(name)
        return names


def ask_question(store: Store, race: Race, asking: Asking, as_json: bool) -> bool:
    """One question; whether any planner has a plan."""
    from planner.cli.question import read_problem
    from planner.comparison import Contest
    from planner.result import Budget

    names = asking.names(())
    problem = read_problem(store, asking.question)
    contest = Contest(
        title=f"{problem.model.name} on {problem.cluster.name}",
        problem=problem,
        planners=names,
        budget=Budget(seconds=asking.budget_s or DEFAULT_BUDGET_S),
        seed=asking.seed,
        retile=asking.retile,
        options=stored_options(asking.question, asking.seed),
    )
    document = _ask(store, race, asking, contest)
    rows = document["rows"]
    _write_csv(asking.csv_file, rows, ())
    if as_json:
        print_json(document)
    else:
        _print_rows(document)
    return any(row["status"] == "ok" for row in rows)


def ask_suite(
    store: Store, race: Race, asking: Asking, reference: str, only: str | None, as_json: bool
) -> bool:
    """Every question of a suite; whether any planner has a plan for any."""
    from planner.published import beside, published, to_json
    from planner.suite import load_suite

    suite = load_suite(reference)
    if only is not None:
        suite = suite.only([name.strip() for name in only.split(",")])
    documents = []
    found: list[tuple[SuiteTable, list[dict[str, Any]]]] = []
    number = 0
    for table in suite.tables:
        here = []
        for cell in table.cells:
            number += 1
            line = f"[{number}/{len(suite.cells)}] {table.name}: {cell.title}"
            err_console().print(line, soft_wrap=True, highlight=False)
            contest = _contest_of(store, asking, suite, cell)
            here.append({"table": table.name, **_ask(store, race, asking, contest)})
        documents += here
        found.append((table, here))
    figures = []
    if suite.name == published().suite:
        figures = beside([one for document in documents for one in _said(document)])
    rows = [
        {"table": document["table"], "question": document["title"], **row}
        for document in documents
        for row in document["rows"]
    ]
    _write_csv(asking.csv_file, rows, ("table", "question"))
    if as_json:
        print_json({"suite": suite.name, "cells": documents, "published": to_json(figures)})
    else:
        from planner.cli.suite_tables import print_published, print_table

        for table, here in found:
            print_table(table, here)
        if figures:
            print_published(figures)
    return any(row["status"] == "ok" for row in rows)


def _contest_of(store: Store, asking: Asking, suite: Suite, cell: Cell) -> Contest:
    from planner.cli.question import problem_of
    from planner.comparison import Contest
    from planner.result import Budget

    problem = problem_of(store, asking.question, cell.model, cell.workload, cell.cluster)
    return Contest(
        title=cell.title,
        problem=problem,
        planners=asking.names(cell.planners),
        budget=Budget(seconds=asking.budget_s or suite.budget_s or DEFAULT_BUDGET_S),
        seed=asking.seed,
        suite=suite.name,
        origin=f"arachne-plan compare --suite {suite.name}",
        untiled=cell.untiled,
        retile=asking.retile or cell.retile,
        options={**stored_options(asking.question, asking.seed), "table": cell.table},
    )


def _ask(store: Store, race: Race, asking: Asking, contest: Contest) -> dict[str, Any]:
    """Run one contest; what was said, as one document."""
    from planner.cli.certificate import finite_s, prove_bound
    from planner.comparison import comparison_rows, run_contest, run_curves

    problem = contest.problem
    bound_ms = prove_bound(problem, asking.certificate)
    comparison, answers = run_contest(
        store, race, contest, bound_ms, resume=asking.resume, said=_tell
    )
    document = {
        "comparison_id": comparison,
        "title": contest.title,
        "model": problem.model.name,
        "cluster": problem.cluster.name,
        "gpus": problem.cluster.gpus,
        "global_batch": problem.workload.global_batch,
        "budget_s": contest.budget.seconds,
        "bound_iteration_s": finite_s(bound_ms),
        "profile_runs": list(problem.profiles.run_ids),
        "sources": sorted({source.value for source in problem.profiles.sources.values()}),
        "rows": comparison_rows(answers),
    }
    if asking.curve:
        document["curves"] = run_curves(store, race, contest, comparison, resume=asking.resume)
    return document


def _tell(answer: Answer) -> None:
    """One line on stderr for each answer as it comes."""
    result = answer.result
    prediction = result.plan.prediction if result.plan else None
    what = human_ms(prediction.iteration_ms) if prediction else result.status.value
    err_console().print(
        f"  {answer.planner}: {what} after {result.planning_s:.1f} s, "
        f"{result.evaluations:,} plans priced",
        soft_wrap=True,
        highlight=False,
    )


def _said(document: dict[str, Any]) -> list[Any]:
    from planner.published import Said

    return [
        Said(
            cell=document["title"],
            table=document["table"],
            planner=row["planner"],
            iteration_ms=1000 * row["iteration_s"] if row["fits"] else None,
            search_s=row["search_s"],
            refused=row["refused"],
        )
        for row in document["rows"]
    ]


def _print_rows(document: dict[str, Any]) -> None:
    from planner.cli.tables import plain_table, tally_line
    from planner.comparison import COLUMNS

    rows = document["rows"]
    aside = ("reason", "plan_id", "stages", "refused")
    console().print(plain_table([column for column in COLUMNS if column not in aside], rows))
    bound_s = document["bound_iteration_s"]
    if bound_s is not None:
        console().print(f"certificate: no plan is faster than {bound_s:.4g} s")
    for row in rows:
        if row["stages"]:
            line = f"{row['planner']}: {row['stages']}"
            console().print(line, soft_wrap=True, highlight=False, markup=False)
    for row in rows:
        for said in (tally_line(row["rejected"]) if row["rejected"] else "", row["reason"]):
            if said:
                line = f"{row['planner']}: {said}"
                err_console().print(line, soft_wrap=True, highlight=False, markup=False)
    for planner, count in document.get("curves", {}).items():
        err_console().print(f"{planner}: {count} search curves stored", highlight=False)


def _write_csv(path: str | None, rows: Sequence[dict[str, Any]], before: tuple[str, ...]) -> None:
    import csv
    import io

    from planner.comparison import COLUMNS
    from specs.files import write_atomically

    if path is None:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, (*before, *COLUMNS), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
