"""What a run of a plan really took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """One iteration of one run of a plan, or a mean that somebody else published.

    run: groups the iterations of one run. host: fingerprint or name of the machine. origin: the
    command line, or data set and licence. iteration: from 0; iteration_ms: wall clock of one
    optimizer step. samples: how many iterations the figure is the mean of (1 = this one).
    warm_up: not to be counted. loss: of the whole global batch, per token. peak_bytes: per rank.
    drift: reference work after the run over before it, less 1 (0.03 = the machine got 3 % slower).
    """

    run: str
    host: str
    origin: str
    iteration: int
    iteration_ms: float
    samples: int = 1
    warm_up: bool = False
    loss: float | None = None
    peak_bytes: tuple[int, ...] = ()
    drift: float | None = None
