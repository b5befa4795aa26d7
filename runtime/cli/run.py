"""`arachne-run PLAN`: real processes, real training steps, planned against measured."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.options import options_of, training_options
from specs.door import json_option, store_option, verbosity_options


@click.command()
@click.argument("plan")
@training_options
@click.option("--trace", type=click.Path(), help="Write a Chrome trace of every action here.")
@click.option(
    "--profile",
    is_flag=True,
    help="Measure the plan's layers on the same cores right before and right after the run, and "
    "predict from both.",
)
@click.option(
    "--allow-busy", is_flag=True, help="Profile on GPUs that others use or that throttle."
)
@store_option
@json_option
@verbosity_options
def run(
    plan: str,
    store: str,
    as_json: bool,
    trace: str | None,
    profile: bool,
    allow_busy: bool,
    **values: Any,
) -> None:
    """Run PLAN, a plan file or the id of a stored plan, with a process for each of its devices.

    The processes run on this host. Every iteration is written to the store beside the prediction;
    a plan without one is priced by the store's profiles, where it has them. With --profile the
    prediction is of this hour: what the machine did between the two profiles is shown beside the
    error.

    Example: arachne-run run plan.json --iterations 20 --profile
    """
    from db.store import open_store
    from planner.cli.plan_argument import read_plan
    from runtime.cli.bracket import Profiler
    from runtime.cli.recording import Recording, stored_plan, warn
    from runtime.launcher import LocalLauncher, check_local
    from specs.host import allowed_cores

    options = options_of(values)
    with open_store(store) as opened:
        asked = read_plan(opened, plan)
        check_local(asked)
        profiler = Profiler(opened, store, asked, allow_busy=allow_busy) if profile else None
        if profiler is not None:
            priced = profiler.before()
            plan_id = opened.add_plan(priced)
        else:
            plan_id, priced = stored_plan(opened, plan, asked)
        cores = len(allowed_cores())
        on_cpu = all(stage.gpu == "cpu" for t in priced.templates for stage in t.stages)
        if on_cpu and priced.gpus_used > cores:
            warn(f"{priced.gpus_used} processes share {cores} cores: times say nothing of the plan")
        with Recording(opened, plan_id, priced, settled=profiler is None) as recording:
            with LocalLauncher(priced, options) as launcher:
                for iteration in launcher.run():
                    recording.add(iteration)
            if profiler is not None:
                priced, bracket, reference_ms = profiler.after()
                recording.settle(opened.add_plan(priced), priced, bracket, reference_ms)
            recording.report(as_json=as_json, trace=trace)
