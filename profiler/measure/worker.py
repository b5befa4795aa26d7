"""One process that measures: `python -m profiler.measure.worker FD`, started by a crew.

It reads one JSON document a line from the socket FD, and answers each with one. It is pinned
to its core before torch is imported, and dies with its parent.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from specs.parent import die_with_parent

Message = dict[str, Any]


def main() -> None:
    """Serve until the parent closes the socket."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    messages = _messages(channel)
    setup = next(messages)
    _become(setup)

    def answer(message: Message) -> None:
        channel.sendall(json.dumps(message).encode() + b"\n")

    # Here and not above: threads and memory limits must be set before torch is loaded.
    from profiler.measure.station import Station

    try:
        station = Station.open(setup, exchange_port=lambda port: _exchange(answer, messages, port))
        answer(station.first_words())
        for message in messages:
            answer(station.answer(message))
    except Exception as error:
        answer(_complaint(error))
        raise  # the log has the trace


def _messages(channel: socket.socket) -> Iterator[Message]:
    with channel.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)


def _exchange(
    answer: Callable[[Message], None], messages: Iterator[Message], port: int | None
) -> int:
    """Tell the crew our store's port (process 0), and hear the port that all use."""
    if port is not None:
        answer({"port": port})
    return int(next(messages)["port"])


def _become(setup: Message) -> None:
    """Pinned, with a memory limit, and gone when the parent is."""
    die_with_parent(setup["parent"])
    if "core" in setup:
        os.sched_setaffinity(0, {setup["core"]})
    if setup["memory_limit_bytes"]:
        # Data, not address space: torch reserves far more addresses than it ever fills.
        limit = setup["memory_limit_bytes"]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _complaint(error: Exception) -> Message:
    """What to record of an exception: out of memory, or whatever else it was."""
    import torch

    text = " ".join(str(error).split())[:300]
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        "can't allocate memory" in text or "Cannot allocate memory" in text
    )
    status = "out_of_memory" if memory else "worker_died"
    return {"error": status, "reason": text if memory else f"{type(error).__name__}: {text}"}


if __name__ == "__main__":
    main()
