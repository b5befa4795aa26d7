"""Units: the planner counts in ms, bytes and bytes per ms; people write GB/s, us and MiB."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3

BYTES_PER_MS_OF_GB_PER_S = 1e6  # 1 GB/s = 1e9 bytes / 1e3 ms, decimal as on datasheets


def bytes_per_ms(gb_per_s: float) -> float:
    """Bandwidth in bytes/ms of a figure in GB/s (decimal, DESIGN section 13)."""
    return gb_per_s * BYTES_PER_MS_OF_GB_PER_S


def human_bytes(count: float) -> str:
    """Bytes as a person reads them, in binary units: 1536 -> '1.5 KiB'."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def human_ms(ms: float) -> str:
    """A time as a person reads it: us below 1 ms, s from 1000 ms."""
    if abs(ms) >= 1000:
        return f"{ms / 1000:.3f} s"
    return f"{ms:.2f} ms" if abs(ms) >= 1 else f"{ms * 1000:.1f} us"
