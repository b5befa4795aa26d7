"""Exhaustive search: against enumeration by the reference, and by its promises."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest

from planner.baselines import annealing, arachne, exhaustive
from planner.baselines import random as random_planner
from planner.baselines.exhaustive import MOST_TEMPLATES
from planner.fill.template import Fill, fill_placed, profiled_micro_batches
from planner.filled import FilledPlan, FilledTemplate
from planner.packing import Demand, FreeGpus, Placement, largest_replicas, pack
from planner.problem import Problem
from planner.result import Budget, PlanResult
from specs.cluster import Cluster, Node
from specs.topology import Topology
from tests.planner.random_problems import random_model, random_problem, random_profiles
from tests.planner.reference import reference_problem

PROVEN = "proven by exhaustion"


def iteration_ms(result: PlanResult) -> float:
    """What was found, inf where nothing was."""
    if result.plan is None:
        return float("inf")
    assert result.plan.prediction is not None
    return result.plan.prediction.iteration_ms


def small_problem(seed: int, sizes: Sequence[Sequence[int]], blocks: int, family: str) -> Problem:
    """sizes: GPUs of every node, by GPU type."""
    draw = random.Random(seed)
    drawn = random_problem(seed, family)
    config = dict(random_model(draw, family).config) | {"num_hidden_layers": blocks}
    model = type(drawn.model).from_config("small", config)
    nodes = [
        Node(f"{gpu}-{i}", gpu, count, Topology.PCIE, draw.choice([5.0, 25.0]), 10.0)
        for gpu, counts in zip(("a100-40gb", "a6000", "h100"), sizes, strict=False)
        for i, count in enumerate(counts)
    ]
    cluster = Cluster("small", tuple(nodes))
    workload = replace(drawn.workload, global_batch=draw.choice([1, 4, 7, 16]))
    layers = draw.choice([3.0, 6.0, 30.0])
    profiles = random_profiles(draw, model, workload, cluster, layers)
    return Problem(model, workload, cluster, profiles, 0.05)


def every_fill(
    problem: Problem, earlier: list[FilledTemplate]
) -> Iterator[tuple[float, list[FilledTemplate]]]:
    """Every next template of the space in the readable reference, and all that come behind it."""
    kinds = [
        Demand(gpu, tp) for gpu in problem.cluster.gpus_by_type for tp in problem.profiles.tps(gpu)
    ]
    free = FreeGpus.of(problem, FilledPlan(problem.cluster, tuple(earlier)).used)
    ceiling = problem.workload.global_batch - sum(t.replicas for t in earlier)
    for depth in range(1, problem.model.blocks + 1):
        for structure in product(kinds, repeat=depth):
            most = largest_replicas(free, structure, ceiling) if ceiling > 0 else 0
            for r, placement in product(range(1, most + 1), Placement):
                nodes = pack(free, structure, r, placement)
                assert nodes is not None
                for b in profiled_micro_batches(problem, structure):
                    fill = Fill()
                    fill_placed(problem, structure, earlier, b, nodes, fill)
                    if fill.best is not None:
                        laid = [*earlier, fill.best[0]]
                        yield fill.best[1].iteration_ms, laid
                        if len(laid) < MOST_TEMPLATES:
                            yield from every_fill(problem, laid)


SIZES = [[[2], [1]], [[1], [1], [1]], [[2, 1]], [[3]], [[1, 1], [1]], [[1], [2]]]


@pytest.mark.parametrize("family", ["dense", "moe", "mixed"])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_that_the_reference_enumerates_is_faster(seed: int, family: str) -> None:
    problem = small_problem(seed, SIZES[seed], 3 if family == "mixed" else 2, family)
    least = min((ms for ms, _ in every_fill(problem, [])), default=float("inf"))
    found = exhaustive.plan(problem, Budget(), 0)
    assert iteration_ms(found) == pytest.approx(least, rel=1e-9)
    if found.plan is not None:
        assert PROVEN in found.reason


@pytest.mark.parametrize(
    "sizes",
    [
        [[3, 1], [2], [2]],
        [[8]],
        pytest.param([[4], [2], [2]], marks=pytest.mark.long),
        pytest.param([[2, 2], [1, 1], [1, 1]], marks=pytest.mark.long),
        pytest.param([[5], [2], [1]], marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_up_to_8_gpus_of_3_types_the_best_is_proven(seed: int, sizes: list[list[int]]) -> None:
    problem = small_problem(100 + seed, sizes, 8, "dense")
    found = exhaustive.plan(problem, Budget(), 0)
    if found.plan is None:
        assert found.rejected
        return
    assert PROVEN in found.reason
    for other in (arachne.plan, annealing.plan, random_planner.plan):
        assert iteration_ms(other(problem, Budget(evaluations=3000), seed)) >= (
            iteration_ms(found) * (1 - 1e-9)
        )


@pytest.mark.parametrize(
    ("model", "cluster", "best_known_ms"),
    [("llama-3-8b", "mixed-128", 6929.0), ("llama-3-8b", "uneven-52", 17060.0)],
)
def test_large_clusters_come_close_to_the_best_known(
    model: str, cluster: str, best_known_ms: float
) -> None:
    problem = reference_problem(model, cluster)
    found = exhaustive.plan(problem, Budget(evaluations=200_000), 0)
    assert iteration_ms(found) <= 1.02 * best_known_ms
    assert PROVEN not in found.reason
    assert "single templates" in found.reason


def test_the_same_ceiling_gives_the_same_plan() -> None:
    problem = reference_problem("llama-3-8b", "uneven-52")
    one, two = (exhaustive.plan(problem, Budget(evaluations=20_000), seed) for seed in (0, 1))
    assert one.plan == two.plan
    assert one.evaluations == two.evaluations


def test_a_ceiling_in_the_midst_of_a_small_cluster_says_what_share_it_covered() -> None:
    problem = small_problem(100, [[4], [2], [2]], 8, "dense")
    found = exhaustive.plan(problem, Budget(evaluations=40), 0)
    assert found.evaluations < 2000
    assert PROVEN not in found.reason
    assert "% of all first templates exhausted" in found.reason
