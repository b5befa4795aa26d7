"""Option types of the profiler's commands: GPU types, lists of numbers and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from specs.errors import SpecError
from specs.gpu import gpu_type
from specs.workload import DType, Optimizer, Recompute

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class GpuName(click.ParamType[str]):
    """A GPU type of the catalogue."""

    name = "gpu"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name if the catalogue has it, else a usage error that lists the names."""
        try:
            return gpu_type(str(value)).name
        except SpecError as error:
            self.fail(str(error), param, ctx)


class WholeNumbers(click.ParamType[tuple[int, ...]]):
    """Distinct whole numbers of at least 1, separated by commas; sorted."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers, rising, each once."""
        if isinstance(value, tuple):
            return value
        numbers = set()
        for part in str(value).split(","):
            text = part.strip()
            if not text.isdecimal() or int(text) < 1:
                self.fail(
                    f"{value!r}: expected whole numbers of at least 1, like 1,2,4", param, ctx
                )
            numbers.add(int(text))
        return tuple(sorted(numbers))


class Words(click.ParamType[tuple[str, ...]]):
    """Distinct words out of a fixed set, separated by commas."""

    name = "words"

    def __init__(self, choices: tuple[str, ...]) -> None:
        self.choices = choices

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The words in the order given, each once."""
        if isinstance(value, tuple):
            return value
        words = tuple(dict.fromkeys(part.strip() for part in str(value).split(",")))
        for word in words:
            if word not in self.choices:
                self.fail(f"{word!r} is not one of: {', '.join(self.choices)}", param, ctx)
        return words


def key_options(command: CommandT) -> CommandT:
    """Adds the options that `run` and `estimate` share: what the rows are keyed by besides TP.

    `--micro-batch` (micro_batches), `--seq-len`, `--dtype`, `--recompute` (recomputes) and
    `--optimizer`; the last three are words or None.
    """
    added = (
        click.option(
            "--micro-batch",
            "micro_batches",
            type=WholeNumbers(),
            default="1,2,4,8",
            show_default=True,
            help="Micro-batch sizes, in sequences.",
        ),
        click.option(
            "--seq-len",
            type=click.IntRange(min=1),
            help="Tokens per sequence.  [default: that of the model's default workload]",
        ),
        click.option(
            "--dtype",
            type=click.Choice([dtype.value for dtype in DType]),
            help="Precision.  [default: that of the model's default workload]",
        ),
        click.option(
            "--recompute",
            "recomputes",
            type=Words(tuple(word.value for word in Recompute)),
            default="none",
            show_default=True,
            help="Activation recomputation: none, full, or both.",
        ),
        click.option(
            "--optimizer",
            type=click.Choice([optimizer.value for optimizer in Optimizer]),
            help="Optimizer.  [default: that of the model's default workload]",
        ),
    )
    for option in reversed(added):
        command = option(command)
    return command
