from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from runtime.addresses import host_and_port, interface_of, this_machine
from runtime.meeting import meeting_store
from specs.errors import HostError


def test_a_host_and_a_port_are_told_apart() -> None:
    assert host_and_port("10.0.0.5:7300") == ("10.0.0.5", 7300)
    assert host_and_port("head", 0) == ("head", 0)
    for wrong in ("head", "head:", ":7300", "head:x", "head:70000"):
        with pytest.raises(HostError, match="is no HOST:PORT"):
            host_and_port(wrong)


@pytest.mark.parametrize("text", ["0.0.0.0:7300", "*:7300", "[::]:7300"])
def test_every_interface_is_no_address_that_others_can_be_told(text: str) -> None:
    with pytest.raises(HostError, match="give one address"):
        host_and_port(text)


def test_addresses_belong_to_interfaces_of_this_host() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.0.0.2") == interface_of("localhost")
    assert interface_of("192.0.2.1") is None  # reserved for documents: no host has it
    with pytest.raises(HostError, match="is not known here"):
        interface_of("no-such-host.invalid")


def test_processes_of_one_machine_agree_on_it() -> None:
    assert this_machine() == this_machine()
    assert str(os.stat("/proc/self/ns/pid").st_ino) in this_machine()


def _listening(port: int) -> set[str]:
    """Local addresses, as the kernel writes them, at which somebody listens on a port."""
    found = set()
    for name in ("tcp", "tcp6"):
        path = Path("/proc/net") / name
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            words = line.split()
            address, at = words[1].split(":")
            if int(at, 16) == port and words[3] == "0A":
                found.add(address)
    return found


def test_a_meeting_store_listens_at_its_one_address() -> None:
    store = meeting_store("127.0.0.2")
    store.set("a", "b")
    assert _listening(int(store.port)) == {socket.inet_aton("127.0.0.2")[::-1].hex().upper()}
    with pytest.raises(HostError, match="cannot listen at 192"):
        meeting_store("192.0.2.1")
