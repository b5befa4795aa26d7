"""`arachne-run worker`: one rank of a plan, started by torchrun or srun."""

from __future__ import annotations

import os
from typing import Any

import click

from runtime.cli.options import options_of, training_options
from specs.door import json_option, store_option, verbosity_options


@click.command()
@click.argument("plan")
@training_options
@click.option("--host", help="This host's name in the cluster. Default: its own host name.")
@click.option("--trace", type=click.Path(), help="Write a Chrome trace of every action here.")
@store_option
@json_option
@verbosity_options
def worker(
    plan: str, store: str, as_json: bool, host: str | None, trace: str | None, **values: Any
) -> None:
    """Be one rank of PLAN, a plan file: torchrun or srun starts one on every device.

    Which rank it is follows from the host and the process's number there. Rank 0 alone opens the
    store, and writes, prints and traces as `arachne-run PLAN` does.

    Example: arachne-run worker plan.json --host node-a
    """
    from runtime.process import core_for, single_threaded

    os.environ.update(single_threaded({}))

    from runtime.rank import run_rank
    from runtime.remote import Collector, launched, meet, place_of, this_host
    from specs.host import allowed_cores
    from specs.plan_file import load_plan

    options = options_of(values)
    asked = load_plan(plan)
    environment = launched(os.environ)
    place = place_of(
        asked,
        host or this_host(),
        int(environment["LOCAL_RANK"]),
        int(environment["WORLD_SIZE"]),
    )
    stage = asked.templates[place.template].stages[place.stage]
    if stage.gpu == "cpu":
        core = core_for(int(environment["LOCAL_RANK"]), allowed_cores())
        os.sched_setaffinity(0, {core})
    meeting = meet(environment, options.timeout_s)
    if place.rank != 0:
        collector = Collector(meeting, place.rank, asked.gpus_used, lambda _: None)
        run_rank(asked, place.rank, options, meeting, collector.tell, sees_all_gpus=True)
        return
    from db.store import open_store
    from runtime.cli.recording import Recording, stored_plan

    with open_store(store) as opened:
        plan_id, priced = stored_plan(opened, plan, asked)
        with Recording(opened, plan_id, priced) as recording:
            collector = Collector(meeting, 0, priced.gpus_used, recording.add)
            run_rank(priced, 0, options, meeting, collector.tell, sees_all_gpus=True)
            recording.report(as_json=as_json, trace=trace)
