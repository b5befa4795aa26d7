"""The order in which a pipeline stage runs its micro-batches."""

from __future__ import annotations

from enum import StrEnum


class Pass(StrEnum):
    """Which way a micro-batch goes through a stage."""

    FORWARD = "forward"
    BACKWARD = "backward"


def one_f_one_b(stage: int, depth: int, micro_batches: int) -> list[tuple[Pass, int]]:
    """1F1B: fill, then one forward and one backward in turn, then drain.

    stage from 0. min(M, d - stage - 1) forwards come first, so at most min(M, d - stage)
    micro-batches are in flight; M may be smaller than the depth.
    """
    warm = min(micro_batches, depth - stage - 1)
    order = [(Pass.FORWARD, m) for m in range(warm)]
    for m in range(micro_batches - warm):
        order += [(Pass.FORWARD, warm + m), (Pass.BACKWARD, m)]
    return order + [(Pass.BACKWARD, m) for m in range(micro_batches - warm, micro_batches)]
