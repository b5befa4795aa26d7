"""What the compiled search of Sailor holds, as tuples of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Machine code, kept on disk; other threads run meanwhile, so that one can end a search."""
    return njit(cache=True, nogil=True)(function)  # type: ignore[no-any-return]


class Task(NamedTuple):
    """What the searches of one depth P, micro-batch size and choice of TP degrees read.

    T types, Z zones, R regions of at most Y zones. Times in ms.
    """

    tp: Ints  # (T, P), 0 where a type cannot hold the stage
    starts: Ints  # (P,) first layer
    stage_ms: Floats  # (T, P)
    update_ms: Floats  # (T, P)
    bandwidth: Floats  # (Z, Z, T, P), largest of the link
    send_ms: Floats  # (P, Z, Z, T, T), one activation from stage i to i + 1
    send_usd: Floats  # (Z, Z), of one such activation
    usd_per_ms: Floats  # (T, P), one replica
    zones: Ints  # (R, Y), zones of a region in the order they are filled, then -1
    regions: Ints  # the regions to use, in order
    slowest_ms: Floats  # (P + 1,), at least the largest stage time from a stage on
    sum_ms: Floats  # (P + 1,), at least their sum
    release: bool  # reproduce what the released code does
    by_cost: bool  # the release's cost objective
    most_ms: float  # its largest iteration time, 0 = none
    prune: bool  # leave out what cannot be the fastest
    stops: bool  # end where a smaller D is no better (H3, H4)


class Degree(NamedTuple):
    """What depends on the DP degree D."""

    key: int  # tells searches apart in a memo that several share
    peers: int  # D
    micro_batches: int  # M
    sync_ms: Floats  # (Z, T, P), among D peers over links of that zone
    sync_usd: Floats  # (P,), of the gradients, for each zone if more than one


class Watch(NamedTuple):
    """What a search shares with its caller while it runs."""

    stop: Ints  # (1,), not 0: end now, with the best so far
    counts: Ints  # (2,), whole plans timed so far and at most
    best_ms: Floats  # (1,), the fastest plan known


class Found(NamedTuple):
    """The fastest plan of each degree tried; time_ms 0 where there is none.

    replicas: (n, P, T, Y) replicas of a stage by type and place of the zone in its region's order.
    regions: (n, P) region of each stage.
    """

    time_ms: Floats
    usd: Floats
    replicas: Ints
    regions: Ints


class Memo(NamedTuple):
    """Answers by state. For each: its figures, that of the next stage, and what the stage takes.

    size: (1,), how many of the rows are in use. rows: replicas by (type, zone), then the region.
    """

    index: Any
    figures: Floats  # (n, 9), of the pipeline from this stage on
    children: Ints  # (n,)
    rows: Ints  # (n, T * Y + 1)
    size: Ints


class Frames(NamedTuple):
    """What the search holds at each stage while it looks at the stages behind it."""

    free: Ints  # (P + 1, Z, T)
    name: Ints  # (P + 1, 2)
    position: Ints  # (P + 1,) in the list of regions
    budget: Ints  # (P + 1,) cents
    k: Ints  # (P, T) replicas by type that are being tried
    slots: Ints  # (P, T) at most so many
    placed: Ints  # (P, T, Y)
    own: Floats  # (P, 9), figures of the stage alone, then merged
    egress_usd: Floats  # (P,)
    remaining: Floats  # (P,) USD
    again: Ints  # (P,) whether ways that differ in the last two types only take the same time
    previous: Floats  # (P,)
    best: Floats  # (P, 9)
    best_ms: Floats  # (P,)
    best_usd: Floats  # (P,)
    best_child: Ints  # (P,)
    best_placed: Ints  # (P, T, Y)


# Fields of the figures of a pipeline from one stage on.
TIME, SLOWEST, SUM, SENDS, SYNC, FIRST, UPDATE, COMM_USD, USD_PER_MS = range(9)
FIELDS = 9
