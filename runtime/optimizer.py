"""The optimizer step, as the runtime takes it and the profiler times it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from specs.workload import DType, Optimizer

LEARNING_RATE = 1e-3
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1

_CHUNK = 1 << 24  # elements cast to fp32 at a time: 64 MiB of scratch, whatever the model

TORCH_DTYPE = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16, DType.FP32: torch.float32}


class Update:
    """Takes one optimizer step on parameters, from the gradients in their `.grad`.

    fp32 weights are stepped in place. 16-bit weights under AdamW have an fp32 copy that is stepped
    (`adamw`), or are cast up, stepped and cast down (`adamw-no-master`); the moments are fp32 in
    either case. Gradients are cast a chunk of 16 Mi elements at a time, so no second, fp32
    gradient of the whole model exists: 16 (12) bytes a parameter, as DESIGN section 13, 15 counts.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        optimizer: Optimizer,
        learning_rate: float = LEARNING_RATE,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.kind = optimizer
        self._keeps_master = optimizer is Optimizer.ADAMW
        mixed = optimizer is not Optimizer.SGD and any(
            p.dtype is not torch.float32 for p in self.parameters
        )
        self._chunks: list[_Chunk] = []
        if mixed:
            for chunk in _chunks(self.parameters):
                self._chunks.append(_Chunk(chunk, self._keeps_master, optimizer, learning_rate))
        elif self.parameters:
            self._plain = _torch_optimizer(self.parameters, optimizer, learning_rate)

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        if self._chunks:
            for chunk in self._chunks:
                chunk.step()
        elif self.parameters:
            self._plain.step()

    def state(self, parameter: Parameter) -> dict[str, Tensor]:
        """What is kept of a parameter: `exp_avg`, `exp_avg_sq`, `master`, those that exist.

        Tensors of the parameter's shape, the very ones that steps use; moments appear with the
        first step, or with prepare().
        """
        for chunk in self._chunks:
            if parameter in chunk.by_parameter:
                return chunk.state(parameter)
        kept: dict[str, Any] = self._plain.state.get(parameter, {})
        return {k: v for k, v in kept.items() if k != "step" and isinstance(v, Tensor)}

    def ensure(self) -> None:
        """Have moments, zero where no step was taken yet: what is written is then always whole."""
        if self.parameters and "exp_avg" not in self.state(self.parameters[0]):
            self.prepare(0)

    def prepare(self, steps: int) -> None:
        """Make the moments, zero, as after `steps` steps: to be filled from elsewhere."""
        if self.kind is Optimizer.SGD:
            return
        for chunk in self._chunks:
            for parameter, master in chunk.by_parameter.items():
                _prepare(chunk.torch, master, parameter.shape, steps)
        if not self._chunks:
            for parameter in self.parameters:
                _prepare(self._plain, parameter, parameter.shape, steps)

    def state_bytes(self) -> int:
        """Memory of all that the optimizer keeps, in bytes."""
        return sum(
            tensor.numel() * tensor.element_size()
            for parameter in self.parameters
            for tensor in self.state(parameter).values()
        )


def _prepare(
    optimizer: torch.optim.Optimizer, stepped: Parameter, shape: torch.Size, steps: int
) -> None:
    device = stepped.device
    optimizer.state[stepped] = {
        "step": torch.tensor(float(steps), dtype=torch.float32, device=device),
        "exp_avg": torch.zeros(shape, dtype=torch.float32, device=device),
        "exp_avg_sq": torch.zeros(shape, dtype=torch.float32, device=device),
    }


class _Chunk:
    """Parameters in 16 bits whose fp32 form is stepped together."""

    def __init__(
        self, parameters: list[Parameter], keep: bool, optimizer: Optimizer, rate: float
    ) -> None:
        self.keep = keep
        self.by_parameter = {p: Parameter(p.detach().float()) for p in parameters}
        self.torch = _torch_optimizer(list(self.by_parameter.values()), optimizer, rate)
        if not keep:
            self._drop()

    def step(self) -> None:
        with torch.no_grad():
            for parameter, master in self.by_parameter.items():
                if not self.keep:
                    master.data = parameter.detach().float()
                grad = parameter.grad
                master.grad = None if grad is None else grad.float()
            self.torch.step()
            for parameter, master in self.by_parameter.items():
                parameter.copy_(master)
                master.grad = None
        if not self.keep:
            self._drop()

    def _drop(self) -> None:
        for master in self.by_parameter.values():
            master.data = master.new_empty(0)

    def state(self, parameter: Parameter) -> dict[str, Tensor]:
        master = self.by_parameter[parameter]
        kept: dict[str, Any] = self.torch.state.get(master, {})
        found = {k: v for k, v in kept.items() if k != "step" and isinstance(v, Tensor)}
        return found | ({"master": master.data} if self.keep else {})


def _chunks(parameters: list[Parameter]) -> Iterable[list[Parameter]]:
    chunk: list[Parameter] = []
    elements = 0
    for parameter in parameters:
        if chunk and elements + parameter.numel() > _CHUNK:
            yield chunk
            chunk, elements = [], 0
        chunk.append(parameter)
        elements += parameter.numel()
    if chunk:
        yield chunk


def _torch_optimizer(
    parameters: list[Parameter], optimizer: Optimizer, rate: float
) -> torch.optim.Optimizer:
    # Fused everywhere: one pass over memory, and what the profiler times is what runs.
    if optimizer is Optimizer.SGD:
        return torch.optim.SGD(parameters, lr=rate, fused=True)
    return torch.optim.AdamW(
        parameters, lr=rate, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY, fused=True
    )


def build_optimizer(
    parameters: Iterable[Parameter],
    optimizer: Optimizer,
    dtype: DType,
    *,
    learning_rate: float = LEARNING_RATE,
) -> Update:
    """The optimizer of a workload over parameters that are already in its precision.

    Raises ValueError for parameters of another precision: the step would be another one than the
    workload's.
    """
    parameters = list(parameters)
    wrong = {p.dtype for p in parameters} - {TORCH_DTYPE[dtype]}
    if wrong:
        raise ValueError(f"parameters are in {wrong}, the workload says {dtype.value}")
    return Update(parameters, optimizer, learning_rate)


def import_optimizers() -> None:
    """Build one throw-away AdamW: its constructor imports a compiler, 1 to 5 seconds once."""
    torch.optim.AdamW([Parameter(torch.zeros(1))])
