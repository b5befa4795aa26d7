"""What gradient synchronisation takes on each node (DESIGN section 13, 11 to 14)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from planner.experts import expert_owners
from planner.filled import FilledTemplate
from planner.lookup import bus_bytes_per_ms, nic_bytes_per_ms
from planner.memory import shared_matrix_elements
from planner.problem import Problem

Owners = Mapping[int, int]  # node -> copies it holds


def gradient_layers(
    problem: Problem, templates: Sequence[FilledTemplate]
) -> Iterator[tuple[float, Owners]]:
    """Bytes of every gradient layer but the routed experts, with the nodes that own it.

    Every layer of the model once: G_l = parameters * dtype bytes, whatever the TP degree, owned by
    the node of each replica of each template that holds it. A tied matrix is the gradient layer
    `embedding`, owned by first and last stage of templates with several stages; the head's own
    gradient is then what is left of it.
    """
    model, bytes_each = problem.model, problem.workload.dtype.bytes
    owners: list[Counter[int]] = [Counter() for _ in model.layers]
    for template in templates:
        for s, stage in enumerate(template.stages):
            held = Counter(row[s] for row in template.nodes)
            for layer in stage.layers:
                owners[layer].update(held)
        if model.tied and template.depth > 1:
            owners[0].update(row[-1] for row in template.nodes)
    shared = shared_matrix_elements(model)
    for layer, (kind, held) in enumerate(zip(model.layers, owners, strict=True)):
        own = kind.parameters - (shared if layer == len(model.layers) - 1 else 0)
        if own > 0:
            yield own * bytes_each, held


def ring_ms(problem: Problem, nbytes: float, owners: Owners) -> float:
    """All-reduce of one gradient layer among its owners, in ms.

    N nodes: 2 (N-1)/N * bytes / the slowest of its nodes, where a node that holds it in c
    replicas has bw = nic if c = 1, else min(nic, bus of its own link). One node: 2 (c-1)/c *
    bytes / bus. One owner: 0.
    """
    nodes = problem.cluster.nodes
    if len(owners) > 1:
        slowest = min(
            nic_bytes_per_ms(problem, nodes[n])
            if copies == 1
            else min(nic_bytes_per_ms(problem, nodes[n]), bus_bytes_per_ms(problem, nodes[n]))
            for n, copies in owners.items()
        )
        return 2 * (len(owners) - 1) / len(owners) * nbytes / slowest
    ((node, copies),) = owners.items()
    if copies == 1:
        return 0.0
    return 2 * (copies - 1) / copies * nbytes / bus_bytes_per_ms(problem, nodes[node])


def expert_ring_ms(problem: Problem, nbytes: float, owners: Owners) -> float:
    """All-reduce of one shard of routed experts among its copies, in ms.

    Copies on N nodes: 2 (N-1)/N * bytes / the slowest of their network cards. All in one node:
    2 (c-1)/c * bytes / bus. One copy: 0. DESIGN section 13, 14.
    """
    if len(owners) == 1:
        return ring_ms(problem, nbytes, owners)
    slowest = min(nic_bytes_per_ms(problem, problem.cluster.nodes[n]) for n in owners)
    return 2 * (len(owners) - 1) / len(owners) * nbytes / slowest


def sync_ms(problem: Problem, templates: Sequence[FilledTemplate]) -> dict[int, float]:
    """Per node, the sum of the times of the distinct gradient layers it holds, in ms.

    The network card carries each layer once. Raises ProfileMissing for a link without a profile.
    """
    total: dict[int, float] = defaultdict(float)
    for nbytes, owners in gradient_layers(problem, templates):
        took = ring_ms(problem, nbytes, owners)
        for node in owners:
            total[node] += took
    for nbytes, owners in expert_owners(problem, templates):
        took = expert_ring_ms(problem, nbytes, owners)
        for node in owners:
            total[node] += took
    return total
