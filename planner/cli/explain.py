"""`arachne-plan explain`: why a plan takes the time it takes."""

from __future__ import annotations

from typing import Any

import click

from planner.cli.certificate import certificate_option
from planner.cli.question import pricing_options
from specs.door import json_option, store_option, verbosity_options
from specs.profile import Source


@click.command()
@click.argument("plan")
@pricing_options
@click.option("--trace", metavar="FILE", help="Write the 1F1B timeline here (opens in Perfetto).")
@certificate_option
@store_option
@json_option
@verbosity_options
def explain(
    plan: str,
    source: str | None,
    headroom: float,
    trace: str | None,
    certificate: str,
    store: str,
    as_json: bool,
) -> None:
    """Explain PLAN, a file or the id of a stored plan: stages, limits, neighbours.

    Shows the time and memory of every stage, how far the plan can at most be from the best, what
    limits it, and what the next best alternatives lose.

    Example: arachne-plan explain plan.json
    """
    import json

    from db.store import open_store
    from planner.answer import answer_document, prediction_of
    from planner.cli.certificate import prove_bound
    from planner.cli.plan_argument import read_plan
    from planner.cli.tables import (
        plain_table,
        stage_table,
        summary_lines,
        tally_line,
        template_lines,
    )
    from planner.evaluate import evaluate_plan, plan_problem, with_bound
    from planner.explanation import explain_plan
    from planner.idle import idle_reasons
    from planner.passes import plan_tracks
    from planner.trace import chrome_trace
    from specs.door import console, print_json
    from specs.files import write_atomically
    from specs.units import human_ms

    chosen = Source(source) if source else None
    with open_store(store) as opened:
        given = read_plan(opened, plan)
        priced = evaluate_plan(opened, given, source=chosen, headroom=headroom)
        problem = plan_problem(opened, given, source=chosen, headroom=headroom)
    priced = with_bound(priced, prove_bound(problem, certificate))
    found = explain_plan(problem, priced)
    idle = idle_reasons(problem, priced)
    if trace:
        tracks = plan_tracks(problem, priced)
        write_atomically(trace, json.dumps(chrome_trace(tracks)) + "\n")
    whole = prediction_of(priced).iteration_ms
    if as_json:
        more: dict[str, Any] = {"explanation": found.to_json(whole)}
        more["idle"] = [one.to_json() for one in idle]
        print_json(answer_document(priced, more))
        return
    out = console()
    for line in [*summary_lines(priced), *template_lines(priced)]:
        out.print(line, soft_wrap=True, highlight=False)
    out.print(stage_table(priced, details=True))
    for line in [*(f"idle: {one}" for one in idle), *found.limits]:
        out.print(line, soft_wrap=True, highlight=False)
    for k, (simulated, closed) in enumerate(
        zip(found.simulated_ms, found.closed_form_ms, strict=True)
    ):
        out.print(
            f"template {k}: pipeline {human_ms(closed)} by the closed form, "
            f"{human_ms(simulated)} by event simulation ({simulated / closed - 1:+.1%})",
            soft_wrap=True,
            highlight=False,
        )
    rows = [
        {
            "alternative": one.words,
            "iteration": human_ms(one.iteration_ms or 0.0),
            "loses": f"{(one.iteration_ms or 0.0) / whole - 1:+.1%}",
        }
        for one in found.alternatives
    ]
    if rows:
        out.print(plain_table(["alternative", "iteration", "loses"], rows))
    if found.refused:
        line = f"other neighbours: {tally_line(found.refused)}"
        out.print(line, soft_wrap=True, highlight=False)
