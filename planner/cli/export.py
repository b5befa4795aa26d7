"""`arachne-plan export`: a plan for another launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from specs.door import json_option, store_option, verbosity_options

if TYPE_CHECKING:
    from specs.plan import Plan

# Said here again so that --help needs no planner; a test holds it against the exporters.
FORMATS = ("torchrun", "megatron", "torchtitan", "deepspeed", "flagscale")


@click.command()
@click.argument("plan")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    required=True,
    help="The launcher. torchrun starts arachne-run, which runs any plan.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the script here. Default: stdout.")
@store_option
@json_option
@verbosity_options
def export(plan: str, format_: str, output: str | None, store: str, as_json: bool) -> None:
    """Write PLAN, a plan file or the id of a stored plan, as a launch script of another launcher.

    One script for all hosts, with a line for each: arguments, layer split, which rank is which
    GPU. Where the launcher cannot do what the plan says, nothing is written and the reason is said.

    Example: arachne-plan export plan.json --format megatron -o train.sh
    """
    import logging

    from db.store import open_store
    from planner.cli.plan_argument import read_plan
    from specs.door import err_console, print_json
    from specs.files import write_atomically

    with open_store(store) as opened:
        given = read_plan(opened, plan)
    if format_ == "torchrun":
        document = _torchrun(plan, given)
    else:
        from planner.export import FORMATS as exporters

        document = exporters[format_](given).to_json()
    if output:
        write_atomically(output, document["script"])
    if as_json:
        print_json(document)
    elif not output:
        click.echo(document["script"], nl=False)
    if logging.getLogger().level < logging.ERROR:
        for remark in document["remarks"]:
            err_console().print(remark, style="yellow", markup=False, highlight=False)
        if output:
            click.echo(f"written to {output}: run it on every host", err=True)


def _torchrun(reference: str, plan: Plan) -> dict[str, Any]:
    """The launch by torchrun: every process finds its own rank by host and number."""
    from pathlib import Path

    from runtime.launch_script import torchrun_lines, torchrun_script
    from specs.errors import SpecError
    from specs.layout import ranks_of

    if reference.isdecimal() and not Path(reference).exists():
        raise SpecError(
            f"torchrun needs the plan as a file that every host sees: arachne-plan show "
            f"{reference} -o plan.json, then export that"
        )
    return {
        "launcher": "torchrun",
        "ranks": [
            {
                "rank": place.rank,
                "template": place.template,
                "stage": place.stage,
                "replica": place.replica,
                "tp_rank": place.tp_rank,
                "node": place.node,
                "host": plan.cluster.node(place.node).host,
                "gpu": place.gpu,
            }
            for place in ranks_of(plan)
        ],
        "arguments": [],
        "layout": None,
        "lines": torchrun_lines(plan, reference),
        "remarks": [],
        "script": torchrun_script(plan, reference),
    }
