"""`arachne-plan show`: one stored plan."""

from __future__ import annotations

import click

from specs.door import json_option, store_option, verbosity_options


@click.command()
@click.argument("plan")
@click.option("-o", "--output", metavar="FILE", help="Write the plan document here.")
@store_option
@json_option
@verbosity_options
def show(plan: str, output: str | None, store: str, as_json: bool) -> None:
    """Show PLAN, the id of a stored plan or a plan file: where every replica runs, and its figures.

    Example: arachne-plan show 3
    """
    import json

    from db.store import open_store
    from planner.answer import answer_document
    from planner.cli.plan_argument import read_plan
    from planner.cli.tables import (
        plain_table,
        stage_table,
        summary_lines,
        tally_line,
        template_lines,
    )
    from specs.door import console, print_json
    from specs.files import write_atomically
    from specs.plan_file import plan_to_document

    with open_store(store) as opened:
        given = read_plan(opened, plan)
        stored = opened.plan(int(plan)) if plan.isdecimal() else None
    if output:
        write_atomically(output, json.dumps(plan_to_document(given), indent=2) + "\n")
    more = (
        {
            "plan_id": stored.id,
            "planning_s": stored.planning_s,
            "evaluations": stored.evaluations,
            "rejected": dict(stored.rejected),
            "options": dict(stored.options),
            "created": stored.created.isoformat(timespec="seconds"),
        }
        if stored
        else {}
    )
    if as_json:
        unpriced = {"plan": plan_to_document(given), **more}
        print_json(answer_document(given, more) if given.prediction else unpriced)
        return
    out = console()
    if given.prediction:
        for line in summary_lines(given):
            out.print(line, soft_wrap=True, highlight=False)
    for line in template_lines(given):
        out.print(line, soft_wrap=True, highlight=False)
    if given.prediction:
        out.print(stage_table(given))
    out.print(
        plain_table(
            ["template", "replica", "micro_batches", "last_micro_batch", "places"],
            [
                {
                    "template": k,
                    "replica": r,
                    "micro_batches": replica.micro_batches,
                    "last_micro_batch": replica.last_micro_batch,
                    "places": " ".join(
                        f"{place.node}:{','.join(map(str, place.gpus))}" for place in replica.places
                    ),
                }
                for k, template in enumerate(given.templates)
                for r, replica in enumerate(template.replicas)
            ],
        )
    )
    if stored and stored.rejected:
        out.print(tally_line(stored.rejected), soft_wrap=True, highlight=False)
