"""Where the TP groups of a template go (DESIGN section 8, step 1, and section 13, 16 and 17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from planner.problem import Problem
from specs.cluster import Node
from specs.errors import PlanError


class Placement(StrEnum):
    """The order in which groups of one TP degree are placed."""

    STAGE = "stage"  # all replicas of a stage together: little sync, more transfers
    REPLICA = "replica"  # the stages of a replica together: neighbours share a node


@dataclass(frozen=True, slots=True)
class Demand:
    """What one stage asks of every replica: tp GPUs of one type inside one node."""

    gpu: str
    tp: int


@dataclass
class FreeGpus:
    """GPUs that are still free, and on which nodes a TP degree can run at all.

    free: per node of the cluster. usable: (gpu, tp) -> indices of nodes whose topology has
    profiles of that degree, rising.
    """

    free: list[int]
    usable: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, used: dict[int, int] | None = None) -> FreeGpus:
        """The free GPUs of a cluster on which earlier templates hold `used` (node -> GPUs)."""
        nodes = problem.cluster.nodes
        held = used or {}
        free = [node.gpus - held.get(i, 0) for i, node in enumerate(nodes)]
        profiled: set[tuple[str, int, object]] = {
            (key.gpu, key.tp, key.topology) for key in problem.profiles.layers
        }
        usable: dict[tuple[str, int], tuple[int, ...]] = {}
        for gpu in problem.cluster.gpus_by_type:
            for tp in problem.profiles.tps(gpu):
                usable[gpu, tp] = tuple(
                    i
                    for i, node in enumerate(nodes)
                    if node.gpu == gpu
                    and ({(gpu, tp, node.intra_node), (gpu, tp, None)} & profiled)
                )
        return cls(free, usable)

    def nodes_for(self, demand: Demand) -> tuple[int, ...]:
        """Indices of the nodes where a group may run."""
        return self.usable.get((demand.gpu, demand.tp), ())


def replicas_by_counting(free: FreeGpus, demands: Sequence[Demand]) -> int:
    """The largest r by the closed form of section 13.17; no r above it packs.

    For every type and degree t: r * sum over its stages of floor(tp / t) <= sum over nodes of
    floor(free / t). Exact where degrees are powers of two and every node can run every degree.
    """
    found = []
    for gpu in {demand.gpu for demand in demands}:
        of_type = [demand for demand in demands if demand.gpu == gpu]
        for t in {demand.tp for demand in of_type}:
            wide = [demand for demand in of_type if demand.tp >= t]
            nodes = {i for demand in wide for i in free.nodes_for(demand)}
            slots = sum(free.free[i] // t for i in nodes)
            found.append(slots // sum(demand.tp // t for demand in wide))
    return min(found)


def pack(
    free: FreeGpus, demands: Sequence[Demand], replicas: int, placement: Placement
) -> tuple[tuple[int, ...], ...] | None:
    """The node of every stage of every replica, shape (replicas, stages); None if they do not fit.

    TP degrees descending over the whole template; within one degree by `placement`. Each group
    goes to the node with the fewest free GPUs that are enough; ties: the node of that type last
    placed into, then the lowest index. `free` is left as it is.
    """
    left = list(free.free)
    nodes = [[-1] * len(demands) for _ in range(replicas)]
    last: dict[str, int] = {}
    for r, s in packing_order([d.tp for d in demands], replicas, placement):
        demand = demands[s]
        best = -1
        for i in free.nodes_for(demand):
            if left[i] < demand.tp:
                continue
            if (
                best < 0
                or left[i] < left[best]
                or (left[i] == left[best] and i == last.get(demand.gpu))
            ):
                best = i
        if best < 0:
            return None
        left[best] -= demand.tp
        last[demand.gpu] = best
        nodes[r][s] = best
    return tuple(tuple(row) for row in nodes)


def packing_order(
    degrees: Sequence[int], replicas: int, placement: Placement
) -> list[tuple[int, int]]:
    """(replica, stage) of every TP group in the order of placement."""
    order = []
    for tp in sorted(set(degrees), reverse=True):
        stages = [s for s, degree in enumerate(degrees) if degree == tp]
        if placement is Placement.STAGE:
            order += [(r, s) for s in stages for r in range(replicas)]
        else:
            order += [(r, s) for r in range(replicas) for s in stages]
    return order


def largest_replicas(free: FreeGpus, demands: Sequence[Demand], ceiling: int) -> int:
    """The DP degree: the largest r that packs, at most `ceiling`; 0 where not even one does.

    From the closed form downwards until it packs: with powers of two the first try does. Both
    placements fill the same sizes in the same order of degrees, so one of them tells.
    """
    for r in range(min(replicas_by_counting(free, demands), ceiling), 0, -1):
        if pack(free, demands, r, Placement.STAGE) is not None:
            return r
    return 0


def assign_gpus(nodes: Sequence[Node], held: list[int], node: int, tp: int) -> tuple[int, ...]:
    """The next tp GPU indices of a node of which the first held[node] are taken; takes them.

    Raises PlanError where the node has no more.
    """
    first = held[node]
    if first + tp > nodes[node].gpus:
        raise PlanError(
            f"node {nodes[node].name} has {nodes[node].gpus} GPUs, {first + tp} are wanted"
        )
    held[node] += tp
    return tuple(range(first, first + tp))
