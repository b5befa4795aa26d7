"""How good the learned planner is on compositions it has not seen, against what did not learn.

    python -m benchmarks.policy_quality --rows rows.jsonl -o benchmarks/results/DATE-policy.md

Every composition is planned by: 64 rollouts of the shipped and of the untrained network without
moves; the default schedule with both; annealing restarts with as many evaluations as the default
took; and, for the best known plan, the learned planner and annealing with `--long` evaluations.
Quality is the shortest iteration that anything found over this one's. Rows are kept one a line,
so that a killed run goes on. Set OPENBLAS_NUM_THREADS=1, as arachne-plan does by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.held_out import UNSEEN, held_out
from planner.baselines import annealing
from planner.policy.network import initial_parameters
from planner.policy.planning import Planning, Round, Schedule, default_schedule
from planner.policy.weights import chosen_weights, load_weights
from planner.problem import Problem
from planner.result import Budget, PlanResult

ROLLOUTS = Schedule(rollouts=64, batch=32, rounds=())
COLUMNS = {
    "untrained-64": "64 rollouts, untrained network",
    "policy-64": "64 rollouts, shipped policy",
    "annealing": "annealing restarts, evaluations of the default",
    "untrained": "default schedule, untrained network",
    "policy": "default schedule, shipped policy",
}


def measure(problem: Problem, parameters: Any, seed: int, long: int) -> dict[str, Any]:
    untrained = initial_parameters(0)
    row: dict[str, Any] = {
        "model": problem.model.name,
        "cluster": problem.cluster.name,
        "gpus": problem.cluster.gpus,
        "types": sorted(problem.cluster.gpus_by_type),
        "unseen": sorted(set(UNSEEN) & set(problem.cluster.gpus_by_type)),
    }

    def run(name: str, schedule: Schedule, weights: Any, budget: Budget) -> PlanResult:
        began = time.process_time()
        result = Planning(problem, name, budget, seed, schedule).run(weights)
        row[name] = {
            "ms": result.curve[-1][1] if result.curve else None,
            "evaluations": result.evaluations,
            "planning_s": result.planning_s,
            "cpu_s": time.process_time() - began,
        }
        return result

    run("untrained-64", ROLLOUTS, untrained, Budget())
    run("policy-64", ROLLOUTS, parameters, Budget())
    default = default_schedule(problem.cluster.gpus)
    run("untrained", default, untrained, Budget())
    done = run("policy", default, parameters, Budget())
    same = Schedule(
        annealing.SCHEDULE.rollouts,
        annealing.SCHEDULE.batch,
        annealing.SCHEDULE.rounds,
        annealing.SCHEDULE.restarts,
        goes_on=True,
    )
    run("annealing", same, untrained, Budget(evaluations=done.evaluations))
    if long:
        run("long-annealing", same, untrained, Budget(evaluations=long))
        rounds = (Round(16, 1000, 0.02), Round(8, 4000, 0.02))
        deep = Schedule(256, 32, rounds, goes_on=True)
        run("long-policy", deep, parameters, Budget(evaluations=long))
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| planner | mean | median | worst | within 1 % | evaluations | CPU s, median | most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    quality = {name: [] for name in COLUMNS}
    for row in rows:
        best = min(v["ms"] for v in row.values() if isinstance(v, dict) and v["ms"])
        for name in COLUMNS:
            ms = row[name]["ms"]
            quality[name].append(best / ms if ms else 0.0)
    for name, words in COLUMNS.items():
        q = np.array(quality[name])
        cpu = np.array([row[name]["cpu_s"] for row in rows])
        count = np.median([row[name]["evaluations"] for row in rows])
        lines.append(
            f"| {words} | {q.mean():.4f} | {np.median(q):.4f} | {q.min():.3f} | "
            f"{(q >= 0.99).mean():.0%} | {count:,.0f} | {np.median(cpu):.2f} | {cpu.max():.2f} |"
        )
    return "\n".join(lines)


def details(rows: list[dict[str, Any]]) -> str:
    head = "| model | cluster | GPUs | types | " + " | ".join(COLUMNS) + " | s, 1 thread |"
    lines = [head, "| --- " * (5 + len(COLUMNS)) + "|"]
    for row in rows:
        best = min(v["ms"] for v in row.values() if isinstance(v, dict) and v["ms"])
        cells = [f"{best / row[n]['ms']:.4f}" if row[n]["ms"] else "none" for n in COLUMNS]
        unseen = " (unseen)" if row["unseen"] else ""
        lines.append(
            f"| {row['model']} | {row['cluster']} | {row['gpus']} | {len(row['types'])}{unseen} | "
            + " | ".join(cells)
            + f" | {row['policy']['cpu_s']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=Path, required=True, help="kept rows, JSON lines")
    options.add_argument("--weights", type=Path, help="default: the shipped ones")
    options.add_argument("--numbers", help="only these compositions, with commas")
    options.add_argument("--long", type=int, default=150_000, help="evaluations, each of two")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("-o", "--output", type=Path, help="write the Markdown page here")
    asked = options.parse_args()
    weights = load_weights(asked.weights) if asked.weights else chosen_weights()
    done: dict[int, dict[str, Any]] = {}
    if asked.rows.exists():
        done = {r["number"]: r for r in map(json.loads, asked.rows.read_text().splitlines())}
    problems = held_out()
    chosen = range(len(problems))
    for number in [int(n) for n in asked.numbers.split(",")] if asked.numbers else chosen:
        if number in done:
            continue
        row = measure(problems[number], weights.parameters, asked.seed, asked.long)
        done[number] = {"number": number, **row}
        with asked.rows.open("a") as file:
            file.write(json.dumps(done[number]) + "\n")
        print(f"{number}: {row['model']} on {row['gpus']} GPUs", file=sys.stderr)
    rows = [done[number] for number in sorted(done)]
    solved = [r for r in rows if any(isinstance(v, dict) and v["ms"] for v in r.values())]
    page = f"""# The learned planner on held-out compositions

{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()} with {os.cpu_count()}
cores that other work shared, Python {platform.python_version()}; times are CPU seconds of one
thread, planning alone (no imports, no compilation). Weights {weights.file_hash[:16]}, seed
{asked.seed}. Command: `python -m benchmarks.policy_quality {" ".join(sys.argv[1:])}`.

Quality = shortest iteration that anything here found / iteration of this plan, on
{len(solved)} of {len(problems)} compositions ({len(rows) - len(solved)} more have no plan at all).
Best known: the best of all columns and of two long searches (learned and annealing) of
{asked.long:,} evaluations. Profiles are estimated. Compositions: benchmarks/held_out.py.

{table(solved)}

## Every composition

{details(solved)}
"""
    if asked.output:
        asked.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
