"""Ends a wait for a process that will never answer: no collective of gloo can be called off."""

from __future__ import annotations

import contextlib
import os
import socket
import stat


def cut_connections() -> int:
    """Shut down every TCP connection of this process; how many.

    Whatever thread waits in a collective, in a rendezvous or at a store then raises at once. What a
    worker hears from its agent comes over a Unix socket, so all its TCP is of process groups.
    Listening sockets stay: a store that this process serves goes on serving the next group.
    """
    count = 0
    for name in os.listdir("/proc/self/fd"):
        # A descriptor may be closed or reused meanwhile: we work on a copy, and only on TCP.
        with contextlib.suppress(OSError):
            copy = os.dup(int(name))
            try:
                count += _cut(copy)
            finally:
                os.close(copy)
    return count


def _cut(descriptor: int) -> bool:
    """Shut a descriptor down where it is a TCP connection; whether it was."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    found = socket.socket(fileno=descriptor)
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        found.shutdown(socket.SHUT_RDWR)
        return True
    finally:
        found.detach()
