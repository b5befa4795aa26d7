"""What the doors of all rooms share: errors as one line, the store option, JSON on stdout."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from specs.errors import ArachneError

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_STORE = "sqlite:///arachne.db"
FILE_WIDTH = 160  # columns of a table that goes to a file or a pipe

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class ArachneGroup(click.Group):
    """A group of commands that never shows a traceback for a mistake of its user.

    lazy: command name -> "module:attribute", imported only when that command runs, so that
    `--help` of one command does not pay for the libraries of another.
    An ArachneError becomes one line on stderr and exit code 1; Ctrl-C becomes exit code 130.
    """

    def __init__(self, *args: Any, lazy: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, imported or not."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now if it is a lazy one."""
        target = self.lazy.get(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{target} is no click command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn what the user can mend into one line."""
        try:
            return super().invoke(ctx)
        except ArachneError as error:
            line = " ".join(str(error).split())
            click.echo(f"Error: {line}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            # The reader of our output left (`| head`): nothing is wrong, and nobody is listening.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


class Number(click.FloatRange):
    """A number of a range: nan, which click lets through any range, and inf are none."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number. Fails as click does for what is none."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def store_option(command: CommandT) -> CommandT:
    """Adds `--store URL`, parameter `store`."""
    return click.option(
        "--store",
        envvar="ARACHNE_STORE",
        default=DEFAULT_STORE,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help="The store: a file, sqlite:///FILE or postgresql+psycopg://...",
    )(command)


def json_option(command: CommandT) -> CommandT:
    """Adds `--json`, parameter `as_json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
    )(command)


def verbosity_options(command: CommandT) -> CommandT:
    """Adds `-v/--verbose` and `-q/--quiet`, which set the level of the logs on stderr."""

    def set_level(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            level = logging.DEBUG if param.name == "verbose" else logging.ERROR
            logging.getLogger().setLevel(level)

    verbose = click.option(
        "-v", "--verbose", is_flag=True, expose_value=False, callback=set_level, help="Say more."
    )
    quiet = click.option(
        "-q", "--quiet", is_flag=True, expose_value=False, callback=set_level, help="Say less."
    )
    return verbose(quiet(command))


def print_json(document: Any) -> None:
    """Print one JSON document on stdout. NaN and infinity have no JSON form: ValueError."""
    click.echo(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))


def console() -> Console:
    """The console for data: stdout; wide where it is no terminal, so that tables keep whole."""
    from rich.console import Console

    out = Console()
    if not out.is_terminal:
        out.width = max(out.width, FILE_WIDTH)
    return out


def err_console() -> Console:
    """The console for progress and remarks: stderr."""
    from rich.console import Console

    return Console(stderr=True)
