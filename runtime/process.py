"""What a process is before it loads torch: pinned, one thread, with a GPU of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import BinaryIO

LOG_TAIL_BYTES = 8000


def is_running(pid: int) -> bool:
    """Whether a process is there, and is not one that has ended and nobody has asked after."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def core_for(number: int, cores: list[int]) -> int:
    """The core of process `number` on a host: round robin over those that may be used."""
    return cores[number % len(cores)]


def single_threaded(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which numeric libraries start one thread: processes are the parallelism."""
    ones = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return environment | ones


def visible_gpu(gpu: int, environment: Mapping[str, str]) -> str:
    """GPU number `gpu` of those that this command may see."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible:
        listed = visible.split(",")
        if gpu < len(listed):
            return listed[gpu]
    return str(gpu)


def last_line(log: BinaryIO) -> str:
    """The last line, of at most 300 characters, that a process wrote to its log; "" for none."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
    lines = log.read().decode(errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else ""
