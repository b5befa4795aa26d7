"""`arachne-prof`: how fast layers and links are, measured, estimated or imported."""

from __future__ import annotations

import click

from specs.door import ArachneGroup


@click.group(
    cls=ArachneGroup,
    lazy={
        "delete": "profiler.cli.delete:delete",
        "estimate": "profiler.cli.estimate:estimate",
        "export": "profiler.cli.export:export",
        "host": "profiler.cli.host:host",
        "import": "profiler.cli.import_:import_",
        "links": "profiler.cli.links:links",
        "list": "profiler.cli.list:list_",
        "run": "profiler.cli.run:run",
        "show": "profiler.cli.show:show",
    },
)
@click.version_option(package_name="arachne-planner", prog_name="arachne-prof")
def main() -> None:
    """Measure how fast layers and links of this host are, estimate other GPUs, import profiles."""
