"""`arachne-prof export`: profile runs as files."""

from __future__ import annotations

from pathlib import Path

import click

from specs.door import (
    console,
    err_console,
    json_option,
    print_json,
    store_option,
    verbosity_options,
)


@click.command()
@click.argument("layout", type=click.Choice(["csv", "metis", "sailor"]))
@click.argument("runs", metavar="RUN...", type=int, nargs=-1, required=True)
@click.option(
    "-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="A folder."
)
@click.option("--model", help="The model to export, where the rows fit several.")
@click.option(
    "--gpu-name",
    "gpu_names",
    multiple=True,
    metavar="GPU=FILE",
    help="A GPU type and its name in the files; repeat as needed.",
)
@click.option("--force", is_flag=True, help="Replace files in a folder that is not empty.")
@store_option
@json_option
@verbosity_options
def export(
    layout: str,
    runs: tuple[int, ...],
    folder: Path,
    model: str | None,
    gpu_names: tuple[str, ...],
    force: bool,
    store: str,
    as_json: bool,
) -> None:
    """Write profile runs as CSV files, or in the layout of Metis or Sailor.

    CSV keeps everything and comes back with `import csv`. The layouts of other planners take what
    they have a place for, so that those planners can be fed with your measurements. Rows of
    several runs are put together; where two have a key, that of the run named last counts.

    Example: arachne-prof export csv 3 -o measured/
    """
    from db.store import open_store
    from profiler.exporters import EXPORTERS
    from profiler.exporters.run_rows import ExportOptions, load_rows, write_files
    from specs.errors import SpecError

    gpus: dict[str, str] = {}
    for pair in gpu_names:
        gpu, sign, name = pair.partition("=")
        if not sign:
            raise click.BadParameter(f"{pair!r} is not GPU=FILE", param_hint="--gpu-name")
        gpus[gpu] = name
    with open_store(store, create=False) as opened:
        rows = load_rows(opened, runs)
    exported = EXPORTERS[layout](rows, ExportOptions(model, gpus))
    if not exported.files:
        raise SpecError(f"run {', '.join(map(str, runs))}: nothing that {layout} has a place for")
    paths = write_files(exported, folder, force=force)
    if as_json:
        print_json({"files": [str(path) for path in paths], "notes": list(exported.notes)})
        return
    for path in paths:
        console().print(str(path), highlight=False, markup=False, soft_wrap=True)
    for note in exported.notes:
        err_console().print(note, highlight=False, markup=False, soft_wrap=True)
