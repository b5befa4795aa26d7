"""Which host this is: profiles of the `cpu` type are only true where they were measured."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def host_fingerprint() -> str:
    """First 16 hex digits of a hash of machine id (or host name), CPU model, cores and memory.

    Same host, same string; the memory is rounded to GiB, so that a reserved page more or less
    after a reboot changes nothing.
    """
    facts = [
        _first_line("/etc/machine-id") or platform.node(),
        cpu_model(),
        str(os.cpu_count() or 1),
        str(round(host_memory_bytes() / 2**30)),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def cpu_model() -> str:
    """The processor's name as the kernel gives it, else as Python does."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def host_memory_bytes() -> int:
    """Physical memory of this host in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
