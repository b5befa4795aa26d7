"""Every command: help with an example, exit codes, and a place in the docs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.test_rooms import COMMANDS

ROOT = Path(__file__).resolve().parent.parent


def walk(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            if not child.hidden:
                yield from walk(child, (*path, name))


def all_commands() -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, module in COMMANDS.items():
        found.extend(walk(import_module(module).main, (name,)))
    return found


EVERY = all_commands()
LEAVES = [(path, command) for path, command in EVERY if not isinstance(command, click.Group)]


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) for path, _ in EVERY])
def test_help_says_what_the_command_does(path: tuple[str, ...], command: click.Command) -> None:
    shown = CliRunner().invoke(command, ["--help"], prog_name=" ".join(path))
    assert shown.exit_code == 0
    assert command.help, f"{' '.join(path)} has no help"


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_help_ends_with_an_example(path: tuple[str, ...], command: click.Command) -> None:
    assert f"Example: {' '.join(path)}" in " ".join((command.help or "").split())


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_the_command_stands_in_the_docs(path: tuple[str, ...], command: click.Command) -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    assert f"## {' '.join(path)}\n" in text, "run: python docs/make_commands.py"


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_a_wrong_option_exits_with_2(path: tuple[str, ...], command: click.Command) -> None:
    done = CliRunner().invoke(command, ["--no-such-option"])
    assert done.exit_code == 2


def test_the_docs_of_commands_are_up_to_date() -> None:
    namespace: dict[str, object] = {"__name__": "make_commands"}
    exec((ROOT / "docs" / "make_commands.py").read_text(), namespace)
    pages = namespace["commands_page"]
    assert callable(pages)
    assert (ROOT / "docs" / "commands.md").read_text() == pages()
