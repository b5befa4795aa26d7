"""`arachne-prof links`: measure transfers between the devices of this host."""

from __future__ import annotations

import os

import click

from profiler.cli.consoles import progress_console
from profiler.cli.options import GpuName, WholeNumbers
from specs.door import (
    console,
    json_option,
    print_json,
    store_option,
    verbosity_options,
)


@click.command()
@click.option(
    "--gpu",
    required=True,
    type=GpuName(),
    help="GPU type of this host; `cpu` is its processor, a device a core.",
)
@click.option(
    "--ranks",
    type=WholeNumbers(),
    help="Ranks of the collectives.  [default: powers of two from 2 up to the devices]",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=4096),
    help="Largest message.  [default: 64 MiB on cpu, 1 GiB on GPUs, less where memory is short]",
)
@click.option(
    "--devices",
    "wanted",
    type=click.IntRange(min=1),
    help="Devices busy at once.  [default: all; on cpu what the largest --ranks needs]",
)
@click.option(
    "--allow-busy", is_flag=True, help="Measure on GPUs that others use or that throttle."
)
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Windows of a transfer until the machine holds still in one; 1 takes what comes.",
)
@store_option
@json_option
@verbosity_options
def links(
    gpu: str,
    ranks: tuple[int, ...] | None,
    max_bytes: int | None,
    wanted: int | None,
    allow_busy: bool,
    tries: int,
    store: str,
    as_json: bool,
) -> None:
    """Measure collectives and point-to-point transfers between the devices of this host.

    all_reduce, all_gather, reduce_scatter, all_to_all and p2p over message sizes from 4 KiB, in
    pinned processes, all groups of a size at the same time. Plans across devices need them.

    Started on two or more hosts by torchrun or srun, it measures between the hosts instead, and
    the first process writes the store.

    Example: arachne-prof links --gpu cpu --ranks 2
    """
    from profiler.host import find_devices, read_host

    host = read_host()
    devices, remarks = find_devices(
        host,
        gpu,
        instead=f"arachne-prof estimate --gpu {gpu}",
        allow_busy=allow_busy,
    )
    if wanted is not None and ranks and max(ranks) > wanted:
        raise click.UsageError(f"--devices {wanted} cannot hold a group of {max(ranks)}")
    devices = devices.for_degrees(wanted, ranks or ())
    err = progress_console()
    for remark in remarks:
        err.print(f"Warning: {remark}", style="yellow", markup=False, soft_wrap=True)

    from db.store import open_store
    from profiler.cli.links_output import LinkProgress, links_document, links_table
    from profiler.measure.defaults import default_tps
    from profiler.measure.interrupts import as_keyboard_interrupt
    from profiler.measure.links import largest_bytes, measure_links
    from profiler.measure.patience import Patience
    from profiler.measure.spread import measure_spread, spread_of

    spread = spread_of(os.environ)
    largest = max_bytes or largest_bytes(devices)
    patience = Patience.of_tries(tries)
    progress = LinkProgress(err)
    with progress, as_keyboard_interrupt():
        if spread is not None:
            result = measure_spread(
                spread, devices, host, largest, lambda: open_store(store), progress, patience
            )
            if result is None:
                return  # the first process has all figures
            run_id, outcomes = result
        else:
            run_id, outcomes = measure_links(
                devices,
                host,
                ranks or default_tps(devices.count)[1:] or (2,),
                largest,
                lambda: open_store(store),
                progress,
                patience,
            )
    document = links_document(run_id, outcomes)
    if as_json:
        print_json(document)
    else:
        console().print(links_table(document))
