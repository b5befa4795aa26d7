"""How the global batch is dealt to the replicas (DESIGN section 13, 9 and 10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specs.errors import PlanError


@dataclass(frozen=True, slots=True)
class Rate:
    """What the shares depend on, of one template.

    replicas, micro_batch: r and b. sum_ms, max_ms: sum and largest of its stage times t_s.
    """

    replicas: int
    micro_batch: int
    sum_ms: float
    max_ms: float

    def pipe_ms(self, micro_batches: int) -> float:
        """(M - 1) * max t + sum t: 1F1B of M micro-batches (DESIGN section 13, 8)."""
        return (micro_batches - 1) * self.max_ms + self.sum_ms

    def micro_batches_in(self, time_ms: float) -> int:
        """M_k(T): 0 if T < sum t, else 1 + floor((T - sum t) / max t).

        Counted so that `pipe_ms(M_k(T)) <= T < pipe_ms(M_k(T) + 1)` holds in floating point too.
        """
        if time_ms < self.sum_ms:
            return 0
        count = 1 + math.floor((time_ms - self.sum_ms) / self.max_ms)
        while self.pipe_ms(count + 1) <= time_ms:
            count += 1
        while count > 0 and self.pipe_ms(count) > time_ms:
            count -= 1
        return count


def micro_batches(rates: Sequence[Rate], global_batch: int) -> tuple[float, tuple[int, ...]]:
    """T* and M_k(T*) of every template.

    T* is the least T with sum_k r_k b_k M_k(T) >= B. It is the moment one template finishes a
    micro-batch, so for each template the least such moment is found by bisection over its count,
    and the earliest of them is T*.
    """

    def samples(time_ms: float) -> int:
        return sum(
            rate.replicas * rate.micro_batch * rate.micro_batches_in(time_ms) for rate in rates
        )

    earliest = math.inf
    for rate in rates:
        low, high = 1, -(-global_batch // (rate.replicas * rate.micro_batch))
        while low < high:
            middle = (low + high) // 2
            if samples(rate.pipe_ms(middle)) >= global_batch:
                high = middle
            else:
                low = middle + 1
        earliest = min(earliest, rate.pipe_ms(low))
    return earliest, tuple(rate.micro_batches_in(earliest) for rate in rates)


@dataclass(frozen=True, slots=True)
class Share:
    """What one replica trains on: its micro-batches, and the samples of the last one."""

    micro_batches: int
    last_micro_batch: int


def deal(
    rates: Sequence[Rate], counts: Sequence[int], global_batch: int
) -> tuple[tuple[Share, ...], ...]:
    """Shares per template and replica that sum to the global batch.

    Every replica starts with M_k; the surplus is taken off in whole micro-batches, largest b
    first, round-robin over the replicas, and what is less than the smallest b makes one last
    micro-batch short. Where a whole one would leave a replica with none, last micro-batches
    become shorter instead, each at least one sample. Raises PlanError where a template is left
    out (M_k = 0) or there are fewer samples than replicas.
    """
    if 0 in counts:
        raise PlanError(
            f"template {list(counts).index(0)} finishes no micro-batch in time: leave it out"
        )
    surplus = sum(r.replicas * r.micro_batch * m for r, m in zip(rates, counts, strict=True))
    surplus -= global_batch
    left = [[count] * rate.replicas for rate, count in zip(rates, counts, strict=True)]
    last = [[rate.micro_batch] * rate.replicas for rate in rates]
    order = sorted(range(len(rates)), key=lambda k: -rates[k].micro_batch)
    for k in order:
        size = rates[k].micro_batch
        while surplus >= size and max(left[k]) > 1:
            # Round-robin from the last replica: the one with most, of these the last.
            replica = max(range(rates[k].replicas), key=lambda i: (left[k][i], i))
            left[k][replica] -= 1
            surplus -= size
    for k in reversed(order):
        for replica in reversed(range(rates[k].replicas)):
            cut = min(surplus, rates[k].micro_batch - 1)
            last[k][replica] -= cut
            surplus -= cut
    if surplus:
        raise PlanError(
            f"a global batch of {global_batch} is less than one sample for each of "
            f"{sum(rate.replicas for rate in rates)} replicas"
        )
    return tuple(
        tuple(Share(count, short) for count, short in zip(counts_k, last_k, strict=True))
        for counts_k, last_k in zip(left, last, strict=True)
    )
