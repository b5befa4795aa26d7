"""`arachne-report plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reports.cli.options import finish, open_option, output_option, provenance_of
from specs.door import store_option, verbosity_options

if TYPE_CHECKING:
    from db.records import StoredPlan


@click.command()
@click.argument("plan")
@output_option
@open_option
@store_option
@verbosity_options
def plan(plan: str, output: Path, show: bool, store: str | None) -> None:
    """One page of PLAN, the id of a stored plan or a plan file.

    The pipeline as a picture, its simulated timeline, memory against limits, what limits it, what
    its runs took, and the command that runs it.

    Example: arachne-report plan 1 -o report --open
    """
    from db.store import open_store
    from reports.page import write_page
    from reports.plan_page import plan_page, read_plan_facts
    from specs.plan_file import load_plan, plan_hash

    with open_store(store) as opened:
        stored: StoredPlan | None = None
        if plan.isdecimal() and not Path(plan).exists():
            found = opened.plan(int(plan))
            stored, layout = found, found.plan
        else:
            layout = load_plan(plan)
            # The same layout in the store has runs and a prediction that a file may lack.
            alike = [one for one in opened.plans_like(plan_hash(layout)) if one.plan.prediction]
            stored = alike[-1] if alike else None
            layout = alike[-1].plan if alike else layout
        facts = read_plan_facts(opened, layout, stored)
        provenance = provenance_of(opened)
    finish(write_page(plan_page(facts, provenance), output), show)
