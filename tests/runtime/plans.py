"""Plans written by hand for tests: templates as lists of (tp, first layer, end) per stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specs.cluster import Cluster, Node
from specs.model import Model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute, Workload


@dataclass(frozen=True)
class Pipe:
    """A template: stages (tp, blocks, ep, etp); replicas (micro-batches, size of the last)."""

    micro_batch: int
    stages: Sequence[tuple[int, int] | tuple[int, int, int, int]]
    shares: Sequence[tuple[int, int]]


def make_plan(
    model: Model,
    pipes: Sequence[Pipe],
    *,
    seq_len: int = 8,
    dtype: DType = DType.FP32,
    optimizer: Optimizer = Optimizer.ADAMW,
    recompute: Recompute = Recompute.NONE,
    nodes: int = 1,
) -> Plan:
    """A plan whose GPUs are the cores of `nodes` equal CPU nodes, dealt stage by stage."""
    needed = sum(sum(stage[0] for stage in pipe.stages) * len(pipe.shares) for pipe in pipes)
    # With several nodes every stage goes to the next one, so that all boundaries cross.
    cluster = Cluster(
        "test",
        tuple(Node(f"cpu-{n}", "cpu", needed, Topology.HOST, 1.0, 10.0) for n in range(nodes)),
    )
    used = [0] * nodes
    turn = 0
    templates, batch = [], 0
    for pipe in pipes:
        stages, layer = [], 0
        for s, spec in enumerate(pipe.stages):
            tp, blocks = spec[0], spec[1]
            ep, etp = spec[2:] if len(spec) == 4 else (1, 1)
            end = layer + blocks + (s == 0) + (s == len(pipe.stages) - 1)
            stages.append(Stage("cpu", tp, range(layer, end), ep, etp))
            layer = end
        replicas = []
        for micro_batches, last in pipe.shares:
            places = []
            for stage in stages:
                node = turn % nodes
                turn += 1
                gpus = tuple(range(used[node], used[node] + stage.tp))
                used[node] += stage.tp
                places.append(Place(f"cpu-{node}", gpus))
            replicas.append(Replica(micro_batches, last, tuple(places)))
            batch += (micro_batches - 1) * pipe.micro_batch + last
        templates.append(Template(pipe.micro_batch, tuple(stages), tuple(replicas)))
    workload = Workload(batch, seq_len, dtype, optimizer, recompute)
    return Plan("test", model, workload, cluster, tuple(templates))
