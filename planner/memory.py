"""Whether a stage fits its GPUs: memory in parts against the limit (DESIGN section 13, 15)."""

from __future__ import annotations

from planner.filled import layer_counts
from planner.lookup import host_row, layer_row
from planner.problem import Problem
from specs.cluster import Node
from specs.gpu import gpu_type
from specs.layer import LayerKind, LayerType
from specs.model import Model
from specs.plan import Stage
from specs.prediction import StageMemory
from specs.profile import LayerProfile


def usable_bytes(problem: Problem, node: Node) -> float:
    """Memory a process may fill on one device of a node, before head-room.

    The host row's figure; a `cpu` host row holds the memory of the whole host, which the devices
    of a node share evenly. Raises ProfileMissing.
    """
    usable = host_row(problem, node.gpu).usable_bytes
    return usable / node.gpus if gpu_type(node.gpu).is_cpu else usable


def limit_bytes(problem: Problem, node: Node) -> float:
    """What a plan may fill on one device: usable memory * (1 - head-room)."""
    return usable_bytes(problem, node) * (1 - problem.headroom)


def in_flight(micro_batches: int, depth: int, stage: int) -> int:
    """Micro-batches whose activations stage s of d keeps under 1F1B: min(M, d - s), s from 0."""
    return min(micro_batches, depth - stage)


def shared_matrix_elements(model: Model) -> int:
    """Elements of the matrix that a tied head shares with the embedding; 0 where untied."""
    if not model.tied:
        return 0
    head = model.layers[-1]
    return head.shape("vocab") * int(head.flag("word_dim") or head.shape("hidden"))


def counted_share(problem: Problem, stage: Stage, layer: LayerType, row: LayerProfile) -> float:
    """The part of a layer's state and update that a stage counts for it, from 0 to 1.

    Everything, but for a tied head on the stage that also holds the embedding (d = 1): there the
    shared matrix counts once, with the embedding (DESIGN section 13, 13).
    """
    if layer.kind is not LayerKind.HEAD or stage.layers.start != 0 or not problem.model.tied:
        return 1.0
    matrix = shared_matrix_elements(problem.model) * problem.workload.dtype.bytes / stage.tp
    return max(0.0, 1 - matrix / row.parameter_bytes)


def stage_memory(
    problem: Problem, stage: Stage, micro_batch: int, kept: int, node: Node
) -> StageMemory:
    """Memory of one GPU of a stage on one node, in parts.

    kept: micro-batches in flight. State = parameters of the rank's layers * bytes per parameter
    (weights, gradients, optimizer), plus activation_bytes summed over its layers * kept, plus the
    largest transient_bytes once, plus the framework constant. Raises ProfileMissing.
    """
    workload = problem.workload
    elements = activations = transient = 0.0
    for layer, count in layer_counts(problem.model, stage).items():
        row = layer_row(problem, stage, layer, micro_batch, node)
        held = row.parameter_bytes * counted_share(problem, stage, layer, row)
        elements += count * (held + row.expert_parameter_bytes) / workload.dtype.bytes
        activations += count * row.activation_bytes
        transient = max(transient, row.transient_bytes)
    weights = elements * workload.dtype.bytes
    state = elements * workload.state_bytes_per_parameter
    return StageMemory(
        weights=weights,
        gradients=weights,
        optimizer=state - 2 * weights,
        activations=activations * kept,
        transient=transient,
        framework=host_row(problem, node.gpu).framework_bytes,
        limit=limit_bytes(problem, node),
    )


def tightest(memories: list[StageMemory]) -> StageMemory:
    """Of the same stage on several nodes, the one with the least room left."""
    return min(memories, key=lambda memory: memory.limit - memory.total)
