"""`arachne-run`: run a plan for real, or log what another launcher measured."""

from __future__ import annotations

import click

from specs.door import ArachneGroup


class RunGroup(ArachneGroup):
    """A group whose command is `run` where the first word names no other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before a plan, so that `arachne-run plan.json` needs no second word."""
        known = {*self.list_commands(ctx), "--help", "--version"}
        if args and args[0] not in known:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=RunGroup,
    lazy={
        "agent": "runtime.cli.agent:agent",
        "elastic": "runtime.cli.elastic:elastic",
        "log": "runtime.cli.log:log",
        "run": "runtime.cli.run:run",
        "worker": "runtime.cli.worker:worker",
    },
)
@click.version_option(package_name="arachne-planner", prog_name="arachne-run")
def main() -> None:
    """Run a plan for real and put the times beside its prediction.

    `arachne-run PLAN` is short for `arachne-run run PLAN`.
    """
