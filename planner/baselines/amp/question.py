"""A planning problem as a question to AMP."""

from __future__ import annotations

from planner.baselines.amp.inputs import AmpNode, Inputs, Rows
from planner.baselines.metis.question import question as metis_question
from planner.problem import Problem


def is_even(problem: Problem) -> bool:
    """Whether all nodes have the same number of GPUs, as AMP asks."""
    return len({node.gpus for node in problem.cluster.nodes}) == 1


def question(problem: Problem) -> Inputs:
    """What AMP plans with; where nodes differ in size every GPU is read as a node of its own.

    Raises ProfileMissing where a host row or a network figure lacks.
    """
    read = metis_question(problem)
    even = is_even(problem)
    nodes = []
    for i, node in enumerate(read.nodes):
        copies = 1 if even else node.gpus
        nodes += [AmpNode(i, node.gpu, node.intra, node.inter)] * copies
    return Inputs(
        per_node=problem.cluster.nodes[0].gpus if even else 1,
        nodes=tuple(nodes),
        layers=read.layers,
        global_batch=read.global_batch,
        rows={
            key: Rows(rows.times, rows.held, rows.kept, rows.overhead_ms)
            for key, rows in read.rows.items()
        },
        room=read.room,
        gradient_bytes=read.gradient_bytes,
        activation_bytes=read.activation_bytes,
    )
