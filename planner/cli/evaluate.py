"""`arachne-plan evaluate`: price a given plan, whoever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from planner.cli.certificate import certificate_option, prove_bound
from planner.cli.question import Question, question_of, workload_options
from specs.door import json_option, store_option, verbosity_options

if TYPE_CHECKING:
    from db.store import Store
    from planner.problem import Problem
    from specs.plan import Plan


@click.command()
@click.argument("plan")
@workload_options
@certificate_option
@store_option
@json_option
@verbosity_options
def evaluate(plan: str, certificate: str, store: str, as_json: bool, **options: Any) -> None:
    """Price PLAN, a plan file or the id of a stored plan, by the profiles of the store.

    A file in the form of the reference problems needs --model and --cluster; of a list of such
    plans those for this model and cluster are priced. The plan is stored with its prediction.

    Example: arachne-plan evaluate plan.json
    """
    from db.store import open_store
    from planner.answer import answer_document, figures
    from planner.cli.tables import (
        plain_table,
        stage_table,
        summary_lines,
        template_lines,
    )
    from planner.idle import idle_reasons
    from specs.door import console, print_json

    question = question_of(options)
    with open_store(store) as opened:
        plans, is_list = _priced_plans(opened, plan, question)
        plans, problem = _certified(opened, plans, question, certificate)
        ids = [opened.add_plan(one, options={"headroom": question.headroom}) for one in plans]
    if as_json:
        documents = [
            answer_document(one, {"plan_id": plan_id})
            for one, plan_id in zip(plans, ids, strict=True)
        ]
        print_json({"plans": documents} if is_list else documents[0])
        return
    out = console()
    if is_list:
        rows = [
            {
                "plan": plan_id,
                "iteration_ms": figures(one)["iteration_s"] * 1000,
                "templates": len(one.templates),
                "GPUs": one.gpus_used,
                "fits": figures(one)["fits"],
            }
            for one, plan_id in zip(plans, ids, strict=True)
        ]
        out.print(plain_table(list(rows[0]), rows))
        return
    for line in [*summary_lines(plans[0]), *template_lines(plans[0])]:
        out.print(line, soft_wrap=True, highlight=False)
    out.print(stage_table(plans[0], details=True))
    for one in idle_reasons(problem, plans[0]):
        out.print(f"idle: {one}", soft_wrap=True, highlight=False)
    out.print(f"stored as plan {ids[0]}", highlight=False)


def _priced_plans(store: Store, reference: str, question: Question) -> tuple[list[Plan], bool]:
    """The plans of the argument with their predictions, and whether it is a list of them."""
    from pathlib import Path

    from planner.cli.plan_argument import read_plan
    from planner.evaluate import evaluate_plan
    from planner.golden_form import is_golden
    from specs.files import read_yaml_or_json
    from specs.profile import Source

    if Path(reference).exists() or not reference.isdecimal():
        content = read_yaml_or_json(reference)
        if is_golden(content):
            return _golden_plans(store, content, reference, question), isinstance(content, list)
    source = Source(question.source) if question.source else None
    given = read_plan(store, reference)
    return [evaluate_plan(store, given, source=source, headroom=question.headroom)], False


def _certified(
    store: Store, plans: list[Plan], question: Question, effort: str
) -> tuple[list[Plan], Problem]:
    """The plans with the lower bound of their problem, proven once for each; the last problem."""
    from planner.evaluate import plan_problem, with_bound
    from specs.profile import Source

    source = Source(question.source) if question.source else None
    bounds: dict[Any, float | None] = {}
    found = []
    for one in plans:
        key = (one.model.config_hash, one.workload, one.cluster)
        if key not in bounds:
            problem = plan_problem(store, one, source=source, headroom=question.headroom)
            bounds[key] = prove_bound(problem, effort)
        found.append(with_bound(one, bounds[key]))
    return found, problem


def _golden_plans(store: Store, content: Any, where: str, question: Question) -> list[Plan]:
    """Plans in the form of the reference problems, for the model and cluster of the options."""
    from planner.assemble import assemble
    from planner.cli.question import read_problem
    from planner.golden_form import entries_of, filled_of_golden
    from specs.errors import SpecError

    if question.model is None or question.cluster is None:
        raise SpecError(
            f"{where}: plans of this form name no model and no cluster file: give --model and "
            "--cluster"
        )
    problem = read_problem(store, question)
    names = {"model": problem.model.name, "cluster": problem.cluster.name}
    entries = entries_of(content)
    mine = [e for e in entries if all(e.get(key, name) == name for key, name in names.items())]
    if not mine:
        raise SpecError(
            f"{where}: none of its {len(entries)} plans is for {names['model']} on "
            f"{names['cluster']}"
        )
    plans = []
    for number, entry in enumerate(entries):
        if entry in mine:
            here = f"{where}[{number}]" if isinstance(content, list) else where
            asked, templates = filled_of_golden(problem, entry["plan"], here)
            plans.append(assemble(asked, templates, str(entry.get("planner", "given"))))
    return plans
