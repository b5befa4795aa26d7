"""What is measured where a command does not say (DESIGN section 12)."""

from __future__ import annotations

from specs.gpu import gpu_type

DEFAULT_MODEL = "llama-3-8b"
DEFAULT_CPU_MODEL = "tiny-llama-test"


def default_model(gpu: str) -> str:
    """The catalogue model that is measured without --model."""
    return DEFAULT_CPU_MODEL if gpu_type(gpu).is_cpu else DEFAULT_MODEL


def default_tps(devices: int) -> tuple[int, ...]:
    """Powers of two up to the devices of the host."""
    return tuple(1 << i for i in range(max(1, devices).bit_length()))
