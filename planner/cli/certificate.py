"""The certificate in commands: how hard to prove that no plan is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from specs.door import err_console

if TYPE_CHECKING:
    from planner.problem import Problem

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

FULL, QUICK, NONE = "full", "quick", "none"
_FULL_POINTS = 14  # of planner.bound.certificate


def certificate_option(command: CommandT) -> CommandT:
    """Adds `--certificate full|quick|none`, parameter `certificate`."""
    return click.option(
        "--certificate",
        type=click.Choice([FULL, QUICK, NONE]),
        default=FULL,
        show_default=True,
        help="Prove how fast any plan could be at most: in seconds, in milliseconds and looser, "
        "or not at all.",
    )(command)


def prove_bound(problem: Problem, effort: str) -> float | None:
    """The lower bound in ms for the effort asked for; None where none is asked or possible.

    inf says that no plan can exist.
    """
    from planner.bound import certificate
    from specs.errors import ProfileMissing

    if effort == NONE:
        return None
    try:
        with err_console().status("proving how fast any plan could be"):
            points = _FULL_POINTS if effort == FULL else 0
            return certificate(problem, points=points).iteration_ms
    except ProfileMissing:
        return None


def finite_s(bound_ms: float | None) -> float | None:
    """A bound in seconds as JSON can have it: None where there is none, or no plan at all."""
    return None if bound_ms is None or bound_ms == float("inf") else bound_ms / 1000
