"""`arachne-prof delete`: a profile run and its rows."""

from __future__ import annotations

import click

from specs.door import err_console, json_option, print_json, store_option, verbosity_options


@click.command()
@click.argument("run", type=int)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Even if plans were predicted from it.")
@store_option
@json_option
@verbosity_options
def delete(run: int, yes: bool, force: bool, store: str, as_json: bool) -> None:
    """Delete a profile run with all its rows. Asks first.

    A run that plans were predicted from is kept, so that every prediction can be traced to its
    numbers; --force deletes its rows all the same.

    Example: arachne-prof delete 3
    """
    from db.store import open_store
    from profiler.run_summary import summarise
    from specs.errors import StoreError

    with open_store(store, create=False) as opened:
        [summary] = summarise(opened, run)
        if summary.plans and not force:
            named = ", ".join(map(str, summary.plans[:10]))
            raise StoreError(
                f"profile run {run} is what plan(s) {named} were predicted from: "
                "add --force to delete it all the same"
            )
        found = summary.run
        rows = found.layer_rows + found.refused_rows + found.link_rows + found.host_rows
        question = f"Delete profile run {run} ({found.run.origin}) with its {rows} rows?"
        if not yes and not click.confirm(question, err=True):
            err_console().print("Nothing deleted.")
            raise SystemExit(1)
        opened.delete_run(run, force=force)
    if as_json:
        print_json({"deleted_run": run, "rows": rows, "plans": list(summary.plans)})
    else:
        err_console().print(f"Deleted profile run {run} with its {rows} rows.", highlight=False)
