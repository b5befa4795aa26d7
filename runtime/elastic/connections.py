"""Ends a wait for a process that will never answer: no collective of gloo can be called off."""

from __future__ import annotations

import contextlib
import os
import socket


def cut_connections() -> int:
    """Shut down every TCP connection of this process; how many.

    Whatever thread waits in a collective, in a rendezvous or at a store then raises at once. What a
    worker hears from its agent comes over a Unix socket, so all its TCP is of process groups.
    Listening sockets stay: a store that this process serves goes on serving the next group.
    """
    count = 0
    for name in os.listdir("/proc/self/fd"):
        # A descriptor may be closed or reused meanwhile: we work on a copy, and only on TCP.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as copy:
            tcp = copy.family in (socket.AF_INET, socket.AF_INET6)
            if tcp and not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                copy.shutdown(socket.SHUT_RDWR)
                count += 1
    return count
