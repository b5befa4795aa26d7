"""Machine code of the kernel is made once, whoever asks first, and others wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.compiling import PARTS, _make
from tests.planner.random_problems import random_problem

ASK = """
import logging
logging.basicConfig(format="%(message)s")
from planner.baselines import PLANNERS
from planner.result import Budget
from tests.planner.random_problems import random_problem

problem = random_problem(1)
for planner in ("arachne", "annealing", "flat-rl", "hetauto", "exhaustive"):
    print(PLANNERS[planner](problem, Budget(seconds=10), 0).evaluations)
"""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_that_ask_at_once_compile_once_and_before_time_counts(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(root)}
    env.pop("NUMBA_CACHE_DIR", None)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    asking = [subprocess.Popen([sys.executable, "-c", ASK], env=env, **pipes) for _ in range(2)]
    answers = [process.communicate() for process in asking]
    said = sorted(errors.strip() for _, errors in answers)
    assert [process.returncode for process in asking] == [0, 0]
    assert said[0].startswith("another process is compiling")
    assert said[1].startswith("compiling the planner's kernel")
    assert [line for text in said for line in text.splitlines()] == said  # one line each
    for found, _ in answers:  # compiling takes a minute, which no budget of seconds is charged for
        assert all(int(evaluations) > 0 for evaluations in found.split())
        assert len(found.split()) == 5
    (folder,) = (tmp_path / "arachne").iterdir()
    assert (folder / "made").exists()
    known = sorted(folder.rglob("*.nb?"))
    again = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, "")
    assert sorted(folder.rglob("*.nb?")) == known


def test_a_part_that_cannot_be_made_apart_is_left_to_the_caller() -> None:
    assert "no part" not in PARTS
    assert not _make("no part", random_problem(1))
