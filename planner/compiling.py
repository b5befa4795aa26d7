"""Making the kernel's machine code before its first use, in processes that end.

The compiler keeps what it has made: all of it in one process took 800 MB. So each part is made by
a process of its own, one after the other, and the caller only loads the result. A lock lets one
process make it while others wait.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numba
from numba.core import event

import planner.compiled  # noqa: F401  (says where compiled code is kept)

if TYPE_CHECKING:
    from planner.problem import Problem

log = logging.getLogger(__name__)

_CHILD = "ARACHNE_COMPILING"  # set in the processes that compile
_ROOT = Path(__file__).parent.parent


def ensure_compiled(problem: Problem) -> None:
    """Make the machine code of fill, search and policy if it is not there; a minute of one core.

    Who counts seconds calls this first. problem: any that has profiles, the code is for all.
    Where a part cannot be made so, whoever calls it first compiles it in its own process.
    """
    if os.environ.get(_CHILD) or _made().exists() or not problem.profiles.hosts:
        return
    with _alone():
        if _made().exists():
            return
        log.warning("compiling the planner's kernel: about a minute, once after each install")
        if all(_make(part, problem) for part in PARTS):
            _made().touch()


def _made() -> Path:
    """Stands in the folder of compiled code when every part has been made."""
    return Path(numba.config.CACHE_DIR) / "made"


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process makes code for this folder. A killed one frees the lock."""
    folder = Path(numba.config.CACHE_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("another process is compiling the planner's kernel: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(part: str, problem: Problem) -> bool:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    made = subprocess.run(
        [sys.executable, "-P", "-m", "planner.compiling", part],
        input=pickle.dumps(problem),
        env={
            **os.environ,
            _CHILD: "1",
            "PYTHONPATH": path,
            "NUMBA_CACHE_DIR": numba.config.CACHE_DIR,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if made.returncode != 0:
        said = made.stderr.decode(errors="replace").strip().splitlines() or ["nothing said"]
        log.debug("the %s part of the kernel was not made apart: %s", part, said[-1])
    return made.returncode == 0


def _fill(problem: Problem) -> None:
    from planner.kernel.engine import Engine

    engine = Engine(problem)
    if not engine.kinds:
        raise SystemExit("a problem without profiles compiles nothing")
    engine.compile_fill()


def _explore(problem: Problem) -> None:
    from planner.kernel.engine import Engine

    Engine(problem).compile_explore()


def _policy(problem: Problem) -> None:
    from planner.policy.planning import Planning, default_schedule
    from planner.result import Budget

    Planning(problem, "arachne", Budget(), 0, default_schedule(problem.cluster.gpus))


class _Collector(event.Listener):  # type: ignore[misc]
    """Frees what the compiler leaves in rings after each function: a twentieth of its memory."""

    def on_start(self, event: event.Event) -> None:
        """A function is about to be compiled."""

    def on_end(self, event: event.Event) -> None:
        """A function has been compiled."""
        gc.collect()


PARTS = {"fill": _fill, "explore": _explore, "policy": _policy}

if __name__ == "__main__":
    event.register("numba:compile", _Collector())
    PARTS[sys.argv[1]](pickle.load(sys.stdin.buffer))
