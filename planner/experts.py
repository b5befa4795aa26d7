"""Expert tiling: which tilings exist, what dispatch costs, who owns which experts.

DESIGN section 13, 14 and 21 to 23. The devices of a stage stand in the order replica, then TP
rank. EP * ETP consecutive devices hold one copy of the experts, ETP fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from planner.filled import FilledTemplate
from planner.lookup import link_curve, nic_bytes_per_ms
from planner.problem import Problem
from specs.layer import LayerKind, LayerType
from specs.model import Model
from specs.plan import Stage
from specs.profile import Operation


def moe_layer(model: Model, stage: Stage) -> LayerType | None:
    """The layer type with experts that a stage holds, if any."""
    for i in stage.layers:
        if model.layers[i].kind is LayerKind.MOE_BLOCK:
            return model.layers[i]
    return None


def devices(tp: int, nodes: Sequence[int]) -> list[int]:
    """The node of every device of a stage: replica by replica (`nodes`), TP ranks together."""
    return [node for node in nodes for _ in range(tp)]


def tilings(experts: int, width: int, tp: int, nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Every (EP, ETP) of a stage whose replicas lie on these nodes.

    EP divides the number of experts, ETP divides the expert width, EP * ETP divides the W devices,
    and each ETP group lies in one node. Order: most devices per copy (least memory) first.
    """
    held = devices(tp, nodes)
    found = []
    for ep in _divisors(len(held)):
        if experts % ep:
            continue
        for etp in _divisors(len(held) // ep):
            groups = range(0, len(held), etp)
            if width % etp == 0 and all(len(set(held[i : i + etp])) == 1 for i in groups):
                found.append((ep, etp))
    return sorted(found, key=lambda tiling: (-tiling[0] * tiling[1], tiling))


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]


def rows_per_expert(
    layer: LayerType, micro_batch: int, seq_len: int, tp: int, ep: int, etp: int
) -> Fraction:
    """Tokens that one local expert computes, balanced: b * S * top_k * EP * ETP / (E * TP)."""
    routed = micro_batch * seq_len * layer.shape("top_k") * ep * etp
    return Fraction(routed, layer.shape("experts") * tp)


def dispatch_ms(
    problem: Problem, stage: Stage, layer: LayerType, micro_batch: int, nodes: Sequence[int]
) -> float:
    """Dispatch and combine of one layer for one micro-batch, forward and backward, in ms.

    Two all-to-alls forward and two backward of P = b * S / TP * top_k * H * dtype bytes per rank.
    An EP group in one node: the all_to_all curve of EP ranks at P bytes; where groups reach over
    nodes: latency + max over nodes of (bytes that its ranks send to other nodes) / nic. The
    slowest group counts. EP = 1: 0. Raises ProfileMissing.
    """
    if stage.ep == 1:
        return 0.0
    workload, cluster = problem.workload, problem.cluster
    payload = micro_batch * workload.seq_len * layer.shape("top_k") * problem.model.hidden
    payload_bytes = payload * workload.dtype.bytes / stage.tp
    held = devices(stage.tp, nodes)
    slowest = 0.0
    leaving: dict[int, float] = {}
    tile = stage.ep * stage.etp
    for first in range(0, len(held), tile):
        for j in range(stage.etp):
            group = Counter(held[first + j : first + tile : stage.etp])
            if len(group) == 1:
                (node,) = group
                curve = link_curve(problem, cluster.nodes[node], Operation.ALL_TO_ALL, stage.ep)
                slowest = max(slowest, curve.time_ms(payload_bytes))
                continue
            for node, ranks in group.items():
                outside = (stage.ep - ranks) / stage.ep
                leaving[node] = leaving.get(node, 0.0) + ranks * payload_bytes * outside
    if leaving:
        latency = max(cluster.nodes[node].latency_ms for node in leaving)
        crossing = max(
            nbytes / nic_bytes_per_ms(problem, cluster.nodes[node])
            for node, nbytes in leaving.items()
        )
        slowest = max(slowest, latency + crossing)
    return 4 * slowest


def expert_owners(
    problem: Problem, templates: Sequence[FilledTemplate]
) -> Iterator[tuple[float, Mapping[int, int]]]:
    """Gradient bytes of every distinct shard of routed experts, with the nodes that own copies.

    Templates may tile the same layer differently: the (expert, width) square of a layer is cut at
    every shard border of every template, and each piece is a gradient layer of its own.
    """
    bytes_each = problem.workload.dtype.bytes
    for i, layer in enumerate(problem.model.layers):
        if not layer.expert_parameters:
            continue
        holders = []
        for template in templates:
            s, stage = next(
                (s, stage) for s, stage in enumerate(template.stages) if i in stage.layers
            )
            held = devices(stage.tp, [row[s] for row in template.nodes])
            holders.append((stage.ep, stage.etp, held))
        nbytes = layer.expert_parameters * bytes_each
        for share, owners in _pieces(holders):
            yield nbytes * float(share), owners


def _pieces(
    holders: Sequence[tuple[int, int, Sequence[int]]],
) -> Iterator[tuple[Fraction, Counter[int]]]:
    """Pieces of the unit square of one layer's experts: share of the whole, owners.

    holders: per template (EP, ETP, node of each device).
    """
    expert_cuts = sorted({Fraction(e, ep) for ep, _, _ in holders for e in range(ep + 1)})
    width_cuts = sorted({Fraction(j, etp) for _, etp, _ in holders for j in range(etp + 1)})
    for low_e, high_e in pairwise(expert_cuts):
        for low_w, high_w in pairwise(width_cuts):
            owners: Counter[int] = Counter()
            for ep, etp, held in holders:
                shard = int(low_e * ep) * etp + int(low_w * etp)
                owners.update(held[shard :: ep * etp])
            yield (high_e - low_e) * (high_w - low_w), owners
