"""`arachne-plan replan`: the best plan after the cluster has changed."""

from __future__ import annotations

import click

from planner.cli.question import pricing_options
from specs.door import Number, json_option, store_option, verbosity_options
from specs.profile import Source


@click.command()
@click.option("--from", "before", required=True, metavar="PLAN", help="A plan file or stored id.")
@click.option("--cluster", required=True, metavar="FILE", help="The cluster as it is now.")
@click.option(
    "--keep-if-better",
    is_flag=True,
    help="Keep the old plan where it still stands and is at least as fast.",
)
@click.option("--planner", help="How plans are searched.  [default: the default planner]")
@click.option(
    "--budget-s",
    type=Number(min=0, min_open=True),
    help="Ceiling on the search, in seconds.  [default: the planner's own end]",
)
@pricing_options
@click.option("--estimate-missing", is_flag=True, help="Estimate the profiles of new GPU types.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of what the search draws.")
@click.option("-o", "--output", metavar="FILE", help="Write the plan document here.")
@store_option
@json_option
@verbosity_options
def replan(
    before: str,
    cluster: str,
    keep_if_better: bool,
    planner: str | None,
    budget_s: float | None,
    source: str | None,
    headroom: float,
    estimate_missing: bool,
    seed: int,
    output: str | None,
    store: str,
    as_json: bool,
) -> None:
    """Plan anew for a changed cluster, and say what it gains over the plan so far.

    Nodes are the same where their names are. The search begins from nothing; with
    --keep-if-better the old plan stays where it still stands and is at least as fast. Exit code 1
    if no plan fits.

    Example: arachne-plan replan --from plan.json --cluster smaller.yaml --keep-if-better
    """
    import json
    import time

    from db.store import open_store
    from planner.answer import answer_document, prediction_of
    from planner.baselines import DEFAULT_PLANNER, planner_named
    from planner.cli.plan_argument import read_plan
    from planner.cli.progress import progress
    from planner.cli.tables import summary_lines, template_lines
    from planner.difference import plan_difference
    from planner.policy.replanning import still_stands
    from planner.problem import Problem
    from planner.profiles import load_profiles
    from planner.result import Budget
    from planner.shipped import cluster_of
    from specs.door import console, err_console, print_json
    from specs.errors import PlanError
    from specs.files import write_atomically
    from specs.plan_file import plan_to_document

    name = planner or DEFAULT_PLANNER
    search = planner_named(name)
    with open_store(store) as opened:
        old = read_plan(opened, before)
        now = cluster_of(cluster)
        if estimate_missing:
            from profiler.estimate import estimate_missing as estimate

            estimate(opened, old.model, old.workload, now)
        began = time.perf_counter()
        profiles = load_profiles(
            opened, old.model, old.workload, now, source=Source(source) if source else None
        )
        problem = Problem(old.model, old.workload, now, profiles, headroom)
        reading_s = time.perf_counter() - began
        standing, why_not = still_stands(problem, old)
        with progress(name):
            result = search(problem, Budget(seconds=budget_s).less(reading_s), seed)
        found, kept = result.plan, False
        if (
            keep_if_better
            and standing is not None
            and (
                found is None
                or prediction_of(standing).iteration_ms <= prediction_of(found).iteration_ms
            )
        ):
            found, kept = standing, True
        if found is None:
            raise PlanError(f"no plan on {now.name}: {result.reason}")
        planning_s = reading_s + result.planning_s
        plan_id = opened.add_plan(
            found,
            planning_s=planning_s,
            evaluations=result.evaluations,
            rejected=result.rejected,
            options={"seed": seed, "headroom": headroom, "source": source, "replanned": True},
        )
    if output:
        write_atomically(output, json.dumps(plan_to_document(found), indent=2) + "\n")
    difference = plan_difference(old, found)
    old_s = prediction_of(standing).iteration_ms / 1000 if standing is not None else None
    if as_json:
        print_json(
            answer_document(
                found,
                {
                    "plan_id": plan_id,
                    "planner": name,
                    "kept": kept,
                    "old_stands": standing is not None,
                    "old_iteration_s": old_s,
                    "why_old_falls": why_not,
                    "gpus_moved": difference["gpus_moved"],
                    "planning_s": planning_s,
                    "evaluations": result.evaluations,
                    "status": result.status.value,
                    "reason": result.reason,
                },
            )
        )
        return
    out = console()
    for line in [*summary_lines(found), *template_lines(found)]:
        out.print(line, soft_wrap=True, highlight=False)
    if standing is None:
        out.print(f"the old plan does not stand here: {why_not}", soft_wrap=True, highlight=False)
    else:
        out.print(f"the old plan takes {old_s:.3f} s here", highlight=False)
    out.print(
        "the old plan is kept"
        if kept
        else f"{difference['gpus_moved']} GPUs hold other layers than before",
        highlight=False,
    )
    err_console().print(
        f"{result.evaluations:,} plans priced in {planning_s:.1f} s; stored as plan {plan_id}",
        highlight=False,
    )
