"""Addresses: where the processes of a run listen, and by which interface they reach each other."""

from __future__ import annotations

import os
import socket

import psutil

from specs.errors import HostError

LOOPBACK = "127.0.0.1"


def host_and_port(text: str, port: int | None = None) -> tuple[str, int]:
    """The two parts of HOST:PORT; port: what a missing one means, None where it must be there.

    Raises HostError for anything else, and for a host that means every interface: others must be
    told an address by which they reach this one.
    """
    host, colon, number = text.rpartition(":")
    if not colon and port is not None:
        host, number = text, str(port)
    if not host or not number.isdecimal() or int(number) > 65535:
        raise HostError(f"{text!r} is no HOST:PORT, for example 10.0.0.5:7300")
    if host in ("0.0.0.0", "*", "[::]"):
        raise HostError(
            f"{text!r} is every interface of this host: give one address that others reach it by"
        )
    return host, int(number)


def resolved(host: str) -> str:
    """The IPv4 address of a name. Raises HostError where it has none."""
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise HostError(f"host {host!r} is not known here ({error.strerror})") from None


def interface_of(host: str) -> str | None:
    """The name of the network interface that has an address of this host, None where none has."""
    address = resolved(host)
    if address.startswith("127."):
        return "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.family == socket.AF_INET and a.address == address for a in addresses):
            return name
    return None


def this_machine() -> str:
    """Equal only for processes that see each other's process ids: this boot, this id space."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"unknown/{os.urandom(8).hex()}"
