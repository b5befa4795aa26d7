"""The paper's growing cluster: planned from scratch at every join, no plan carried over.

    python -m benchmarks.policy_growth -o benchmarks/results/DATE-policy-growth.md

Three RTX PRO 6000, then 4-GPU nodes of A6000, A5000, A6000, A6000; llama-3-8b at its default
workload, 12.5 GB/s a node, estimated profiles. A plan slower than the one that it replaces would
show as a drop. The row `keep if better` may keep the old plan, as `replan --keep-if-better` does.
"""

from __future__ import annotations

import argparse
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from planner.baselines import arachne
from planner.policy.training.clusters import node_of
from planner.policy.training.pool import Trained
from planner.problem import Problem
from planner.profiles import Origin, ProfileSet
from planner.result import Budget
from profiler.estimates.question import Question, answer
from specs.cluster import Cluster
from specs.model import load_model
from specs.profile import Source

JOINS = (("rtx-pro-6000", 3), ("a6000", 4), ("a5000", 4), ("a6000", 4), ("a6000", 4))


def trained() -> Trained:
    model = load_model("llama-3-8b")
    workload = model.default_workload
    rows = answer(
        Question(
            gpus=("rtx-pro-6000", "a6000", "a5000"),
            model=model,
            tps=(1, 2, 4),
            micro_batches=(1, 2, 4, 8),
            seq_len=workload.seq_len,
            dtype=workload.dtype,
            optimizer=workload.optimizer,
        )
    )
    profiles = ProfileSet.of_rows(rows.layers, rows.links, rows.hosts, Origin(0, Source.ESTIMATED))
    return Trained(model, workload, profiles)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("-o", "--output", type=Path)
    asked = options.parse_args()
    one = trained()
    lines = [
        "| after the join of | GPUs | samples/s, each seed | keep if better | planning s |",
        "| --- | --- | --- | --- | --- |",
    ]
    before = [0.0] * asked.seeds
    kept = [0.0] * asked.seeds
    drops = 0
    nodes = []
    for number, (gpu, gpus) in enumerate(JOINS):
        nodes.append(node_of(gpu, gpus, f"{gpu}-{number}", 12.5))
        cluster = Cluster(f"growing-{number}", tuple(nodes))
        problem = Problem(one.model, one.workload, cluster, one.profiles)
        rates, times = [], []
        for seed in range(asked.seeds):
            result = arachne.plan(problem, Budget(), seed)
            times.append(result.planning_s)
            ms = (
                result.plan.prediction.iteration_ms if result.plan and result.plan.prediction else 0
            )
            rates.append(one.workload.global_batch / ms * 1000 if ms else 0.0)
        drops += sum(now < old for now, old in zip(rates, before, strict=True))
        kept = [max(a, b) for a, b in zip(kept, rates, strict=True)]
        before = rates
        lines.append(
            f"| {gpus} {gpu} | {cluster.gpus} | {', '.join(f'{rate:.4f}' for rate in rates)} | "
            f"{', '.join(f'{rate:.4f}' for rate in kept)} | {max(times):.2f} |"
        )
    page = f"""# The growing cluster, planned from scratch at every join

{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, Python
{platform.python_version()}. Command: `python -m benchmarks.policy_growth {" ".join(sys.argv[1:])}`.
llama-3-8b, global batch {one.workload.global_batch}, estimated profiles, the shipped policy,
{asked.seeds} seeds. Throughput fell at {drops} of {asked.seeds * (len(JOINS) - 1)} joins.

{chr(10).join(lines)}
"""
    if asked.output:
        asked.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
