"""Random planning problems and random plans for them, drawn to be odd: ground for bounds."""

from __future__ import annotations

import random

from planner.cost import price_filled
from planner.experts import tilings
from planner.filled import FilledTemplate
from planner.problem import Problem
from planner.profiles import ProfileSet
from specs.cluster import Cluster, Node
from specs.errors import PlanError, ProfileMissing
from specs.layer import LayerKind, LayerType
from specs.model import Model
from specs.plan import Stage
from specs.prediction import Prediction
from specs.profile import HostProfile, LayerKey, LayerProfile, LinkProfile, Operation
from specs.topology import Topology
from specs.workload import Workload

GPUS = ("a100-40gb", "a6000", "h100", "v100-16gb", "l40s")
HIDDEN, WIDTH, VOCAB, SEQ_LEN = 64, 128, 512, 128


def odd_model(draw: random.Random, blocks: int, kind: str | None = None) -> Model:
    """A tiny model: dense, all MoE, or dense blocks before MoE blocks; tied or not."""
    kind = kind or draw.choice(["llama", "llama", "mixtral", "deepseek_v3"])
    config = {
        "model_type": kind,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": blocks,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": VOCAB,
        "tie_word_embeddings": draw.random() < 0.4,
    }
    if kind == "mixtral":
        config |= {"num_local_experts": 8, "num_experts_per_tok": 2}
    if kind == "deepseek_v3":
        config |= {
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "moe_intermediate_size": 32,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": draw.randint(0, blocks),
        }
    return Model.from_config(f"odd-{kind}", config)


def odd_cluster(draw: random.Random, most_nodes: int = 8, largest: int = 8) -> Cluster:
    """Up to five GPU types, nodes of any size, network cards and links that differ."""
    types = draw.sample(GPUS, draw.randint(1, len(GPUS)))
    mixed_links, mixed_cards = draw.random() < 0.3, draw.random() < 0.3
    topology = {gpu: draw.choice([Topology.NVLINK, Topology.PCIE]) for gpu in types}
    card, latency = 10 ** draw.uniform(-2, 2), draw.choice([0.0, 10.0, 1000.0])
    nodes = []
    for i in range(draw.randint(1, most_nodes)):
        gpu = draw.choice(types)
        own = draw.choice([Topology.NVLINK, Topology.PCIE]) if mixed_links else topology[gpu]
        rate = 10 ** draw.uniform(-2, 2) if mixed_cards else card
        size = draw.choice([1, 2, 4, 4, draw.randint(1, largest)])
        nodes.append(Node(f"n{i}", gpu, min(size, largest), own, rate, latency))
    return Cluster("odd", tuple(nodes))


def odd_profiles(draw: random.Random, model: Model, cluster: Cluster) -> ProfileSet:
    """Rows without physics: a speed per GPU type, everything else drawn around it; some missing."""
    gone, noise = draw.choice([0.0, 0.0, 0.1]), draw.choice([0.0, 0.5])
    host, slowness = draw.choice([0.0, 1.0, 5.0]), 10 ** draw.uniform(0, 4)
    layers: list[LayerProfile] = []
    links: list[LinkProfile] = []
    hosts: list[HostProfile] = []
    for gpu in sorted({node.gpu for node in cluster.nodes}):
        speed, fill = 10 ** draw.uniform(-0.5, 0.5), 10 ** draw.uniform(0, 1.3)
        largest = max(node.gpus for node in cluster.nodes if node.gpu == gpu)
        own: list[LayerProfile] = []
        for topology in sorted({node.intra_node for node in cluster.nodes if node.gpu == gpu}):
            for layer in model.layer_types:
                own += _layer_rows(draw, layer, gpu, topology, largest, speed, noise, gone)
            bus = 10 ** draw.uniform(3, 7) / slowness
            for operation in (
                Operation.P2P,
                Operation.ALL_REDUCE,
                Operation.ALL_GATHER,
                Operation.ALL_TO_ALL,
            ):
                for ranks in (2, 4, 8):
                    for nbytes in (10_000, 1_000_000):
                        time = 0.01 + nbytes / bus
                        links.append(LinkProfile(gpu, topology, operation, ranks, nbytes, time))
        layers += own
        heaviest = max((r.parameter_bytes + r.expert_parameter_bytes for r in own), default=0)
        usable = (8 * heaviest + 3 * 20_000) * fill
        hosts.append(HostProfile(gpu, host, 1000, int(usable) + 1000))
    return ProfileSet.of_rows(layers, links, hosts)


