"""Real gloo processes for tests, one thread each, joined with a timeout, never orphaned.

They are forked from a clean process that has loaded everything and has no threads: forking pytest
itself, with whatever threads earlier tests have left in it, can hang.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_PR_SET_PDEATHSIG = 1
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.runtime.preload"])


def run_ranks(
    world: int, folder: Path, work: Callable[..., Any], *args: Any, timeout_s: float = 200
) -> list[Any]:
    """What `work(rank, *args)` returns on each of `world` processes of one gloo group.

    work: a function of a module, not a local one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder / f"meeting-{time.monotonic_ns()}"
    processes = [
        _CONTEXT.Process(
            target=_child, args=(rank, world, meeting, folder, work, args, timeout_s), daemon=True
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + timeout_s
    try:
        waiting = dict(enumerate(processes))
        while waiting and time.monotonic() < deadline:
            multiprocessing.connection.wait([p.sentinel for p in waiting.values()], timeout=1.0)
            for rank in [rank for rank, p in waiting.items() if p.exitcode is not None]:
                code = waiting.pop(rank).exitcode
                if code:
                    error = folder / f"error-{rank}"
                    said = error.read_text() if error.exists() else f"exit code {code}"
                    raise AssertionError(f"rank {rank} failed: {said}")
        if waiting:
            where = "\n".join((folder / f"hang-{rank}").read_text() for rank in waiting)
            raise AssertionError(f"{sorted(waiting)} still run after {timeout_s} s:\n{where}")
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [torch.load(folder / f"result-{rank}", weights_only=False) for rank in range(world)]


def _child(
    rank: int,
    world: int,
    meeting: Path,
    folder: Path,
    work: Callable[..., Any],
    args: Any,
    timeout_s: float,
) -> None:
    # Should the tests be killed, the kernel ends this process too.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    status = 1
    with (folder / f"hang-{rank}").open("w") as hang:
        faulthandler.dump_traceback_later(timeout_s * 0.9, file=hang)
        try:
            torch.set_num_threads(1)
            dist.init_process_group(
                "gloo",
                init_method=f"file://{meeting}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=timeout_s),
            )
            torch.save(work(rank, *args), folder / f"result-{rank}")
            dist.destroy_process_group()
            status = 0
        except BaseException:
            (folder / f"error-{rank}").write_text(traceback.format_exc())
        os._exit(status)  # nothing of a test's set-up is to be torn down here
