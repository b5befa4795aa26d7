"""`arachne-plan train`: train the policy that plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from specs.door import Number, json_option, store_option, verbosity_options

if TYPE_CHECKING:
    from pathlib import Path

    from planner.policy.training.pool import Trained

DEFAULT_MODELS = "llama-3-8b,qwen3-32b,mixtral-8x7b"
# h200 and rtx-3090 are kept out, so that benchmarks can say how the policy does on types it has
# never seen.
DEFAULT_GPUS = (
    "a100-40gb,a100-80gb,a40,a5000,a6000,h100,gh200,l40s,rtx-pro-6000,v100-32gb,titan-rtx"
)


@click.command()
@click.option(
    "--planner",
    type=click.Choice(["arachne", "flat-rl"]),
    default="arachne",
    show_default=True,
    help="Whose policy: flat-rl chooses every knob by itself, and takes the recipe paper.",
)
@click.option(
    "--recipe", type=click.Choice(["default", "paper"]), default="default", show_default=True
)
@click.option("--models", default=DEFAULT_MODELS, show_default=True, help="Models, with commas.")
@click.option("--gpus", default=DEFAULT_GPUS, show_default=True, help="GPU types, with commas.")
@click.option("--clusters", help="Train on these cluster files only.  [default: random clusters]")
@click.option("--compositions", type=click.IntRange(1), help="Random clusters to train on.")
@click.option("--steps", type=click.IntRange(0), help="Updates of reinforcement.")
@click.option("--ablate", multiple=True, metavar="PART", help="Leave a part of the recipe out.")
@click.option("--limit-s", type=Number(min=0, min_open=True), help="Stop after this.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything drawn.")
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: all cores]")
@click.option(
    "-o",
    "--output",
    default="policy.safetensors",
    show_default=True,
    metavar="FILE",
    help="The weights; checkpoint and metrics stand beside it.",
)
@store_option
@json_option
@verbosity_options
def train(
    planner: str,
    recipe: str,
    models: str,
    gpus: str,
    clusters: str | None,
    compositions: int | None,
    steps: int | None,
    ablate: tuple[str, ...],
    limit_s: float | None,
    seed: int,
    workers: int | None,
    output: str,
    store: str,
    as_json: bool,
) -> None:
    """Train the policy that plans, on estimated profiles of these models and GPU types.

    Writes weights, and beside them a checkpoint from which the same command goes on after a kill,
    and metrics as JSON lines. The training is recorded in the store. `arachne-plan plan` uses the
    weights named by the environment variable ARACHNE_POLICY, else those that ship with Arachne.

    Example: arachne-plan train --models llama-3-8b --gpus a100-40gb,h100 --steps 20
    """
    import os

    # One thread a process: the matrices are small, and threads would wait for each other.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    import json
    import platform
    import sys
    from dataclasses import replace
    from pathlib import Path

    import torch

    from db.records import NewPolicy
    from db.store import open_store
    from planner.policy.training.pool import pool_of_clusters, random_pool
    from planner.policy.training.recipe import recipe_of
    from planner.policy.training.space import SPACES
    from planner.policy.training.trainer import Trainer
    from planner.policy.weights import Weights, save_weights
    from specs.cluster import load_cluster
    from specs.door import err_console, print_json

    torch.set_num_threads(1)
    chosen = recipe_of(recipe, steps, ablate)
    if compositions is not None:
        chosen = replace(chosen, pool=compositions)
    names = [name.strip() for name in models.split(",")]
    types = [name.strip() for name in gpus.split(",")]
    target = Path(output)
    metrics = target.with_suffix(".metrics.jsonl")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_store(store) as opened, metrics.open("a", encoding="utf-8") as log:
        if clusters:
            files = [load_cluster(name.strip()) for name in clusters.split(",")]
            types = list(dict.fromkeys(gpu for c in files for gpu in c.gpus_by_type))
            problems = pool_of_clusters([_trained(name, types) for name in names], files)
        else:
            problems = random_pool(
                [_trained(name, types) for name in names], types, chosen.pool, seed
            )
        command = _command(sys.argv[1:], store, target)
        last: dict[str, Any] = {}
        with err_console().status("training") as status:

            def report(facts: dict[str, Any]) -> None:
                last.clear()
                last.update(facts)
                log.write(json.dumps(facts) + "\n")
                log.flush()
                shown = ", ".join(
                    f"{name} {facts[name]:.3f}"
                    for name in ("loss", "best_quality", "mean_quality", "invalid", "entropy")
                    if facts.get(name) is not None
                )
                status.update(f"{facts['stage']} {facts['done']}/{facts['of']} {shown}")

            trainer = Trainer(
                problems,
                chosen,
                seed,
                space=SPACES[planner],
                workers=workers or os.cpu_count() or 1,
                checkpoint=target.with_suffix(".checkpoint.safetensors"),
                report=report,
                limit_s=limit_s or float("inf"),
            )
            network = trainer.run()
        record = {
            "command": command,
            "planner": planner,
            "recipe": recipe,
            "parts": sorted(chosen.parts),
            "steps": trainer.step,
            "seed": seed,
            "models": names,
            "gpus": types,
            "compositions": len(problems),
            "profiles": "estimated (arachne-prof estimate), constants " + _constants(),
            "evaluations": trainer.evaluations,
            "training_s": round(trainer.seconds, 1),
            "host": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "most_depth": 32,
            "most_templates": 8,
            "commit": _commit(),
            "last": last,
        }
        file_hash = save_weights(
            target, Weights(trainer.final_arrays(network), record, kind=SPACES[planner].kind)
        )
        policy_id = opened.add_policy(
            NewPolicy(
                run=target.stem,
                recipe=recipe,
                models=names,
                metrics=dict(last),
                file_hash=file_hash,
                file=str(target),
                origin=command,
                host=platform.node(),
                seed=seed,
                steps=trainer.step,
                training_s=trainer.seconds,
            )
        )
    if as_json:
        print_json({"policy_id": policy_id, "file": str(target), "sha256": file_hash, **record})
        return
    from specs.door import console

    console().print(
        f"{trainer.step} updates on {len(problems)} compositions in {trainer.seconds:.0f} s, "
        f"{trainer.evaluations:,} plans priced; weights in {target}, metrics in {metrics}, "
        f"stored as policy {policy_id}",
        soft_wrap=True,
        highlight=False,
    )


def _command(words: list[str], store: str, target: Path) -> str:
    """The command as others can give it: no store, and the file by its name alone."""
    kept = [target.name if word == str(target) else word for word in words if word != store]
    return "arachne-plan " + " ".join(word for word in kept if word != "--store")


def _trained(name: str, gpus: list[str]) -> Trained:
    """A model with estimated profiles of all these GPU types, nodes up to 8 GPUs."""
    from planner.policy.training.pool import Trained
    from planner.profiles import Origin, ProfileSet
    from profiler.estimates.question import Question, answer
    from specs.model import load_model
    from specs.profile import Source

    model = load_model(name)
    workload = model.default_workload
    rows = answer(
        Question(
            gpus=tuple(gpus),
            model=model,
            tps=(1, 2, 4, 8),
            micro_batches=(1, 2, 4, 8),
            seq_len=workload.seq_len,
            dtype=workload.dtype,
            optimizer=workload.optimizer,
        )
    )
    profiles = ProfileSet.of_rows(rows.layers, rows.links, rows.hosts, Origin(0, Source.ESTIMATED))
    return Trained(model, workload, profiles)


def _constants() -> str:
    from profiler.calibration import constants_version

    return constants_version()


def _commit() -> str:
    """The commit of the checkout that trains, empty outside one."""
    import subprocess
    from pathlib import Path

    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return ""
    return found.stdout.strip()
