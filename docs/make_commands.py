"""Writes docs/commands.md and the JSON Schemas from the program itself.

Run from the root of the repository: .venv/bin/python docs/make_commands.py
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import click

DOORS = {
    "arachne-db": "db.cli",
    "arachne-prof": "profiler.cli",
    "arachne-plan": "planner.cli",
    "arachne-run": "runtime.cli",
    "arachne-report": "reports.cli",
}
WIDTH = 100


def commands_page() -> str:
    """The help of every command as one Markdown page."""
    lines = [
        "# Commands",
        "",
        "Made from the programs' own help by `docs/make_commands.py`.",
        "Exit codes: 0 done, 1 an error said in one line, 2 wrong options.",
    ]
    for name, module in DOORS.items():
        lines += _section(import_module(module).main, (name,))
    return "\n".join(lines) + "\n"


def _section(command: click.Command, path: tuple[str, ...]) -> list[str]:
    context = click.Context(
        command, info_name=" ".join(path), max_content_width=WIDTH, terminal_width=WIDTH
    )
    lines = ["", f"## {' '.join(path)}", "", "```text", command.get_help(context).rstrip(), "```"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                lines += _section(child, (*path, name))
    return lines


def schemas() -> dict[str, str]:
    """JSON Schema documents by file name."""
    from specs.cluster import ClusterFile
    from specs.plan_file import PlanFile

    files = {"cluster.schema.json": ClusterFile, "plan.schema.json": PlanFile}
    return {
        name: json.dumps(schema.model_json_schema(by_alias=True), indent=2) + "\n"
        for name, schema in files.items()
    }


if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "commands.md").write_text(commands_page())
    for file_name, text in schemas().items():
        (here / file_name).write_text(text)
