"""Option types of the profiler's commands: GPU types, lists of numbers and words."""

from __future__ import annotations

from typing import Any

import click

from specs.errors import SpecError
from specs.gpu import gpu_type


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
