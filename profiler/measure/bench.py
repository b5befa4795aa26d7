"""One layer on one rank, ready to be timed: copies of it, their inputs, their optimizer."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch
from torch import Tensor

from profiler.measure.memory import saved_bytes, trace
from profiler.measure.stopwatch import Stopwatch
from runtime.collectives import CollectiveClock, Group
from runtime.experts import ExpertTiling
from runtime.layers import ParallelLayer, build_layer
from runtime.optimizer import TORCH_DTYPE, build_optimizer
from specs.layer import LayerKind, LayerType
from specs.model import Model
from specs.profile import LayerKey
from specs.workload import Recompute

DISTINCT_COPIES = 3  # one layer alone stays in the caches and is 2 to 14 % too fast
COPIES_UP_TO_BYTES = 256 * 1024**2  # weights that no cache holds need no copies
FLUSH_BYTES = 128 * 1024**2  # written between optimizer steps: more than any cache holds


def copies_of(layer: LayerType, key: LayerKey) -> int:
    """How many distinct copies of a layer are timed in turn; the same on every rank.

    Several where a cache could hold the weights of one, so that each is as cold as in a
    stage; on a GPU two at least, because the memory of one layer is the difference of two and one.
    """
    experts = layer.expert_parameters // (key.ep * key.etp)
    nbytes = (layer.parameters // key.tp + experts) * key.dtype.bytes
    if nbytes <= COPIES_UP_TO_BYTES:
        return DISTINCT_COPIES
    return 1 if key.gpu == "cpu" else 2


@dataclass(frozen=True, slots=True)
class PassTimes:
    """One forward and backward of one layer, in ms; comm_ms: its collectives, in neither."""

    forward_ms: float
    backward_ms: float
    comm_ms: float


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Memory of one layer on this rank, in bytes, as a LayerProfile defines it."""

    activation_bytes: int
    transient_bytes: int
    parameter_bytes: int
    expert_parameter_bytes: int


