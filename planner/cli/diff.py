"""`arachne-plan diff`: what two plans do differently."""

from __future__ import annotations

import click

from specs.door import json_option, store_option, verbosity_options


@click.command()
@click.argument("first")
@click.argument("second")
@store_option
@json_option
@verbosity_options
def diff(first: str, second: str, store: str, as_json: bool) -> None:
    """Compare two plans, files or ids of stored ones: templates, times, GPUs that change hands.

    Example: arachne-plan diff 3 plan.json
    """
    from db.store import open_store
    from planner.cli.plan_argument import read_plan
    from planner.difference import plan_difference
    from specs.door import console, print_json
    from specs.units import human_bytes

    with open_store(store) as opened:
        found = plan_difference(read_plan(opened, first), read_plan(opened, second))
    if as_json:
        print_json(found)
        return
    out = console()
    for name in ("first", "second"):
        side = found[name]
        time = f"{side['iteration_s']:.3f} s" if "iteration_s" in side else "not priced"
        out.print(
            f"{name}: {side['model']} on {side['cluster']}, {side['planner']}: {time}, "
            f"{side['gpus_used']} GPUs",
            soft_wrap=True,
            highlight=False,
        )
        for k, shape in enumerate(side["templates"]):
            out.print(f"  template {k}: {shape}", soft_wrap=True, highlight=False, markup=False)
    sides = found["first"], found["second"]
    if len({(side["model"], side["global_batch"]) for side in sides}) > 1:
        batches = " and ".join(str(side["global_batch"]) for side in sides)
        out.print(f"other questions (global batches {batches}): their times do not compare")
    if found["same"]:
        out.print("the same layout")
        return
    if found["iteration_ratio"] is not None:
        change = found["iteration_ratio"] - 1
        words = f"{abs(change):.1%} {'more' if change > 0 else 'less'} time than the first"
        out.print(f"the second takes {words}" if change else "both take as long", highlight=False)
    out.print(
        f"{found['gpus_moved']} GPUs hold other layers, {found['gpus_only_in_first']} only the "
        f"first uses, {found['gpus_only_in_second']} only the second",
        soft_wrap=True,
        highlight=False,
    )
    if found["bytes_to_move"] is not None:
        out.print(
            f"{human_bytes(found['bytes_to_move'])} of state move, at most "
            f"{human_bytes(found['most_bytes_of_a_gpu'])} to one GPU: a live change would take "
            f"about {found['predicted_pause_s']:.1f} s",
            soft_wrap=True,
            highlight=False,
        )
