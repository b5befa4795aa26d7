"""The rooms of DESIGN section 2 import each other only along the allowed arrows."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ALLOWED: dict[str, set[str]] = {
    "specs": set(),
    "db": {"specs"},
    "migrations": {"db"},
    "runtime": {"specs", "db"},
    "profiler": {"specs", "db", "runtime"},
    "planner": {"specs", "db"},
    "reports": {"specs", "db", "planner"},
}
COMMANDS = {
    "arachne-db": "db.cli",
    "arachne-prof": "profiler.cli",
    "arachne-plan": "planner.cli",
    "arachne-run": "runtime.cli",
    "arachne-report": "reports.cli",
}
HEAVY = {
    "torch",
    "pandas",
    "plotly",
    "numba",
    "scipy",
    "transformers",
    "sqlalchemy",
    "alembic",
    "pydantic",
    "jinja2",
}


def is_door(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return parts[1] == "cli.py" or parts[1] == "cli"


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.split(".")[0]


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_along_the_arrows(room: str) -> None:
    wrong = []
    files = list((ROOT / room).rglob("*.py"))
    assert files, f"room {room} is empty"
    for path in files:
        if is_door(path):
            continue
        for line, package in imports_of(ast.parse(path.read_text())):
            if package in ALLOWED and package != room and package not in ALLOWED[room]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {package}")
    assert wrong == []


def test_nothing_imports_a_door() -> None:
    doors = tuple(f"{room}.cli" for room in ALLOWED)
    wrong = []
    for room in ALLOWED:
        for path in (ROOT / room).rglob("*.py"):
            if is_door(path):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(doors):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {node.module}")
    assert wrong == []


def test_no_file_is_called_after_no_subject() -> None:
    nameless = {"utils", "util", "helpers", "helper", "common", "misc"}
    named = [
        str(path.relative_to(ROOT))
        for room in ALLOWED
        for path in (ROOT / room).rglob("*.py")
        if path.stem in nameless
    ]
    assert named == []


@pytest.mark.parametrize("module", COMMANDS.values())
def test_a_door_imports_no_heavy_library(module: str) -> None:
    """`--help` stays quick because nothing heavy is imported before a command runs."""
    code = f"import sys, {module}; print(*sorted(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert HEAVY & set(done.stdout.split()) == set()


def test_the_project_reads_nothing_beside_itself() -> None:
    """What was handed to the project for reading is not there where it runs."""
    beside = "../" + "shared"
    tracked = subprocess.run(
        ["git", "grep", "-l", beside, "--", ":!docs/decisions"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert tracked.stdout.split() == []
