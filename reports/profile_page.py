"""The profile page: how fast each layer and link is on each GPU type, and how that is known."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reports.figures import Cell, Figure, Table, significant
from reports.layer_times import (
    EstimateError,
    LayerTime,
    coverage,
    estimate_errors,
    layer_names,
    layer_times,
)
from reports.links import LinkSeries, bus_gb_per_s, link_series
from reports.packed import packed_table
from reports.page import Page, Provenance

if TYPE_CHECKING:
    from db.records import StoredHost, StoredRefusal
    from db.store import Store
    from specs.profile import ProfileRun


@dataclass(frozen=True)
class Profiles:
    """All profiles of a store as the page needs them."""

    runs: tuple[ProfileRun, ...]
    layers: tuple[LayerTime, ...]
    links: tuple[LinkSeries, ...]
    hosts: tuple[StoredHost, ...]
    refusals: tuple[StoredRefusal, ...]


def read_profiles(store: Store) -> Profiles:
    """Layers, links and hosts of every run in the store."""
    types = store.layer_types()
    names = layer_names(store.models(), types)
    by_hash = {layer.hash: layer for layer in types}
    return Profiles(
        tuple(store.profile_runs()),
        tuple(layer_times(store.layer_profiles(), by_hash, names)),
        tuple(link_series(store.link_profiles())),
        tuple(store.host_profiles()),
        tuple(store.layer_refusals()),
    )


def profile_page(
    profiles: Profiles, provenance: Provenance, links: Sequence[dict[str, str]] = ()
) -> Page:
    """The page of these profiles."""
    pairs = estimate_errors(profiles.layers)
    refused = Counter(
        (r.refusal.key.gpu, r.run.run.source.value, r.refusal.status.value, r.refusal.key.tp)
        for r in profiles.refusals
    )
    figures: list[Figure] = []
    if profiles.layers:
        figures += layer_figures(profiles.layers, pairs)
    if profiles.links:
        figures += link_figures(profiles.links)
    return Page(
        name="profile",
        title="Profiles",
        template="profile.html.j2",
        provenance=provenance,
        context={
            "profiles": profiles,
            "coverage": coverage(profiles.layers),
            "pairs": pairs,
            "pair_groups": _pair_groups(pairs),
            "refused": sorted((*key, count) for key, count in refused.items()),
            "gpu_count": len({time.key.gpu for time in profiles.layers}),
            "links": links,
        },
        figures=figures,
        data={
            "layers": _packed_layers(profiles.layers)
            if profiles.layers or profiles.links
            else None,
            "links": [_packed_link(series) for series in profiles.links],
            "pairs": packed_table(_PAIR_COLUMNS, [_pair_row(pair) for pair in pairs]),
        },
        scripts=("profile.js",),
    )


_LAYER_COLUMNS = (
    *("gpu", "layer", "source", "run", "host", "workload", "topology", "tp", "micro_batch"),
    *("ep", "etp", "forward_ms", "backward_ms", "comm_ms", "update_ms", "forward_mad_ms"),
    *("backward_mad_ms", "comm_mad_ms", "update_mad_ms", "activation_bytes", "samples"),
    *("comm_included", "tflops", "share"),
)


def _layer_row(time: LayerTime) -> list[Cell]:
    p, k = time.profile, time.key
    share = 100 * time.tflops / time.peak_tflops if time.tflops and time.peak_tflops else None
    numbers: list[float | None] = [p.forward_ms, p.backward_ms, p.comm_ms, p.update_ms]
    numbers += [p.forward_mad_ms, p.backward_mad_ms, p.comm_mad_ms, p.update_mad_ms]
    return [
        *(k.gpu, time.layer, time.source.value, time.run_id, time.host, time.workload),
        *(k.topology.value, k.tp, k.micro_batch, k.ep, k.etp),
        *(None if number is None else significant(number) for number in numbers),
        *(p.activation_bytes, p.samples, p.comm_included),
        None if time.tflops is None else significant(time.tflops, 5),
        None if share is None else significant(share, 5),
    ]


def _packed_layers(times: Sequence[LayerTime]) -> dict[str, Any]:
    return packed_table(_LAYER_COLUMNS, [_layer_row(time) for time in times])


def _packed_link(series: LinkSeries) -> dict[str, Any]:
    return {
        "name": series.label,
        "source": series.source,
        "run": series.run_id,
        "gpu": series.gpu,
        "peer": series.peer,
        "topology": series.topology,
        "operation": series.operation,
        "ranks": series.ranks,
        "nbytes": [p.nbytes for p in series.points],
        "time_ms": [significant(p.time_ms) for p in series.points],
        "mad_ms": [None if p.mad_ms is None else significant(p.mad_ms) for p in series.points],
        "bus": [_bus(p) for p in series.points],
        "fit_ms": [significant(series.fit.time_ms(p.nbytes)) for p in series.points],
    }


def _bus(point: Any) -> float | None:
    bus = bus_gb_per_s(point)
    return None if bus is None else significant(bus, 5)


_PAIR_COLUMNS = (
    *("gpu", "layer", "source", "tp", "micro_batch", "estimated_ms", "other_ms", "error"),
)


def _pair_row(pair: EstimateError) -> list[Cell]:
    k = pair.other.key
    return [
        *(k.gpu, pair.other.layer, pair.other.source.value, k.tp, k.micro_batch),
        *(significant(pair.estimate.total_ms), significant(pair.other.total_ms)),
        significant(100 * pair.error, 5),
    ]


def _pair_groups(pairs: Sequence[EstimateError]) -> list[dict[str, Any]]:
    """Error of the estimates by GPU type and by what they are held against, in percent."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for pair in pairs:
        groups[(pair.other.key.gpu, pair.other.source.value)].append(100 * pair.error)
    return [
        {
            "gpu": gpu,
            "against": source,
            "keys": len(errors),
            "median_percent": statistics.median(abs(error) for error in errors),
            "bias_percent": statistics.median(errors),
            "worst_percent": max(errors, key=abs),
        }
        for (gpu, source), errors in sorted(groups.items())
    ]


