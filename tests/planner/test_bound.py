import math
import random

import pytest

from planner.bound import Candidate, certificate, closed_bound, relaxed_packing
from planner.cost import price_filled
from planner.floors import Floors
from planner.problem import Problem
from planner.profiles import ProfileSet
from specs.cluster import Cluster, Node
from specs.errors import ProfileMissing
from specs.profile import HostProfile, LayerKey, LayerProfile
from specs.topology import Topology
from specs.workload import Workload
from tests.planner.all_plans import every_plan
from tests.planner.odd_problems import (
    odd_cluster,
    odd_model,
    odd_problem,
    odd_profiles,
    odd_templates,
    priced,
)
from tests.planner.reference import golden_plans, golden_templates, reference_problem

# (model, cluster) -> (bound of the reference implementation, best iteration known), in ms.
REFERENCE = {
    ("llama-3-8b", "mixed-128"): (4773.0, 6929.0),
    ("qwen3-32b", "mixed-128"): (19320.0, 27100.0),
    ("llama-3-8b", "uneven-52"): (13280.0, 17060.0),
}
ROUNDING = 1 - 1e-12


@pytest.mark.parametrize("case", REFERENCE)
def test_the_closed_bound_is_that_of_the_reference_implementation_or_higher(case):
    reference, best = REFERENCE[case]
    found = closed_bound(reference_problem(*case)).iteration_ms
    assert reference <= found <= 1.02 * reference
    assert found < best


@pytest.mark.parametrize(
    ("case", "least"),
    [
        (("llama-3-8b", "mixed-128"), 6300.0),
        pytest.param(("llama-3-8b", "uneven-52"), 15250.0, marks=pytest.mark.long),
        pytest.param(("qwen3-32b", "mixed-128"), 23700.0, marks=pytest.mark.long),
    ],
)
def test_the_certificate_lies_within_15_percent_of_the_best_plan_known(case, least):
    _, best = REFERENCE[case]
    found = certificate(reference_problem(*case))
    assert least <= found.iteration_ms <= best
    assert found.gap(best) < 0.15
    assert found.closed_ms == closed_bound(reference_problem(*case)).iteration_ms


@pytest.mark.parametrize("entry", golden_plans(), ids=lambda entry: entry["cluster"])
def test_no_golden_plan_is_below_the_closed_bound(entry):
    problem = reference_problem(entry["model"], entry["cluster"])
    assert entry["expected"]["iteration_ms"] >= closed_bound(problem).iteration_ms


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["mixed-64", "two-64", "uneven-52", "uneven-208", "mixed-512"])
@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-32b"])
def test_no_golden_plan_is_below_the_certificate(model, cluster):
    found = certificate(reference_problem(model, cluster)).iteration_ms
    plans = [one for one in golden_plans() if (one["model"], one["cluster"]) == (model, cluster)]
    assert plans
    assert all(one["expected"]["iteration_ms"] >= found for one in plans)


def test_a_certificate_is_the_same_every_time():
    problem = odd_problem(random.Random(5))
    assert certificate(problem) == certificate(problem)


def one_gpu_problem(batch: int, micro_batch: int = 1, usable: int = 10**9) -> Problem:
    """A one-block model on one GPU: every layer takes 10 ms, the host 1, updates 2 ms each."""
    model = odd_model(random.Random(0), blocks=1, kind="llama")
    workload = Workload(batch, 128)
    rows = [
        LayerProfile(
            LayerKey(
                "h100",
                layer.hash,
                1,
                micro_batch,
                128,
                workload.dtype,
                workload.recompute,
                workload.optimizer,
                Topology.NVLINK,
            ),
            4.0,
            6.0,
            0.0,
            2.0,
            1000,
            0,
            layer.parameters * 2,
        )
        for layer in model.layer_types
    ]
    cluster = Cluster("one", (Node("n0", "h100", 1, Topology.NVLINK, 12.5, 10.0),))
    hosts = [HostProfile("h100", 1.0, 0, usable)]
    return Problem(model, workload, cluster, ProfileSet.of_rows(rows, [], hosts))


def test_on_one_gpu_the_certificate_is_the_one_plan_there_is():
    # One stage of three layers: 8 micro-batches of 3 * 10 + 1 ms, then three updates of 2 ms.
    problem = one_gpu_problem(batch=8)
    assert certificate(problem).iteration_ms == pytest.approx(8 * 31 + 6, rel=3e-3)


def test_on_one_gpu_the_closed_bound_in_numbers():
    # P = 8 * 30 = 240; one replica: K = 8 * 1; (240 + sqrt(240^2 + 4 * 240 * 8)) / 2; U = 6.
    expected = (240 + math.sqrt(240**2 + 4 * 240 * 8)) / 2 + 6
    assert closed_bound(one_gpu_problem(batch=8)).iteration_ms == pytest.approx(expected, rel=1e-9)


def test_where_no_layer_fits_anywhere_the_bound_is_infinite():
    assert certificate(one_gpu_problem(batch=8, usable=1000)).iteration_ms == math.inf


def test_a_layer_without_any_profile_is_named():
    problem = one_gpu_problem(batch=8)
    rows = list(problem.profiles.layers.values())[1:]
    without = Problem(
        problem.model,
        problem.workload,
        problem.cluster,
        ProfileSet.of_rows(rows, [], problem.profiles.hosts.values()),
    )
    with pytest.raises(ProfileMissing, match="no profile of embedding on any GPU type"):
        certificate(without)


