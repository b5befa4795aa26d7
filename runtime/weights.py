"""Initial weights, the same in every layout and on every device: each is a hash of its place."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from specs.boxes import Placement

_CHUNK = 1 << 22  # elements hashed at once: the int64 scratch stays below 200 MiB
_MASK = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash of each element (two rounds of xor-shift and multiply), in place.

    Constants: the low-bias pair found by search for this construction, 0x7feb352d, 0x846ca68b
    (C. Wellons, "Prospecting for Hash Functions", 2018).
    """
    x ^= x >> 16
    x *= 0x7FEB352D
    x &= _MASK
    x ^= x >> 15
    x *= 0x846CA68B  # wraps in 64 bits; the low 32 that are kept are right
    x &= _MASK
    x ^= x >> 16
    return x


def _key(name: str, seed: int) -> tuple[int, int]:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def random_weights(placement: Placement, std: float, seed: int, device: torch.device) -> Tensor:
    """One rank's box of a random tensor, fp32, in the shape of the box.

    Uniform on +-sqrt(3) std, so that the standard deviation is `std`. Element i of the whole tensor
    (row-major) is a hash of seed, tensor name and i: whatever part a rank holds, and on whatever
    device, it computes the same numbers bit by bit, without making the rest of the tensor.
    """
    low_key, high_key = _key(placement.name, seed)
    box = placement.box
    out = torch.empty(box.size, dtype=torch.float32, device=device)
    strides = [math.prod(placement.shape[axis + 1 :]) for axis in range(len(box.size))]
    rows = out.view(box.size[0], -1) if box.size else out.view(1, 1)
    inner = torch.zeros(1, dtype=torch.int64, device=device)
    for axis in range(1, len(box.size)):
        first, length = box.offset[axis], box.size[axis]
        steps = torch.arange(first, first + length, device=device) * strides[axis]
        inner = (inner[:, None] + steps).reshape(-1)
    step = max(1, _CHUNK // max(1, rows.shape[1]))
    for begin in range(0, rows.shape[0], step):
        end = min(begin + step, rows.shape[0])
        first = box.offset[0] if box.size else 0
        index = (torch.arange(first + begin, first + end, device=device) * strides[0])[
            :, None
        ] + inner
        high = _mix((index >> 32) ^ high_key)
        bits = _mix((index & _MASK) ^ high ^ low_key)
        # 24 bits fill a float's mantissa exactly: the same value on every device.
        unit = (bits >> 8).to(torch.float32) * (2.0**-23) - (1.0 - 2.0**-24)
        rows[begin:end] = unit * (math.sqrt(3.0) * std)
    return out
