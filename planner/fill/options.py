"""What a stage costs without and per block, for every tiling it may run by."""

from __future__ import annotations

from collections.abc import Sequence

from planner.experts import dispatch_ms, tilings
from planner.fill.split import StageOption
from planner.filled import FilledTemplate
from planner.lookup import host_row, layer_row
from planner.memory import counted_share, in_flight, limit_bytes
from planner.problem import Problem
from specs.cluster import Node
from specs.errors import ProfileMissing
from specs.layer import LayerKind, LayerType
from specs.plan import Stage


def block_types(problem: Problem) -> tuple[LayerType, ...]:
    """The kinds of block of the model: one, or dense blocks and blocks with experts."""
    return tuple(layer for layer in problem.model.layer_types if layer.kind.is_block)


def block_kinds(problem: Problem) -> tuple[int, ...]:
    """For every block of the model in order, the index of its type in `block_types`."""
    index = {layer.hash: k for k, layer in enumerate(block_types(problem))}
    return tuple(index[layer.hash] for layer in problem.model.layers[1:-1])


def stage_tilings(problem: Problem, template: FilledTemplate, s: int) -> list[tuple[int, int]]:
    """The (EP, ETP) that a stage may run by, most devices per copy first.

    Without expert tiling, experts are sharded by the TP degree alone: (1, TP). (1, 1) for models
    without experts.
    """
    moe = next((t for t in block_types(problem) if t.kind is LayerKind.MOE_BLOCK), None)
    if moe is None:
        return [(1, 1)]
    stage = template.stages[s]
    found = tilings(
        moe.shape("experts"),
        moe.shape("expert_ffn"),
        stage.tp,
        [row[s] for row in template.nodes],
    )
    if not problem.expert_tiling:
        return [tiling for tiling in found if tiling == (1, stage.tp)]
    return found


def stage_options(
    problem: Problem, template: FilledTemplate, s: int, micro_batches: int, sent_ms: float
) -> list[StageOption]:
    """Every way to run stage s of a template, whatever its layers; at least one.

    template: its nodes, degrees and micro-batch size count, its layers do not. micro_batches: M
    of the template alone, for what is in flight. sent_ms: transfers of the stage. Of several kinds
    of node the slowest, fullest figures count. Raises ProfileMissing where no tiling has rows.
    """
    options: list[StageOption] = []
    missing: ProfileMissing | None = None
    for tiling in stage_tilings(problem, template, s):
        try:
            options.append(_option(problem, template, s, micro_batches, sent_ms, tiling))
        except ProfileMissing as error:
            missing = missing or error
    if not options:
        raise missing or ProfileMissing(
            f"stage {s} has no tiling of its experts at tp={template.stages[s].tp}"
        )
    return options


def _option(
    problem: Problem,
    template: FilledTemplate,
    s: int,
    micro_batches: int,
    sent_ms: float,
    tiling: tuple[int, int],
) -> StageOption:
    given = template.stages[s]
    stage = Stage(given.gpu, given.tp, given.layers, *tiling)
    held = [row[s] for row in template.nodes]
    kept = in_flight(micro_batches, template.depth, s)
    ends = []
    if s == 0:
        ends.append(problem.model.layers[0])
    if s == template.depth - 1:
        ends.append(problem.model.layers[-1])
    host = host_row(problem, stage.gpu)
    nodes = [problem.cluster.nodes[i] for i in dict.fromkeys(held)]
    of_ends = [
        [_Figures.of(problem, template, stage, e, kept, node) for e in ends] for node in nodes
    ]
    blocks = []
    for layer in block_types(problem):
        figures = [_Figures.of(problem, template, stage, layer, kept, node) for node in nodes]
        dispatch = 0.0
        if layer.expert_parameters:
            dispatch = dispatch_ms(problem, stage, layer, template.micro_batch, held)
        blocks.append(_Figures.worst(figures, dispatch))
    return StageOption(
        fixed_ms=host.host_ms + sent_ms + max(sum(f.ms for f in row) for row in of_ends),
        block_ms=tuple(f.ms for f in blocks),
        fixed_bytes=host.framework_bytes + max(sum(f.nbytes for f in row) for row in of_ends),
        block_bytes=tuple(f.nbytes for f in blocks),
        end_transient_bytes=max((f.transient for row in of_ends for f in row), default=0.0),
        block_transient_bytes=tuple(f.transient for f in blocks),
        limit_bytes=min(limit_bytes(problem, node) for node in nodes),
        tiling=tiling,
    )


class _Figures:
    """Time, memory (state and activations in flight) and transient of one layer on a stage."""

    __slots__ = ("ms", "nbytes", "transient")

    def __init__(self, ms: float, nbytes: float, transient: float) -> None:
        self.ms = ms
        self.nbytes = nbytes
        self.transient = transient

    @classmethod
    def of(
        cls,
        problem: Problem,
        template: FilledTemplate,
        stage: Stage,
        layer: LayerType,
        kept: int,
        node: Node,
    ) -> _Figures:
        row = layer_row(problem, stage, layer, template.micro_batch, node)
        share = 1.0
        if template.depth == 1:
            whole = Stage(stage.gpu, stage.tp, range(len(problem.model.layers)))
            share = counted_share(problem, whole, layer, row)
        workload = problem.workload
        elements = (row.parameter_bytes * share + row.expert_parameter_bytes) / workload.dtype.bytes
        return cls(
            row.forward_ms + row.backward_ms + row.comm_ms,
            elements * workload.state_bytes_per_parameter + row.activation_bytes * kept,
            row.transient_bytes,
        )

    @classmethod
    def worst(cls, figures: Sequence[_Figures], more_ms: float) -> _Figures:
        return cls(
            max(f.ms for f in figures) + more_ms,
            max(f.nbytes for f in figures),
            max(f.transient for f in figures),
        )
