"""`arachne-prof import`: profiles that others measured."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from profiler.cli.options import WholeNumbers, Words
from specs.door import (
    ArachneGroup,
    console,
    err_console,
    json_option,
    print_json,
    store_option,
    verbosity_options,
)
from specs.errors import ArachneError
from specs.workload import DType, Optimizer, Recompute

if TYPE_CHECKING:
    from profiler.importers.imported import ImportOptions
    from profiler.importers.record import Recorded

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
PATH = click.argument("path", type=click.Path(path_type=Path))


@click.group(name="import", cls=ArachneGroup)
def import_() -> None:
    """Bring in profiles that others measured, or that you have as files.

    Each import is a profile run of its own, with its origin and licence. The same import again
    changes nothing. A row that implies more than 1.05 of a card's peak, a negative time or that
    lacks a part of its key is refused by name, with the reason.

    Example: arachne-prof import sailor examples/sailor
    """


def _provenance_options(command: CommandT) -> CommandT:
    """`--origin` and `--licence`, and what every import has."""
    for option in (
        verbosity_options,
        json_option,
        store_option,
        click.option("--licence", default="", help="Licence of the data."),
        click.option("--origin", default="", help="Words on where the data is from."),
    ):
        command = option(command)
    return command


def _workload_options(command: CommandT) -> CommandT:
    """What files of other planners do not say: model, length, precision, names of GPUs."""
    for option in (
        click.option(
            "--gpu-name",
            "gpu_names",
            multiple=True,
            metavar="FILE=GPU",
            help="A GPU name of the files and the catalogue name it stands for; repeat as needed.",
        ),
        click.option(
            "--recompute", type=click.Choice([r.value for r in Recompute]), default="none"
        ),
        click.option("--optimizer", type=click.Choice([o.value for o in Optimizer])),
        click.option("--dtype", type=click.Choice([d.value for d in DType])),
        click.option("--seq-len", type=click.IntRange(min=1), help="Tokens per sequence."),
        click.option("--model", help="Catalogue name or config.json of the profiled model."),
    ):
        command = option(command)
    return command


def _options(
    *,
    gpu_names: tuple[str, ...] = (),
    model: str | None = None,
    dtype: str | None = None,
    optimizer: str | None = None,
    recompute: str = "none",
    **rest: Any,
) -> ImportOptions:
    from profiler.importers.imported import ImportOptions

    gpus = {}
    for pair in gpu_names:
        name, sign, gpu = pair.partition("=")
        if not sign:
            raise click.BadParameter(f"{pair!r} is not FILE=GPU", param_hint="--gpu-name")
        gpus[name] = gpu
    if model is not None:
        rest["models"] = (model,)
    return ImportOptions(
        gpus=gpus,
        dtype=DType(dtype) if dtype else None,
        optimizer=Optimizer(optimizer) if optimizer else None,
        recompute=Recompute(recompute),
        **rest,
    )


@import_.command()
@PATH
@click.option(
    "--copy",
    "copies",
    type=Words(("planner", "simulator")),
    default=(),
    help="Only this copy of the profiles. Without: both, each as runs of its own.",
)
@click.option("--model", "models", multiple=True, help="Only this model; repeat as needed.")
@click.option("--gpu-name", "gpu_names", multiple=True, metavar="FILE=GPU", help="A further GPU.")
@_provenance_options
def sailor(path: Path, store: str, as_json: bool, **given: Any) -> None:
    """Import Sailor's published profiles, sizes and network fits.

    PATH holds planner_profiles/<model>/<gpu>/profile.json and/or
    simulator_profiles/profiles_tmp.json, model_memory/llm_info.json and network/*.json. Where both
    copies have a key, the planner's, imported last, is used for planning: some times of the
    simulator's look edited by hand.

    Example: arachne-prof import sailor examples/sailor
    """
    _run("sailor", path, store, as_json, _options(**given))


@import_.command()
@PATH
@click.option("--model", "models", multiple=True, help="Only this model; repeat as needed.")
@_provenance_options
def reference(path: Path, store: str, as_json: bool, **given: Any) -> None:
    """Import the profiles of reference problems, one JSON document a model.

    PATH is such a document, a folder of them, or one with profiles/. The label that the document
    gives its figures (measured, imported, estimated) is kept.

    Example: arachne-prof import reference problems/profiles/llama-3-8b.json
    """
    _run("reference", path, store, as_json, _options(**given))


@import_.command()
@PATH
@_workload_options
@_provenance_options
def csv(path: Path, store: str, as_json: bool, **given: Any) -> None:
    """Import layers, links and hosts from CSV files.

    PATH is a folder with any of layers.csv, links.csv, hosts.csv, or one such file. One row a key;
    columns are listed in docs/formats.md, and `export csv` writes them. --model, --dtype and so on
    fill what the rows leave empty.

    Example: arachne-prof import csv measured/ --model llama-3-8b --origin "our lab, March"
    """
    _run("csv", path, store, as_json, _options(**given))


@import_.command()
@PATH
@_workload_options
@_provenance_options
def metis(path: Path, store: str, as_json: bool, **given: Any) -> None:
    """Import profiles in the layout of Metis.

    PATH holds DeviceType.<type>_tp<t>_bs<b>.json. Such files do not name their model: --model
    does. They time forward and backward together; a third is called forward.

    Example: arachne-prof import metis profiles/ --model opt-350m --gpu-name A100=a100-40gb
    """
    _run("metis", path, store, as_json, _options(**given))


@import_.command()
@PATH
@click.option(
    "--micro-batch",
    "micro_batches",
    type=WholeNumbers(),
    default="1",
    show_default=True,
    help="Micro-batches to multiply AMP's seconds per sample to.",
)
@_workload_options
@_provenance_options
def amp(path: Path, store: str, as_json: bool, **given: Any) -> None:
    """Import profiles in the layout of AMP.

    PATH holds <model>_<type>_<tp>.npy (or known_cost/ with them): forward seconds per sample and
    layer. Backward is twice that, and memory comes from a formula: AMP has neither.

    Example: arachne-prof import amp known_cost/ --model gpt-neo-2.7b --gpu-name V100=v100-16gb
    """
    _run("amp", path, store, as_json, _options(**given))


def _run(form: str, path: Path, store: str, as_json: bool, options: ImportOptions) -> None:
    """Read the files, write what is new, say what became of every run."""
    from db.store import open_store
    from profiler.importers import IMPORTERS
    from profiler.importers.record import record

    if not path.exists():
        raise ArachneError(f"{path}: no such file or folder")
    imported = IMPORTERS[form](path, options)
    if not any(run.rows for run in imported):
        refused = [row for run in imported for row in run.refused]
        first = f"; the first: {refused[0].where}: {refused[0].reason}" if refused else ""
        raise ArachneError(f"{path}: no row could be imported, {len(refused)} refused{first}")
    with open_store(store) as opened:
        recorded = [record(opened, run) for run in imported]
    if as_json:
        print_json({"runs": [run.to_json() for run in recorded]})
    else:
        _show(recorded)


def _show(recorded: list[Recorded]) -> None:
    from profiler.cli.import_table import import_table, note_lines, refusal_table

    console().print(import_table(recorded))
    if any(run.imported.refused for run in recorded):
        console().print(refusal_table(recorded))
    if logging.getLogger().isEnabledFor(logging.WARNING):  # -q turns remarks off
        for line in note_lines(recorded):
            err_console().print(line, highlight=False, markup=False)
    if all(run.outcome == "unchanged" for run in recorded):
        err_console().print("All of this was imported before: nothing changed.")
