"""What is trained: model, sequence length, global batch, precision, optimizer, recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specs.errors import SpecError

MOST_GLOBAL_BATCH, MOST_SEQ_LEN = 10**9, 10**8  # beyond any use; larger would not fit floats


class DType(StrEnum):
    """Precision of weights, activations and gradients."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.FP32 else 2


class Optimizer(StrEnum):
    """The optimizer, with what it keeps in memory."""

    ADAMW = "adamw"
    ADAMW_NO_MASTER = "adamw-no-master"  # 16-bit weights updated in place, fp32 moments
    SGD = "sgd"


class Recompute(StrEnum):
    """Activation recomputation: keep everything, or only the input of each layer."""

    NONE = "none"
    FULL = "full"


# Bytes of training state per parameter: weight + gradient + fp32 master + optimizer moments
# (DESIGN section 13, 15).
STATE_BYTES_PER_PARAMETER: dict[tuple[DType, Optimizer], int] = {
    (DType.BF16, Optimizer.ADAMW): 2 + 2 + 4 + 8,
    (DType.FP16, Optimizer.ADAMW): 2 + 2 + 4 + 8,
    (DType.FP32, Optimizer.ADAMW): 4 + 4 + 8,
    (DType.BF16, Optimizer.ADAMW_NO_MASTER): 2 + 2 + 8,
    (DType.FP16, Optimizer.ADAMW_NO_MASTER): 2 + 2 + 8,
    (DType.FP32, Optimizer.ADAMW_NO_MASTER): 4 + 4 + 8,
    (DType.BF16, Optimizer.SGD): 2 + 2,
    (DType.FP16, Optimizer.SGD): 2 + 2,
    (DType.FP32, Optimizer.SGD): 4 + 4,
}


@dataclass(frozen=True, slots=True)
class Workload:
    """How a model is trained; lengths in tokens, batch in sequences per optimizer step."""

    global_batch: int
    seq_len: int
    dtype: DType = DType.BF16
    optimizer: Optimizer = Optimizer.ADAMW
    recompute: Recompute = Recompute.NONE

    def __post_init__(self) -> None:
        for name, value, most in (
            ("global batch", self.global_batch, MOST_GLOBAL_BATCH),
            ("sequence length", self.seq_len, MOST_SEQ_LEN),
        ):
            if not 1 <= value <= most:
                raise SpecError(
                    f"a workload has a {name} of at least 1 and at most {most:,}, got {value:,}"
                )

    @property
    def state_bytes_per_parameter(self) -> int:
        """Weights, gradients and optimizer state, in bytes per parameter."""
        return STATE_BYTES_PER_PARAMETER[(self.dtype, self.optimizer)]
