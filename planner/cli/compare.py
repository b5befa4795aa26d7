"""`arachne-plan compare`: what every planner makes of one question, or of a suite of them."""

from __future__ import annotations

from typing import Any

import click

from planner.cli.certificate import certificate_option
from planner.cli.question import planning_options, question_of, workload_options
from specs.door import Number, json_option, store_option, verbosity_options

# What a suite says itself, so that it cannot be said beside it.
_OF_ONE_QUESTION = (
    *("model", "cluster", "global_batch", "seq_len", "dtype", "optimizer"),
    *("recompute", "no_expert_tiling"),
)


@click.command()
@workload_options
@planning_options
@click.option(
    "--planners",
    "--baselines",
    "planners",
    metavar="NAMES",
    help="Planners beside the default one, with commas.  [default: all, or as the suite says]",
)
@click.option(
    "--suite",
    metavar="NAME",
    help="Ask every question of a suite: a YAML file, or the name of a shipped one (paper, small).",
)
@click.option("--tables", metavar="NAMES", help="Of the suite only these tables, with commas.")
@click.option(
    "--budget-s",
    type=Number(min=0, min_open=True),
    help="Ceiling on each planner's search, in seconds.  [default: 600, or as the suite says]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of what searches draw.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Planners at once, each in a process of its own.  [default: as many as there are cores]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the stored comparison of the same question: ask only for missing rows.",
)
@click.option(
    "--retile",
    is_flag=True,
    help="Also tile the experts of other planners' own plans, as rows of their own.",
)
@click.option(
    "--curve",
    is_flag=True,
    help="Also follow the best plan so far by plans priced (to 32,000; hetauto to 256,000), and "
    "store the curves for arachne-report compare.",
)
@click.option("--csv", "csv_file", metavar="FILE", help="Write the rows here as CSV.")
@certificate_option
@store_option
@json_option
@verbosity_options
def compare(
    planners: str | None,
    suite: str | None,
    tables: str | None,
    budget_s: float | None,
    seed: int,
    jobs: int | None,
    resume: bool,
    retile: bool,
    curve: bool,
    csv_file: str | None,
    certificate: str,
    store: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Ask several planners the same question, price their plans alike, and show them side by side.

    Each planner searches by its own rules within the same budget, in a process of its own, as many
    at once as there are cores; what it returns is priced by the one cost model. Plans, rows and
    search curves are stored as they come. With --suite all questions of a file are asked, and its
    tables printed, the paper's published figures beside ours. Exit code 1 if none has a plan.

    Example: arachne-plan compare --model llama-3-8b --cluster mixed-128 --planners random,metis
    """
    from db.store import open_store
    from planner.cli.contest import Asking, ask_question, ask_suite
    from planner.cli.progress import race_progress
    from planner.race import Race, cores

    if suite is None and tables is not None:
        raise click.UsageError("--tables goes with --suite")
    if suite is not None:
        for name in _OF_ONE_QUESTION:
            if options[name]:
                option = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{option} does not go with --suite, whose file says it")
    named = [name.strip() for name in planners.split(",")] if planners else None
    asking = Asking(
        question_of(options), named, budget_s, seed, certificate, resume, retile, curve, csv_file
    )
    with open_store(store) as opened, race_progress() as show, Race(jobs or cores(), show) as race:
        if suite is None:
            found = ask_question(opened, race, asking, as_json)
        else:
            found = ask_suite(opened, race, asking, suite, tables, as_json)
    if not found:
        raise SystemExit(1)
