"""The store at which the ranks of a group meet."""

from __future__ import annotations

import socket

from torch._C._distributed_c10d import TCPStore

from specs.errors import HostError


def meeting_store(address: str) -> TCPStore:
    """A store that this process serves on a free port of one address.

    torch's own listens on every interface, and whoever reaches it can read and write. Raises
    HostError for an address that is not of this host.
    """
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise HostError(f"cannot listen at {address} ({error.strerror})") from None
    port = int(listener.getsockname()[1])
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
