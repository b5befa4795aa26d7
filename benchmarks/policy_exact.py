"""The learned planner beside proven optima: small clusters that `exhaustive` exhausts.

    python -m benchmarks.policy_exact -o benchmarks/results/DATE-policy-exact.md

Random clusters of 2 to 8 GPUs of one to three large types, llama-3-8b, estimated profiles. Only
those count where exhaustive proves its plan the best of its space (up to three templates, every
order of stages, number of replicas, placement and micro-batch size) within its ceiling.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.held_out import trained
from planner.baselines import arachne, exhaustive
from planner.policy.training.clusters import node_of
from planner.policy.weights import chosen_weights
from planner.problem import Problem
from planner.result import Budget
from specs.cluster import Cluster

LARGE = ("a100-80gb", "h100", "gh200", "rtx-pro-6000", "l40s", "a6000", "h200")
SEED = 35


def small_cluster(draw: np.random.Generator, number: int) -> Cluster:
    """Nodes of 1 to 4 GPUs of one to three types, 8 GPUs at most."""
    nodes = []
    left = 8
    for t in draw.choice(len(LARGE), int(draw.integers(1, 4)), replace=False):
        held = min(left, int(draw.integers(1, 5)))
        if held:
            nodes.append(node_of(LARGE[int(t)], held, f"n{len(nodes)}", 12.5))
        left -= held
    return Cluster(f"small-{number}", tuple(nodes))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clusters", type=int, default=24, help="drawn; fewer have a proof")
    options.add_argument("--ceiling", type=int, default=400_000, help="evaluations of exhaustive")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("-o", "--output", type=Path)
    asked = options.parse_args()
    one, draw = trained("llama-3-8b"), np.random.default_rng(SEED)
    lines = [
        "| cluster | proven, ms | arachne, ms | ratio | evaluations |",
        "| --- | --- | --- | --- | --- |",
    ]
    ratios, without = [], 0
    for number in range(asked.clusters):
        problem = Problem(one.model, one.workload, small_cluster(draw, number), one.profiles)
        best = exhaustive.plan(problem, Budget(evaluations=asked.ceiling), 0)
        if "proven" not in best.reason or not best.curve:
            without += 1
            continue
        mine = arachne.plan(problem, Budget(), asked.seed)
        proven, found = best.curve[-1][1], mine.curve[-1][1] if mine.curve else float("inf")
        ratios.append(proven / found)
        words = " + ".join(f"{node.gpus} {node.gpu}" for node in problem.cluster.nodes)
        lines.append(
            f"| {words} | {proven:.1f} | {found:.1f} | {proven / found:.4f} | "
            f"{best.evaluations:,} / {mine.evaluations:,} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    figures = np.array(ratios or [0.0])
    page = f"""# The learned planner beside proven optima

{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()} with {os.cpu_count()}
cores that other work shared, Python {platform.python_version()}. Weights
{chosen_weights().file_hash[:16]}, seed {asked.seed}. Command:
`python -m benchmarks.policy_exact {" ".join(sys.argv[1:])}`.

{len(ratios)} of {asked.clusters} clusters have a plan that is proven best within {asked.ceiling:,}
evaluations; {without} have no plan or no proof. Proven iteration over that of the default
planning: mean {figures.mean():.4f}, worst {figures.min():.4f}; {(figures >= 0.99).sum()} within
1 %. A ratio above 1 is a plan outside the exhausted space (more than three templates).

{chr(10).join(lines)}
"""
    if asked.output:
        asked.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