def _no_random_plan_is_below(seed: int, plans: int) -> int:
    draw = random.Random(seed)
    problem = odd_problem(draw)
    found = certificate(problem)
    assert found.iteration_ms >= found.closed_ms * ROUNDING
    checked = 0
    for _ in range(plans):
        prediction = priced(problem, odd_templates(draw, problem))
        if prediction is not None:
            assert prediction.iteration_ms >= found.iteration_ms * ROUNDING
            checked += 1
    return checked


def test_no_random_plan_on_odd_clusters_is_below_the_certificate():
    assert sum(_no_random_plan_is_below(seed, plans=60) for seed in range(18)) > 300


@pytest.mark.long
def test_no_plan_of_very_many_random_ones_is_below_the_certificate():
    assert sum(_no_random_plan_is_below(seed, plans=200) for seed in range(1000, 1400)) > 20_000


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_all_plans_on_a_tiny_cluster_is_not_below_the_certificate(seed):
    draw = random.Random(100 + seed)
    model = odd_model(draw, blocks=draw.randint(1, 2))
    cluster = odd_cluster(draw, most_nodes=2, largest=2)
    profiles = odd_profiles(draw, model, cluster)
    problem = Problem(model, Workload(draw.choice([3, 8]), 128), cluster, profiles, headroom=0.0)
    found = certificate(problem).iteration_ms
    best = min(
        (
            prediction.iteration_ms
            for templates in every_plan(problem)
            if (prediction := priced(problem, templates)) is not None
        ),
        default=math.inf,
    )
    assert best >= found * ROUNDING
    if math.isfinite(best):
        assert best < 4 * found


def test_expert_tilings_can_only_lower_the_bound():
    draw = random.Random(3)
    model = odd_model(draw, blocks=3, kind="mixtral")
    cluster = odd_cluster(draw, most_nodes=4)
    profiles = odd_profiles(draw, model, cluster)
    tiled = Problem(model, Workload(64, 128), cluster, profiles)
    untiled = Problem(model, Workload(64, 128), cluster, profiles, expert_tiling=False)
    assert closed_bound(tiled).iteration_ms <= closed_bound(untiled).iteration_ms


def test_the_floor_of_a_moe_layer_takes_the_least_of_every_tiling():
    draw = random.Random(4)
    model = odd_model(draw, blocks=2, kind="mixtral")
    cluster = Cluster("one", (Node("n0", "h100", 4, Topology.NVLINK, 12.5, 10.0),))
    profiles = odd_profiles(draw, model, cluster)
    problem = Problem(model, Workload(8, 128), cluster, profiles)
    block = model.layers[1]
    floor = Floors.of(problem).layers[0, 2, 1, block.hash]
    rows = [
        row
        for row in profiles.layers.values()
        if (row.key.layer_type, row.key.tp, row.key.micro_batch) == (block.hash, 2, 1)
    ]
    assert len(rows) == 12
    assert floor.time_ms == min(r.forward_ms + r.backward_ms + r.comm_ms for r in rows)
    least = min(row.parameter_bytes + row.expert_parameter_bytes for row in rows)
    assert floor.state_bytes == least * 8


def test_relaxed_packing_of_one_template_fills_the_cluster_with_fractions_of_it():
    problem = reference_problem("llama-3-8b", "mixed-128")  # 32 a100-40gb; batch 1024
    one = Candidate(micro_batch=1, gpus={"a100-40gb": 3}, sum_ms=30.0, max_ms=10.0, once_ms=5.0)
    # 32/3 replicas of 96 micro-batches each: 5 + 30 + 95 * 10.
    assert relaxed_packing(problem, [one]) == pytest.approx(985.0, rel=1e-5)


def test_relaxed_packing_mixes_templates_and_is_no_slower_than_either():
    problem = reference_problem("llama-3-8b", "mixed-128")
    a100 = Candidate(1, {"a100-40gb": 4}, 100.0, 30.0, 5.0)
    h100 = Candidate(2, {"h100": 4}, 80.0, 25.0, 9.0)
    mixed = relaxed_packing(problem, [a100, h100])
    assert mixed < min(relaxed_packing(problem, [a100]), relaxed_packing(problem, [h100]))
    # At that time both together train exactly the batch: 8 and 16 replicas.
    assert 8 * a100.samples(mixed) + 16 * h100.samples(mixed) == pytest.approx(1024, rel=1e-4)


def test_relaxed_packing_of_nothing_is_infinite():
    assert relaxed_packing(reference_problem("llama-3-8b", "mixed-128"), []) == math.inf


def test_no_golden_plan_beats_the_relaxed_packing_of_its_own_templates():
    for entry in golden_plans()[:12]:
        problem = reference_problem(entry["model"], entry["cluster"])
        templates = golden_templates(entry)
        prediction = price_filled(problem, templates)
        candidates = []
        for template, stages in zip(templates, prediction.stages, strict=True):
            gpus: dict[str, int] = {}
            for stage in template.stages:
                gpus[stage.gpu] = gpus.get(stage.gpu, 0) + stage.tp
            times = [stage.time_ms for stage in stages]
            once = max(stage.once_ms for stage in stages)
            candidates.append(Candidate(template.micro_batch, gpus, sum(times), max(times), once))
        assert relaxed_packing(problem, candidates) <= prediction.iteration_ms * (1 + 1e-6)
