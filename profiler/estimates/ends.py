"""Time of the two ends of a model on one rank: embedding, and head with loss."""

from __future__ import annotations

from profiler.estimates.blocks import PassTimes, memory_pass
from profiler.estimates.collectives import collective_ms
from profiler.estimates.devices import Device
from profiler.estimates.kernels import Gemm, gemms_ms, memory_op_ms
from profiler.estimates.shard import Shard
from specs.layer import LayerKind
from specs.profile import Operation
from specs.topology import Topology


def embedding_times(device: Device, shard: Shard, topology: Topology) -> PassTimes:
    """The vocabulary-parallel embedding at short-benchmark clocks.

    Reads a row and writes it: 4 bytes per token and hidden element in 16 bit, 6 more where
    learned positions are added; backward twice. One all-reduce of A forward (DESIGN section 13).
    """
    nbytes = 2.0 * shard.tokens * shard.word_dim + 2.0 * shard.tokens * shard.hidden
    if shard.layer.flag("positions"):
        nbytes += 6.0 * shard.tokens * shard.hidden
    times = memory_pass(device, nbytes * shard.dtype.bytes / 2)
    times += _between_widths(device, shard)
    return times + PassTimes(0.0, 0.0, _all_reduce_ms(device, shard, topology))


def head_times(device: Device, shard: Shard, topology: Topology) -> PassTimes:
    """Final norm, vocabulary-parallel projection and loss at short-benchmark clocks.

    The projection's products; per logit of this rank 10 bytes forward (read in 16 bit, written
    and read in fp32) and 6 backward; 6 per token and hidden element for the norm. In fp32 8 and 8
    per logit: nothing is converted. One all-reduce of A backward (DESIGN section 13).
    """
    tokens, logits = shard.tokens, float(shard.tokens) * shard.vocabulary
    width = shard.dtype.bytes
    product = gemms_ms(device, [Gemm(tokens, shard.vocabulary, shard.word_dim)], shard.dtype)
    forward, backward = (10.0, 6.0) if width == 2 else (8.0, 8.0)
    norm = 0.0 if shard.layer.flag("norm") == "none" else 3.0 * width * tokens * shard.hidden
    times = PassTimes(
        product[0] + memory_op_ms(device, forward * logits + norm),
        product[1] + memory_op_ms(device, backward * logits),
    )
    times += _between_widths(device, shard)
    return times + PassTimes(0.0, 0.0, 0.0, _all_reduce_ms(device, shard, topology))


def _between_widths(device: Device, shard: Shard) -> PassTimes:
    """The projection between the vocabulary's width and the hidden one, where they differ."""
    if shard.word_dim == shard.hidden:
        return PassTimes(0.0, 0.0)
    into, out = shard.word_dim, shard.hidden
    if shard.layer.kind is LayerKind.HEAD:
        into, out = out, into
    return PassTimes(*gemms_ms(device, [Gemm(shard.tokens, out, into)], shard.dtype))


def _all_reduce_ms(device: Device, shard: Shard, topology: Topology) -> float:
    return collective_ms(
        device.gpu.name, topology, Operation.ALL_REDUCE, shard.tp, shard.activation_bytes
    )