class LayerBench:
    """Distinct copies of one layer, with what is needed to run one micro-batch through each.

    Blocks run as a stack, one behind the other; embeddings side by side; a head's backward follows
    its forward at once, as in a last stage. Gradients are added to buffers that exist, as in
    every micro-batch of a run.
    """

    def __init__(
        self,
        layer_type: LayerType,
        model: Model,
        key: LayerKey,
        *,
        group: Group,
        tiling: ExpertTiling | None = None,
        device: torch.device,
        copies: int,
        seed: int,
    ) -> None:
        self.kind = layer_type.kind
        self.device = device
        dtype = TORCH_DTYPE[key.dtype]
        index = model.layers.index(layer_type)
        self.layers: list[ParallelLayer] = [
            build_layer(
                layer_type,
                model,
                tp_group=group,
                dtype=dtype,
                device=device,
                seed=seed + copy,
                layer_index=index,
                recompute=key.recompute is Recompute.FULL,
                tiling=tiling,
            )
            for copy in range(copies)
        ]
        parameters = [p for layer in self.layers for p in layer.parameters()]
        # Steps of length 0 do all the arithmetic and leave the weights alone: hundreds of steps on
        # one micro-batch would end in gradients so small that the CPU takes its slow path for them.
        self._optimizer = build_optimizer(parameters, key.optimizer, key.dtype, learning_rate=0.0)
        # One flat buffer, as the runtime has for each set of owners.
        self._gradients = torch.zeros(
            sum(p.numel() for p in parameters), dtype=dtype, device=device
        )
        pieces = torch.split(self._gradients, [p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        # The same on every rank of a group: activations are replicated inside it.
        random = torch.Generator().manual_seed(seed)
        shape_BS = (key.micro_batch, key.seq_len)
        vocab = model.layers[0].shape("vocab")
        self.tokens_BS = torch.randint(vocab, shape_BS, generator=random).to(device)
        self.x_BSH = torch.randn(*shape_BS, model.hidden, generator=random).to(device, dtype)
        self.grad_BSH = (torch.randn(*shape_BS, model.hidden, generator=random) * 1e-3).to(
            device, dtype
        )

    def zero_gradients(self) -> None:
        """Start a new iteration: the sums of gradients begin at 0 again."""
        self._gradients.zero_()

    def timed_passes(self, count: int) -> list[PassTimes]:
        """Run `count` passes over all copies; times are per layer."""
        watches, clocks = [], []
        for _ in range(count):
            watch = Stopwatch(self.device)
            forward_clock, backward_clock = CollectiveClock(), CollectiveClock()
            self._pass(watch, forward_clock, backward_clock)
            watches.append(watch)
            clocks.append((forward_clock, backward_clock))
        return [
            self._per_layer(watch.intervals_ms(), forward.ms, backward.ms)
            for watch, (forward, backward) in zip(watches, clocks, strict=True)
        ]

    def _per_layer(
        self, intervals_ms: list[float], forward_comm_ms: float, backward_comm_ms: float
    ) -> PassTimes:
        copies = len(self.layers)
        # Intervals alternate: forward, backward, (between,) forward, backward...
        forward_ms, backward_ms = sum(intervals_ms[0::3]), sum(intervals_ms[1::3])
        return PassTimes(
            (forward_ms - forward_comm_ms) / copies,
            (backward_ms - backward_comm_ms) / copies,
            (forward_comm_ms + backward_comm_ms) / copies,
        )

    def _pass(self, watch: Stopwatch, forward: CollectiveClock, backward: CollectiveClock) -> None:
        turns = [[layer] for layer in self.layers] if self.kind is LayerKind.HEAD else [self.layers]
        for layers in turns:
            x_BSH = self._input()
            watch.mark()
            with forward:
                roots = self._forward(layers, x_BSH)
            watch.mark()
            with backward:
                self._backward(roots)
            del roots  # giving the graph back takes time, and a run does it for every micro-batch
            watch.mark()

    def _input(self) -> Tensor:
        """A fresh leaf over the same values, as a receive buffer would be."""
        return self.x_BSH.detach().requires_grad_()

    def _forward(self, layers: list[ParallelLayer], x_BSH: Tensor) -> list[Tensor]:
        """The tensors that a backward starts from."""
        if self.kind is LayerKind.EMBEDDING:
            return [layer(self.tokens_BS) for layer in layers]
        if self.kind is LayerKind.HEAD:
            return [layer(x_BSH, self.tokens_BS) for layer in layers]
        for layer in layers:
            x_BSH = layer(x_BSH)
        return [x_BSH]

    def _backward(self, roots: list[Tensor]) -> None:
        for root in roots:
            torch.autograd.backward(root, None if root.dim() == 0 else self.grad_BSH)

    def memory(self) -> LayerMemory:
        """Measure what one layer keeps and what it needs above that. Runs a few passes."""
        activation = self._activation_bytes()
        kept_input = 0 if self.kind is LayerKind.EMBEDDING else _nbytes(self.x_BSH)
        peak = trace(lambda: self._one_micro_batch(), self.device).peak_bytes
        # The input was there before; all else above what is kept is passing.
        transient = max(0, peak - (activation - kept_input))
        # Of a discovered family experts are cut as the rest of the block is, and counted with it.
        experts = sum(
            _nbytes(p)
            for name, p in self.layers[0].named_parameters()
            if self.kind is LayerKind.MOE_BLOCK and ".experts." in name
        )
        weights = sum(_nbytes(p) for p in self.layers[0].parameters())
        return LayerMemory(activation, transient, weights - experts, experts)

    def _one_micro_batch(self) -> None:
        roots = self._forward(self.layers[:1], self._input())
        if self.kind is not LayerKind.HEAD:
            # The gradient arrives in a buffer of its own.
            grad = self.grad_BSH.clone()
            torch.autograd.backward(roots[0], grad)
        else:
            torch.autograd.backward(roots[0])

    def _activation_bytes(self) -> int:
        if self.device.type == "cuda" and self.kind.is_block and len(self.layers) > 1:
            kept = [self._kept_on_gpu(self.layers[:n]) for n in (1, 2)]
            return kept[1] - kept[0]

        def forward() -> tuple[list[Tensor], Tensor]:
            if self.kind is LayerKind.EMBEDDING:
                tokens = self.tokens_BS.clone()
                return [self.layers[0](tokens)], tokens
            x_BSH = self.x_BSH.clone().requires_grad_()
            return self._forward(self.layers[:1], x_BSH), x_BSH

        return saved_bytes(self.layers, forward)

    def _kept_on_gpu(self, layers: list[ParallelLayer]) -> int:
        gc.collect()
        roots: list[Tensor] = []
        return trace(
            lambda: roots.extend(self._forward(layers, self._input())), self.device
        ).end_bytes

    def timed_updates(self, count: int) -> list[float]:
        """Run `count` optimizer steps over all copies, and forget the gradients; ms per layer.

        Every step finds its weights and moments outside the caches: in a run, all activations of an
        iteration have gone through them since the last one.
        """
        watches = []
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)
        for _ in range(count):
            flush.zero_()
            watch = Stopwatch(self.device)
            watch.mark()
            self._optimizer.step()
            self.zero_gradients()
            watch.mark()
            watches.append(watch)
        return [watch.intervals_ms()[0] / len(self.layers) for watch in watches]


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
