"""The door of the reports: one file per command, each imported when it is called."""

from __future__ import annotations

import click

from specs.door import ArachneGroup


@click.group(
    cls=ArachneGroup,
    lazy={
        "accuracy": "reports.cli.accuracy:accuracy",
        "compare": "reports.cli.compare:compare",
        "index": "reports.cli.index:index",
        "plan": "reports.cli.plan:plan",
        "profile": "reports.cli.profile:profile",
        "reconfigure": "reports.cli.reconfigure:reconfigure",
        "serve": "reports.cli.serve:serve",
    },
)
@click.version_option(package_name="arachne-planner")
def main() -> None:
    """Pages of the store: self-contained HTML files with figures, tables and their data.

    Example: arachne-report accuracy -o report
    """
