"""Options that the commands which train share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--iterations", type=click.IntRange(1), default=10, show_default=True, help="That count."
    ),
    click.option(
        "--warm-up", type=click.IntRange(0), default=2, show_default=True, help="Before them."
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
    click.option(
        "--data",
        type=click.Path(),
        help="A file of tokens: .npy of integers, or raw uint16. Default: made-up text.",
    ),
    click.option(
        "--learning-rate",
        type=click.FloatRange(0, min_open=True),
        default=1e-3,
        show_default=True,
    ),
    click.option(
        "--clip-norm",
        type=click.FloatRange(0, min_open=True),
        help="Largest norm of all gradients together.",
    ),
    click.option(
        "--timeout-s",
        type=click.FloatRange(1),
        default=300.0,
        show_default=True,
        help="Longest silence of a rank.",
    ),
)


def training_options(command: CommandT) -> CommandT:
    """Adds what `runtime.training.Options` holds, by its names."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
