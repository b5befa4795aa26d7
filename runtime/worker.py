"""One rank of a plan: `python -m runtime.worker FD`, started by the local launcher.

It reads one JSON document from the socket FD, what to run and as whom, and writes one a line: each
iteration, and at the end {"done": true} or {"error": what went wrong}.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from specs.parent import die_with_parent

Message = dict[str, Any]


def main() -> None:
    """Run the rank that the parent asks for."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    lines = channel.makefile("rb")
    setup: Message = json.loads(lines.readline())
    die_with_parent(setup["parent"])
    if "core" in setup:
        os.sched_setaffinity(0, {setup["core"]})

    def tell(message: Any) -> None:
        channel.sendall(json.dumps(message).encode() + b"\n")

    try:
        # Here and not above: core and threads must be settled before torch is loaded.
        from datetime import timedelta

        from torch._C._distributed_c10d import TCPStore

        from runtime.rank import run_rank
        from runtime.training import Options
        from specs.plan_file import plan_from_document

        plan = plan_from_document(setup["plan"], "the plan")
        options = Options(**setup["options"])
        port = json.loads(lines.readline())["port"]
        wait = timedelta(seconds=options.timeout_s)
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=wait)
        run_rank(plan, setup["rank"], options, store, tell)
        tell({"done": True})
    except Exception as error:
        tell({"error": complaint(error), "peer": is_peer_loss(error)})
        raise  # the log has the trace


def complaint(error: BaseException) -> str:
    """An exception in one line; our own errors speak for themselves."""
    from specs.errors import ArachneError

    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, ArachneError) else f"{type(error).__name__}: {text}"


def is_peer_loss(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone: then that rank's own word counts."""
    text = str(error).lower()
    signs = (
        "connection closed",
        "connection reset",
        "connection was likely closed",  # at a store
        "timed out",
        "timeout",
        "broken pipe",
    )
    return isinstance(error, (RuntimeError, ConnectionError)) and any(s in text for s in signs)


if __name__ == "__main__":
    main()
