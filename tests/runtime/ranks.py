"""Real gloo processes for tests: forked, one thread each, joined with a timeout, never orphaned."""

from __future__ import annotations

import ctypes
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

from runtime.optimizer import import_optimizers

_PR_SET_PDEATHSIG = 1

torch.set_num_threads(1)
import_optimizers()  # once here, not in every child


def run_ranks(
    world: int, folder: Path, work: Callable[..., Any], *args: Any, timeout_s: float = 120
) -> list[Any]:
    """What `work(rank, *args)` returns on each of `world` processes of one gloo group."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder / f"meeting-{time.monotonic_ns()}"
    children: dict[int, int] = {}
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _child(rank, world, meeting, folder, work, args)
        children[pid] = rank
    deadline = time.monotonic() + timeout_s
    left = dict(children)
    try:
        while left and time.monotonic() < deadline:
            for pid in list(left):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    rank = left.pop(pid)
                    if status:
                        error = folder / f"error-{rank}"
                        said = error.read_text() if error.exists() else f"status {status}"
                        raise AssertionError(f"rank {rank} failed: {said}")
            time.sleep(0.005)
        assert not left, f"ranks {sorted(left.values())} still run after {timeout_s} s"
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [torch.load(folder / f"result-{rank}", weights_only=False) for rank in range(world)]


def _child(
    rank: int, world: int, meeting: Path, folder: Path, work: Callable[..., Any], args: Any
) -> None:
    status = 1
    try:
        # Should pytest itself be killed, the kernel ends this process too.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
        torch.save(work(rank, *args), folder / f"result-{rank}")
        dist.destroy_process_group()
        status = 0
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(status)  # not sys.exit: pytest's own clean-up must not run in a child
