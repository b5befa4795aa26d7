"""Layer profiles as a report reads them: the newest row per key and source, with its rate."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reports.flops import achieved_tflops
from specs.gpu import GPU_TYPES
from specs.layer import LayerType
from specs.profile import LayerKey, LayerProfile, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from db.records import StoredLayer
    from specs.model import Model


@dataclass(frozen=True)
class LayerTime:
    """One layer on one rank. tflops: achieved in forward and backward; peak: of the datasheet."""

    source: Source
    run_id: int
    host: str
    profile: LayerProfile
    layer: str
    tflops: float | None
    peak_tflops: float | None

    @property
    def key(self) -> LayerKey:
        """What the row is looked up by."""
        return self.profile.key

    @property
    def total_ms(self) -> float:
        """Forward, backward and their collectives of one micro-batch, in ms."""
        return self.profile.forward_ms + self.profile.backward_ms + self.profile.comm_ms

    @property
    def workload(self) -> str:
        """What else the key says: `4096 tokens, bf16, adamw, recompute none`."""
        k = self.key
        text = f"{k.seq_len} tokens, {k.dtype.value}, {k.optimizer.value}"
        return text if k.recompute.value == "none" else f"{text}, recompute {k.recompute.value}"


def layer_names(models: Iterable[Model], layer_types: Iterable[LayerType]) -> dict[str, str]:
    """A name for each layer type: its kind and the models that have it."""
    users: dict[str, list[str]] = defaultdict(list)
    for model in models:
        for layer in model.layer_types:
            if model.name not in users[layer.hash]:
                users[layer.hash].append(model.name)
    names = {}
    for layer in layer_types:
        who = users.get(layer.hash, [])
        shown = ", ".join(who[:3]) + (f" and {len(who) - 3} more" if len(who) > 3 else "")
        names[layer.hash] = f"{layer.label} of {shown}" if who else layer.label
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    return {h: f"{name} ({h[:6]})" if name in twice else name for h, name in names.items()}


def layer_times(
    rows: Iterable[StoredLayer], layer_types: Mapping[str, LayerType], names: Mapping[str, str]
) -> list[LayerTime]:
    """One row per key, source and host: that of the newest run."""
    newest: dict[tuple[LayerKey, Source, str], StoredLayer] = {}
    for stored in rows:
        key = (stored.profile.key, stored.run.run.source, stored.run.run.host)
        if key not in newest or newest[key].run.id <= stored.run.id:
            newest[key] = stored
    found = []
    for stored in newest.values():
        p = stored.profile
        layer = layer_types.get(p.key.layer_type)
        sheet = GPU_TYPES[p.key.gpu].datasheet if p.key.gpu in GPU_TYPES else None
        found.append(
            LayerTime(
                source=stored.run.run.source,
                run_id=stored.run.id,
                host=stored.run.run.host,
                profile=p,
                layer=names.get(p.key.layer_type, p.key.layer_type),
                tflops=None
                if layer is None
                else achieved_tflops(
                    layer,
                    tp=p.key.tp,
                    micro_batch=p.key.micro_batch,
                    seq_len=p.key.seq_len,
                    recompute=p.key.recompute,
                    compute_ms=p.forward_ms + p.backward_ms,
                ),
                peak_tflops=sheet.tflops if sheet else None,
            )
        )
    return found


@dataclass(frozen=True)
class EstimateError:
    """An estimate and a measurement of the same key; error: estimate over measurement, less 1."""

    estimate: LayerTime
    other: LayerTime

    @property
    def error(self) -> float:
        """Positive where the estimate is too slow."""
        return self.estimate.total_ms / self.other.total_ms - 1


def estimate_errors(times: Sequence[LayerTime]) -> list[EstimateError]:
    """Every estimated row that also was measured or imported at the same key.

    With tp = 1 no collective runs, so the topology does not matter (DESIGN section 13, 3).
    """

    def plain(key: LayerKey) -> object:
        # Topology.HOST stands for any: a placeholder that both sides get.
        from specs.topology import Topology

        return replace(key, topology=Topology.HOST) if key.tp == 1 and key.etp == 1 else key

    estimates = {plain(t.key): t for t in times if t.source is Source.ESTIMATED}
    return [
        EstimateError(estimates[plain(t.key)], t)
        for t in times
        if t.source is not Source.ESTIMATED and plain(t.key) in estimates and t.total_ms > 0
    ]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the store holds of one GPU type from one source."""

    gpu: str
    source: str
    rows: int
    layers: int
    tps: tuple[int, ...]
    micro_batches: tuple[int, ...]
    runs: tuple[int, ...]
    best_share_percent: float | None
    median_spread_percent: float | None


def coverage(times: Sequence[LayerTime]) -> list[Coverage]:
    """Rows by GPU type and source; best_share_percent: of the datasheet's peak."""
    groups: dict[tuple[str, Source], list[LayerTime]] = defaultdict(list)
    for time in times:
        groups[(time.key.gpu, time.source)].append(time)
    found = []
    for (gpu, source), rows in sorted(groups.items(), key=lambda g: (g[0][0], _trust(g[0][1]))):
        shares = [100 * t.tflops / t.peak_tflops for t in rows if t.tflops and t.peak_tflops]
        spreads = [
            100 * (t.profile.forward_mad_ms + t.profile.backward_mad_ms) / t.total_ms
            for t in rows
            if t.profile.forward_mad_ms is not None
            and t.profile.backward_mad_ms is not None
            and t.total_ms > 0
        ]
        found.append(
            Coverage(
                gpu=gpu,
                source=source.value,
                rows=len(rows),
                layers=len({t.key.layer_type for t in rows}),
                tps=tuple(sorted({t.key.tp for t in rows})),
                micro_batches=tuple(sorted({t.key.micro_batch for t in rows})),
                runs=tuple(sorted({t.run_id for t in rows})),
                best_share_percent=max(shares) if shares else None,
                median_spread_percent=statistics.median(spreads) if spreads else None,
            )
        )
    return found


def _trust(source: Source) -> int:
    return list(Source).index(source)
