"""Time of an optimizer step over one layer's shard."""

from __future__ import annotations

from profiler.estimates.devices import Device
from profiler.estimates.kernels import memory_op_ms
from specs.workload import DType, Optimizer

# Bytes read and written per parameter. Mixed AdamW: reads gradient 2, master 4, moments 8; writes
# master 4, moments 8, weight 2. Without a master copy the weight is read and written in 16 bit.
_TRAFFIC: dict[tuple[bool, Optimizer], int] = {
    (True, Optimizer.ADAMW): (2 + 4 + 8) + (4 + 8 + 2),
    (True, Optimizer.ADAMW_NO_MASTER): (2 + 2 + 8) + (2 + 8),
    (True, Optimizer.SGD): (2 + 2) + 2,
    (False, Optimizer.ADAMW): (4 + 4 + 8) + (4 + 8),
    (False, Optimizer.ADAMW_NO_MASTER): (4 + 4 + 8) + (4 + 8),
    (False, Optimizer.SGD): (4 + 4) + 4,
}


def bytes_per_parameter(dtype: DType, optimizer: Optimizer) -> int:
    """Memory traffic of one step per local parameter, in bytes: 28 for mixed-precision AdamW."""
    return _TRAFFIC[(dtype is not DType.FP32, optimizer)]


def update_ms(device: Device, parameters: int, dtype: DType, optimizer: Optimizer) -> float:
    """Optimizer step over the parameters of one rank, in ms: bound by memory, no derate.

    Source: profiler/calibration/README.md.
    """
    return memory_op_ms(device, bytes_per_parameter(dtype, optimizer) * float(parameters))
