"""`arachne-prof show`: all there is to know of a profile run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from profiler.cli.options import GpuName
from profiler.heat_map import METRICS
from specs.door import console, json_option, print_json, store_option, verbosity_options
from specs.profile import Source

if TYPE_CHECKING:
    from profiler.run_summary import RunSummary
    from specs.profile import HostProfile, LayerKey, LayerProfile, LayerRefusal, LinkProfile
    from specs.topology import Topology


@click.command()
@click.argument("run", type=int)
@click.option("--gpu", type=GpuName(), help="Only this GPU type.")
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    default="total",
    show_default=True,
    help="What the maps show; total is forward, backward and collectives of one micro-batch.",
)
@store_option
@json_option
@verbosity_options
def show(run: int, gpu: str | None, metric: str, store: str, as_json: bool) -> None:
    """Show a profile run: origin, times by TP degree and micro-batch, links, hosts, refusals.

    In the maps, shades go from the fastest to the slowest time per sample. A figure with a known
    spread has it in percent behind it (median absolute deviation), with an exclamation mark above
    10 %. Of estimates, a table says for each part on which GPU type its constants were fitted,
    whether that one or another. With --json: every row.

    Example: arachne-prof show 3 --gpu gh200
    """
    from db.store import open_store
    from profiler.run_summary import summarise

    with open_store(store, create=False) as opened:
        [summary] = summarise(opened, run)
        layers = [s.profile for s in opened.layer_profiles(run_id=run)]
        refusals = [s.refusal for s in opened.layer_refusals(run_id=run)]
        links = [s.profile for s in opened.link_profiles(run_id=run)]
        hosts = [s.profile for s in opened.host_profiles(run_id=run)]
    if gpu is not None:
        layers = [row for row in layers if row.key.gpu == gpu]
        refusals = [row for row in refusals if row.key.gpu == gpu]
        links = [row for row in links if gpu in (row.gpu, row.peer)]
        hosts = [row for row in hosts if row.gpu == gpu]
    kinds = {layer.hash: layer.label for layer in summary.layers}
    constants: dict[str, Any] = {}
    if summary.run.run.source is Source.ESTIMATED:
        constants = _constants(summary, layers, links, gpu)
    if as_json:
        facts = summary.run.run
        print_json(
            summary.to_json()
            | {
                "driver": facts.driver,
                "torch_version": facts.torch_version,
                "nccl_version": facts.nccl_version,
                "seed": facts.seed,
                "reference_ms": facts.reference_ms,
                "layers": [_layer_json(row, kinds) for row in layers],
                "refused": [_refusal_json(row, kinds) for row in refusals],
                "links": [_link_json(row) for row in links],
                "hosts": [_host_json(row) for row in hosts],
            }
            | constants
        )
        return
    from profiler.cli import run_tables
    from profiler.heat_map import heat_maps

    out = console()
    out.print(run_tables.provenance_table(summary))
    if constants:
        from profiler.cli.estimate_table import constants_table

        out.print(constants_table(constants["provenance"], constants["constants_version"]))
    for found in heat_maps(layers, refusals, summary.layers, metric):
        out.print(run_tables.heat_table(found, metric))
    if hosts:
        out.print(run_tables.hosts_table(hosts))
    if links:
        out.print(run_tables.links_table(links))
    if refusals:
        out.print(run_tables.refusals_table(refusals, kinds))


def _constants(
    summary: RunSummary, layers: list[LayerProfile], links: list[LinkProfile], only: str | None
) -> dict[str, Any]:
    """Of an estimated run, on which GPU type each part's constants were fitted.

    Empty where this version has other constants than the run was estimated from.
    """
    from profiler.calibration import constants_version
    from profiler.estimates.question import constants_version_of, provenance

    version = constants_version_of(summary.run.run.origin)
    if version != constants_version():
        return {}
    topologies: dict[str, dict[Topology, None]] = {
        gpu: {} for gpu in summary.gpus if only in (None, gpu)
    }
    for gpu, topology in [
        *((row.gpu, row.topology) for row in links),
        *((row.key.gpu, row.key.topology) for row in layers),
    ]:
        topologies.get(gpu, {})[topology] = None
    return {
        "constants_version": version,
        "provenance": {
            gpu: [part.to_json() for part in provenance(gpu, tuple(found))]
            for gpu, found in topologies.items()
        },
    }


def _key_json(key: LayerKey, kinds: dict[str, str]) -> dict[str, Any]:
    names = ("gpu", "layer_type", "tp", "micro_batch", "seq_len", "ep", "etp")
    words = ("dtype", "recompute", "optimizer", "topology")
    return (
        {"layer": kinds[key.layer_type]}
        | {name: getattr(key, name) for name in names}
        | {name: getattr(key, name).value for name in words}
    )


def _layer_json(row: LayerProfile, kinds: dict[str, str]) -> dict[str, Any]:
    times = ("forward_ms", "backward_ms", "comm_ms", "update_ms")
    spreads = ("forward_mad_ms", "backward_mad_ms", "comm_mad_ms", "update_mad_ms")
    sizes = ("activation_bytes", "transient_bytes", "parameter_bytes", "expert_parameter_bytes")
    figures = {
        name: getattr(row, name) for name in (*times, *spreads, *sizes, "samples", "comm_included")
    }
    return _key_json(row.key, kinds) | figures


def _refusal_json(row: LayerRefusal, kinds: dict[str, str]) -> dict[str, Any]:
    return _key_json(row.key, kinds) | {"status": row.status.value, "reason": row.reason}


def _link_json(row: LinkProfile) -> dict[str, Any]:
    return {
        "gpu": row.gpu,
        "peer_gpu": row.peer,
        "topology": row.topology.value,
        "operation": row.operation.value,
        "ranks": row.ranks,
        "message_bytes": row.nbytes,
        "time_ms": row.time_ms,
        "mad_ms": row.mad_ms,
        "samples": row.samples,
    }


def _host_json(row: HostProfile) -> dict[str, Any]:
    names = ("gpu", "host_ms", "host_mad_ms", "framework_bytes", "usable_bytes")
    return {name: getattr(row, name) for name in names}
