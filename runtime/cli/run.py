"""`arachne-run PLAN`: real processes, real training steps, planned against measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from specs.door import err_console, json_option, store_option, verbosity_options

if TYPE_CHECKING:
    from db.store import Store
    from runtime.comparison import Comparison
    from runtime.launcher import RunOutcome
    from runtime.training import Options
    from specs.measurement import Measurement
    from specs.plan import Plan

_FLUSH_S = 5.0  # rows are written this often at most: writing takes a core from the ranks


@click.command()
@click.argument("plan")
@click.option(
    "--iterations", type=click.IntRange(1), default=10, show_default=True, help="That count."
)
@click.option(
    "--warm-up", type=click.IntRange(0), default=2, show_default=True, help="Before them."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--data",
    type=click.Path(),
    help="A file of tokens: .npy of integers, or raw uint16. Default: made-up text.",
)
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, min_open=True),
    default=1e-3,
    show_default=True,
)
@click.option(
    "--clip-norm", type=click.FloatRange(0, min_open=True), help="Largest norm of all gradients."
)
@click.option("--trace", type=click.Path(), help="Write a Chrome trace of every action here.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    help="Longest silence of a rank.",
)
@store_option
@json_option
@verbosity_options
def run(plan: str, store: str, as_json: bool, trace: str | None, **values: Any) -> None:
    """Run PLAN, a plan file or the id of a stored plan, with a process for each of its devices.

    The processes run on this host. Every iteration is written to the store beside the prediction;
    a plan without one is priced by the store's profiles, where it has them.

    Example: arachne-run run plan.json --iterations 20
    """
    from db.store import open_store
    from planner.cli.plan_argument import read_plan
    from runtime.training import Options
    from specs.door import print_json

    options = Options(**values)
    with open_store(store) as opened:
        plan_id, priced = stored_plan(opened, plan, read_plan(opened, plan))
        run_name, outcome = _run(opened, plan_id, priced, options)
        result, reference_ms = _compared(opened, priced, outcome)
    if trace:
        _write_trace(trace, priced, outcome)
    if as_json:
        print_json(_document(plan_id, run_name, outcome, result, reference_ms))
        return
    from runtime.cli.tables import print_comparison

    print_comparison(priced, plan_id, run_name, result)


def stored_plan(store: Store, reference: str, plan: Plan) -> tuple[int, Plan]:
    """The plan's id in the store, with the best prediction there is."""
    from specs.errors import StoreError
    from specs.plan_file import plan_hash

    if reference.isdecimal() and plan.prediction is not None:
        return int(reference), plan
    known = [stored for stored in store.plans_like(plan_hash(plan)) if stored.plan.prediction]
    for stored in reversed(known):
        if plan.prediction is None or stored.plan.prediction == plan.prediction:
            return stored.id, stored.plan
    if plan.prediction is not None:
        try:
            return store.add_plan(plan), plan
        except StoreError:
            pass  # priced by profile runs of another store: price it by those of this one
    plan = _priced(store, plan)
    return store.add_plan(plan), plan


def _priced(store: Store, plan: Plan) -> Plan:
    from dataclasses import replace

    from planner.evaluate import evaluate_plan
    from specs.errors import ProfileMissing

    try:
        return evaluate_plan(store, plan)
    except ProfileMissing as error:
        err_console().print(
            f"Warning: nothing to compare with, the plan has no prediction: {error}",
            style="yellow",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        return replace(plan, prediction=None)


def _run(store: Store, plan_id: int, plan: Plan, options: Options) -> tuple[str, RunOutcome]:
    import logging
    import sys
    from datetime import UTC, datetime
    from secrets import token_hex

    from runtime.launcher import LocalLauncher
    from specs.host import allowed_cores, host_fingerprint

    cores = len(allowed_cores())
    if plan.gpus_used > cores and all(s.gpu == "cpu" for t in plan.templates for s in t.stages):
        err_console().print(
            f"Warning: {plan.gpus_used} processes share {cores} cores: times say nothing about "
            "the plan",
            style="yellow",
        )
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{token_hex(2)}"
    origin = " ".join(["arachne-run", *sys.argv[1:]])
    quiet = logging.getLogger().level >= logging.ERROR
    unsaved: list[Measurement] = []
    saved_at = time.monotonic()
    with LocalLauncher(plan, options) as launcher:
        outcome = launcher.outcome
        try:
            for iteration in launcher.run():
                unsaved.append(_row(iteration, name, host_fingerprint(), origin, None))
                if not quiet:
                    note = " (warm-up)" if iteration.warm_up else ""
                    click.echo(
                        f"iteration {iteration.number}: {iteration.ms:.1f} ms, "
                        f"loss {iteration.loss:.4f}{note}",
                        err=True,
                    )
                if time.monotonic() - saved_at > _FLUSH_S:
                    store.add_measurements(plan_id, unsaved)
                    unsaved, saved_at = [], time.monotonic()
        finally:
            if unsaved:
                store.add_measurements(plan_id, unsaved)
    rows = [_row(i, name, host_fingerprint(), origin, outcome.drift) for i in outcome.iterations]
    store.add_measurements(plan_id, rows)
    return name, outcome


def _row(iteration: Any, run: str, host: str, origin: str, drift: float | None) -> Measurement:
    from specs.measurement import Measurement

    return Measurement(
        run=run,
        host=host,
        origin=origin,
        iteration=iteration.number,
        iteration_ms=iteration.ms,
        warm_up=iteration.warm_up,
        loss=iteration.loss,
        peak_bytes=iteration.peak_bytes,
        drift=drift,
    )


def _compared(store: Store, plan: Plan, outcome: RunOutcome) -> tuple[Comparison, float | None]:
    """The comparison, and the reference work in the profile that the prediction comes from."""
    from runtime.comparison import compare
    from specs.errors import StoreError

    references = []
    for run_id in plan.prediction.profile_runs if plan.prediction else ():
        try:
            found = store.profile_run(run_id)
        except StoreError:
            continue  # deleted since
        if found.run.reference_ms is not None and found.layer_rows:
            references.append(found.run.reference_ms)
    reference_ms = min(references, default=None)
    return compare(plan, outcome.iterations, reference_ms), reference_ms


def _write_trace(path: str, plan: Plan, outcome: RunOutcome) -> None:
    import json

    from runtime.trace import chrome_trace
    from specs.files import write_atomically

    write_atomically(path, json.dumps(chrome_trace(plan, outcome.iterations)))
    click.echo(f"trace written to {path}", err=True)


def _document(
    plan_id: int,
    run: str,
    outcome: RunOutcome,
    result: Comparison,
    reference_ms: float | None,
) -> dict[str, Any]:
    return {
        "plan_id": plan_id,
        "run": run,
        **result.to_json(),
        "profile_reference_ms": reference_ms,
        "iterations": [
            {
                "iteration": iteration.number,
                "iteration_ms": iteration.ms,
                "warm_up": iteration.warm_up,
                "loss": iteration.loss,
                "peak_bytes": list(iteration.peak_bytes),
                "reference_ms": list(iteration.reference_ms),
            }
            for iteration in outcome.iterations
        ],
    }
