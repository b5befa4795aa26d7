"""What a run of a plan really took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What one stage of one template took, in ms: medians over its replicas and ranks.

    forward_ms, backward_ms: of one full micro-batch, collectives inside layers included; comm_ms:
    these collectives, of its forward and backward together, None where the run did not time them.
    send_ms, receive_ms: of one iteration, all micro-batches; receiving includes waiting for the
    sender to have something. sync_ms, update_ms: once an iteration; the first includes waiting for
    the other replicas.
    """

    template: int
    stage: int
    forward_ms: float
    backward_ms: float
    send_ms: float
    receive_ms: float
    sync_ms: float
    update_ms: float
    comm_ms: float | None = None

    @property
    def compute_ms(self) -> float:
        """Forward and backward of one micro-batch, collectives inside layers included."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class Measurement:
    """One iteration of one run of a plan, or a mean that somebody else published.

    run: groups the iterations of one run. host: fingerprint or name of the machine. origin: the
    command line, or data set and licence. iteration: from 0; iteration_ms: wall clock of one
    optimizer step. samples: how many iterations the figure is the mean of (1 = this one).
    warm_up: not to be counted. loss: of the whole global batch, per token. peak_bytes: per rank.
    drift: reference work after the run over before it, less 1 (0.03 = the machine got 3 % slower).
    stages: what each stage took, where the run recorded it.
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
    stages: tuple[StageTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class StageTrack:
    """What one rank of a stage did in one iteration, in order.

    actions: (kind, micro-batch or -1, start, end), ms since the first rank began the iteration.
    Kinds are those of the runtime: forward, backward, receive, send, sync, update.
    """

    template: int
    stage: int
    actions: tuple[tuple[str, int, float, float], ...]


@dataclass(frozen=True, slots=True)
class RunTrace:
    """One iteration of a run, action by action: the first replica of every template.

    iteration_ms: that iteration's wall clock.
    """

    run: str
    iteration: int
    iteration_ms: float
    tracks: tuple[StageTrack, ...]
