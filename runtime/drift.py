"""How fast the machine is right now: a fixed piece of work, timed before and after what matters."""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.nn.functional as F

_ROWS, _WIDTH, _INNER = 256, 256, 768  # the shapes of a tiny model's MLP
_REPEATS = 7


def reference_ms(device: torch.device | None = None) -> float:
    """Median time in ms of one pass of the reference work on this process's device.

    The work never changes: five times matmul (256,256)x(256,768), SiLU, matmul back, all in fp32,
    and one copy of 4 MiB. About 20 ms on a CPU core. Run it in all co-located processes at once,
    as they run when they train: a core that is alone is faster than one that shares its memory.
    drift = later / earlier - 1. A figure is comparable with others of the same device only.
    """
    device = device or torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, _WIDTH, generator=generator).to(device)
    up = torch.randn(_WIDTH, _INNER, generator=generator).to(device)
    down = torch.randn(_INNER, _WIDTH, generator=generator).to(device)
    block = torch.zeros(1 << 20, device=device)
    times: list[float] = []
    with torch.no_grad():
        for _ in range(_REPEATS):
            _wait(device)
            begun = time.perf_counter()
            for _ in range(5):
                F.silu(x @ up) @ down
            block.clone()
            _wait(device)
            times.append((time.perf_counter() - begun) * 1e3)
    return median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # kernels are queued: without this we time the launch
