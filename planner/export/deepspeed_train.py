"""Trains a model by DeepSpeed's pipeline engine, with the layers of each stage as they are listed.

Needs torch, transformers and deepspeed. The engine starts from RANK, LOCAL_RANK and WORLD_SIZE.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def config_of(model: dict[str, Any]) -> Any:
    """The Hugging Face config of a config.json."""
    from transformers import AutoConfig

    fields = dict(model)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config._attn_implementation = "sdpa"
    return config


def class_of(config: Any, ending: str) -> Any:
    """The class of the model's family with that last name, such as LlamaDecoderLayer."""
    module = import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
    (name,) = [
        key
        for key, value in vars(module).items()
        if key.endswith(ending) and getattr(value, "__module__", "") == module.__name__
    ]
    return getattr(module, name)


class Embedding(nn.Module):
    """Tokens to activations."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.weight.weight, std=config.initializer_range)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Shape (batch, sequence, hidden)."""
        found: Tensor = self.weight(tokens_BS)
        return found


class Block(nn.Module):
    """One decoder layer with its rotary positions."""

    def __init__(self, config: Any, number: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.layer = class_of(config, "DecoderLayer")(config, number)
        self.rotary = class_of(config, "RotaryEmbedding")(config)
        for parameter in self.layer.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(self, x_BSH: Tensor) -> Tensor:
        """Activations to activations; attention is causal."""
        if self.recompute and torch.is_grad_enabled():
            # DeepSpeed's own checkpointing wants a gradient of the tokens on the first stage.
            kept: Tensor = checkpoint(self.run, x_BSH, use_reentrant=False)
            return kept
        return self.run(x_BSH)

    def run(self, x_BSH: Tensor) -> Tensor:
        """The layer itself."""
        positions = torch.arange(x_BSH.shape[1], device=x_BSH.device)[None]
        found = self.layer(
            x_BSH, attention_mask=None, position_embeddings=self.rotary(x_BSH, positions)
        )
        out: Tensor = found[0] if isinstance(found, tuple) else found
        return out


class Head(nn.Module):
    """Final norm and output projection."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm = class_of(config, "RMSNorm")(config.hidden_size, eps=config.rms_norm_eps)
        self.projection = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.projection.weight, std=config.initializer_range)

    def forward(self, x_BSH: Tensor) -> Tensor:
        """Logits, shape (batch, sequence, vocabulary)."""
        logits: Tensor = self.projection(self.norm(x_BSH))
        return logits


def layers_of(config: Any, recompute: bool) -> list[tuple[type[nn.Module], tuple[Any, ...]]]:
    """Every layer in order, as its class and what it is built from.

    recompute: whether blocks keep only their input, and run again in the backward pass.
    """
    blocks = [(Block, (config, number, recompute)) for number in range(config.num_hidden_layers)]
    return [(Embedding, (config,)), *blocks, (Head, (config,))]


def loss(logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """Mean cross entropy of all tokens."""
    return nn.functional.cross_entropy(logits_BSV.flatten(0, 1).float(), labels_BS.flatten())


def samples(vocab: int, batch: int, seq_len: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Made-up tokens and the tokens after them, without end."""
    generator = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(vocab, (batch, seq_len + 1), generator=generator)
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train(settings: dict[str, Any], iterations: int) -> Iterator[float]:
    """Train; the loss of each iteration as it ends."""
    import deepspeed  # type: ignore[import-not-found]
    from deepspeed.pipe import LayerSpec, PipelineModule  # type: ignore[import-not-found]

    parts: Sequence[int] = settings["parts"]

    class Planned(PipelineModule):  # type: ignore[misc]
        """A pipeline whose stages hold the layers that the plan gives them."""

        def _partition_layers(self, method: str = "uniform") -> None:
            stage = self._topo.get_coord(self.global_rank).pipe
            self.parts = list(parts)
            self._set_bounds(start=parts[stage], stop=parts[stage + 1])

    deepspeed.init_distributed()
    config = config_of(settings["model"])
    net = Planned(
        layers=[LayerSpec(kind, *v) for kind, v in layers_of(config, settings["recompute"])],
        num_stages=len(parts) - 1,
        loss_fn=loss,
    )
    engine, *_ = deepspeed.initialize(
        model=net,
        model_parameters=[p for p in net.parameters() if p.requires_grad],
        config=settings["engine"],
    )
    micro_batch = settings["engine"]["train_micro_batch_size_per_gpu"]
    data = samples(config.vocab_size, micro_batch, settings["seq_len"])
    for _ in range(iterations):
        yield float(engine.train_batch(data_iter=data))


def main() -> None:
    """Read the settings and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args()
    with open(options.settings, encoding="utf-8") as file:
        settings = json.load(file)
    for number, value in enumerate(train(settings, options.iterations)):
        if os.environ.get("RANK", "0") == "0":
            print(f"iteration {number}: loss {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
