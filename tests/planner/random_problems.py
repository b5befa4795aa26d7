"""Random planning problems: any node sizes, mixed links, dense, tied and MoE models."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from planner.filled import FilledTemplate
from planner.packing import Demand, FreeGpus, Placement, pack
from planner.problem import Problem
from planner.profiles import Origin, ProfileSet
from specs.cluster import Cluster, Node
from specs.layer import LayerKind, LayerType
from specs.model import Model, load_model
from specs.plan import Stage
from specs.profile import HostProfile, LayerKey, LayerProfile, LinkProfile, Operation, Source
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute, Workload

GPUS = ("a100-40gb", "a6000", "h100", "h200", "l40s")
FAMILY = {"dense": "llama-3-8b", "moe": "mixtral-8x7b", "mixed": "deepseek-v3-like"}
MIB = 1024**2


def random_model(draw: random.Random, family: str) -> Model:
    """A catalogue model with a few blocks of small width, tied or not."""
    config = dict(load_model(FAMILY[family]).config)
    config["num_hidden_layers"] = draw.randint(2, 9)
    config["vocab_size"] = 1000
    if family == "dense":
        config["tie_word_embeddings"] = draw.random() < 0.3
    if family == "moe":
        config["num_local_experts"] = draw.choice([4, 8])
        config["intermediate_size"] = 1024
    if family == "mixed":
        config["first_k_dense_replace"] = draw.randint(1, 2)
        config["n_routed_experts"] = 8
        config["num_experts_per_tok"] = 2
    return Model.from_config(f"random-{family}", config)


def random_cluster(draw: random.Random) -> Cluster:
    """Up to five GPU types in nodes of 1 to 8 GPUs, links and cards of any speed."""
    nodes = []
    for gpu in draw.sample(GPUS, draw.randint(1, 5)):
        topologies = draw.sample([Topology.NVLINK, Topology.PCIE], draw.choice([1, 1, 2]))
        for i in range(draw.randint(1, 5)):
            nodes.append(
                Node(
                    f"{gpu}-{i}",
                    gpu,
                    draw.choice([1, 2, 3, 4, 4, 5, 6, 7, 8]),
                    draw.choice(topologies),
                    draw.choice([5.0, 12.5, 12.5, 25.0]),
                    draw.choice([5.0, 10.0, 50.0]),
                )
            )
    draw.shuffle(nodes)
    return Cluster("random", tuple(nodes))


@dataclass(frozen=True)
class Tightness:
    """Memory of the GPUs over that of an average layer: low values refuse many plans."""

    layers: float


def random_profiles(
    draw: random.Random, model: Model, workload: Workload, cluster: Cluster, layers: float
) -> ProfileSet:
    """Rows of random speed for every type; some degrees, sizes and tilings are left out."""
    rows: list[LayerProfile] = []
    links: list[LinkProfile] = []
    hosts: list[HostProfile] = []
    sizes = [1, 2, 4][: draw.randint(1, 3)]
    degrees = draw.choice([[1], [1, 2], [1, 2, 4], [1, 2, 4, 8], [1, 2, 3]])
    moe = any(layer.expert_parameters for layer in model.layer_types)
    tilings = [(1, 1)]
    if moe:
        tilings = [(ep, etp) for ep in (1, 2, 4, 8) for etp in (1, 2, 4) if draw.random() < 0.8]
        tilings = tilings or [(1, 1), (2, 1)]
    total = sum(layer.parameters + layer.expert_parameters for layer in model.layers)
    per_layer = 16 * total / len(model.layers)
    for gpu in cluster.gpus_by_type:
        speed = draw.uniform(0.5, 4)
        usable = int(per_layer * layers * draw.uniform(0.7, 1.5))
        hosts.append(HostProfile(gpu, draw.uniform(0.1, 3), int(usable * 0.03), usable))
        for topology in (Topology.NVLINK, Topology.PCIE):
            for tp in degrees:
                if topology is Topology.PCIE and tp > 2 and draw.random() < 0.3:
                    continue
                for size in sizes:
                    if size > 2 and draw.random() < 0.2:
                        continue
                    for layer in model.layer_types:
                        for ep, etp in tilings if layer.expert_parameters else [(1, 1)]:
                            key = LayerKey(
                                gpu,
                                layer.hash,
                                tp,
                                size,
                                workload.seq_len,
                                workload.dtype,
                                workload.recompute,
                                workload.optimizer,
                                topology,
                                ep,
                                etp,
                            )
                            rows.append(_row(draw, key, layer, speed))
            links += _links(draw, gpu, topology)
    draw.shuffle(rows)
    return ProfileSet.of_rows(rows, links, hosts, Origin(1, Source.ESTIMATED))


def _row(draw: random.Random, key: LayerKey, layer: LayerType, speed: float) -> LayerProfile:
    b, tp = key.micro_batch, key.tp
    weight = (layer.parameters + layer.expert_parameters / 4) / 1e8
    forward = (0.2 + weight * b / tp) * draw.uniform(0.8, 1.3) / speed
    experts = layer.expert_parameters // (key.ep * key.etp) * key.dtype.bytes
    return LayerProfile(
        key,
        forward,
        2 * forward,
        0.0 if tp * key.etp == 1 else draw.uniform(0.05, 0.6) * b,
        draw.uniform(0.1, 2) / tp,
        int((20 * MIB if layer.kind.is_block else 4 * MIB) * b / tp),
        int(draw.uniform(1, 30) * MIB),
        layer.parameters * key.dtype.bytes // tp,
        experts,
    )


def _links(draw: random.Random, gpu: str, topology: Topology) -> list[LinkProfile]:
    found = []
    for operation in (
        Operation.P2P,
        Operation.ALL_GATHER,
        Operation.ALL_REDUCE,
        Operation.ALL_TO_ALL,
    ):
        for ranks in (2,) if operation is Operation.P2P else (2, 3, 4, 8):
            if operation is not Operation.P2P and draw.random() < 0.05:
                continue
            slope = draw.uniform(0.5, 3) / (100e6 if topology is Topology.NVLINK else 15e6)
            for nbytes in (MIB, 8 * MIB, 64 * MIB):
                took = 0.02 + nbytes * slope * draw.uniform(0.95, 1.05)
                found.append(LinkProfile(gpu, topology, operation, ranks, nbytes, took))
    return found


def random_problem(seed: int, family: str | None = None) -> Problem:
    """The problem of a seed; family: dense, moe, mixed (dense and MoE blocks), None = drawn."""
    draw = random.Random(seed)
    family = family or draw.choice(["dense", "dense", "moe", "mixed"])
    model = random_model(draw, family)
    workload = Workload(
        draw.choice([1, 7, 16, 33, 64, 257]),
        draw.choice([128, 512]),
        draw.choice([DType.BF16, DType.FP32]),
        draw.choice([Optimizer.ADAMW, Optimizer.SGD]),
        draw.choice(list(Recompute)),
    )
    cluster = random_cluster(draw)
    layers = draw.choice([2.0, 5.0, 12.0, 40.0])
    profiles = random_profiles(draw, model, workload, cluster, layers)
    return Problem(model, workload, cluster, profiles, 0.05, draw.random() < 0.8)


def random_structure(draw: random.Random, problem: Problem) -> tuple[Demand, ...]:
    """A structural template of degrees that have rows; it need not pack."""
    kinds = [
        Demand(gpu, tp) for gpu in problem.cluster.gpus_by_type for tp in problem.profiles.tps(gpu)
    ]
    most = min(problem.model.blocks + 1, 7)
    return tuple(draw.choice(kinds) for _ in range(draw.randint(1, most)))


def random_filled(
    draw: random.Random, problem: Problem, used: dict[int, int]
) -> FilledTemplate | None:
    """A template of random layers and tilings on nodes that are free; None where none packs."""
    structure = random_structure(draw, problem)[: problem.model.blocks]
    free = FreeGpus.of(problem, used)
    r = draw.randint(1, 4)
    nodes = pack(free, structure, r, draw.choice(list(Placement)))
    if nodes is None:
        return None
    blocks = problem.model.blocks
    cuts = sorted(draw.sample(range(1, blocks), len(structure) - 1))
    stages: list[Stage] = []
    for s, (low, high) in enumerate(zip([0, *cuts], [*cuts, blocks], strict=True)):
        layers = range(low + (s > 0), high + 1 + (s == len(structure) - 1))
        tiling = _random_tiling(draw, problem, structure[s], layers, r)
        stages.append(Stage(structure[s].gpu, structure[s].tp, layers, *tiling))
    sizes = problem.profiles.micro_batches(structure[0].gpu)
    return FilledTemplate(draw.choice(sizes), tuple(stages), nodes)


def _random_tiling(
    draw: random.Random, problem: Problem, demand: Demand, layers: range, r: int
) -> tuple[int, int]:
    moe: Any = next(
        (
            problem.model.layers[i]
            for i in layers
            if problem.model.layers[i].kind is LayerKind.MOE_BLOCK
        ),
        None,
    )
    if moe is None:
        return 1, 1
    fitting = [
        (key.ep, key.etp)
        for key in problem.profiles.layers
        if key.layer_type == moe.hash
        and (demand.tp * r) % (key.ep * key.etp) == 0
        and moe.shape("experts") % key.ep == 0
        and moe.shape("expert_ffn") % key.etp == 0
    ]
    return draw.choice(sorted(set(fitting)) or [(1, 1)])
