"""`arachne-prof estimate`: profiles of GPUs that are not here, from datasheets and constants."""

from __future__ import annotations

import click

from profiler.cli.options import WholeNumbers, Words, key_options
from specs.door import (
    console,
    err_console,
    json_option,
    print_json,
    store_option,
    verbosity_options,
)
from specs.gpu import GPU_TYPES, gpu_type
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute


@click.command()
@click.option(
    "--gpu",
    "gpus",
    required=True,
    type=Words(tuple(GPU_TYPES)),
    help="GPU types, separated by commas.",
)
@click.option(
    "--model",
    "model_name",
    default="llama-3-8b",
    show_default=True,
    metavar="MODEL",
    help="Catalogue name, config.json or folder.",
)
@click.option(
    "--tp",
    "tps",
    type=WholeNumbers(),
    default="1,2,4,8",
    show_default=True,
    help="Tensor-parallel degrees.",
)
@key_options
@click.option(
    "--topology",
    "topologies",
    type=Words((Topology.NVSWITCH.value, Topology.NVLINK.value, Topology.PCIE.value)),
    help="Links inside a node.  [default: those the GPU type usually has]",
)
@click.option(
    "--ep", "eps", type=WholeNumbers(), help="Expert parallelism.  [default: powers of two]"
)
@click.option(
    "--etp", "etps", type=WholeNumbers(), help="Tensor parallelism of experts.  [default: 1,2,4,8]"
)
@click.option(
    "--kernels",
    type=click.Choice(["eager", "fused"]),
    default="eager",
    show_default=True,
    help="What layers keep in memory: as transformers' layers do, or with fused norms and loss.",
)
@click.option(
    "--attention",
    type=click.Choice(["flash", "unfused"]),
    help="Attention kernel.  [default: flash where the GPU type has it]",
)
@click.option("--dry-run", is_flag=True, help="Show the estimates, write nothing.")
@store_option
@json_option
@verbosity_options
def estimate(
    gpus: tuple[str, ...],
    model_name: str,
    tps: tuple[int, ...],
    micro_batches: tuple[int, ...],
    seq_len: int | None,
    dtype: str | None,
    recomputes: tuple[str, ...],
    optimizer: str | None,
    topologies: tuple[str, ...] | None,
    eps: tuple[int, ...] | None,
    etps: tuple[int, ...] | None,
    kernels: str,
    attention: str | None,
    dry_run: bool,
    store: str,
    as_json: bool,
) -> None:
    """Estimate layers, links and hosts of GPU types that are not here.

    From datasheets and constants fitted to public benchmarks; every row is marked `estimated`. The
    second table says of each part whether its constants were fitted on that GPU type, carried over
    from another, or set by hand. The same estimate again changes nothing.

    Example: arachne-prof estimate --gpu a100-40gb,a6000,h100 --model llama-3-8b --tp 1,2,4
    """
    from profiler.cli.estimate_table import estimate_document, estimate_tables
    from profiler.estimates.activations import Kernels
    from profiler.estimates.blocks import AttentionKernel
    from profiler.estimates.layers import Style
    from profiler.estimates.question import Question, answer
    from specs.model import load_model

    model = load_model(model_name)
    workload = model.default_workload
    question = Question(
        gpus=gpus,
        model=model,
        tps=tps,
        micro_batches=micro_batches,
        seq_len=seq_len or workload.seq_len,
        dtype=DType(dtype) if dtype else workload.dtype,
        optimizer=Optimizer(optimizer) if optimizer else workload.optimizer,
        recomputes=tuple(Recompute(word) for word in recomputes),
        topologies=_topologies(gpus, topologies),
        eps=eps,
        etps=etps,
        style=Style(Kernels(kernels), AttentionKernel(attention) if attention else None),
    )
    if dry_run:
        document = estimate_document(answer(question))
    else:
        from db.store import open_store
        from profiler.estimate import estimate as write

        with open_store(store) as opened:
            recorded = write(opened, question)
        document = estimate_document(recorded.estimates, recorded.run_id, recorded.outcome.value)
    for note in document["notes"]:
        err_console().print(f"Note: {note}", style="yellow", markup=False, highlight=False)
    if as_json:
        print_json(document)
        return
    for table in estimate_tables(document):
        console().print(table)


def _topologies(
    gpus: tuple[str, ...], asked: tuple[str, ...] | None
) -> dict[str, tuple[Topology, ...]]:
    """Those of the asked topologies that each GPU type comes in; where none is, all that are asked.

    Of a type that comes in none of them, the estimate itself says so.
    """
    from profiler.estimates.collectives import topologies_of_type

    if asked is None:
        return {}
    wanted = tuple(Topology(word) for word in asked)
    found = {}
    for gpu in gpus:
        possible = topologies_of_type(gpu_type(gpu))
        found[gpu] = tuple(t for t in wanted if t in possible) or wanted
    return found
