"""A planning problem as jobs of Espresso, one per TP degree, micro-batch size and DP degree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.baselines.espresso.allocator import Question
from planner.baselines.espresso.placer import Job
from planner.baselines.sailor.question import Network, gpu_types, uneven_types
from planner.lookup import host_row
from planner.memory import limit_bytes
from planner.problem import Problem
from planner.transfers import activation_bytes
from specs.cluster import topologies_of
from specs.layer import LayerKind, LayerType
from specs.profile import LayerProfile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_STAGES = 8  # published
SEND_SHARE = 0.8  # published: a stage's forward waits for this share of (P - 1) sends


@dataclass(frozen=True)
class Figures:
    """One GPU type at one TP degree and micro-batch size; ms and bytes of one GPU.

    block, first, last: (forward, backward) ms, (state, kept of one micro-batch) bytes.
    """

    block_ms: tuple[float, float]
    first_ms: tuple[float, float]
    last_ms: tuple[float, float]
    block_bytes: tuple[float, float]
    first_bytes: tuple[float, float]
    last_bytes: tuple[float, float]
    room_bytes: float

    def most_blocks(self, depth: int, stage: int, micro_batches: int, blocks: int) -> int:
        """Blocks that fit at a stage; min(P - i, M) micro-batches are kept."""
        kept = min(depth - stage, micro_batches)
        room = self.room_bytes
        for here, (state, each) in (
            (stage == 0, self.first_bytes),
            (stage == depth - 1, self.last_bytes),
        ):
            room -= here * (state + kept * each)
        state, each = self.block_bytes
        return min(blocks, max(0, int(room // (state + kept * each))))


def figures_of(problem: Problem, gpu: str, tp: int, micro_batch: int) -> Figures | None:
    """Figures from our profiles; None where a row lacks.

    Half of the TP collectives belong to each direction. Blocks are taken for equal: of two kinds
    the mean time and the larger memory. On several kinds of node the slowest row counts.
    """
    rows: dict[LayerType, LayerProfile] = {}
    for layer in problem.model.layer_types:
        etp = tp if layer.kind is LayerKind.MOE_BLOCK else 1
        here = [
            problem.profiles.layer(gpu, layer.hash, tp, micro_batch, topology, 1, etp)
            for topology in sorted(topologies_of(problem.cluster.nodes)[gpu])
        ]
        found = [row for row in here if row is not None]
        if len(found) < len(here):
            return None
        rows[layer] = max(found, key=lambda r: r.forward_ms + r.backward_ms + r.comm_ms)
    workload = problem.workload

    def ms(layer: LayerType) -> tuple[float, float]:
        row = rows[layer]
        return row.forward_ms + row.comm_ms / 2, row.backward_ms + row.comm_ms / 2

    def nbytes(layer: LayerType) -> tuple[float, float]:
        row = rows[layer]
        elements = (row.parameter_bytes + row.expert_parameter_bytes) / workload.dtype.bytes
        return elements * workload.state_bytes_per_parameter, float(row.activation_bytes)

    layers = problem.model.layers
    blocks = [ms(layer) for layer in layers[1:-1]]
    sizes = [nbytes(layer) for layer in set(layers[1:-1])]
    nodes = [node for node in problem.cluster.nodes if node.gpu == gpu]
    room = min(limit_bytes(problem, node) for node in nodes)
    room -= host_row(problem, gpu).framework_bytes
    room -= max(row.transient_bytes for row in rows.values())
    return Figures(
        block_ms=(
            sum(forward for forward, _ in blocks) / len(blocks),
            sum(backward for _, backward in blocks) / len(blocks),
        ),
        first_ms=ms(layers[0]),
        last_ms=ms(layers[-1]),
        block_bytes=(max(state for state, _ in sizes), max(kept for _, kept in sizes)),
        first_bytes=nbytes(layers[0]),
        last_bytes=nbytes(layers[-1]),
        room_bytes=room,
    )


def questions(problem: Problem) -> Iterator[Question]:
    """Every tree: its label is (TP, micro-batch, DP). Raises ProfileMissing."""
    types = gpu_types(problem)
    nodes = [[n for n in problem.cluster.nodes if n.gpu == gpu] for gpu in types]
    network = Network.of(problem, nodes)
    uneven = uneven_types(problem)
    for tp in sorted({tp for gpu in types for tp in problem.profiles.tps(gpu)}):
        slots = [
            sum(node.gpus // tp for node in of_type) if tp == 1 or gpu not in uneven else 0
            for gpu, of_type in zip(types, nodes, strict=True)
        ]
        for b in sorted({b for gpu in types for b in problem.profiles.micro_batches(gpu)}):
            figures = [figures_of(problem, gpu, tp, b) for gpu in types]
            dp = 1
            while dp <= min(problem.workload.global_batch, sum(slots)):
                quota = [
                    0 if figure is None else n // dp
                    for n, figure in zip(slots, figures, strict=True)
                ]
                for depth in range(1, min(MOST_STAGES, problem.model.blocks, sum(quota)) + 1):
                    yield _question(problem, network, figures, quota, depth, (tp, b, dp))
                dp *= 2


def _question(
    problem: Problem,
    network: Network,
    figures: Sequence[Figures | None],
    quota: Sequence[int],
    depth: int,
    label: tuple[int, int, int],
) -> Question:
    _, micro_batch, dp = label
    micro_batches = -(-problem.workload.global_batch // (micro_batch * dp))
    job = _job(problem, network, figures, depth, micro_batches, label)
    speeds = [
        1 / sum(figure.block_ms) if figure is not None and n else 0.0
        for figure, n in zip(figures, quota, strict=True)
    ]
    holds = [int(job.most[g].max()) for g in range(len(quota))]

    def bound(counts: Sequence[int], missing: int, types: Sequence[int]) -> float:
        """M times the slowest stage at least: all blocks over the speed of all stages."""
        more = [g for g in types if quota[g]] if missing else []
        if missing and not more:
            return np.inf
        speed = sum(n * speeds[g] for g, n in enumerate(counts))
        held = sum(n * holds[g] for g, n in enumerate(counts))
        speed += missing * max((speeds[g] for g in more), default=0.0)
        held += missing * max((holds[g] for g in more), default=0)
        if held < job.blocks:
            return np.inf
        return micro_batches * job.blocks / speed

    return Question(
        depth=depth,
        job=job,
        quota=tuple(quota),
        value=lambda counts, time_ms: time_ms,
        bound=bound,
        goes_on=lambda counts, best: True,
        by_time=True,
        label=label,
    )


def _job(
    problem: Problem,
    network: Network,
    figures: Sequence[Figures | None],
    depth: int,
    micro_batches: int,
    label: tuple[int, int, int],
) -> Job:
    _, micro_batch, dp = label
    types = range(len(figures))
    size = problem.workload.dtype.bytes
    layers = problem.model.layers
    gradients = [(lt.parameters + lt.expert_parameters) * size for lt in layers]
    sent = activation_bytes(problem, micro_batch)
    send = [network.send_ms(sent, g, g) if depth > 1 else 0.0 for g in types]

    def sync_ms(nbytes: float) -> Floats:
        if dp == 1:
            return np.zeros(len(figures))
        return np.array([network.send_ms(nbytes, g, g) for g in types])

    def pairs(of: str) -> Floats:
        rows = [(0.0, 0.0) if f is None else getattr(f, of) for f in figures]
        return np.array(rows, np.float64)

    block = pairs("block_ms")
    total = block.sum(axis=1)
    return Job(
        blocks=problem.model.blocks,
        micro_batches=micro_batches,
        power=np.where(total > 0, 1 / np.where(total > 0, total, 1.0), 1e-12),
        forward_ms=np.ascontiguousarray(block[:, 0]),
        backward_ms=np.ascontiguousarray(block[:, 1]),
        first_ms=pairs("first_ms"),
        last_ms=pairs("last_ms"),
        send_ms=SEND_SHARE * (depth - 1) * np.array(send),
        sync_ms=sync_ms(sum(gradients[1:-1]) / problem.model.blocks),
        first_sync_ms=sync_ms(gradients[0]),
        last_sync_ms=sync_ms(gradients[-1]),
        slack_ms=np.ascontiguousarray(block[:, 1]),
        most=np.array(
            [
                [
                    0 if f is None else f.most_blocks(depth, i, micro_batches, problem.model.blocks)
                    for i in range(depth)
                ]
                for f in figures
            ],
            np.int64,
        ),
        release=False,
    )
