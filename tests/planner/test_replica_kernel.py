"""The compiled dynamic program against every replica there is, written down one by one."""

import random
from itertools import product

import numpy as np
import pytest

from planner.bound import closed_bound
from planner.floors import Floors
from planner.replica_bound import KEPT_CEILING, ReplicaBound
from planner.replica_kernel import GPUS, IN, INFINITE, OUT, PER_CLASS, SYNC, UPDATE
from tests.planner.odd_problems import odd_problem


def _least_by_enumeration(bound, table, prices, weight, slowest, ceiling):
    """The same minimum, from the definition: all stage sequences, runs and labels.

    In-flight micro-batches are left at 1, so this is at most what the kernel finds.
    """
    layers = table.time.shape[1] - 1
    options = [
        (c, o)
        for c in range(len(bound.classes))
        for o in range(table.option_from[c], table.option_from[c + 1])
    ]
    best = INFINITE

    def stage_costs(c, o, i, j, left, right):
        """Every (cost, time) of a stage; left, right: '' at an end, 'near' or 'far' sends."""
        work = table.option_host[o] + table.time[o, j] - table.time[o, i]
        if table.first[o, 1, j] > i:
            return
        tp = table.option_tp[o]
        price = prices[GPUS, c] * tp + prices[UPDATE, c] * tp * (
            table.update[o, j] - table.update[o, i]
        )
        labels = range(table.label.shape[1])
        for a, b in product(
            labels if right == "far" else [None], labels if left == "far" else [None]
        ):
            took, cost = work, price
            for label, side in ((a, OUT), (b, IN)):
                if label is not None:
                    took += bound.latency[c] + table.label[c, label] * table.card[c]
                    cost += prices[side, c] * table.share[c, label]
            took += table.near[c] * ((left == "near") + (right == "near"))
            if took <= slowest:
                yield cost + weight * took

    def extend(i, cost, run_class, run_gpus, run_start):
        nonlocal best
        for c, o in options:
            inside = run_class == c
            for left in ["near"] if inside else ["far"] if i > 0 else [""]:
                start = run_start if left == "near" else i
                gpus = table.option_tp[o] + (run_gpus if left == "near" else 0)
                if gpus > bound.size[c]:
                    continue
                for j in range(i + 1, layers + 1):
                    for right in [""] if j == layers else ["near", "far"]:
                        for paid in stage_costs(c, o, i, j, left, right):
                            total = cost + paid
                            if right == "near":
                                if gpus < bound.size[c]:
                                    extend(j, total, c, gpus, start)
                                continue
                            ring = bound.sync[c, j] - bound.sync[c, start]
                            total += prices[SYNC, c] * gpus * ring
                            if right == "far":
                                extend(j, total, None, 0, 0)
                            elif total < best:
                                best = total

    extend(0, 0.0, None, 0, 0)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_replica_is_the_cheapest_of_all(seed):
    draw = random.Random(seed)
    problem = odd_problem(draw, most_nodes=2, most_blocks=1)
    bound = ReplicaBound(problem, Floors.of(problem))
    if not bound.tables:
        pytest.skip("no micro-batch has rows for every layer")
    table = draw.choice(bound.tables)
    count = len(bound.classes)
    generator = np.random.default_rng(seed)
    prices = generator.uniform(0, 1, (PER_CLASS, count))
    weight = draw.choice([0.0, 0.01, 1.0])
    slowest = table.least_slowest_ms * draw.choice([1.0, 1.5, 4.0, 20.0])
    figures = np.empty(PER_CLASS * count + 2)
    found = bound._price(table, prices, weight, slowest, 1, INFINITE, figures)
    expected = _least_by_enumeration(bound, table, prices, weight, slowest, 1)
    assert found == pytest.approx(expected, rel=1e-9)
    if found < INFINITE:
        assert figures[-1] <= slowest * (1 + 1e-12)
        paid = prices.reshape(-1) @ figures[:-2] + weight * figures[-2]
        assert paid == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_more_in_flight_or_a_lower_limit_never_make_a_replica_cheaper(seed):
    draw = random.Random(seed)
    problem = odd_problem(draw, most_nodes=3)
    bound = ReplicaBound(problem, Floors.of(problem))
    if not bound.tables:
        pytest.skip("no micro-batch has rows for every layer")
    table = bound.tables[0]
    prices = np.random.default_rng(seed).uniform(0, 1, (PER_CLASS, len(bound.classes)))
    figures = np.empty(PER_CLASS * len(bound.classes) + 2)
    slowest = 4 * table.least_slowest_ms
    costs = [
        bound._price(table, prices, 0.1, slowest, kept, INFINITE, figures)
        for kept in range(1, KEPT_CEILING + 1)
    ]
    assert costs == sorted(costs)
    if costs[0] < INFINITE:
        limited = bound._price(table, prices, 0.1, slowest, 1, costs[0] * 1.01, figures)
        assert limited == pytest.approx(costs[0], rel=1e-12)
        assert bound._price(table, prices, 0.1, slowest, 1, costs[0] * 0.99, figures) == INFINITE


def test_the_bound_is_never_below_what_it_starts_from():
    problem = odd_problem(random.Random(2))
    floors = Floors.of(problem)
    start = closed_bound(problem, floors)
    assert ReplicaBound(problem, floors).improve(start.iteration_ms, start.pipe_ms) >= (
        start.iteration_ms
    )
