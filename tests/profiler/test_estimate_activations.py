"""Activation bytes against what autograd really keeps, and against closed forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from profiler.estimates.activations import (
    Kernels,
    block_kept_bytes,
    layer_memory,
)
from profiler.estimates.blocks import AttentionKernel
from profiler.estimates.shard import Shard, parameters
from specs.layer import LayerKind, LayerType
from specs.model import Model, load_model
from specs.workload import DType, Recompute
from tests.runtime.tiny import FAMILIES, tiny_model

FLASH, UNFUSED = AttentionKernel.FLASH, AttentionKernel.UNFUSED
TORCH = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16, DType.FP32: torch.float32}
CLASSES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "mixtral": "Mixtral",
    "deepseek_v3": "DeepseekV3",
}


class KeepsWhatFlashKeeps(torch.autograd.Function):
    """Saves what a flash kernel saves; computes nothing."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, length, _ = q.shape
        out = q.new_empty(batch, length, heads, v.shape[-1])
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:3], dtype=torch.float32))
        return out


def flash(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **_: Any) -> Any:
    return KeepsWhatFlashKeeps.apply(q, k, v), None


def saved(layer: nn.Module, forward: Callable[[], Any], shared: tuple[Tensor, ...]) -> int:
    """Bytes that saved-tensor hooks report, each storage once, without weights and shared ones."""
    skip = {
        tensor.untyped_storage()._cdata
        for tensor in (*layer.parameters(), *layer.buffers(), *shared)
    }
    seen: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in skip:
            seen[storage._cdata] = storage  # kept alive: an address could come back
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    assert result is not None
    return sum(storage.nbytes() for storage in seen.values())


def reported_by_hooks(
    model: Model, dtype: DType, batch: int, length: int, attention: str, **changes: Any
) -> int:
    """What one Hugging Face decoder layer of full width keeps, without using memory for it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family = str(model.config["model_type"])
    fields = {name: value for name, value in model.config.items() if name != "model_type"}
    config = CONFIG_MAPPING[family](**fields | changes)
    config._attn_implementation = attention
    config._experts_implementation = "grouped_mm"
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    layer_class = getattr(module, f"{CLASSES[family]}DecoderLayer")
    rotary_class = getattr(module, f"{CLASSES[family]}RotaryEmbedding")
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(TORCH[dtype])
        try:
            layer = layer_class(config, 0)
        finally:
            torch.set_default_dtype(torch.float32)
        x = torch.empty(batch, length, config.hidden_size, dtype=TORCH[dtype], requires_grad=True)
        positions = rotary_class(config)(x, torch.arange(length)[None])
        positions = tuple(tensor.detach() for tensor in positions)
        return saved(
            layer,
            lambda: layer(x, attention_mask=None, position_embeddings=positions),
            positions,
        )


def block_of(model: Model, kind: LayerKind | None = None) -> LayerType:
    return next(
        layer
        for layer in model.layer_types
        if layer.kind.is_block and (kind is None or layer.kind is kind)
    )


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-32b"])
def test_a_dense_block_keeps_to_the_byte_what_hooks_report(name: str, dtype: DType) -> None:
    model = load_model(name)
    for batch, length in ((1, 4096), (2, 1024)):
        shard = Shard(block_of(model), batch, length, dtype)
        assert block_kept_bytes(shard, FLASH, Kernels.EAGER) == reported_by_hooks(
            model, dtype, batch, length, "sdpa"
        )


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_rank_of_a_tensor_parallel_group_keeps_what_a_narrower_layer_keeps(tp: int) -> None:
    model = load_model("llama-3-8b")
    shard = Shard(block_of(model), 1, 4096, DType.BF16, tp=tp)
    narrower = reported_by_hooks(
        model,
        DType.BF16,
        1,
        4096,
        "sdpa",
        num_attention_heads=32 // tp,
        num_key_value_heads=8 // tp,
        head_dim=128,
        intermediate_size=14336 // tp,
    )
    assert block_kept_bytes(shard, FLASH, Kernels.EAGER) == narrower


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_latent_attention_keeps_to_the_byte_what_hooks_report(dtype: DType) -> None:
    """CPU kernels want equal head sizes, so the attention here is one that saves like flash."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("keeps-what-flash-keeps", flash)
    model = load_model("deepseek-v3-like")
    shard = Shard(block_of(model, LayerKind.DENSE_BLOCK), 1, 2048, dtype)
    assert block_kept_bytes(shard, FLASH, Kernels.EAGER) == reported_by_hooks(
        model, dtype, 1, 2048, "keeps-what-flash-keeps"
    )


def test_a_block_with_experts_keeps_what_hooks_report_and_its_output_rows_once_more() -> None:
    """The runtime adds rows up out of place, and so keeps them; transformers' layer does not."""
    model = load_model("mixtral-8x7b")
    shard = Shard(block_of(model), 1, 4096, DType.BF16)
    once_more = 2 * 4096 * 4096 * 2  # two experts a token, hidden 4096, bf16
    found = block_kept_bytes(shard, FLASH, Kernels.EAGER) - once_more
    assert found == pytest.approx(reported_by_hooks(model, DType.BF16, 1, 4096, "sdpa"), rel=1e-4)


def real_layers() -> Iterator[Any]:
    for family in FAMILIES:
        if family == "deepseek_v3":
            continue  # its latent attention has no flash kernel on a CPU
        for dtype in (DType.FP32, DType.BF16):
            yield pytest.param(family, dtype, id=f"{family}-{dtype.value}")


