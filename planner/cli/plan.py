"""`arachne-plan plan`: the best plan for a model on a cluster."""

from __future__ import annotations

from typing import Any

import click

from planner.cli.certificate import certificate_option
from planner.cli.question import planning_options, question_of, workload_options
from specs.door import Number, json_option, store_option, verbosity_options

PLANNER_HELP = "How plans are searched."
DEFAULT_BUDGET_S = 30.0


@click.command()
@workload_options
@planning_options
@click.option("--planner", default=None, help=f"{PLANNER_HELP}  [default: arachne]")
@click.option(
    "--budget-s",
    type=Number(min=0, min_open=True),
    help="Ceiling on the search, in seconds; arachne goes on improving until it.  [default: 30, "
    "which arachne does not need]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of what the search draws.")
@click.option("-o", "--output", metavar="FILE", help="Write the plan document here.")
@certificate_option
@store_option
@json_option
@verbosity_options
def plan(
    planner: str | None,
    budget_s: float | None,
    seed: int,
    output: str | None,
    certificate: str,
    store: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the best way to train a model on a cluster, how fast it is and whether it fits.

    The plan and its prediction are stored. Exit code 1 if no plan fits; the reason is given.

    Example: arachne-plan plan --model llama-3-8b --cluster mixed-128 -o plan.json
    """
    import time

    from db.store import open_store
    from planner.answer import answer_document
    from planner.baselines import DEFAULT_PLANNER, arachne, planner_named
    from planner.cli.certificate import prove_bound
    from planner.cli.progress import progress
    from planner.cli.question import read_problem, stored_options
    from planner.cli.tables import (
        stage_table,
        summary_lines,
        tally_line,
        template_lines,
    )
    from planner.evaluate import with_bound
    from planner.idle import idle_reasons
    from planner.result import Budget
    from specs.door import console, err_console, print_json
    from specs.files import write_atomically
    from specs.plan_file import plan_to_document

    name = planner or DEFAULT_PLANNER
    search = planner_named(name)
    if name == "arachne" and budget_s is not None:
        search = arachne.plan_on
    question = question_of(options)
    with open_store(store) as opened:
        began = time.perf_counter()
        problem = read_problem(opened, question)
        reading_s = time.perf_counter() - began
        with progress(name):
            result = search(problem, Budget(budget_s or DEFAULT_BUDGET_S).less(reading_s), seed)
        planning_s = reading_s + result.planning_s
        bound_ms = prove_bound(problem, certificate)
        if result.plan is None:
            reason = result.reason
            if bound_ms == float("inf"):
                reason += "; proven: no plan of this model fits this cluster"
            if as_json:
                print_json(
                    {
                        "plan": None,
                        "status": result.status.value,
                        "reason": reason,
                        "planning_s": planning_s,
                        "evaluations": result.evaluations,
                        "rejected": dict(result.rejected),
                    }
                )
            line = reason if reason.startswith("no plan") else f"no plan: {reason}"
            err_console().print(line[0].upper() + line[1:], soft_wrap=True, highlight=False)
            if result.rejected:
                err_console().print(tally_line(result.rejected), soft_wrap=True, highlight=False)
            raise SystemExit(1)
        found = with_bound(result.plan, bound_ms)
        plan_id = opened.add_plan(
            found,
            planning_s=planning_s,
            evaluations=result.evaluations,
            rejected=result.rejected,
            options=stored_options(question, seed),
        )
    if output:
        import json

        write_atomically(output, json.dumps(plan_to_document(found), indent=2) + "\n")
    idle = idle_reasons(problem, found)
    if as_json:
        print_json(
            answer_document(
                found,
                {
                    "plan_id": plan_id,
                    "planner": name,
                    "planning_s": planning_s,
                    "evaluations": result.evaluations,
                    "rejected": dict(result.rejected),
                    "status": result.status.value,
                    "reason": result.reason,
                    "idle": [one.to_json() for one in idle],
                    "warnings": list(problem.profiles.warnings),
                },
            )
        )
        return
    out = console()
    for line in [*summary_lines(found), *template_lines(found)]:
        out.print(line, soft_wrap=True, highlight=False)
    out.print(stage_table(found))
    for one in idle:
        out.print(f"idle: {one}", soft_wrap=True, highlight=False)
    out.print(
        f"searched: {result.reason}; {result.evaluations:,} plans priced in {planning_s:.1f} s",
        soft_wrap=True,
        highlight=False,
    )
    if result.rejected:
        out.print(tally_line(result.rejected), soft_wrap=True, highlight=False)
    where = f", written to {output}" if output else ""
    out.print(f"stored as plan {plan_id}{where}", soft_wrap=True, highlight=False)
