"""`arachne-plan`: the best way to train a model on a cluster, and what a given plan costs."""

from __future__ import annotations

import os

import click

from specs.door import ArachneGroup

# The policy's matrices are small: BLAS threads would only wait for each other. Read by numpy when
# it is imported, so it is said here, before anything is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@click.group(
    cls=ArachneGroup,
    lazy={
        "compare": "planner.cli.compare:compare",
        "diff": "planner.cli.diff:diff",
        "evaluate": "planner.cli.evaluate:evaluate",
        "explain": "planner.cli.explain:explain",
        "export": "planner.cli.export:export",
        "list": "planner.cli.list:list_",
        "plan": "planner.cli.plan:plan",
        "replan": "planner.cli.replan:replan",
        "show": "planner.cli.show:show",
        "train": "planner.cli.train:train",
    },
)
@click.version_option(package_name="arachne-planner", prog_name="arachne-plan")
def main() -> None:
    """Find the best way to train a model on a mixed cluster, and say how fast it will be."""
