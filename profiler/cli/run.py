"""`arachne-prof run`: measure layers on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from profiler.cli.consoles import progress_console
from profiler.cli.options import GpuName, WholeNumbers, key_options
from specs.door import (
    console,
    json_option,
    print_json,
    store_option,
    verbosity_options,
)
from specs.errors import RunError
from specs.workload import DType, Optimizer, Recompute

if TYPE_CHECKING:
    from profiler.measure.entries import Question


@click.command()
@click.option(
    "--gpu",
    required=True,
    type=GpuName(),
    help="GPU type of this host that is measured; `cpu` is its processor, a device a core.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="Catalogue name, config.json or folder.  [default: llama-3-8b; on cpu tiny-llama-test]",
)
@click.option(
    "--tp",
    "tps",
    type=WholeNumbers(),
    help="Tensor-parallel degrees.  [default: powers of two up to the devices of the host]",
)
@key_options
@click.option(
    "--ep",
    "eps",
    type=WholeNumbers(),
    help="Expert parallelism: tilings of blocks with experts, beside the untiled form.",
)
@click.option("--etp", "etps", type=WholeNumbers(), help="Tensor parallelism of experts, likewise.")
@click.option(
    "--resume", is_flag=True, help="Go on with the newest unfinished run of these options."
)
@click.option(
    "--devices",
    "wanted",
    type=click.IntRange(min=1),
    help="Devices busy at once.  [default: all; on cpu what the largest --tp needs]",
)
@click.option("--dry-run", is_flag=True, help="List what would be measured, and about how long.")
@click.option(
    "--allow-busy", is_flag=True, help="Measure on GPUs that others use or that throttle."
)
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Windows of an entry until the machine holds still in one; 1 takes what comes.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and inputs.")
@store_option
@json_option
@verbosity_options
def run(
    gpu: str,
    model: str | None,
    tps: tuple[int, ...] | None,
    micro_batches: tuple[int, ...],
    seq_len: int | None,
    dtype: str | None,
    recomputes: tuple[str, ...],
    optimizer: str | None,
    eps: tuple[int, ...] | None,
    etps: tuple[int, ...] | None,
    resume: bool,
    wanted: int | None,
    dry_run: bool,
    allow_busy: bool,
    tries: int,
    seed: int,
    store: str,
    as_json: bool,
) -> None:
    """Measure the layers of a model on this host and store the times.

    Real layers with random weights, in one pinned process a device, all of them busy at once as
    they are in training: forward, backward, tensor-parallel collectives, optimizer step, memory.
    Every entry is stored when it is finished, so a run that is interrupted loses nothing and
    goes on with --resume. A key that this host cannot do is stored with the reason.

    Example: arachne-prof run --gpu cpu --model tiny-llama-test --tp 1,2 --micro-batch 1,2,4
    """
    from profiler.host import find_devices, read_host
    from profiler.measure.defaults import default_model, default_tps
    from specs.families import why_not_run
    from specs.model import load_model

    host = read_host()
    chosen = load_model(model or default_model(gpu))
    refused = why_not_run(str(chosen.config.get("model_type")))
    if refused:
        raise RunError(refused)
    degrees = ",".join(map(str, tps or (1, 2, 4)))
    devices, remarks = find_devices(
        host,
        gpu,
        instead=f"arachne-prof estimate --gpu {gpu} --model {model or chosen.name} --tp {degrees}",
        allow_busy=allow_busy,
    )
    asked = (*(tps or ()), *(etps or ()))
    if wanted is not None and asked and max(asked) > wanted:
        raise click.UsageError(f"--devices {wanted} cannot hold a group of {max(asked)}")
    devices = devices.for_degrees(wanted, asked)
    err = progress_console()
    for remark in remarks:
        err.print(f"Warning: {remark}", style="yellow", markup=False, soft_wrap=True)

    from profiler.measure.entries import Question

    workload = chosen.default_workload
    question = Question(
        gpu=gpu,
        topology=devices.topology,
        devices=devices.count,
        model=chosen,
        tps=tps or default_tps(devices.count),
        micro_batches=micro_batches,
        seq_len=seq_len or workload.seq_len,
        dtype=DType(dtype) if dtype else workload.dtype,
        optimizer=Optimizer(optimizer) if optimizer else workload.optimizer,
        recomputes=tuple(Recompute(word) for word in recomputes),
        eps=eps or (),
        etps=etps or (),
    )
    if dry_run:
        _show_list(question, as_json)
        return

    from db.store import open_store
    from profiler.cli.run_progress import Progress
    from profiler.cli.run_result import run_document, run_tables
    from profiler.measure.interrupts import as_keyboard_interrupt
    from profiler.measure.patience import Patience
    from profiler.measure.run import measure

    progress = Progress(err)
    with progress, as_keyboard_interrupt():
        finished = measure(
            question,
            devices,
            host,
            lambda: open_store(store),
            progress,
            resume=resume,
            seed=seed,
            patience=Patience.of_tries(tries),
        )
    with open_store(store) as opened:
        document = run_document(opened, finished, chosen)
        if as_json:
            print_json(document)
        else:
            for part in run_tables(document):
                console().print(part, soft_wrap=isinstance(part, str), highlight=False)
    if not document["rows"]:
        raise RunError(
            f"nothing could be measured: {document['refused'][0]['reason']}; "
            f"the reasons of all keys stand in profile run {finished.run_id}"
        )


def _show_list(question: Question, as_json: bool) -> None:
    from profiler.cli.run_result import list_document, list_table
    from profiler.measure.entries import entries_of

    entries, refusals = entries_of(question)
    document = list_document(question, entries, refusals)
    if as_json:
        print_json(document)
    else:
        console().print(list_table(document))
