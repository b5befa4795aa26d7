"""The question that `plan` and `compare` answer: options in, a planning problem out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from planner.shipped import DEFAULT_CLUSTER, DEFAULT_MODEL
from specs.door import Number, err_console
from specs.profile import Source
from specs.workload import DType, Optimizer, Recompute

if TYPE_CHECKING:
    from db.store import Store
    from planner.problem import Problem
    from specs.cluster import Cluster
    from specs.model import Model
    from specs.workload import Workload

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Question:
    """What was asked on the command line; None = the model's default workload says."""

    model: str | None
    cluster: str | None
    global_batch: int | None
    seq_len: int | None
    dtype: str | None
    optimizer: str | None
    recompute: str | None
    source: str | None
    headroom: float
    estimate_missing: bool = False
    expert_tiling: bool = True


_headroom_option = click.option(
    "--headroom",
    type=Number(0, 1, max_open=True),
    default=0.05,
    show_default=True,
    help="Share of usable memory that stays free.",
)


def pricing_options(command: CommandT) -> CommandT:
    """Adds `--source` and `--headroom`, for commands whose plan says the rest of the question."""
    source = click.option(
        "--source", type=click.Choice([s.value for s in Source]), help="Only these profiles."
    )
    return source(_headroom_option(command))


def workload_options(command: CommandT) -> CommandT:
    """Adds the options that say what is trained and by which profiles."""
    options = [
        click.option(
            "--model",
            metavar="MODEL",
            help=f"A config.json, its folder, or a catalogue name.  [default: {DEFAULT_MODEL}]",
        ),
        click.option(
            "--cluster",
            metavar="FILE",
            help=f"A cluster file, or the name of a shipped one.  [default: {DEFAULT_CLUSTER}]",
        ),
        click.option("--global-batch", type=int, help="Sequences per optimizer step."),
        click.option("--seq-len", type=int, help="Tokens per sequence."),
        click.option("--dtype", type=click.Choice([d.value for d in DType])),
        click.option("--optimizer", type=click.Choice([o.value for o in Optimizer])),
        click.option("--recompute", type=click.Choice([r.value for r in Recompute])),
        click.option(
            "--source",
            type=click.Choice([s.value for s in Source]),
            help="Use only these profiles.  [default: measured, then imported, then estimated]",
        ),
        _headroom_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def planning_options(command: CommandT) -> CommandT:
    """Adds `--estimate-missing` and `--no-expert-tiling`."""
    command = click.option(
        "--no-expert-tiling",
        is_flag=True,
        help="Shard experts by the TP degree alone instead of tiling them.",
    )(command)
    return click.option(
        "--estimate-missing",
        is_flag=True,
        help="Estimate the profiles of GPU types that have none measured or imported.",
    )(command)


def question_of(options: dict[str, Any]) -> Question:
    """The question of a command's parameters, whatever other options it has."""
    return Question(
        model=options["model"],
        cluster=options["cluster"],
        global_batch=options["global_batch"],
        seq_len=options["seq_len"],
        dtype=options["dtype"],
        optimizer=options["optimizer"],
        recompute=options["recompute"],
        source=options["source"],
        headroom=options["headroom"],
        estimate_missing=options.get("estimate_missing", False),
        expert_tiling=not options.get("no_expert_tiling", False),
    )


def model_and_workload(question: Question) -> tuple[Model, Workload]:
    """The model, and its default workload with what the question says otherwise."""
    from dataclasses import replace

    from specs.model import load_model

    model = load_model(question.model or DEFAULT_MODEL)
    said: dict[str, Any] = {
        "global_batch": question.global_batch,
        "seq_len": question.seq_len,
        "dtype": DType(question.dtype) if question.dtype else None,
        "optimizer": Optimizer(question.optimizer) if question.optimizer else None,
        "recompute": Recompute(question.recompute) if question.recompute else None,
    }
    given = {name: value for name, value in said.items() if value is not None}
    return model, replace(model.default_workload, **given)


def read_problem(store: Store, question: Question) -> Problem:
    """The planning problem, with profiles from the store; warnings go to stderr.

    With `--estimate-missing`, types without profiles get estimated ones first. Raises
    ProfileMissing with the command that completes the store.
    """
    from planner.shipped import cluster_of

    model, workload = model_and_workload(question)
    cluster = cluster_of(question.cluster or DEFAULT_CLUSTER)
    return problem_of(store, question, model, workload, cluster)


def problem_of(
    store: Store, question: Question, model: Model, workload: Workload, cluster: Cluster
) -> Problem:
    """As `read_problem`, of a model, workload and cluster that something else says."""
    from planner.problem import Problem
    from planner.profiles import load_profiles

    if question.estimate_missing:
        from profiler.estimate import estimate_missing

        estimate_missing(store, model, workload, cluster)
    source = Source(question.source) if question.source else None
    profiles = load_profiles(store, model, workload, cluster, source=source)
    for warning in profiles.warnings:
        err_console().print(f"[yellow]Warning:[/] {warning}", soft_wrap=True)
    chosen = ", ".join(f"{gpu} {s.value}" for gpu, s in sorted(profiles.sources.items()))
    runs = ", ".join(map(str, profiles.run_ids))
    err_console().print(f"Profiles: {chosen} (runs {runs})", soft_wrap=True, highlight=False)
    return Problem(model, workload, cluster, profiles, question.headroom, question.expert_tiling)


def stored_options(question: Question, seed: int) -> dict[str, Any]:
    """What a plan is stored with: the same question and answer have one id, whatever the budget."""
    return {
        "seed": seed,
        "headroom": question.headroom,
        "expert_tiling": question.expert_tiling,
        "source": question.source,
    }
