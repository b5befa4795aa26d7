"""Options that the commands which train share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from specs.door import Number

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

if TYPE_CHECKING:
    from runtime.training import Options

_OPTIONS = (
    click.option(
        "--iterations",
        type=click.IntRange(1),
        default=10,
        show_default=True,
        help="Iterations that count.",
    ),
    click.option(
        "--warm-up",
        type=click.IntRange(0),
        default=2,
        show_default=True,
        help="Iterations before them.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Of weights and made-up text.",
    ),
    click.option(
        "--data",
        type=click.Path(exists=True, dir_okay=False),
        help="A file of tokens: .npy of integers, or raw uint16. Default: made-up text.",
    ),
    click.option(
        "--learning-rate",
        type=Number(0, min_open=True),
        default=1e-3,
        show_default=True,
    ),
    click.option(
        "--clip-norm",
        type=Number(0, min_open=True),
        help="Largest norm of all gradients together.",
    ),
    click.option(
        "--checkpoint",
        type=click.Path(),
        help="Write checkpoints to this folder; every host must see it.",
    ),
    click.option(
        "--checkpoint-every",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Iterations between them; 0 = one at the end.",
    ),
    click.option(
        "--resume", is_flag=True, help="Start from the newest one there, whatever plan wrote it."
    ),
    click.option(
        "--timeout-s",
        type=Number(1),
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


def options_of(values: dict[str, Any]) -> Options:
    """The options as the runtime takes them; click.UsageError where they contradict each other."""
    from runtime.training import Options

    if values["checkpoint"] is None and (values["resume"] or values["checkpoint_every"]):
        raise click.UsageError("--resume and --checkpoint-every need --checkpoint DIR")
    return Options(**values)
