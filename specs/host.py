"""Which machine this is: the fingerprint that profiles of `cpu` are matched by."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

_GIB = 1024**3


def cpu_model(cpuinfo: str | Path = "/proc/cpuinfo") -> str:
    """The processor's name as the kernel gives it, or "unknown processor"."""
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown processor"
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model", "Processor") and value.strip():
            return value.strip()
    return "unknown processor"


def allowed_cores() -> list[int]:
    """The processor cores this process may run on, in order."""
    return sorted(os.sched_getaffinity(0))


def total_memory_bytes(meminfo: str | Path = "/proc/meminfo") -> int:
    """Memory of the machine in bytes, as the kernel counts it (MemTotal)."""
    for line in Path(meminfo).read_text(encoding="utf-8").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_identity(machine_id: str | Path = "/etc/machine-id") -> str:
    """The machine-id where the host has one, else its host name (containers often have none)."""
    try:
        text = Path(machine_id).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    return text or socket.gethostname()


def host_fingerprint() -> str:
    """First 16 hex digits of the SHA-256 of identity, processor, cores and memory of this host.

    Cores are those of the machine, not those this process is pinned to, so that a pinned worker
    gives the same answer as its launcher. Memory counts in GiB: the kernel's own share of it
    moves by some KiB from one boot to the next.
    """
    facts = (
        machine_identity(),
        cpu_model(),
        str(os.cpu_count() or 1),
        str(round(total_memory_bytes() / _GIB)),
    )
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
