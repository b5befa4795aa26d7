"""How fast searches get better, by plans priced: while learning, and with what was learned.

    python -m benchmarks.policy_curve --rows rows.jsonl -o benchmarks/results/DATE-policy-curve.md

Learning, as the paper shows it: from untrained weights with the recipe `paper` on one composition,
`arachne` against `flat-rl`, and beside them `random` (the median of seeds) and `hetauto`, which
have nothing to learn and pay again at every change. Planning: the shipped weights against what did
not learn; each search goes on until the ceiling on evaluations. The best so far is read off at
fixed counts of plans priced. Curves are kept one a line, so that a killed run goes on; with
`--store` they go into a store as well, where `arachne-report compare` draws them by composition.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.held_out import held_out
from planner.baselines import PLANNERS, annealing, flat_rl
from planner.policy.network import initial_parameters
from planner.policy.planning import Planning, Schedule, default_schedule
from planner.policy.training.recipe import recipe_of
from planner.policy.training.space import SPACES
from planner.policy.training.trainer import Trainer
from planner.policy.weights import FLAT_KIND, chosen_weights, shipped_weights
from planner.problem import Problem
from planner.result import Budget

COUNTS = (100, 300, 1_000, 3_000, 10_000)
LEARNING_COUNTS = (100, 300, 1_000, 2_000)
RANDOM_SEEDS = 3
Curve = list[tuple[int, float]]


def learning(problem: Problem, planner: str, seed: int, most: int) -> list[Curve]:
    """The best so far of a training on one composition alone, until so many plans are priced."""
    recipe = replace(recipe_of("paper", 400), compositions=1)
    curve: Curve = []

    def report(facts: dict[str, Any]) -> None:
        known = trainer.memory.best(0)
        if known:
            ideal_ms = trainer.composition(0).scene.ideal_ms
            curve.append((facts["evaluations"], ideal_ms / known[0][0].throughput))
        if facts["evaluations"] >= most:
            trainer.limit_s = 0.0

    trainer = Trainer([problem], recipe, seed, space=SPACES[planner], report=report)
    trainer.run()
    return [curve]


def planned(problem: Problem, schedule: Schedule, weights: Any, seed: int) -> list[Curve]:
    """One search with given weights, to the ceiling on evaluations."""
    ceiling = Budget(evaluations=COUNTS[-1])
    return [list(Planning(problem, "arachne", ceiling, seed, schedule).run(weights).curve)]


def sampled(problem: Problem, weights: Any, seed: int) -> list[Curve]:
    """flat-rl with given weights, to the ceiling on evaluations."""
    ceiling = Budget(evaluations=COUNTS[-1])
    return [list(flat_rl.sample(problem, ceiling, seed, weights, None).curve)]


def anew(problem: Problem, planner: str, seeds: range) -> list[Curve]:
    """A planner that has nothing to learn, for as many evaluations as the learning ones get."""
    ceiling = Budget(evaluations=LEARNING_COUNTS[-1])
    return [list(PLANNERS[planner](problem, ceiling, seed).curve) for seed in seeds]


def searches(every: int, learned: int, seed: int) -> dict[str, Callable[[], list[Curve]]]:
    """Every search by its name; a search of several seeds has as many curves."""
    untrained = initial_parameters(0)
    policy, flat = chosen_weights().parameters, shipped_weights(FLAT_KIND).parameters
    again = replace(annealing.SCHEDULE, goes_on=True)
    rollouts = Schedule(rounds=(), goes_on=True)
    found: dict[str, Callable[[], list[Curve]]] = {}
    problems = list(enumerate(held_out()))[::every]
    for number, problem in problems[:learned]:
        name = f"{number} learning"
        for planner in SPACES:
            most = LEARNING_COUNTS[-1]
            found[f"{name} {planner}"] = partial(learning, problem, planner, seed, most)
        found[f"{name} random"] = partial(anew, problem, "random", range(RANDOM_SEEDS))
        found[f"{name} hetauto"] = partial(anew, problem, "hetauto", range(seed, seed + 1))
    for number, problem in problems:
        moves = default_schedule(problem.cluster.gpus, goes_on=True)
        for name, schedule, weights in (
            ("masked random", rollouts, untrained),
            ("annealing", again, untrained),
            ("untrained, then moves", moves, untrained),
            ("policy, no moves", rollouts, policy),
            ("policy, then moves", moves, policy),
        ):
            search = partial(planned, problem, schedule, weights, seed)
            found[f"{number} planning {name}"] = search
        found[f"{number} planning flat-rl"] = partial(sampled, problem, flat, seed)
    return found


def table(rows: dict[str, list[Curve]], what: str, counts: tuple[int, ...]) -> str:
    """Mean over compositions of the best known iteration over the best so far, by plans priced."""
    by_search: dict[str, dict[str, list[Curve]]] = {}
    for key, curves in rows.items():
        number, kind, name = key.split(" ", 2)
        if kind == what:
            by_search.setdefault(name, {})[number] = curves
    if not by_search:
        return "Not run."
    numbers = set.intersection(*(set(found) for found in by_search.values()))
    best = {
        number: min(
            (ms for key, curves in rows.items() if key.split(" ", 1)[0] == number
             for curve in curves for _, ms in curve),
            default=float("inf"),
        )
        for number in numbers
    }  # fmt: skip
    solved = [number for number in sorted(numbers, key=int) if best[number] < float("inf")]
    lines = [
        "| search | " + " | ".join(f"{n:,}" for n in counts) + " |",
        "| --- " * (1 + len(counts)) + "|",
    ]
    for name, found in by_search.items():
        cells = []
        for count in counts:
            reached = [
                float(np.median([_read(curve, count, best[number]) for curve in found[number]]))
                for number in solved
            ]
            cells.append(f"{np.mean(reached):.3f}" if reached else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\nCompositions: {', '.join(solved)} of the held-out list."


def _read(curve: Curve, count: int, best_ms: float) -> float:
    return max((best_ms / ms for n, ms in curve if n <= count), default=0.0)


def keep(rows: dict[str, list[Curve]], path: str) -> None:
    """The curves as comparisons of a store: one a composition, learning and planning in it.

    The row of a search has the best that any of its curves came to; its plan is not kept.
    """
    from collections import defaultdict

    from db.records import ComparisonRow, CurvePoint, NewComparison, SearchCurve
    from db.store import open_store

    by_number: dict[int, list[tuple[str, str, list[Curve]]]] = defaultdict(list)
    for key, curves in rows.items():
        number, kind, name = key.split(" ", 2)
        by_number[int(number)].append((kind, name, curves))
    problems = list(held_out())
    with open_store(path) as store:
        for number, found in sorted(by_number.items()):
            problem = problems[number]
            title = f"held-out composition {number}"
            question = NewComparison(
                title, problem.model, problem.workload, problem.cluster, "search efficiency"
            )
            comparison = store.add_comparison(question)
            best: dict[str, list[tuple[int, float]]] = defaultdict(list)
            for kind, name, curves in found:
                for seed, curve in enumerate(curves):
                    best[name] += curve
                    points = tuple(CurvePoint(count, ms) for count, ms in curve)
                    store.add_search_curve(comparison, SearchCurve(name, points, seed, kind))
            for name, points_of in best.items():
                row = ComparisonRow(name, None, "no plan", "none found in this many evaluations")
                if points_of:
                    most = max(count for count, _ in points_of)
                    row = ComparisonRow(
                        *(name, None, "ok", "", min(ms for _, ms in points_of)), evaluations=most
                    )
                store.add_comparison_row(comparison, row)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=Path, required=True, help="kept curves, JSON lines")
    options.add_argument("--every", type=int, default=4, help="every n-th held-out composition")
    options.add_argument("--learned", type=int, default=3, help="compositions to learn on")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--report", action="store_true", help="only the page of what is there")
    options.add_argument("--store", help="a store that gets the curves too")
    options.add_argument("-o", "--output", type=Path)
    asked = options.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, list[Curve]] = {}
    if asked.rows.exists():
        for line in asked.rows.read_text().splitlines():
            row = json.loads(line)
            rows[row["search"]] = row["curves"]
    todo = {} if asked.report else searches(asked.every, asked.learned, asked.seed)
    for name, search in todo.items():
        if name in rows:
            continue
        rows[name] = search()
        with asked.rows.open("a") as file:
            file.write(json.dumps({"search": name, "curves": rows[name]}) + "\n")
        print(name, file=sys.stderr, flush=True)
    if asked.store:
        keep(rows, asked.store)
    page = f"""# Search efficiency

{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()} with {os.cpu_count()}
cores that other work shared, Python {platform.python_version()}. Policy
{chosen_weights().file_hash[:16]}, flat-rl {shipped_weights(FLAT_KIND).file_hash[:16]}, seed
{asked.seed}. Command: `python -m benchmarks.policy_curve {" ".join(sys.argv[1:])}`.

Every figure: mean over compositions of the shortest iteration that any search of this page found,
over the best one so far, by plans priced (DESIGN section 13, 27; refused ones count); 0 where
none was found yet. Rollouts count when their batch is done, so the first figures of a search with
large batches are low.

## While learning, from untrained weights, each composition for itself

{table(rows, "learning", LEARNING_COUNTS)}

`random` is the planner of that name, the median of {RANDOM_SEEDS} seeds. arachne and flat-rl learn
by the recipe `paper`; the plans of their self-imitation are priced once more and counted.

## With the shipped weights

{table(rows, "planning", COUNTS)}

`masked random` is rollouts of the untrained network under masks and fill. flat-rl has neither, and
no moves.
"""
    if asked.output:
        asked.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
