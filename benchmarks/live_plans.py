"""Plans of two processes that between them use every term of a prediction, for live runs on a CPU.

tiny-llama-test with its default workload (128 tokens, global batch 32, fp32 AdamW): eight blocks,
so layers 0 to 9 are the embedding, blocks and the head.
"""

from __future__ import annotations

from dataclasses import replace

from specs.cluster import Cluster
from specs.model import Model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.workload import Recompute, Workload


def pipeline(model: Model, cluster: Cluster, first: int, micro_batch: int) -> Plan:
    """Two stages of one device each, `first` of the blocks in the first."""
    cut, layers = 1 + first, len(model.layers)
    stages = (Stage("cpu", 1, range(cut)), Stage("cpu", 1, range(cut, layers)))
    node = cluster.nodes[0].name
    count = model.default_workload.global_batch // micro_batch
    copy = Replica(count, micro_batch, (Place(node, (0,)), Place(node, (1,))))
    return plan_of(model, cluster, [Template(micro_batch, stages, (copy,))])


def tensor_parallel(model: Model, cluster: Cluster, micro_batch: int) -> Plan:
    """One stage over both devices."""
    count = model.default_workload.global_batch // micro_batch
    copy = Replica(count, micro_batch, (Place(cluster.nodes[0].name, (0, 1)),))
    stage = Stage("cpu", 2, range(len(model.layers)))
    return plan_of(model, cluster, [Template(micro_batch, (stage,), (copy,))])


def replicas(model: Model, cluster: Cluster, micro_batch: int) -> Plan:
    """The whole model on each device."""
    share = model.default_workload.global_batch // 2 // micro_batch
    node = cluster.nodes[0].name
    copies = tuple(Replica(share, micro_batch, (Place(node, (gpu,)),)) for gpu in (0, 1))
    stage = Stage("cpu", 1, range(len(model.layers)))
    return plan_of(model, cluster, [Template(micro_batch, (stage,), copies)])


def two_templates(model: Model, cluster: Cluster, shares: dict[int, int]) -> Plan:
    """A template of its own on each device: micro-batch size -> how many of them."""
    node = cluster.nodes[0].name
    stage = Stage("cpu", 1, range(len(model.layers)))
    templates = [
        Template(size, (stage,), (Replica(count, size, (Place(node, (gpu,)),)),))
        for gpu, (size, count) in enumerate(shares.items())
    ]
    return plan_of(model, cluster, templates)


def plan_of(model: Model, cluster: Cluster, templates: list[Template]) -> Plan:
    """A plan of the model's default workload."""
    return Plan("fixed", model, model.default_workload, cluster, tuple(templates))


def recomputed(plan: Plan) -> Plan:
    """The same plan, its activations computed a second time in the backward."""
    work: Workload = replace(plan.workload, recompute=Recompute.FULL)
    return replace(plan, workload=work)


def all_plans(model: Model, cluster: Cluster) -> dict[str, Plan]:
    """Fourteen plans by name."""
    return {
        "pp2 4+4 mb1": pipeline(model, cluster, 4, 1),
        "pp2 4+4 mb2": pipeline(model, cluster, 4, 2),
        "pp2 5+3 mb2": pipeline(model, cluster, 5, 2),
        "pp2 2+6 mb2": pipeline(model, cluster, 2, 2),
        "pp2 3+5 mb4": pipeline(model, cluster, 3, 4),
        "pp2 4+4 mb2 recomputed": recomputed(pipeline(model, cluster, 4, 2)),
        "tp2 mb1": tensor_parallel(model, cluster, 1),
        "tp2 mb2": tensor_parallel(model, cluster, 2),
        "tp2 mb4": tensor_parallel(model, cluster, 4),
        "dp2 mb1": replicas(model, cluster, 1),
        "dp2 mb2": replicas(model, cluster, 2),
        "dp2 mb4": replicas(model, cluster, 4),
        "two templates, mb4 x4 and mb2 x8": two_templates(model, cluster, {4: 4, 2: 8}),
        "two templates, mb2 x9 and mb1 x14": two_templates(model, cluster, {2: 9, 1: 14}),
    }
