"""The most memory that this process has needed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch


class PeakMemory:
    """High-water mark of this process's memory in bytes since the last reset.

    CUDA: what the allocator has handed out (`max_memory_allocated`). CPU: resident memory as the
    kernel counts it, the whole process: interpreter and libraries included, as they are in the
    `framework_bytes` of a cpu host profile, so predicted and measured totals are of the same thing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        """Start anew from what is held now."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):  # not allowed: the mark is then that of its whole life
            Path("/proc/self/clear_refs").write_text("5")  # resets the kernel's high-water mark

    def read(self) -> int:
        """The mark in bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise OSError("/proc/self/status has no VmHWM")
