"""Sailor's search: loops over depth, micro-batch size, TP, regions and D around the kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.baselines.sailor import degrees as tp_rules
from planner.baselines.sailor.inputs import FiguresKey, Inputs
from planner.baselines.sailor.kernel import TYPES_AT_MOST, new_memo, solve
from planner.baselines.sailor.regions import Regions
from planner.baselines.sailor.state import Found, Memo, Task, Watch
from specs.errors import PlanError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BUCKET_BYTES = 500_000_000  # gradients are reduced in buckets of this size
NO_DEGREE = "no TP degree fits memory"
UNLIMITED = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Rules:
    """Which Sailor: as published, or (release) with the faults of the released code.

    by_cost, largest_ms: the release's cost objective. budget_usd: of an iteration, 0 = none.
    """

    release: bool = False
    by_cost: bool = False
    largest_ms: float = 0.0
    budget_usd: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """The fastest plan at one depth, micro-batch size, choice of TP degrees and D.

    starts: first layer of each stage. tp: (types, P). replicas: (P, types, zones of a region).
    zones: (P, zones of a region) the zones that these are.
    """

    time_ms: float
    usd: float
    micro_batch: int
    peers: int
    starts: Ints
    tp: Ints
    replicas: Ints
    zones: Ints

    def stage_of(self, stage: int) -> list[tuple[int, int, int]]:
        """(type, TP, zone) of every replica of a stage, in Sailor's order."""
        found = []
        for t in range(self.replicas.shape[1]):
            for y in range(self.replicas.shape[2]):
                one = (t, int(self.tp[t, stage]), int(self.zones[stage, y]))
                found += [one] * int(self.replicas[stage, t, y])
        return found


