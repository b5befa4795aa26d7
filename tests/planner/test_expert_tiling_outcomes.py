"""What tiling experts brings at the sizes of the paper, from estimated profiles."""

from __future__ import annotations

from functools import cache

import pytest

from planner.baselines import arachne, exhaustive
from planner.problem import Problem
from planner.profiles import Origin, ProfileSet
from planner.result import Budget, PlanResult, Status
from profiler.estimates.question import Question, answer
from specs.cluster import Cluster, Node
from specs.gpu import gpu_type
from specs.model import load_model
from specs.profile import Source

TYPES = ("a100-40gb", "a6000", "h100", "h100")  # 1 : 1 : 2


@cache
def profiles_of(model: str) -> ProfileSet:
    known = load_model(model)
    workload = known.default_workload
    estimates = answer(
        Question(
            gpus=tuple(dict.fromkeys(TYPES)),
            model=known,
            tps=(1, 2, 4),
            micro_batches=(1, 2),
            seq_len=workload.seq_len,
            dtype=workload.dtype,
            optimizer=workload.optimizer,
        )
    )
    return ProfileSet.of_rows(
        estimates.layers, estimates.links, estimates.hosts, Origin(1, Source.ESTIMATED)
    )


def problem(model: str, gpus: int, *, tiling: bool) -> Problem:
    """A model on nodes of four GPUs, a quarter A100-40GB, a quarter A6000, half H100."""
    nodes = tuple(
        Node(f"{gpu}-{k}-{i}", gpu, 4, gpu_type(gpu).default_topology, 12.5, 10.0)
        for k, gpu in enumerate(TYPES)
        for i in range(gpus // 16)
    )
    known = load_model(model)
    return Problem(
        known,
        known.default_workload,
        Cluster(f"mixed-{gpus}", nodes),
        profiles_of(model),
        expert_tiling=tiling,
    )


def tilings(result: PlanResult) -> set[tuple[int, int]]:
    assert result.plan is not None
    return {(s.ep, s.etp) for template in result.plan.templates for s in template.stages}


@pytest.mark.parametrize("gpus", [160, 256, 512])
def test_deepseek_has_a_plan_with_tiling(gpus: int) -> None:
    result = arachne.plan(
        problem("deepseek-v3-like", gpus, tiling=True), Budget(evaluations=20_000), 0
    )
    assert result.status is Status.OK
    assert any(ep > 1 for ep, _ in tilings(result))


@pytest.mark.parametrize("gpus", [160, 256, 512])
def test_deepseek_has_no_plan_without(gpus: int) -> None:
    for search in (arachne.plan, exhaustive.plan):
        result = search(
            problem("deepseek-v3-like", gpus, tiling=False), Budget(evaluations=50_000), 0
        )
        assert result.plan is None
        # One routed block a stage at most, and the first of 13 has 14 micro-batches in flight.
        assert all(reason.startswith("memory at stage") for reason in list(result.rejected)[:3])


@pytest.mark.parametrize("gpus", [64, 128, 256])
def test_qwen3_moe_has_plans_with_and_without_and_tiling_never_costs(gpus: int) -> None:
    """Decision 0013: with estimated profiles tiling pays here, where the paper saw no gain."""
    budget = Budget(evaluations=20_000)
    tiled, plain = (
        arachne.plan(problem("qwen3-30b-a3b", gpus, tiling=tiling), budget, 0)
        for tiling in (True, False)
    )
    times = []
    for result in (tiled, plain):
        assert result.plan is not None
        assert result.plan.prediction is not None
        times.append(result.plan.prediction.iteration_ms)
    assert times[0] <= times[1]
    assert all(ep == 1 for ep, _ in tilings(plain))
