"""`arachne-run log`: iteration times that another launcher measured."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from specs.door import json_option, store_option, verbosity_options


@click.command()
@click.argument("plan")
@click.argument("times")
@click.option("--host", help="The machine; needed where the file has no column `host`.")
@click.option(
    "--origin",
    help="Launcher, or data set and licence; needed where the file has no column `origin`.",
)
@click.option("--run", "run_name", help="Name of the run. Default: a hash of host and figures.")
@store_option
@json_option
@verbosity_options
def log(
    plan: str,
    times: str,
    host: str | None,
    origin: str | None,
    run_name: str | None,
    store: str,
    as_json: bool,
) -> None:
    """Write TIMES, iteration times of PLAN that another launcher measured, beside its prediction.

    PLAN is a plan file or the id of a stored plan. TIMES is a CSV or JSON file, or - for stdin:
    iteration, iteration_ms, and if known peak_bytes, loss, warm_up, samples, drift, host,
    origin, run. The same file twice is written once.

    Example: arachne-run log plan.json times.csv --host lab-1 --origin "Megatron-LM core_r0.16"
    """
    from db.store import open_store
    from planner.cli.plan_argument import read_plan
    from runtime.cli.recording import stored_plan
    from runtime.log_file import read_times
    from specs.door import console, print_json

    text, where = _read(times)
    rows = read_times(text, where, host=host, origin=origin, run=run_name)
    with open_store(store) as opened:
        plan_id, priced = stored_plan(opened, plan, read_plan(opened, plan))
        opened.add_measurements(plan_id, rows)
    predicted = priced.prediction.iteration_ms if priced.prediction else None
    counted = [row for row in rows if not row.warm_up] or rows
    weight = sum(row.samples for row in counted)
    mean_ms = sum(row.iteration_ms * row.samples for row in counted) / weight
    if as_json:
        print_json(
            {
                "plan_id": plan_id,
                "runs": sorted({row.run for row in rows}),
                "iterations": len(rows),
                "mean_ms": mean_ms,
                "predicted_ms": predicted,
                "error": None if predicted is None else predicted / mean_ms - 1,
            }
        )
    elif logging.getLogger().level < logging.ERROR:
        said = "no prediction" if predicted is None else f"predicted {predicted:.1f} ms"
        if predicted is not None:
            said += f" ({predicted / mean_ms - 1:+.1%})"
        console().print(
            f"plan {plan_id}: {len(rows)} iterations logged, mean {mean_ms:.1f} ms, {said}",
            highlight=False,
            soft_wrap=True,
        )


def _read(times: str) -> tuple[str, str]:
    from specs.errors import SpecError

    if times == "-":
        return sys.stdin.read(), "stdin"
    try:
        return Path(times).read_text(encoding="utf-8"), times
    except FileNotFoundError:
        raise SpecError(f"{times}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{times}: cannot be read as text ({error})") from None
