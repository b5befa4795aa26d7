"""The estimated profile of one layer for one key."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.estimates.activations import Kernels, layer_memory
from profiler.estimates.blocks import (
    AttentionKernel,
    PassTimes,
    block_times,
    default_attention,
    with_host,
)
from profiler.estimates.devices import Device, device
from profiler.estimates.ends import embedding_times, head_times
from profiler.estimates.optimizer import update_ms
from profiler.estimates.shard import Shard, parameters
from specs.errors import SpecError
from specs.layer import LayerKind, LayerType
from specs.layout import not_divisible
from specs.profile import EntryStatus, LayerKey, LayerProfile, LayerRefusal


@dataclass(frozen=True, slots=True)
class Style:
    """How the layers are written. attention: None = flash where the GPU type has it."""

    kernels: Kernels = Kernels.EAGER
    attention: AttentionKernel | None = None


def estimate_layer(
    layer: LayerType, key: LayerKey, style: Style | None = None
) -> LayerProfile | LayerRefusal:
    """What one layer takes on one rank, or why it cannot be split so.

    Times in ms of one micro-batch, memory in bytes, as a LayerProfile defines them. Embedding and
    head take no host floor and are never recomputed. Raises SpecError for a layer that is known
    only by sizes or was discovered, for `cpu`, for flash attention where none was fitted, and for
    a topology that the GPU type does not come in.
    """
    style = style or Style()
    if layer.flag("dataset"):
        raise SpecError(
            f"layers of {layer.flag('model')} are known only by their sizes: nothing to estimate "
            "from; arachne-prof import sailor brings their measured profiles"
        )
    if layer.flag("tensors"):
        raise SpecError(
            f"layers of family {layer.flag('family')!r} have no formulas here to estimate from: "
            f"run arachne-prof run --gpu {key.gpu} where there is one, or import their profiles"
        )
    reason = not_divisible(layer, key.tp, key.ep, key.etp)
    if reason:
        return LayerRefusal(key, EntryStatus.NOT_DIVISIBLE, reason)
    card = device(key.gpu)
    shard = Shard(layer, key.micro_batch, key.seq_len, key.dtype, key.tp, key.ep, key.etp)
    attention = style.attention or default_attention(card)
    if attention is AttentionKernel.FLASH and card.attention is None:
        raise SpecError(
            f"no flash attention kernel was measured on {key.gpu}, expected unfused attention: "
            "leave --attention out"
        )
    forward, backward, comm = _times(card, shard, key, attention)
    # Kernels of transformers keep no scores anywhere: where flash was not fitted, a
    # memory-efficient kernel runs, whose time nobody fitted either.
    keeps = style.attention or AttentionKernel.FLASH
    memory = layer_memory(shard, key.recompute, keeps, style.kernels)
    dense, routed = parameters(shard)
    return LayerProfile(
        key,
        forward_ms=forward,
        backward_ms=backward,
        comm_ms=comm,
        update_ms=update_ms(card, dense + routed, key.dtype, key.optimizer),
        activation_bytes=memory.activation_bytes,
        transient_bytes=memory.transient_bytes,
        parameter_bytes=dense * key.dtype.bytes,
        expert_parameter_bytes=routed * key.dtype.bytes,
    )


def _times(
    card: Device, shard: Shard, key: LayerKey, attention: AttentionKernel
) -> tuple[float, float, float]:
    kind = shard.layer.kind
    if kind.is_block:
        return with_host(card, block_times(card, shard, key.topology, attention), key.recompute)
    raw: PassTimes
    if kind is LayerKind.EMBEDDING:
        raw = embedding_times(card, shard, key.topology)
    else:
        raw = head_times(card, shard, key.topology)
    comm = raw.forward_comm_ms + raw.backward_comm_ms
    return raw.forward_ms * card.derate, raw.backward_ms * card.derate, comm