def layer_figures(times: Sequence[LayerTime], pairs: Sequence[EstimateError]) -> list[Figure]:
    """Heat maps, rates against the datasheet, estimates against measurements."""
    table = Table(_LAYER_COLUMNS, tuple(tuple(_layer_row(time)) for time in times))
    found = [
        Figure(
            "heat",
            "Layer time by TP degree and micro-batch",
            "One map per GPU type and source; empty cells were not profiled.",
            table,
            drawn_by="heat",
            wide=True,
        ),
        Figure(
            "rate",
            "Achieved against the datasheet",
            "TFLOP/s of one rank in forward and backward, in percent of the datasheet's peak.",
            table,
            drawn_by="rate",
            wide=True,
            height=420,
        ),
    ]
    if pairs:
        found.append(
            Figure(
                "estimates",
                "Estimate against measurement",
                "Keys that were estimated and also measured or imported.",
                Table(_PAIR_COLUMNS, tuple(tuple(_pair_row(pair)) for pair in pairs)),
                drawn_by="estimates",
                wide=True,
                height=420,
            )
        )
    return found


def link_figures(series: Sequence[LinkSeries]) -> list[Figure]:
    """Time and bus bandwidth of transfers over their size."""
    columns = (
        *("gpu", "peer", "topology", "operation", "ranks", "source", "run", "nbytes", "time_ms"),
        *("mad_ms", "bus_gb_per_s", "fit_ms"),
    )
    rows: list[tuple[Cell, ...]] = []
    for s in series:
        head = (s.gpu, s.peer, s.topology, s.operation, s.ranks, s.source, s.run_id)
        for p in s.points:
            tail = (p.nbytes, p.time_ms, p.mad_ms, bus_gb_per_s(p), s.fit.time_ms(p.nbytes))
            rows.append((*head, *tail))
    table = Table(columns, tuple(rows))
    return [
        Figure(
            "linkTime",
            "Time of a transfer",
            "Every profiled size of each kind of link; bars are the spread, where it is known.",
            table,
            drawn_by="linkTime",
            wide=True,
            height=440,
        ),
        Figure(
            "linkBus",
            "Bus bandwidth",
            "Bytes that one link carries per second.",
            table,
            drawn_by="linkBus",
            wide=True,
            height=440,
        ),
    ]
