"""Time of a decoder block on one rank: attention, MLP, routed experts, collectives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from profiler.calibration import calibration
from profiler.estimates.collectives import collective_ms
from profiler.estimates.devices import Device
from profiler.estimates.kernels import (
    Gemm,
    flash_attention_ms,
    gemms_ms,
    memory_op_ms,
    unfused_attention_ms,
)
from profiler.estimates.shard import Shard
from specs.layer import LayerKind
from specs.profile import Operation
from specs.topology import Topology
from specs.workload import Recompute


class AttentionKernel(StrEnum):
    """How attention is computed: in one kernel that keeps no scores, or score by score."""

    FLASH = "flash"
    UNFUSED = "unfused"


def default_attention(device: Device) -> AttentionKernel:
    """Flash where it was fitted; V100 and Turing have no flash kernel in mainline."""
    return AttentionKernel.FLASH if device.attention else AttentionKernel.UNFUSED


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Forward and backward of one micro-batch, in ms: computation, and collectives apart.

    collectives: how many run in the forward pass, and as many in the backward pass.
    """

    forward_ms: float
    backward_ms: float
    forward_comm_ms: float = 0.0
    backward_comm_ms: float = 0.0
    collectives: int = 0

    def __add__(self, other: PassTimes) -> PassTimes:
        return PassTimes(
            self.forward_ms + other.forward_ms,
            self.backward_ms + other.backward_ms,
            self.forward_comm_ms + other.forward_comm_ms,
            self.backward_comm_ms + other.backward_comm_ms,
            self.collectives + other.collectives,
        )


def memory_pass(device: Device, nbytes: float) -> PassTimes:
    """A memory-bound operator and its backward, which moves twice the bytes."""
    forward = memory_op_ms(device, nbytes)
    return PassTimes(forward, 2 * forward)


def block_times(
    device: Device, shard: Shard, topology: Topology, attention: AttentionKernel
) -> PassTimes:
    """A whole block at short-benchmark clocks, without the host's floor.

    Projections and MLP as matrix products; attention; 30 bytes per token and hidden element for
    norms, residuals and dropout, 6 or 4 per element of the MLP's width (16 bit), backward twice;
    with experts what expert_times adds. Collectives: an all-reduce of A forward and one backward
    behind attention and behind the MLP (latent attention is whole on every rank and has none).
    Source: profiler/calibration/README.md, DESIGN section 13.
    """
    known, dtype = calibration(), shard.dtype
    products = gemms_ms(device, [*shard.attention_gemms(), *shard.mlp_gemms()], dtype)
    kernel = flash_attention_ms if attention is AttentionKernel.FLASH else unfused_attention_ms
    nbytes = known.norm_bytes * shard.tokens * shard.hidden
    nbytes += (known.gated_bytes if shard.gated else known.plain_bytes) * shard.tokens * shard.ffn
    times = (
        PassTimes(*products)
        + PassTimes(*kernel(device, shard.attention, dtype))
        + memory_pass(device, nbytes * dtype.bytes / 2)
    )
    reduced = (0 if shard.is_mla else 1) + (1 if shard.ffn else 0)
    times += _all_reduces(device, shard, topology, reduced)
    if shard.layer.kind is LayerKind.MOE_BLOCK:
        times += expert_times(device, shard, topology)
    return times


def _all_reduces(device: Device, shard: Shard, topology: Topology, count: int) -> PassTimes:
    if shard.tp == 1:
        return PassTimes(0.0, 0.0)
    one = collective_ms(
        device.gpu.name, topology, Operation.ALL_REDUCE, shard.tp, shard.activation_bytes
    )
    return PassTimes(0.0, 0.0, count * one, count * one, count)


def expert_times(device: Device, shard: Shard, topology: Topology) -> PassTimes:
    """Routed experts of a block on one rank, without dispatch and combine (priced by the planner).

    Router over the tokens that this rank routes, with 10 bytes per logit; per local expert the
    products of its rows (balanced) with gate and up, then down; 6 bytes per row and element of the
    experts' width; 8 per row and hidden element for gathering and adding up rows, and 8 more
    where rows come from other ranks, the same backward (a gather's backward is a scatter).
    Collectives, DESIGN section 13, 22: an all-gather of A over the TP group, and of the rows over
    the ETP group an all-gather and a reduce-scatter, forward and backward alike; where the experts
    are cut over the TP group itself, one all-reduce of A each way.
    """
    known, dtype = calibration(), shard.dtype
    hidden, experts = shard.hidden, shard.layer.shape("experts")
    rows, width = shard.rows_per_expert, shard.expert_width
    one_expert = gemms_ms(device, [Gemm(rows, 2 * width, hidden), Gemm(rows, hidden, width)], dtype)
    router = gemms_ms(device, [Gemm(shard.own_tokens, experts, hidden)], dtype)
    nbytes = 10.0 * shard.own_tokens * experts + known.gated_bytes * shard.expert_rows * width
    moved = 8.0 * shard.own_rows * hidden
    if shard.ep > 1 or (shard.etp > 1 and not shard.follows_tp):
        moved += 8.0 * shard.expert_rows * hidden
    moving = memory_op_ms(device, moved * dtype.bytes / 2)
    times = PassTimes(
        shard.local_experts * one_expert[0] + router[0] + moving,
        shard.local_experts * one_expert[1] + router[1] + moving,
    )
    times += memory_pass(device, nbytes * dtype.bytes / 2)
    if shard.follows_tp:
        return times + _all_reduces(device, shard, topology, 1)
    gpu, gather = device.gpu.name, Operation.ALL_GATHER
    comm, count = 0.0, 0
    if shard.tp > 1:
        comm += collective_ms(gpu, topology, gather, shard.tp, shard.activation_bytes)
        count += 1
    if shard.etp > 1:
        row_bytes = shard.etp * shard.own_rows * hidden * dtype.bytes
        for operation in (gather, Operation.REDUCE_SCATTER):
            comm += collective_ms(gpu, topology, operation, shard.etp, row_bytes)
            count += 1
    return times + PassTimes(0.0, 0.0, comm, comm, count)


def with_host(device: Device, raw: PassTimes, recompute: Recompute) -> tuple[float, float, float]:
    """(forward_ms, backward_ms, comm_ms) of a block in training, from its bare GPU times.

    Computation times the sustained derate; then the floor of eager launching, in ms: forward_ms =
    max(computation, 1.57 + 0.04175 per collective of the forward pass). Full recomputation runs
    the forward's kernels again: 1.5 times the collectives, and a backward of computation, forward
    computation and collectives that is no shorter than the 1.57 of launching that forward.
    Source: DESIGN section 13, 2 and "Rows and rules"; docs/decisions/0005-host-floor.md; constants
    fitted on 30 % of vTrain's single-node iterations.
    """
    known = calibration()
    forward, backward = raw.forward_ms * device.derate, raw.backward_ms * device.derate
    launch = known.block_forward_ms + known.per_collective_ms * raw.collectives
    comm = raw.forward_comm_ms + raw.backward_comm_ms
    if recompute is Recompute.NONE:
        return max(forward, launch), backward, comm
    comm_in_backward = 1.5 * comm - raw.forward_comm_ms
    again = max(forward + backward, known.block_forward_ms - comm_in_backward)
    return max(forward, launch), again, 1.5 * comm
