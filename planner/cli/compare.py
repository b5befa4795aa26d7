"""`arachne-plan compare`: what every planner makes of one question."""

from __future__ import annotations

import io
from typing import Any

import click

from planner.cli.certificate import certificate_option
from planner.cli.question import planning_options, question_of, workload_options
from specs.door import json_option, store_option, verbosity_options


@click.command()
@workload_options
@planning_options
@click.option(
    "--planners",
    "--baselines",
    "planners",
    metavar="NAMES",
    help="Planners beside the default one, with commas.  [default: all]",
)
@click.option(
    "--budget-s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Ceiling on each planner's search, in seconds.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of what searches draw.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write the rows here as CSV.")
@certificate_option
@store_option
@json_option
@verbosity_options
def compare(
    planners: str | None,
    budget_s: float,
    seed: int,
    csv_file: str | None,
    certificate: str,
    store: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Ask several planners the same question, price their plans alike, and show them side by side.

    Each planner searches by its own rules within the same budget; what it returns is priced by
    the one cost model. Plans, rows and search curves are stored. Exit code 1 if none has a plan.

    Example: arachne-plan compare --model llama-3-8b --cluster mixed-128 --planners random
    """
    from db.records import NewComparison
    from db.store import open_store
    from planner.baselines import DEFAULT_PLANNER, PLANNERS, planner_named
    from planner.cli.certificate import finite_s, prove_bound
    from planner.cli.progress import progress
    from planner.cli.question import read_problem, stored_options
    from planner.cli.tables import plain_table, tally_line, wide_console
    from planner.comparison import COLUMNS, comparison_rows, run_planner
    from planner.result import Budget
    from specs.door import err_console, print_json
    from specs.files import write_atomically

    asked = [name.strip() for name in planners.split(",")] if planners else list(PLANNERS)
    names = list(dict.fromkeys([DEFAULT_PLANNER, *asked]))
    for name in names:
        planner_named(name)
    question = question_of(options)
    with open_store(store) as opened:
        problem = read_problem(opened, question)
        comparison = opened.add_comparison(
            NewComparison(
                title=f"{problem.model.name} on {problem.cluster.name}",
                model=problem.model,
                workload=problem.workload,
                cluster=problem.cluster,
                origin="arachne-plan compare",
                options={
                    **stored_options(question, seed),
                    "planners": names,
                    "budget_s": budget_s,
                },
            )
        )
        bound_ms = prove_bound(problem, certificate)
        answers = []
        for name in names:
            with progress(name):
                answers.append(
                    run_planner(
                        opened,
                        comparison,
                        problem,
                        name,
                        Budget(seconds=budget_s),
                        seed,
                        stored_options(question, seed),
                        bound_ms,
                    )
                )
    rows = comparison_rows(answers)
    if csv_file:
        import csv

        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(csv_file, text.getvalue())
    if as_json:
        print_json(
            {
                "comparison_id": comparison,
                "model": problem.model.name,
                "cluster": problem.cluster.name,
                "global_batch": problem.workload.global_batch,
                "bound_iteration_s": bound_ms / 1000
                if bound_ms and bound_ms < float("inf")
                else None,
                "profile_runs": list(problem.profiles.run_ids),
                "rows": rows,
            }
        )
    else:
        shown = [column for column in COLUMNS if column not in ("reason", "plan_id", "seed")]
        wide_console().print(plain_table(shown, rows))
        bound_s = finite_s(bound_ms)
        if bound_s is not None:
            wide_console().print(f"certificate: no plan is faster than {bound_s:.4g} s")
        for row in rows:
            if row["rejected"]:
                line = f"{row['planner']}: {tally_line(row['rejected'])}"
                err_console().print(line, soft_wrap=True, highlight=False)
            if row["reason"]:
                line = f"{row['planner']}: {row['reason']}"
                err_console().print(line, soft_wrap=True, highlight=False)
    if not any(row["status"] == "ok" for row in rows):
        raise SystemExit(1)