@pytest.mark.parametrize(("family", "dtype"), list(real_layers()))
def test_the_runtime_s_own_layers_keep_what_is_estimated(family: str, dtype: DType) -> None:
    from runtime.layers import build_layer

    changes = {"hidden_size": 128, "intermediate_size": 320, "vocab_size": 256}
    if family == "qwen3_moe":
        changes["moe_intermediate_size"] = 96
    model = tiny_model(family, **changes)
    batch, length = 2, 64
    tokens = torch.randint(256, (batch, length))
    for layer_type in model.layer_types:
        if layer_type.kind is LayerKind.EMBEDDING:
            continue
        layer = build_layer(
            layer_type,
            model,
            tp_group=None,
            dtype=TORCH[dtype],
            device=torch.device("cpu"),
            seed=0,
        )
        x = torch.randn(batch, length, 128, dtype=TORCH[dtype], requires_grad=True)
        head = layer_type.kind is LayerKind.HEAD
        call = (lambda: layer(x, tokens)) if head else (lambda: layer(x))  # noqa: B023
        call()  # rotary positions are made once and shared by all layers
        shard = Shard(layer_type, batch, length, dtype)
        memory = layer_memory(shard, Recompute.NONE, FLASH, Kernels.EAGER)
        shared = 2 * length * int(layer_type.flag("head_dim") or 0) * dtype.bytes
        assert memory.activation_bytes == saved(layer, call, ()) - shared, layer_type.kind
        weights = sum(p.numel() for p in layer.parameters())
        assert sum(parameters(shard)) == weights


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_peak_above_what_is_kept_is_that_of_a_real_micro_batch(family: str) -> None:
    from profiler.measure.bench import LayerBench
    from specs.profile import LayerKey
    from specs.topology import Topology
    from specs.workload import Optimizer

    model = tiny_model(family, hidden_size=256, intermediate_size=640, vocab_size=512)
    for recompute in Recompute:
        for layer_type in model.layer_types:
            key = LayerKey(
                "cpu",
                layer_type.hash,
                1,
                2,
                64,
                DType.FP32,
                recompute,
                Optimizer.ADAMW,
                Topology.HOST,
            )
            bench = LayerBench(
                layer_type,
                model,
                key,
                group=None,
                device=torch.device("cpu"),
                copies=1,
                seed=0,
            )
            measured = bench.memory()
            shard = Shard(layer_type, 2, 64, DType.FP32)
            found = layer_memory(shard, recompute, FLASH, Kernels.EAGER)
            # An embedding's output is counted as kept, for the block behind it.
            total = found.activation_bytes + found.transient_bytes
            real = measured.activation_bytes + measured.transient_bytes
            assert total == pytest.approx(real, rel=0.02), (layer_type.kind, recompute)


def plain_block(tp: int = 1) -> Shard:
    """A GPT block: hidden 1024, 16 heads, MLP 4096, sequence 2048, micro-batch 4, 16 bit."""
    layer = block_of(load_model("gpt-neo-2.7b"))
    shapes = dict(layer.shapes) | {
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 16,
        "head_dim": 64,
        "ffn": 4096,
        "activation": "gelu",
    }
    return Shard(LayerType.of(LayerKind.BLOCK, shapes, 0), 4, 2048, DType.FP16, tp=tp)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_fused_kernels_keep_what_korthikanti_s_closed_forms_say(tp: int) -> None:
    """s b h (10 + 24/t + 5 a s / (h t)), MLSys '23, less its dropout: the masks of two outputs (1
    byte each) and of the scores (1), and the dropped scores (2)."""
    s, b, h, a = 2048, 4, 1024, 16
    closed = s * b * h * (10 + 24 / tp + 5 * a * s / (h * tp))
    dropout = s * b * h * (2 + 3 * a * s / (h * tp))
    assert block_kept_bytes(plain_block(tp), UNFUSED, Kernels.FUSED) == closed - dropout
    flash_closed = s * b * h * (10 + 24 / tp)
    assert block_kept_bytes(plain_block(tp), FLASH, Kernels.FUSED) == flash_closed - 2 * s * b * h


def test_full_recomputation_keeps_the_input_as_korthikanti_says() -> None:
    memory = layer_memory(plain_block(), Recompute.FULL, FLASH, Kernels.FUSED)
    assert memory.activation_bytes == 2 * 2048 * 4 * 1024


def test_memory_is_linear_in_the_micro_batch_but_for_weight_gradients() -> None:
    one = Shard(block_of(load_model("llama-3-8b")), 1, 4096, DType.BF16)
    eight = replace(one, batch=8)
    kept = [block_kept_bytes(shard, FLASH, Kernels.EAGER) for shard in (one, eight)]
    assert kept[1] == 8 * kept[0]


def test_the_last_stage_s_loss_takes_ten_bytes_a_logit_with_either_kernels() -> None:
    head = next(x for x in load_model("llama-3-8b").layer_types if x.kind is LayerKind.HEAD)
    shard = Shard(head, 1, 4096, DType.BF16)
    logits = 4096 * 128256
    for kernels in Kernels:
        memory = layer_memory(shard, Recompute.NONE, FLASH, kernels)
        total = memory.activation_bytes + memory.transient_bytes
        assert total == pytest.approx(10 * logits, rel=0.04)
