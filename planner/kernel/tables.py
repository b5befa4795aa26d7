"""A planning problem as dense arrays: what the compiled code reads.

Indices everywhere in planner/kernel: n node, p pool (nodes that price alike), g GPU type, q kind
(GPU type and TP degree), b micro-batch size, x expert tiling, k kind of block. NaN in a time says
that there is no profile row. Times in ms, memory in bytes, bandwidths in bytes/ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from planner.fill.options import block_kinds, block_types
from planner.memory import counted_share, limit_bytes, shared_matrix_elements
from planner.packing import Demand
from planner.problem import Problem
from planner.profiles import LayerRowKey
from planner.transfers import activation_bytes
from specs.cluster import Node
from specs.layer import LayerKind, LayerType
from specs.plan import Stage
from specs.profile import LayerProfile, Operation

Array = Any  # a numpy array; numba checks element types and ranks

NEVER = 1e200  # ms; a transfer that takes longer has no link to go over
_NO_BANDWIDTH = 1e-250  # bytes/ms of a network card that nothing is known of


# Rows of the arrays below. Few, wide arrays: the compiler passes each array to each function.
POOL, GPU, GPUS = 0, 1, 2  # of node_int
NIC, LATENCY, BUS = 0, 1, 2  # of node_real
KIND_GPU, TP = 0, 1  # of kind_int
HOST, FRAMEWORK = 0, 1  # of gpu_real
P2P, GATHER, ALL_TO_ALL = 0, 1, 2  # of link; all-to-all of tiling x stands at ALL_TO_ALL + x
EMBEDDING, HEAD = 0, 1  # of end
# Of end and block. The `ALONE` ones are for a stage that holds embedding and head: a tied matrix
# counts once (DESIGN section 13, 13).
MS, STATE, ACTIVATION, TRANSIENT, UPDATE, STATE_ALONE, UPDATE_ALONE = 0, 1, 2, 3, 4, 5, 6
EP, ETP, ORDER = 0, 1, 2  # of tile; ORDER: indices of the tilings sorted by EP, then ETP
DENSE, EXPERTS = 0, 1  # of gradient: what is no routed expert, and the routed experts


class Tables(NamedTuple):
    """Everything that fill and price read."""

    global_batch: int
    blocks: int  # L
    experts: int
    expert_width: int
    tied: bool
    tiling_free: bool
    activation_bytes: float  # of one sample at a stage boundary
    payload_bytes: float  # of one sample, dispatched by all TP ranks together
    gradient_embedding: float
    gradient_head: float
    node_int: Array  # (3, N)
    node_real: Array  # (3, N)
    kind_int: Array  # (2, Q)
    gpu_real: Array  # (2, G)
    gpu_pools: Array  # (G,) how many pools a type has
    pool_limit: Array  # (P,)
    pool_ok: Array  # (P, Q) whether a pool has rows of a kind
    size: Array  # (B,) micro-batch sizes, rising
    profiled: Array  # (G, B) whether a type has rows of a size
    link: Array  # (2 + X, P, Q, B)
    end: Array  # (2, 7, P, Q, B)
    block: Array  # (5, P, Q, B, X, kinds of block)
    before: Array  # (L + 1, kinds of block) how many of each kind stand before a block
    gradient: Array  # (2, kinds of block)
    tile: Array  # (3, X)


@dataclass(frozen=True)
class Compiled:
    """A problem with its arrays and what its indices mean."""

    problem: Problem
    tables: Tables
    kinds: tuple[Demand, ...]
    tilings: tuple[tuple[int, int], ...]
    pools: tuple[Node, ...]  # one node of each


def compile_problem(problem: Problem) -> Compiled:
    """The dense form of a problem."""
    cluster, profiles = problem.cluster, problem.profiles
    gpus = list(cluster.gpus_by_type)
    kinds = tuple(
        Demand(gpu, tp)
        for gpu in gpus
        for tp in profiles.tps(gpu)
        if profiles.host(gpu) is not None
    )
    pools, pool_of = _pools(problem)
    sizes = sorted(
        b for b in {b for gpu in gpus for b in profiles.micro_batches(gpu)} if b & (b - 1) == 0
    )
    types = block_types(problem)
    tilings = _tilings(problem, types)
    maker = _Maker(problem, pools, kinds, sizes, types, tilings)
    model, element = problem.model, problem.workload.dtype.bytes
    moe = next((layer for layer in types if layer.kind is LayerKind.MOE_BLOCK), None)
    before = np.zeros((model.blocks + 1, len(types)), np.int64)
    for i, kind in enumerate(block_kinds(problem)):
        before[i + 1] = before[i]
        before[i + 1, kind] += 1
    embedding, head = model.layers[0], model.layers[-1]
    nodes, hosts = cluster.nodes, [profiles.host(gpu) for gpu in gpus]
    tables = Tables(
        global_batch=problem.workload.global_batch,
        blocks=model.blocks,
        experts=moe.shape("experts") if moe else 1,
        expert_width=moe.shape("expert_ffn") if moe else 1,
        tied=model.tied,
        tiling_free=problem.expert_tiling,
        activation_bytes=float(activation_bytes(problem, 1)),
        payload_bytes=float(activation_bytes(problem, 1) * moe.shape("top_k")) if moe else 0.0,
        gradient_embedding=float(embedding.parameters * element),
        gradient_head=float((head.parameters - shared_matrix_elements(model)) * element),
        node_int=np.array(
            [
                [pool_of[node.name] for node in nodes],
                [gpus.index(node.gpu) for node in nodes],
                [node.gpus for node in nodes],
            ],
            np.int64,
        ),
        node_real=np.array(
            [
                _floats(profiles.nic_bytes_per_ms(node) or _NO_BANDWIDTH for node in nodes),
                _floats(node.latency_ms for node in nodes),
                _floats(profiles.bus_bytes_per_ms(node.gpu, node.intra_node) for node in nodes),
            ]
        ),
        kind_int=np.array(
            [[gpus.index(kind.gpu) for kind in kinds], [kind.tp for kind in kinds]], np.int64
        ),
        gpu_real=np.array(
            [
                _floats(row.host_ms if row else None for row in hosts),
                _floats(row.framework_bytes if row else None for row in hosts),
            ]
        ),
        gpu_pools=np.array([sum(pool.gpu == gpu for pool in pools) for gpu in gpus], np.int64),
        pool_limit=_floats(
            limit_bytes(problem, node) if profiles.host(node.gpu) else None for node in pools
        ),
        pool_ok=maker.pool_ok(),
        size=np.array(sizes, np.int64),
        profiled=np.array([[b in profiles.micro_batches(gpu) for b in sizes] for gpu in gpus]),
        link=maker.links(moe),
        end=np.stack([maker.end(embedding), maker.end(head)]),
        block=maker.blocks(),
        before=before,
        gradient=np.array(
            [
                _floats(layer.parameters * element for layer in types),
                _floats(layer.expert_parameters * element for layer in types),
            ]
        ),
        tile=np.array(
            [
                [ep for ep, _ in tilings],
                [etp for _, etp in tilings],
                sorted(range(len(tilings)), key=lambda x: tilings[x]),
            ],
            np.int64,
        ),
    )
    return Compiled(problem, tables, kinds, tilings, tuple(pools))


def _floats(values: Any) -> Array:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _pools(problem: Problem) -> tuple[list[Node], dict[str, int]]:
    """Nodes that price alike (same type, link inside, limit of memory a device), by node name."""
    index: dict[tuple[object, ...], int] = {}
    pools: list[Node] = []
    pool_of = {}
    for node in problem.cluster.nodes:
        known = problem.profiles.host(node.gpu) is not None
        key = (node.gpu, node.intra_node, limit_bytes(problem, node) if known else 0.0)
        if key not in index:
            index[key] = len(pools)
            pools.append(node)
        pool_of[node.name] = index[key]
    return pools, pool_of


def _tilings(problem: Problem, types: tuple[LayerType, ...]) -> tuple[tuple[int, int], ...]:
    """Tilings with profile rows, most devices per copy first; (1, 1) alone for dense models."""
    moe = {layer.hash for layer in types if layer.kind is LayerKind.MOE_BLOCK}
    if not moe:
        return ((1, 1),)
    found = {(key.ep, key.etp) for key in problem.profiles.layers if key.layer_type in moe}
    found.add((1, 1))
    return tuple(sorted(found, key=lambda tiling: (-tiling[0] * tiling[1], tiling)))


class _Maker:
    """Fills the arrays, cell by cell."""

    def __init__(
        self,
        problem: Problem,
        pools: list[Node],
        kinds: tuple[Demand, ...],
        sizes: list[int],
        types: tuple[LayerType, ...],
        tilings: tuple[tuple[int, int], ...],
    ) -> None:
        self.problem = problem
        self.pools = pools
        self.kinds = kinds
        self.sizes = sizes
        self.types = types
        self.tilings = tilings

    def _cells(self) -> Any:
        for p, node in enumerate(self.pools):
            for q, kind in enumerate(self.kinds):
                if kind.gpu == node.gpu:
                    for b, size in enumerate(self.sizes):
                        yield (p, q, b), node, kind, size

    @property
    def shape(self) -> tuple[int, int, int]:
        """(pools, kinds, batches)."""
        return len(self.pools), len(self.kinds), len(self.sizes)

    def _row(
        self, node: Node, kind: Demand, size: int, layer: LayerType, tiling: tuple[int, int]
    ) -> LayerProfile | None:
        tiling = tiling if layer.expert_parameters else (1, 1)
        return self.problem.profiles.layer(
            kind.gpu, layer.hash, kind.tp, size, node.intra_node, *tiling
        )

    def pool_ok(self) -> Array:
        """Whether any row of a kind holds on a pool's topology (planner/packing.py)."""
        held = {
            (key.gpu, key.tp, key.topology)
            for key in self.problem.profiles.layers
            if isinstance(key, LayerRowKey)
        }
        return np.array(
            [
                [
                    kind.gpu == node.gpu
                    and bool({(kind.gpu, kind.tp, t) for t in (node.intra_node, None)} & held)
                    for kind in self.kinds
                ]
                for node in self.pools
            ]
        )

    def end(self, layer: LayerType) -> Array:
        """Figures of embedding or head, shape (7, pools, kinds, batches)."""
        found = np.full((7, *self.shape), np.nan)
        workload = self.problem.workload
        whole = range(len(self.problem.model.layers))
        for cell, node, kind, size in self._cells():
            row = self._row(node, kind, size, layer, (1, 1))
            if row is None:
                continue
            share = counted_share(self.problem, Stage(kind.gpu, kind.tp, whole), layer, row)
            state = row.parameter_bytes / workload.dtype.bytes * workload.state_bytes_per_parameter
            found[(MS, *cell)] = row.forward_ms + row.backward_ms + row.comm_ms
            found[(STATE, *cell)] = state
            found[(ACTIVATION, *cell)] = row.activation_bytes
            found[(TRANSIENT, *cell)] = row.transient_bytes
            found[(UPDATE, *cell)] = row.update_ms
            found[(STATE_ALONE, *cell)] = state * share
            found[(UPDATE_ALONE, *cell)] = row.update_ms * share
        return found

    def blocks(self) -> Array:
        """Figures of blocks, shape (5, pools, kinds, batches, tilings, kinds of block)."""
        found = np.full((5, *self.shape, len(self.tilings), len(self.types)), np.nan)
        workload = self.problem.workload
        for cell, node, kind, size in self._cells():
            for x, tiling in enumerate(self.tilings):
                for k, layer in enumerate(self.types):
                    row = self._row(node, kind, size, layer, tiling)
                    if row is None:
                        continue
                    held = row.parameter_bytes + row.expert_parameter_bytes
                    elements = held / workload.dtype.bytes
                    here = (*cell, x, k)
                    found[(MS, *here)] = row.forward_ms + row.backward_ms + row.comm_ms
                    found[(STATE, *here)] = elements * workload.state_bytes_per_parameter
                    found[(ACTIVATION, *here)] = row.activation_bytes
                    found[(TRANSIENT, *here)] = row.transient_bytes
                    found[(UPDATE, *here)] = row.update_ms
        return found

    def links(self, moe: LayerType | None) -> Array:
        """Times of transfers inside a node, shape (2 + tilings, pools, kinds, batches).

        One boundary tensor between two stages; rebuilding one inside the receiving TP group (0
        for TP 1); one dispatch of routed tokens at every tiling (0 for EP 1).
        """
        found = np.full((ALL_TO_ALL + len(self.tilings), *self.shape), np.nan)
        for cell, node, kind, size in self._cells():
            nbytes = activation_bytes(self.problem, size)
            found[(P2P, *cell)] = self._link(node, Operation.P2P, 2, nbytes)
            found[(GATHER, *cell)] = (
                0.0 if kind.tp == 1 else self._link(node, Operation.ALL_GATHER, kind.tp, nbytes)
            )
            for x, (ep, _) in enumerate(self.tilings):
                took = 0.0
                if ep > 1 and moe is not None:
                    payload = nbytes * moe.shape("top_k") / kind.tp
                    took = self._link(node, Operation.ALL_TO_ALL, ep, payload)
                found[(ALL_TO_ALL + x, *cell)] = took
        return found

    def _link(self, node: Node, operation: Operation, ranks: int, nbytes: float) -> float:
        curve = self.problem.profiles.link(node.gpu, node.gpu, node.intra_node, operation, ranks)
        return np.nan if curve is None else curve.time_ms(nbytes)
