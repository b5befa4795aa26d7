"""What Sailor's search reads, whatever it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class FiguresKey(NamedTuple):
    """What layer figures are looked up by: exact match."""

    gpu: int
    micro_batch: int
    tp: int


@dataclass(frozen=True)
class Figures:
    """Every layer of the model on one GPU of a TP group; arrays of shape (layers,).

    layer_ms: forward and backward of one micro-batch. update_ms: optimizer step. state_bytes: what
    a layer holds all the time. kept_bytes: what it keeps of one micro-batch. constant_bytes: what
    a GPU holds besides.
    """

    layer_ms: Floats
    update_ms: Floats
    state_bytes: Floats
    kept_bytes: Floats
    constant_bytes: float


@dataclass(frozen=True)
class Zone:
    """A pool of GPUs; zones of one region are filled one after the other.

    gpus: of each type.
    """

    name: str
    region: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Inputs:
    """One question to Sailor: times in ms, GPU types by index.

    tps: degrees of each type, rising. figures: what was profiled. capacity_bytes: of each type.
    gradient_bytes: of each layer over all TP ranks, shape (layers,). send_ms(micro-batch, type, TP,
    zone, type, TP, zone): one activation. step_ms(bytes, type, TP, zone): one step of a ring among
    such groups, elementwise. bandwidth(type, TP, zone, zone): the largest of that link.
    sent_bytes: of one sample's activation. largest_peers: D stays below it. usd_per_ms: of a GPU of
    each type. egress_usd_per_byte: shape (zones, zones).
    """

    types: tuple[str, ...]
    global_batch: int
    zones: tuple[Zone, ...]
    tps: tuple[tuple[int, ...], ...]
    figures: Mapping[FiguresKey, Figures]
    capacity_bytes: tuple[float, ...]
    gradient_bytes: Floats
    send_ms: Callable[[int, int, int, int, int, int, int], float]
    step_ms: Callable[[Floats, int, int, int], Floats]
    bandwidth: Callable[[int, int, int, int], float]
    sent_bytes: float
    largest_peers: int
    usd_per_ms: tuple[float, ...]
    egress_usd_per_byte: Floats

    @property
    def layers(self) -> int:
        """Layers of the model, embedding and head counted."""
        return len(self.gradient_bytes)

    @property
    def micro_batches(self) -> list[int]:
        """Micro-batch sizes that any type was profiled at, rising."""
        return sorted({key.micro_batch for key in self.figures})

    @property
    def present(self) -> list[int]:
        """The types that have a GPU."""
        totals = np.sum([zone.gpus for zone in self.zones], axis=0)
        return [t for t in range(len(self.types)) if totals[t] > 0]
