"""What HexiScale's search reads, whatever it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class TimesKey(NamedTuple):
    """What layer times are looked up by."""

    gpu: int
    tp: int
    micro_batch: int


class LayerTimes(NamedTuple):
    """Forward and backward of one micro-batch with its TP collectives, in ms."""

    block: float
    first: float  # what the first stage holds besides
    last: float


@dataclass(frozen=True)
class Inputs:
    """One question to HexiScale; G devices, T GPU types. Times in ms.

    gpu, node: of each device, shape (G,). bandwidth: bytes/ms, shape (G, G). power: compute of each
    device. memory: of each device, what layers are dealt by. most_blocks(type, TP, micro-batch,
    stage, depth, micro-batches): what fits on a stage. sent_bytes(micro-batch): one activation.
    gradient_bytes: of a block. pipeline_factor, sync_factor: what the two parts of an iteration are
    multiplied by. splits: TP groups of machines found before, as distances from the first device.
    """

    blocks: int
    global_batch: int
    micro_batches: tuple[int, ...]
    gpu: Ints
    node: Ints
    bandwidth: Floats
    power: Floats
    memory: Floats
    times: Mapping[TimesKey, LayerTimes]
    most_blocks: Callable[[int, int, int, int, int, int], int]
    sent_bytes: Callable[[int], float]
    gradient_bytes: float
    pipeline_factor: float = 1.8
    sync_factor: float = 1.1
    splits: dict[Any, list[tuple[int, ...]]] = field(default_factory=dict, compare=False)

    @property
    def devices(self) -> int:
        """The number of devices G."""
        return len(self.gpu)
