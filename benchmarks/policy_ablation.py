"""What each part of the training brings: short equal runs, each without one part.

    python -m benchmarks.policy_ablation --rows rows.jsonl -o benchmarks/results/FILE.md

Every run trains from nothing with the default recipe cut short (the options say how far) and is
then judged by 64 rollouts without moves on every n-th composition of `selection`
(benchmarks/held_out.py): quality = shortest iteration that any of these runs found over this
run's. Three seeds of the whole recipe show how much chance does. A row is kept as soon as its run
is done, so that a killed benchmark goes on. The same by hand: `arachne-plan train --ablate PART`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.held_out import SEEN, selection, trained
from benchmarks.policy_quality import ROLLOUTS
from planner.policy.planning import Planning
from planner.policy.training.pool import random_pool
from planner.policy.training.recipe import PARTS, recipe_of
from planner.policy.training.trainer import Trainer
from planner.problem import Problem
from planner.result import Budget

MODELS = ("llama-3-8b", "qwen3-32b", "mixtral-8x7b")
WHOLE = "whole recipe"
SEEDS = 3
Row = dict[str, Any]


def runs() -> list[tuple[str, int]]:
    """(part that is left out, seed), those first that the others are read against."""
    whole = [(WHOLE, seed) for seed in range(SEEDS)]
    return whole + [(part, 0) for part in PARTS]


def train_and_judge(part: str, seed: int, asked: argparse.Namespace) -> Row:
    recipe = recipe_of("default", asked.steps, () if part == WHOLE else (part,))
    recipe = replace(
        recipe,
        pool=asked.pool,
        compositions=asked.compositions,
        rollouts=asked.rollouts,
        teacher_moves=asked.moves,
        teacher_walks=(2, 1),
        teacher_epochs=asked.epochs,
    )
    problems = random_pool([trained(name) for name in MODELS], SEEN, asked.pool, seed)
    facts: Row = {}
    trainer = Trainer(problems, recipe, seed, report=facts.update)
    network = trainer.run()
    parameters = trainer.final_arrays(network)
    times = []
    for problem in judged_on(asked.every):
        result = Planning(problem, "arachne", Budget(), 0, ROLLOUTS).run(parameters)
        times.append(result.curve[-1][1] if result.curve else None)
    return {
        "part": part,
        "seed": seed,
        "ms": times,
        "training_s": trainer.seconds,
        "evaluations": trainer.evaluations,
        **{name: facts.get(name) for name in ("duplicates", "depth", "templates")},
    }


def judged_on(every: int) -> list[Problem]:
    return selection()[::every]


def table(rows: list[Row]) -> str:
    times = np.array([[ms or np.inf for ms in row["ms"]] for row in rows])
    quality = times.min(axis=0) / times
    lines = [
        "| without | seed | mean | worst | duplicates | depth | templates | plans priced | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row, q in zip(rows, quality, strict=True):
        facts = " | ".join(f"{row[name]:.2f}" for name in ("duplicates", "depth", "templates"))
        name = "nothing" if row["part"] == WHOLE else row["part"]
        lines.append(
            f"| {name} | {row['seed']} | {q.mean():.4f} | {q.min():.3f} | {facts} | "
            f"{row['evaluations']:,} | {row['training_s']:.0f} |"
        )
    whole = [q.mean() for row, q in zip(rows, quality, strict=True) if row["part"] == WHOLE]
    if len(whole) > 1:
        lines.append("")
        lines.append(
            f"Means of the whole recipe over {len(whole)} seeds: {min(whole):.4f} to "
            f"{max(whole):.4f}. A part whose row lies inside is not shown to bring anything here."
        )
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=Path, required=True, help="kept rows, JSON lines")
    options.add_argument("--steps", type=int, default=20, help="updates of reinforcement")
    options.add_argument("--pool", type=int, default=36, help="compositions to train on")
    options.add_argument("--compositions", type=int, default=4, help="a step")
    options.add_argument("--rollouts", type=int, default=24, help="a composition")
    options.add_argument("--moves", type=int, default=1500, help="of the teacher")
    options.add_argument("--epochs", type=int, default=20, help="of imitation")
    options.add_argument("--every", type=int, default=3, help="n-th composition of the selection")
    options.add_argument("--report", action="store_true", help="only the page of what is there")
    options.add_argument("-o", "--output", type=Path)
    asked = options.parse_args()
    torch.set_num_threads(1)
    rows: dict[tuple[str, int], Row] = {}
    if asked.rows.exists():
        for line in asked.rows.read_text().splitlines():
            row = json.loads(line)
            rows[row["part"], row["seed"]] = row
    for part, seed in [] if asked.report else runs():
        if (part, seed) in rows:
            continue
        rows[part, seed] = train_and_judge(part, seed, asked)
        with asked.rows.open("a") as file:
            file.write(json.dumps(rows[part, seed]) + "\n")
        print(f"{part}, seed {seed}: {rows[part, seed]['training_s']:.0f} s", file=sys.stderr)
    done = [rows[key] for key in runs() if key in rows]
    missing = [f"{part} (seed {seed})" for part, seed in runs() if (part, seed) not in rows]
    not_run = f"\nNot run: {', '.join(missing)}.\n" if missing else ""
    page = f"""# Ablations of the training: short equal runs

{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()} with {os.cpu_count()}
cores that other work shared, Python {platform.python_version()}, torch {torch.__version__}, one
thread. Command: `python -m benchmarks.policy_ablation {" ".join(sys.argv[1:])}`.

Each run: {asked.pool} compositions, {asked.steps} updates of {asked.compositions} x
{asked.rollouts} rollouts, teacher of {asked.moves:,} moves, {asked.epochs} epochs of imitation.
Judged by 64 rollouts, no moves, on {len(done[0]["ms"]) if done else 0} compositions of
`selection`; quality against the best of these runs alone. Wall clock of training on shared cores.

{table(done) if done else ""}
{not_run}"""
    if asked.output:
        asked.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
