"""`arachne-plan list`: the plans of the store."""

from __future__ import annotations

import click

from specs.door import json_option, store_option, verbosity_options


@click.command("list")
@click.option("--model", help="Only plans for this model.")
@click.option("--cluster", help="Only plans for the cluster of this name.")
@click.option("--planner", help="Only plans of this planner.")
@store_option
@json_option
@verbosity_options
def list_(
    model: str | None, cluster: str | None, planner: str | None, store: str, as_json: bool
) -> None:
    """List stored plans with their predicted iteration times, oldest first.

    Example: arachne-plan list --model llama-3-8b
    """
    from db.store import open_store
    from planner.cli.tables import plain_table
    from specs.door import console, err_console, print_json

    with open_store(store) as opened:
        stored = opened.plans()
    rows = [
        {
            "id": one.id,
            "planner": one.plan.planner,
            "model": one.plan.model.name,
            "cluster": one.plan.cluster.name,
            "global_batch": one.plan.workload.global_batch,
            "iteration_s": None if one.iteration_ms is None else one.iteration_ms / 1000,
            "templates": len(one.plan.templates),
            "gpus_used": one.plan.gpus_used,
            "gpus": one.plan.cluster.gpus,
            "status": one.status,
            "planning_s": one.planning_s,
            "evaluations": one.evaluations,
            "profile_runs": list(one.profile_runs),
            "created": one.created.isoformat(timespec="seconds"),
        }
        for one in stored
        if model in (None, one.plan.model.name)
        and cluster in (None, one.plan.cluster.name)
        and planner in (None, one.plan.planner)
    ]
    if as_json:
        print_json({"rows": rows})
        return
    if not rows:
        err_console().print("No such plans; arachne-plan plan makes one.")
        return
    columns = ["id", "planner", "model", "cluster", "global_batch", "iteration_s", "templates"]
    columns += ["gpus_used", "gpus", "status", "created"]
    console().print(plain_table(columns, rows))