def _layer_rows(
    draw: random.Random,
    layer: LayerType,
    gpu: str,
    topology: Topology,
    largest: int,
    speed: float,
    noise: float,
    gone: float,
) -> list[LayerProfile]:
    workload = Workload(1, SEQ_LEN)
    weight = 0.4 if layer.kind is LayerKind.EMBEDDING else draw.uniform(1, 6)
    tiles = [(1, 1)]
    if layer.kind is LayerKind.MOE_BLOCK:
        tiles = [(ep, etp) for ep in (1, 2, 4, 8) for etp in (1, 2, 4)]
    rows = []
    for tp in (1, 2, 4, 8):
        for b in (1, 2, 4):
            for ep, etp in tiles:
                if tp > largest or draw.random() < gone:
                    continue
                time = speed * weight * b**0.9 / tp**0.8 * (1 + noise * draw.random())
                key = LayerKey(
                    gpu,
                    layer.hash,
                    tp,
                    b,
                    SEQ_LEN,
                    workload.dtype,
                    workload.recompute,
                    workload.optimizer,
                    topology,
                    ep,
                    etp,
                )
                bytes_each = workload.dtype.bytes
                rows.append(
                    LayerProfile(
                        key,
                        time,
                        2 * time,
                        0.0 if tp == 1 else 0.2 * time,
                        draw.random() / tp,
                        b * 20_000,
                        b * 5_000,
                        int(layer.parameters * bytes_each / tp),
                        int(layer.expert_parameters * bytes_each / (ep * etp)),
                    )
                )
    return rows


def odd_problem(draw: random.Random, most_nodes: int = 8, most_blocks: int = 6) -> Problem:
    """A problem: any batch from 1, any number of blocks from 1."""
    model = odd_model(draw, draw.randint(1, most_blocks))
    cluster = odd_cluster(draw, most_nodes)
    return Problem(
        model,
        Workload(draw.choice([1, 2, 7, 16, 64, 128]), SEQ_LEN),
        cluster,
        odd_profiles(draw, model, cluster),
        headroom=draw.choice([0.0, 0.05, 0.2]),
    )


def odd_templates(draw: random.Random, problem: Problem) -> list[FilledTemplate]:
    """Random templates on random free GPUs; nothing says that they fit or have profiles."""
    free = [node.gpus for node in problem.cluster.nodes]
    laid: list[FilledTemplate] = []
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        template = _odd_template(draw, problem, free)
        if template is None:
            break
        laid.append(template)
    return laid


def _odd_template(draw: random.Random, problem: Problem, free: list[int]) -> FilledTemplate | None:
    nodes, layers = problem.cluster.nodes, len(problem.model.layers)
    depth = draw.randint(1, min(layers, max(1, sum(free)), draw.choice([2, 4, 16])))
    together = draw.random() < 0.5  # neighbours on one node where they fit
    left = list(free)
    kinds: list[tuple[str, int]] = []
    first: list[int] = []
    for _ in range(depth):
        fitting = [(i, tp) for i in range(len(nodes)) for tp in (1, 2, 4, 8) if tp <= left[i]]
        if together and first:
            fitting = [(i, tp) for i, tp in fitting if i == first[-1]] or fitting
        if not fitting:
            return None
        i, tp = draw.choice(fitting)
        left[i] -= tp
        first.append(i)
        kinds.append((nodes[i].gpu, tp))
    rows = [first]
    for _ in range(draw.choice([0, 1, 3, 10])):
        row: list[int] = []
        trial = list(left)
        for gpu, tp in kinds:
            places = [i for i in range(len(nodes)) if nodes[i].gpu == gpu and trial[i] >= tp]
            if together and row and row[-1] in places:
                places = [row[-1]]
            if not places:
                break
            row.append(draw.choice(places))
            trial[row[-1]] -= tp
        if len(row) < depth:
            break
        left = trial
        rows.append(row)
    free[:] = left
    cuts = sorted(draw.sample(range(1, layers), depth - 1))
    stages = []
    for s, (start, end) in enumerate(zip([0, *cuts], [*cuts, layers], strict=True)):
        gpu, tp = kinds[s]
        moe = [layer for layer in problem.model.layers[start:end] if layer.expert_parameters]
        ep, etp = 1, 1
        if moe:
            held = [row[s] for row in rows]
            experts, width = moe[0].shape("experts"), moe[0].shape("expert_ffn")
            ep, etp = draw.choice(tilings(experts, width, tp, held))
        stages.append(Stage(gpu, tp, range(start, end), ep, etp))
    return FilledTemplate(draw.choice([1, 2, 4]), tuple(stages), tuple(map(tuple, rows)))


def priced(problem: Problem, templates: list[FilledTemplate]) -> Prediction | None:
    """The prediction of templates that are a plan and fit; None for all others."""
    replicas = sum(template.replicas for template in templates)
    if not templates or replicas > problem.workload.global_batch:
        return None
    try:
        prediction = price_filled(problem, templates)
    except (ProfileMissing, PlanError):
        return None
    return prediction if prediction.fits else None
