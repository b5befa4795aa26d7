"""Stages as Metis times them: one GPU type, or two types that share the samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.baselines.metis.inputs import Inputs, Layout, Rows


class NoRow(Exception):
    """A layout needs a profile row that is not there."""


@dataclass(frozen=True)
class StageWork:
    """What each distinct replica of a stage runs in one micro-batch.

    pieces: per distinct replica its GPU type and the rows that one micro-batch is run as: one for
    a size that is profiled, several whose sizes sum to it for a share of a mixed stage.
    samples: of each replica, in order of ranks.
    """

    pieces: tuple[tuple[str, tuple[Rows, ...]], ...]
    samples: tuple[int, ...]

    def rows(self) -> Iterator[Rows]:
        """Every row that some replica runs."""
        for _, pieces in self.pieces:
            yield from pieces

    def time_ms(self, first: int, end: int) -> float:
        """The slowest replica on layers first..end."""
        return max(
            sum(rows.times[end] - rows.times[first] for rows in pieces) for _, pieces in self.pieces
        )


def rows_of(inputs: Inputs, gpu: str, tp: int, micro_batch: int) -> Rows:
    """The rows of a key. Raises NoRow naming it."""
    found = inputs.rows.get((gpu, tp, micro_batch))
    if found is None:
        raise NoRow(f"no profile of {gpu} at tp={tp} micro_batch={micro_batch}")
    return found


def stage_work(inputs: Inputs, layout: Layout, stage: int) -> StageWork:
    """The work of a stage. Raises NoRow.

    On one GPU type a replica runs floor(floor(B/dp)/M) samples at once. On several the replicas
    share floor(B/M) samples in proportion to the speed of each one's first GPU at micro-batch 1,
    rounded by largest remainder; a replica that gets none does nothing.
    """
    span = layout.span(stage)
    dp, tp = layout.degrees[stage]
    types = [inputs.nodes[node].gpu for node in span]
    if len(set(types)) == 1:
        samples = inputs.global_batch // dp // layout.micro_batches
        return StageWork(((types[0], (rows_of(inputs, types[0], tp, samples),)),), (samples,) * dp)
    owners = types[:: len(span) // dp]
    shares = share_samples(inputs, owners, tp, inputs.global_batch // layout.micro_batches)
    distinct = dict.fromkeys(zip(owners, shares, strict=True))
    pieces = tuple(
        (gpu, tuple(rows_of(inputs, gpu, tp, size) for size in binary_digits(count)))
        for gpu, count in distinct
    )
    return StageWork(pieces, tuple(shares))


def share_samples(inputs: Inputs, owners: Sequence[str], tp: int, samples: int) -> list[int]:
    """Samples of each replica, whose first GPUs are of the types `owners`. Raises NoRow."""
    speeds = [1 / rows_of(inputs, gpu, tp, 1).times[-1] for gpu in owners]
    exact = [samples * speed / sum(speeds) for speed in speeds]
    shares = [int(share) for share in exact]
    behind = sorted(range(len(owners)), key=lambda i: shares[i] - exact[i])
    for i in behind[: samples - sum(shares)]:
        shares[i] += 1
    return shares


def binary_digits(count: int) -> list[int]:
    """Powers of two that sum to a count, falling: 6 -> [4, 2]."""
    return [1 << k for k in reversed(range(count.bit_length())) if count >> k & 1]