@dataclass
class SailorSearch:
    """One search; `candidates` are its plans in the order found.

    most_evaluations: whole plans to time at most.
    """

    inputs: Inputs
    rules: Rules = field(default_factory=Rules)
    most_evaluations: int | None = None
    candidates: list[Candidate] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    depth: int = 0
    finished: bool = False

    def __post_init__(self) -> None:
        if len(self.inputs.types) > TYPES_AT_MOST:
            raise PlanError(f"Sailor's search here takes up to {TYPES_AT_MOST} GPU types")
        most = UNLIMITED if self.most_evaluations is None else self.most_evaluations
        self.watch = Watch(np.zeros(1, np.int64), np.array([0, most]), np.array([np.inf]))
        self.regions = Regions(self.inputs)
        self.free = np.array([zone.gpus for zone in self.inputs.zones], np.int64)
        width = len(self.inputs.types) * self.regions.zones.shape[1] + 1
        self._memo: Memo = new_memo(width)

    @property
    def evaluations(self) -> int:
        """Whole plans timed."""
        return int(self.watch.counts[0])

    @property
    def stopped(self) -> bool:
        """Whether the caller or the ceiling has ended the search."""
        return bool(self.watch.stop[0])

    def stop(self) -> None:
        """End the search as soon as it looks; may be called from another thread."""
        self.watch.stop[0] = 1

    def run(self) -> list[Candidate]:
        """Search, and the candidates, the best first."""
        for depth in range(1, self.inputs.layers + 1):
            starts = tp_rules.stage_starts(self.inputs.layers, depth)
            for micro_batch in self.inputs.micro_batches:
                choices = list(
                    tp_rules.degree_choices(self.inputs, micro_batch, starts, self.rules.release)
                )
                if not choices:
                    self.rejected[NO_DEGREE] += 1
                for tp in choices:
                    for number, order in enumerate(self.regions.orders(tp)):
                        self._try_peers(micro_batch, starts, tp, number, order)
                        if self.stopped:
                            return self.ranked()
            self.depth = depth
        self.finished = True
        return self.ranked()

    def ranked(self) -> list[Candidate]:
        """The candidates so far, the best first; of equals the first found."""
        rules = self.rules
        if rules.by_cost:
            kept = [c for c in self.candidates if not rules.largest_ms < c.time_ms]
            return sorted(kept, key=lambda c: c.usd)
        budget = rules.budget_usd
        kept = [c for c in self.candidates if not budget or c.usd < np.float32(budget)]
        return sorted(kept, key=lambda c: c.time_ms)

    def _try_peers(
        self, micro_batch: int, starts: Ints, tp: Ints, number: int, order: tuple[int, ...]
    ) -> None:
        """All D, falling; stop where the objective fails to improve (H3, H4).

        Of several GPU types a smaller D may leave the slow ones out and be faster after slower
        ones, so there H3 does not stop (the release does).
        """
        peers = self._peers(micro_batch, tp, order)
        if len(peers) == 0:
            return
        inputs, rules = self.inputs, self.rules
        gradients = np.add.reduceat(inputs.gradient_bytes, starts)
        # USD a byte between zones of a region, whatever the zones
        sync_usd = 2 * (peers - 1)[:, None] * (gradients / peers[:, None]) * (0.01 / 1e9)
        found: Found
        # The release's memo lives on, and does not know of which list a region is.
        found, self._memo = solve(
            self._task(micro_batch, starts, tp, order),
            self.watch,
            self.free,
            number,
            rules.budget_usd,
            micro_batch * 4096 + peers,
            peers,
            -(-inputs.global_batch // (micro_batch * peers)),
            self._syncs(gradients, peers, tp),
            sync_usd,
            self._memo,
        )
        for i in np.flatnonzero(found.time_ms):
            zones = self.regions.zones[found.regions[i]]
            self.candidates.append(
                Candidate(
                    float(found.time_ms[i]),
                    float(found.usd[i]),
                    micro_batch,
                    int(peers[i]),
                    starts,
                    tp,
                    found.replicas[i],
                    zones,
                )
            )

    def _task(self, micro_batch: int, starts: Ints, tp: Ints, order: tuple[int, ...]) -> Task:
        inputs, rules = self.inputs, self.rules
        depth = len(starts)
        types, zones = len(inputs.types), len(inputs.zones)
        stage_ms = np.zeros((types, depth))
        update_ms = np.zeros((types, depth))
        usd = np.zeros((types, depth))
        bandwidth = np.zeros((zones, zones, types, depth))
        for t in range(types):
            for width in set(tp[t].tolist()) - {0}:
                figures = inputs.figures[FiguresKey(t, micro_batch, width)]
                at = tp[t] == width
                stage_ms[t, at] = np.add.reduceat(figures.layer_ms, starts)[at]
                update_ms[t, at] = np.add.reduceat(figures.update_ms, starts)[at]
                usd[t, at] = width * inputs.usd_per_ms[t]
                for a in range(zones):
                    for b in range(zones):
                        bandwidth[a, b, t, at] = inputs.bandwidth(t, width, a, b)
        quickest = np.where(tp > 0, stage_ms, np.inf).min(axis=0)
        slowest_after = np.zeros(depth + 1)
        slowest_after[:-1] = np.maximum.accumulate(quickest[::-1])[::-1]
        sum_after = np.zeros(depth + 1)
        sum_after[:-1] = np.cumsum(quickest[::-1])[::-1]
        several = len(inputs.present) > 1
        return Task(
            tp=tp,
            starts=starts,
            stage_ms=stage_ms,
            update_ms=update_ms,
            bandwidth=bandwidth,
            send_ms=self._sends(micro_batch, tp),
            send_usd=inputs.egress_usd_per_byte * inputs.sent_bytes * micro_batch,
            usd_per_ms=usd,
            zones=self.regions.zones,
            regions=np.array(order, np.int64),
            slowest_ms=slowest_after,
            sum_ms=sum_after,
            release=rules.release,
            by_cost=rules.by_cost,
            most_ms=rules.largest_ms,
            prune=several and not rules.release,
            stops=rules.release or not several,
        )

    def _peers(self, micro_batch: int, tp: Ints, order: tuple[int, ...]) -> Ints:
        inputs, rules = self.inputs, self.rules
        found = tp_rules.peers_to_try(
            inputs.global_batch, micro_batch, inputs.largest_peers, not rules.by_cost
        )
        slots = self._slots(tp, order)
        if rules.release:
            return np.array([peers for peers in found if peers <= slots], np.int64)
        # No D above: every replica takes at least the smallest degree of one type per stage.
        totals = self.free.sum(axis=0)
        narrowest = np.where(tp > 0, tp, UNLIMITED).min(axis=1)
        most = sum(int(n // w) for n, w in zip(totals, narrowest, strict=True)) // tp.shape[1]
        most = min(most, slots, inputs.global_batch)
        return np.array([peers for peers in found if peers <= most], np.int64)

    def _slots(self, tp: Ints, order: tuple[int, ...]) -> int:
        """Replicas of the first stage that its region can hold."""
        zones = [z for z in self.regions.zones[order[0]] if z >= 0]
        degrees = tp[:, 0]
        return sum(
            int(self.free[z, t]) // int(degrees[t])
            for z in zones
            for t in range(len(degrees))
            if degrees[t] > 0
        )

    def _sends(self, micro_batch: int, tp: Ints) -> Floats:
        inputs = self.inputs
        types, depth = tp.shape
        zones = len(inputs.zones)
        found = np.zeros((depth, zones, zones, types, types))
        known: dict[tuple[int, int, int, int, int, int], float] = {}
        for i in range(depth - 1):
            for t in range(types):
                for u in range(types):
                    if tp[t, i] == 0 or tp[u, i + 1] == 0:
                        continue
                    for a in range(zones):
                        for b in range(zones):
                            key = (t, int(tp[t, i]), a, u, int(tp[u, i + 1]), b)
                            if key not in known:
                                known[key] = inputs.send_ms(micro_batch, *key)
                            found[i, a, b, t, u] = known[key]
        return found

    def _syncs(self, gradients: Floats, peers: Ints, tp: Ints) -> Floats:
        """Ring all-reduce of each stage's gradients in buckets: 2 (n - 1) steps of bytes / n.

        Shape (D, zones, types, P).
        """
        types, depth = tp.shape
        found = np.zeros((len(peers), len(self.inputs.zones), types, depth))
        n = peers[:, None].astype(np.float64)
        whole, rest = np.divmod(gradients, BUCKET_BYTES)
        for z in range(len(self.inputs.zones)):
            for t in range(types):
                for width in set(tp[t].tolist()) - {0}:
                    full = self.inputs.step_ms(BUCKET_BYTES / n, t, width, z)
                    last = self.inputs.step_ms(np.maximum(rest, 1.0) / n, t, width, z)
                    ring = 2 * (n - 1) * (whole * full + np.where(rest > 0, last, 0.0))
                    at = tp[t] == width
                    found[:, z, t, at] = ring[:, at]
        return found
