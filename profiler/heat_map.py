"""Times of one layer type over TP degree and micro-batch, as a grid that a terminal can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specs.layer import LayerType
from specs.profile import EntryStatus, LayerKey, LayerProfile, LayerRefusal

SHADES = ("", "░", "▒", "▓", "█")  # so that the map can be read without colours
SPREAD_MARK = 0.10  # share of a time above which its spread is called out
_SHORT = {
    EntryStatus.OUT_OF_MEMORY: "out of memory",
    EntryStatus.NOT_DIVISIBLE: "not divisible",
    EntryStatus.TIMED_OUT: "timed out",
    EntryStatus.NOT_ENOUGH_DEVICES: "no devices",
    EntryStatus.WORKER_DIED: "worker died",
    EntryStatus.REFUSED: "refused",
}
METRICS = ("total", "forward", "backward", "comm", "update", "activation")


@dataclass(frozen=True, slots=True)
class Cell:
    """One key: its figure in ms (activation: bytes), or why there is none.

    level: 0 (fastest per sample of its map) to 4. spread: median absolute deviation over the
    figure, None where the source gives none.
    """

    value: float | None
    spread: float | None = None
    level: int = 0
    refusal: str = ""
    comm_included: bool = False

    @property
    def unsteady(self) -> bool:
        """Whether the spread is above 10 % of the figure."""
        return self.spread is not None and self.spread > SPREAD_MARK


@dataclass(frozen=True)
class HeatMap:
    """One layer type on one GPU type at one workload: cells by (TP degree, micro-batch)."""

    gpu: str
    layer: LayerType
    key: LayerKey  # of one of its rows: the workload they share
    cells: dict[tuple[int, int], Cell] = field(default_factory=dict)

    @property
    def tps(self) -> list[int]:
        """TP degrees, rising."""
        return sorted({tp for tp, _ in self.cells})

    @property
    def micro_batches(self) -> list[int]:
        """Micro-batch sizes, rising."""
        return sorted({micro_batch for _, micro_batch in self.cells})

    @property
    def title(self) -> str:
        """GPU type, layer and workload in words."""
        key = self.key
        parts = [f"{self.gpu} {self.layer.label}", f"length {key.seq_len}", key.dtype.value]
        if key.recompute != "none":
            parts.append(f"recompute {key.recompute.value}")
        parts += [key.optimizer.value, key.topology.value]
        if key.ep * key.etp > 1:
            parts.append(f"EP {key.ep} ETP {key.etp}")
        return ", ".join(parts)


def heat_maps(
    rows: Sequence[LayerProfile],
    refusals: Iterable[LayerRefusal],
    layers: Iterable[LayerType],
    metric: str = "total",
) -> list[HeatMap]:
    """Maps of all rows and refusals, by GPU type, layer and workload, in the order they came.

    metric: one of METRICS; total is forward + backward + comm of one micro-batch.
    """
    types = {layer.hash: layer for layer in layers}
    maps: dict[tuple[object, ...], HeatMap] = {}
    for row in rows:
        value, deviation = _figure(row, metric)
        spread = deviation / value if deviation is not None and value else None
        _map_of(maps, types, row.key).cells[row.key.tp, row.key.micro_batch] = Cell(
            value, spread, comm_included=row.comm_included
        )
    for refusal in refusals:
        cells = _map_of(maps, types, refusal.key).cells
        at = (refusal.key.tp, refusal.key.micro_batch)
        cells.setdefault(at, Cell(None, refusal=_SHORT[refusal.status]))
    for found in maps.values():
        _shade(found)
    return list(maps.values())


def _map_of(
    maps: dict[tuple[object, ...], HeatMap], types: dict[str, LayerType], key: LayerKey
) -> HeatMap:
    identity = (
        *(key.gpu, key.layer_type, key.seq_len, key.dtype, key.recompute, key.optimizer),
        *(key.topology, key.ep, key.etp),
    )
    return maps.setdefault(identity, HeatMap(key.gpu, types[key.layer_type], key))


def _figure(row: LayerProfile, metric: str) -> tuple[float, float | None]:
    """A row's figure and its deviation; deviations of parts add up, an upper limit."""
    if metric == "activation":
        return float(row.activation_bytes), None
    if metric != "total":
        return getattr(row, f"{metric}_ms"), getattr(row, f"{metric}_mad_ms")
    parts = (row.forward_mad_ms, row.backward_mad_ms, row.comm_mad_ms)
    known = [part for part in parts if part is not None]
    total = row.forward_ms + row.backward_ms + row.comm_ms
    return total, sum(known) if known else None


def _shade(found: HeatMap) -> None:
    """Levels by figure per sample, in equal steps of its logarithm between best and worst."""
    rates = {
        at: cell.value / at[1] for at, cell in found.cells.items() if cell.value and cell.value > 0
    }
    if not rates:
        return
    low, high = math.log(min(rates.values())), math.log(max(rates.values()))
    for at, rate in rates.items():
        share = (math.log(rate) - low) / (high - low) if high > low else 0.0
        cell = found.cells[at]
        level = min(int(share * len(SHADES)), len(SHADES) - 1)
        found.cells[at] = Cell(cell.value, cell.spread, level, cell.refusal, cell.comm_included)
