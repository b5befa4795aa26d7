"""The compositions that judge the policy are those of no training and of no choice."""

from collections import Counter

from benchmarks.held_out import MODELS, SEEN, UNSEEN, held_out, selection, trained
from planner.cli.train import DEFAULT_GPUS, DEFAULT_MODELS
from planner.policy.training.pool import random_pool
from planner.policy.training.recipe import recipe_of
from planner.problem import Problem

TRAINING_SEEDS = (0, 1, 2)  # of the shipped weights and of the repetitions of its command


def composition(problem: Problem) -> tuple[str, tuple[tuple[str, int, float | None, int], ...]]:
    """What makes a composition: the model, and how many nodes of which kind there are."""
    nodes = Counter(
        (node.gpu, node.gpus, node.bandwidth_gb_per_s) for node in problem.cluster.nodes
    )
    return problem.model.name, tuple(sorted((*kind, count) for kind, count in nodes.items()))


def test_training_selection_and_held_out_do_not_overlap() -> None:
    models = [trained(name) for name in DEFAULT_MODELS.split(",")]
    gpus = DEFAULT_GPUS.split(",")
    assert set(gpus) == set(SEEN)
    training = {
        composition(problem)
        for seed in TRAINING_SEEDS
        for problem in random_pool(models, gpus, recipe_of("default").pool, seed)
    }
    chosen_on = [composition(problem) for problem in selection()]
    judged_on = [composition(problem) for problem in held_out()]
    assert len(training) > 10_000
    assert len(set(judged_on)) == len(judged_on)
    assert not set(judged_on) & set(chosen_on)
    assert not set(judged_on) & training
    assert not set(chosen_on) & training


def test_held_out_compositions_are_of_every_kind_that_is_asked_for() -> None:
    problems = held_out()
    assert len(problems) >= 40
    sizes = [problem.cluster.gpus for problem in problems]
    assert min(sizes) >= 32
    assert max(sizes) == 1024
    assert {problem.model.name for problem in problems} == set(MODELS)
    counts = Counter(len(problem.cluster.gpus_by_type) for problem in problems)
    assert all(counts[n] >= 2 for n in (1, 2, 3, 4, 5))
    for gpu in UNSEEN:
        assert sum(gpu in problem.cluster.gpus_by_type for problem in problems) >= 4
    shapes = [{node.gpus for node in problem.cluster.nodes} for problem in problems]
    assert sum(len(found) == 1 for found in shapes) >= 5
    assert sum(len(found) > 3 for found in shapes) >= 10


def test_the_same_compositions_are_drawn_every_time() -> None:
    assert [composition(p) for p in held_out()] == [composition(p) for p in held_out()]
