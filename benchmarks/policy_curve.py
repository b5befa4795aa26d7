"""How fast searches get better, by plans priced: the shipped policy against what did not learn.

    python -m benchmarks.policy_curve -o benchmarks/results/DATE-policy-curve.md

Each search goes on until the ceiling on evaluations; its best so far is read off at fixed counts.
`random` is rollouts of the untrained network under the same masks and fill, without moves.
"""

from __future__ import annotations

import argparse
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.held_out import held_out
from planner.baselines import annealing
from planner.policy.network import initial_parameters
from planner.policy.planning import Planning, Schedule, default_schedule
from planner.policy.weights import chosen_weights, load_weights
from planner.result import Budget

COUNTS = (50, 100, 200, 500, 1_000, 3_000, 10_000, 30_000)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--every", type=int, default=4, help="every n-th held-out composition")
    options.add_argument("--weights", type=Path, help="default: the shipped ones")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("-o", "--output", type=Path)
    asked = options.parse_args()
    policy = load_weights(asked.weights) if asked.weights else chosen_weights()
    untrained = initial_parameters(0)
    again = Schedule(
        annealing.SCHEDULE.rollouts,
        annealing.SCHEDULE.batch,
        annealing.SCHEDULE.rounds,
        annealing.SCHEDULE.restarts,
        goes_on=True,
    )
    searches = {
        "random": (Schedule(rounds=(), goes_on=True), untrained),
        "annealing": (again, untrained),
        "untrained, then moves": (None, untrained),
        "policy, no moves": (Schedule(rounds=(), goes_on=True), policy.parameters),
        "policy, then moves": (None, policy.parameters),
    }
    problems = held_out()[:: asked.every]
    best: dict[str, list[list[float]]] = {name: [] for name in searches}
    for problem in problems:
        found = {}
        for name, (schedule, weights) in searches.items():
            chosen = schedule or default_schedule(problem.cluster.gpus, goes_on=True)
            ceiling = Budget(evaluations=COUNTS[-1])
            found[name] = Planning(problem, name, ceiling, asked.seed, chosen).run(weights).curve
        shortest = min((ms for curve in found.values() for _, ms in curve), default=0.0)
        if not shortest:
            continue
        for name, curve in found.items():
            best[name].append(
                [
                    max((shortest / ms for count, ms in curve if count <= n), default=0.0)
                    for n in COUNTS
                ]
            )
        print(f"{problem.model.name} on {problem.cluster.gpus} GPUs", file=sys.stderr)
    head = "| search | " + " | ".join(f"{n:,}" for n in COUNTS) + " |"
    lines = [head, "| --- " * (1 + len(COUNTS)) + "|"]
    for name, rows in best.items():
        means = np.array(rows).mean(axis=0)
        lines.append(f"| {name} | " + " | ".join(f"{q:.3f}" for q in means) + " |")
    page = f"""# Search efficiency at planning time

{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, Python
{platform.python_version()}. Weights {policy.file_hash[:16]}, seed {asked.seed}. Command:
`python -m benchmarks.policy_curve {" ".join(sys.argv[1:])}`.

Mean over {len(best["random"])} held-out compositions (every {asked.every}th of
benchmarks/held_out.py) of the shortest iteration that any of these searches found over the best
one so far, by plans priced (DESIGN section 13, 27); 0 where none was found yet.

{chr(10).join(lines)}
"""
    if asked.output:
        asked.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
