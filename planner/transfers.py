"""What a stage pays for sending activations out and gradients back (DESIGN section 13, 4 to 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from planner.filled import FilledTemplate
from planner.lookup import link_curve, nic_bytes_per_ms
from planner.problem import Problem
from specs.cluster import Node
from specs.profile import Operation


def activation_bytes(problem: Problem, micro_batch: int) -> int:
    """A = b * S * H * dtype bytes: one activation (or its gradient) at a stage boundary."""
    workload = problem.workload
    return micro_batch * workload.seq_len * problem.model.hidden * workload.dtype.bytes


def nic_traffic(
    problem: Problem, templates: Sequence[FilledTemplate]
) -> tuple[Counter[int], Counter[int]]:
    """Bytes that leave and enter each node per micro-batch in the forward pass.

    A message of A bytes per boundary whose two stages lie on different nodes, over all stages,
    replicas and templates. In the backward pass the same messages run the other way, so what
    leaves then is what entered here.
    """
    leaving: Counter[int] = Counter()
    entering: Counter[int] = Counter()
    for template in templates:
        size = activation_bytes(problem, template.micro_batch)
        for row in template.nodes:
            for sender, receiver in pairwise(row):
                if sender != receiver:
                    leaving[sender] += size
                    entering[receiver] += size
    return leaving, entering


def send_ms(
    problem: Problem, templates: Sequence[FilledTemplate]
) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Per template and stage: ms of sending one activation forward and one gradient back.

    The sender pays and nothing overlaps; of the replicas the slowest counts. 0 forward for the
    last stage, 0 back for the first. Raises ProfileMissing for a link without a profile.
    """
    leaving, entering = nic_traffic(problem, templates)
    nodes = problem.cluster.nodes
    answer = []
    for template in templates:
        size = activation_bytes(problem, template.micro_batch)
        per_stage = []
        for s, _stage in enumerate(template.stages):
            forward = back = 0.0
            for row in template.nodes:
                if s + 1 < template.depth:
                    after = template.stages[s + 1]
                    out, into = leaving[row[s]], entering[row[s + 1]]
                    sender, receiver = nodes[row[s]], nodes[row[s + 1]]
                    took = _message_ms(problem, sender, receiver, after.tp, size, out, into)
                    forward = max(forward, took)
                if s > 0:
                    before = template.stages[s - 1]
                    out, into = entering[row[s]], leaving[row[s - 1]]
                    sender, receiver = nodes[row[s]], nodes[row[s - 1]]
                    took = _message_ms(problem, sender, receiver, before.tp, size, out, into)
                    back = max(back, took)
            per_stage.append((forward, back))
        answer.append(tuple(per_stage))
    return tuple(answer)


def _message_ms(
    problem: Problem,
    sender: Node,
    receiver: Node,
    receiver_tp: int,
    size: int,
    leaving: int,
    entering: int,
) -> float:
    """One tensor of `size` bytes from a stage on one node to a stage on another, or on the same.

    leaving, entering: bytes of all messages of this pass that share the sender's and the
    receiver's network card. Between nodes each tensor crosses once, in slices, and an all-gather
    inside the receiving TP group rebuilds it.
    """
    if sender.name == receiver.name:
        return link_curve(problem, sender, Operation.P2P, 2).time_ms(size)
    crossing = max(
        leaving / nic_bytes_per_ms(problem, sender), entering / nic_bytes_per_ms(problem, receiver)
    )
    gather = 0.0
    if receiver_tp > 1:
        gather = link_curve(problem, receiver, Operation.ALL_GATHER, receiver_tp).time_ms(size)
    return max(sender.latency_ms, receiver.latency_ms) + crossing + gather
