"""A tighter proven bound: no mix of replicas, whatever their shape, trains the batch sooner.

The proof, step by step, is docs/decisions/0003-certificate.md. In one paragraph: a plan is a set
of replicas, each with X ms for its pipeline and G ms for what comes once (iteration = X + G). Put
a price on every GPU, every ms of `once` and every share of a network card. If at these prices no
replica that can be built costs less than one unit per sample it trains in X ms, then the batch
costs at least B, and what the cluster has to spend is bounded: so X and G are. Prices come from a
linear program over the replicas found so far; the cheapest replica over all that can be built, by
dynamic programming. Any prices that pass that check prove their bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import linprog

from planner.floors import Floors, NodeClass, gradient_bytes, neighbour_send_ms
from planner.problem import Problem
from planner.replica_kernel import (
    GPUS,
    IN,
    INFINITE,
    OUT,
    PER_CLASS,
    SYNC,
    UPDATE,
    cheapest_replica,
)
from planner.transfers import activation_bytes
from specs.errors import RunError

Array = Any  # numpy arrays

KEPT_CEILING = 4  # micro-batches in flight that the memory of a stage is checked with, at most
# Prices are raised by this share, so that nearly cheapest replicas need not be found.
PRICE_MARGIN, COARSE_MARGIN, LAST_MARGIN, LEAST_MARGIN = 2e-3, 1e-2, 3e-2, 4e-4
GAP = 3e-3  # of bound to what fractional replicas reach: then it is good enough
NEW_REPLICAS = 40  # found in one round before prices are set anew
ROUNDS = 80  # of prices for one X; then prices are raised until they hold
FEW = 4
PIECE = 0.03  # ratio - 1 of neighbouring slowest-stage times that are searched at once
FINEST_STEP = 1.004  # ratio of neighbouring slowest-stage times below which none is split


@dataclass(frozen=True)
class _Tables:
    """What replicas of one micro-batch size are made of; arrays as in replica_kernel.py."""

    micro_batch: int
    option_from: Array
    option_tp: Array
    option_host: Array
    time: Array
    update: Array
    first: Array
    card: Array
    near: Array
    label: Array
    share: Array

    least_slowest_ms: float  # some stage holds the longest layer
    longest_stage_ms: float  # no stage takes longer, however its sends turn out


@dataclass(frozen=True)
class _Replica:
    """A replica found: samples in X ms = fixed + per_ms * X; figures per class as in the kernel."""

    fixed: float
    per_ms: float
    figures: Array


@dataclass(frozen=True)
class _Proof:
    """Prices that hold at one X: every plan with that X has B <= budget + per_ms * G."""

    pipe_ms: float
    budget: float
    per_ms: float
    margin: float
    reached: float | None  # X + G of fractions of the replicas found; None where they fall short

    def once_ms(self, batch: float) -> float:
        """The least G."""
        return _once_ms(batch, self.budget, self.per_ms)


@dataclass(frozen=True)
class _Prices:
    """Prices per sample, shape (5, C), and the G that the replicas found need at them.

    once_ms: None where they train less than the batch whatever G is.
    """

    prices: Array
    once_ms: float | None


@dataclass(frozen=True, slots=True)
class _Lowest:
    """The least X + G of an interval of X, where to look next in it, and how wide it is.

    weakest: the proof at whose X it lies, where that proof's prices can be improved.
    """

    value: float
    pipe_ms: float
    width: float
    weakest: _Proof | None = None


def _once_ms(batch: float, budget: float, per_ms: float) -> float:
    missing = batch - budget
    if missing <= 0:
        return 0.0
    return missing / per_ms if per_ms > 0 else math.inf


class ReplicaBound:
    """The bound of one problem; `improve` raises it from one that is already proven."""

    def __init__(self, problem: Problem, floors: Floors) -> None:
        self.batch = float(problem.workload.global_batch)
        self.classes = [
            kind
            for c, kind in enumerate(floors.classes)
            if any(key[0] == c for key in floors.layers)
        ]
        kept = [floors.classes.index(kind) for kind in self.classes]
        self.size = np.array([kind.size for kind in self.classes], np.int64)
        self.gpus = np.array([kind.gpus for kind in self.classes], float)
        self.nodes = np.array([kind.nodes for kind in self.classes], float)
        self.latency = np.array([kind.latency_ms for kind in self.classes])
        ring = [2 * size for size in gradient_bytes(problem)]
        self.sync = np.array(
            [
                np.concatenate([[0.0], np.cumsum(ring)]) / kind.nic_bytes_per_ms
                for kind in self.classes
            ]
        )
        sizes = [b for b in floors.options if self._whole(problem, floors, b)]
        self.tables = [self._table(problem, floors, b, kept, max(sizes)) for b in sizes]
        self.pool: list[_Replica] = []
        self.longest_ms = 0.0

    @staticmethod
    def _whole(problem: Problem, floors: Floors, micro_batch: int) -> bool:
        """Whether some replica of this micro-batch can exist: each layer has a row somewhere."""
        return all(
            any(
                (c, tp, micro_batch, layer.hash) in floors.layers
                for c, tp in floors.options[micro_batch]
            )
            for layer in problem.model.layer_types
        )

    def _table(
        self, problem: Problem, floors: Floors, micro_batch: int, kept: list[int], largest: int
    ) -> _Tables:
        layers = problem.model.layers
        message = activation_bytes(problem, micro_batch)
        options = sorted(floors.options[micro_batch])
        rows: list[tuple[int, int]] = []
        time, update, first = [], [], []
        least: list[float] = []
        for c, tp in options:
            found = [floors.layers.get((c, tp, micro_batch, layer.hash)) for layer in layers]
            kind = floors.classes[c]
            rows.append((kept.index(c), tp))
            alone = [kind.host_ms + f.time_ms if f else math.inf for f in found]
            least = alone if not least else [min(pair) for pair in zip(least, alone, strict=True)]
            # A stage cannot hold a layer without a row: `first` says so, by endless memory.
            time.append(np.cumsum([0.0, *(f.time_ms if f else 0.0 for f in found)]))
            update.append(np.cumsum([0.0, *(f.update_ms if f else 0.0 for f in found)]))
            first.append(
                _earliest_starts(
                    [
                        (f.state_bytes, f.activation_bytes, f.transient_bytes)
                        if f
                        else (math.inf, 0.0, 0.0)
                        for f in found
                    ],
                    kind.room_bytes,
                )
            )
        starts = np.searchsorted([c for c, _ in rows], np.arange(len(self.classes) + 1))
        labels = [_labels(kind, micro_batch, largest) for kind in self.classes]
        width = max(len(points) for points in labels)
        host = np.array([self.classes[c].host_ms for c, _ in rows])
        card = np.array([message / kind.nic_bytes_per_ms for kind in self.classes])
        near = [neighbour_send_ms(problem, kind, message) for kind in self.classes]
        farthest = self.latency + card * np.array([points[-1][0] for points in labels])
        sends = max([float(farthest.max()), *(ms for ms in near if math.isfinite(ms))])
        return _Tables(
            micro_batch,
            starts.astype(np.int64),
            np.array([tp for _, tp in rows], np.int64),
            host,
            np.array(time),
            np.array(update),
            np.array(first, np.int64),
            card,
            np.minimum(near, INFINITE),
            _padded([[at_least for at_least, _ in points] for points in labels], width, INFINITE),
            _padded([[share for _, share in points] for points in labels], width, 1.0),
            max(least),
            float(max(host) + max(prefix[-1] for prefix in time) + 2 * sends),
        )

    def improve(self, proven_ms: float, pipe_ms: float, points: int = 14) -> float:
        """The least iteration time that no plan is below, in ms; at least proven_ms.

        proven_ms, pipe_ms: proven bounds of iteration and of X. points: values of X at which
        prices are sought; ends sooner when the bound is within GAP of the best that fractional
        replicas reach.
        """
        end = self._scale(proven_ms, pipe_ms)
        if not math.isfinite(end) or end <= proven_ms:
            return end
        self.longest_ms = end  # a longer X is no shorter an iteration
        proofs: list[_Proof] = []
        for x, margin in ((pipe_ms, COARSE_MARGIN), (end, LAST_MARGIN), (0.9 * end, COARSE_MARGIN)):
            proof = self._prove(max(x, pipe_ms), margin)
            if proof is not None and not any(p.pipe_ms == proof.pipe_ms for p in proofs):
                proofs.append(proof)
        while True:
            reached = min([end, *(proof.reached for proof in proofs if proof.reached)])
            lowest = self._lowest(proofs, pipe_ms)
            done = lowest.value >= (1 - GAP) * reached or len(proofs) >= points
            if done or lowest.width < 1e-3 * pipe_ms:
                break
            x, margin = lowest.pipe_ms, PRICE_MARGIN
            if lowest.weakest is not None:
                # Its own prices leave this open, not the distance to the next: find better ones.
                margin = min(PRICE_MARGIN, lowest.weakest.margin / 5)
                proofs.remove(lowest.weakest)
            proof = self._prove(x, margin)
            while proof is not None and self._says_little(proof, reached) and points > len(proofs):
                # X is just too short for the batch: the margin hides it. Look at a longer one.
                points -= 1
                x = (x + min([end, *(p.pipe_ms for p in proofs if p.pipe_ms > x)])) / 2
                proof = self._prove(x, margin)
            if proof is None:
                break
            proofs.append(proof)
        return max(proven_ms, lowest.value * (1 - 1e-9))

    def _scale(self, proven_ms: float, pipe_ms: float) -> float:
        """An X + G that fractions of replicas reach, so that X need not be sought beyond it.

        inf where there are no replicas at all. Fills the pool with replicas on the way.
        """
        if not self.tables:
            return math.inf
        if min(table.least_slowest_ms for table in self.tables) <= 0:
            return proven_ms  # layers that take no time: no number of micro-batches is too many
        x = 1.15 * pipe_ms
        self.longest_ms = 2 * max(proven_ms, x)
        while True:
            proof = self._prove(x, LAST_MARGIN)
            if proof is None:
                return self.longest_ms
            if proof.reached is not None:
                return max(proof.reached, pipe_ms)
            if not self.pool and self.longest_ms > max(t.longest_stage_ms for t in self.tables):
                return math.inf
            x *= 1.2
            self.longest_ms = max(self.longest_ms, 1.5 * x)

    def _says_little(self, proof: _Proof, reached: float) -> bool:
        shown = proof.pipe_ms + proof.once_ms(self.batch)
        return proof.reached is None and shown < (1 - GAP) * reached

    def _lowest(self, proofs: list[_Proof], pipe_ms: float) -> _Lowest:
        """The least X + G that the proofs leave open.

        Between two proofs the mean of their prices, weighted by distance, holds as well, because
        the samples of a replica are linear in X. Below the first its own prices hold (a replica
        trains no more in less time); beyond the last, X alone counts.
        """
        if not proofs:
            return _Lowest(pipe_ms, pipe_ms, 0.0)
        ordered = sorted(proofs, key=lambda proof: proof.pipe_ms)
        first, last = ordered[0], ordered[-1]
        found = [_Lowest(last.pipe_ms, last.pipe_ms * 1.05, math.inf)]
        if first.pipe_ms > pipe_ms:
            value = pipe_ms + first.once_ms(self.batch)
            found.append(_Lowest(value, pipe_ms, first.pipe_ms - pipe_ms))
        for a, b in pairwise(ordered):
            if b.pipe_ms > a.pipe_ms:
                found.append(_least_between(a, b, self.batch))
        return min(found, key=lambda lowest: lowest.value)

    def _prove(self, pipe_ms: float, margin: float) -> _Proof | None:
        """Prices that hold at X = pipe_ms for every replica that fits into the longest X.

        margin: by how much they are raised above what the replicas found so far ask for. None
        where the search for replicas does not end.
        """
        for round_ in range(2 * ROUNDS):
            set_ = self._set_prices(pipe_ms)
            if round_ >= ROUNDS:
                margin *= 1.5
            raised = set_.prices * (1 + margin)
            found = self._cheaper(pipe_ms, raised)
            if not found:
                budget = float(raised[GPUS] @ self.gpus)
                budget += float((raised[OUT] + raised[IN]) @ self.nodes)
                # No node pays for more than all layers; the free part of every ring is 1/N of it.
                budget += float(np.max(raised[SYNC] * self.size * self.sync[:, -1]))
                per_ms = float(np.maximum(raised[UPDATE], raised[SYNC]) @ self.gpus)
                reached = None if set_.once_ms is None else pipe_ms + set_.once_ms
                return _Proof(pipe_ms, budget, per_ms, margin, reached)
            self.pool.extend(found)
        return None

    def _set_prices(self, pipe_ms: float) -> _Prices:
        """Duals of: the least G with which fractions of the replicas found train the batch in X.

        Where they train it with G = 0, or less than it whatever G is, the duals of: the most
        samples that they train in X. Raises RunError where the solver fails.
        """
        once_ms, prices = self._solve(pipe_ms, whole_batch=True)
        if prices is None:
            _, prices = self._solve(pipe_ms, whole_batch=False)
        if prices is None:
            raise RunError(f"the linear program of the lower bound failed at X = {pipe_ms} ms")
        return _Prices(prices, once_ms)

    def _solve(self, pipe_ms: float, *, whole_batch: bool) -> tuple[float | None, Array | None]:
        """(G, prices per sample of shape (5, C)) of the replicas found.

        whole_batch: the least G that trains all of it; else the most samples, G being free.
        G None: cannot be done. Prices None: cannot be done, or the batch is trained for nothing.
        """
        count, width = len(self.classes), len(self.pool)
        g, trained, refunds, paid = width, width + 1, width + 2, width + 2 + count
        # Rows: GPUs; update + ring paid <= G; ring - refund <= ring paid; cards out and in.
        rows = np.zeros((PER_CLASS * count + 2, paid + count))
        batch_row, refund_row = PER_CLASS * count, PER_CLASS * count + 1
        for r, replica in enumerate(self.pool):
            rows[:batch_row, r] = replica.figures
            rows[batch_row, r] = -(replica.fixed + replica.per_ms * pipe_ms)
        for c in range(count):
            rows[UPDATE * count + c, g] = -self.gpus[c]
            rows[UPDATE * count + c, paid + c] = 1.0
            rows[SYNC * count + c, paid + c] = -1.0
            rows[SYNC * count + c, refunds + c] = -self.size[c] * self.sync[c, -1]
        rows[batch_row, trained] = 1.0
        rows[refund_row, refunds : refunds + count] = 1.0
        none = np.zeros(count)
        limits = np.concatenate([self.gpus, none, none, self.nodes, self.nodes, [0.0, 1.0]])
        costs = np.zeros(paid + count)
        bounds: list[tuple[float, float | None]] = [(0.0, None)] * (paid + count)
        if whole_batch:
            costs[g] = 1.0
            bounds[trained] = (self.batch, self.batch)
        else:
            costs[trained] = -1.0
        solved = linprog(costs, rows, limits, bounds=bounds, method="highs")
        if not solved.success:
            return None, None
        duals = np.maximum(0.0, -solved.ineqlin.marginals)
        once_ms, per_sample = float(solved.x[g]), duals[batch_row]
        if per_sample <= 1e-12 * pipe_ms:
            return once_ms, None
        return once_ms, duals[:batch_row].reshape(PER_CLASS, count) / per_sample

    def _cheaper(self, pipe_ms: float, prices: Array) -> list[_Replica]:
        """Replicas that cost less than the samples they train in X; empty = there is none."""
        found: list[_Replica] = []
        figures = np.empty(PER_CLASS * len(self.classes) + 2)
        for table in self.tables:
            b = table.micro_batch
            for many in range(1, KEPT_CEILING):
                slowest = self.longest_ms / (FEW * many)
                cost = self._price(table, prices, 0.0, slowest, many, b * many, figures)
                if cost < b * many:
                    found.append(_Replica(float(b * many), 0.0, figures[:-2].copy()))
            for ceiling, low, high in self._pieces(table):
                work = [(low, high)]
                while work:
                    fastest, slowest = work.pop()
                    # b ((X - S) / t + 1) <= b (X / fastest - S / slowest + 1) for t in between.
                    limit = b * (pipe_ms / fastest + 1)
                    cost = self._price(table, prices, b / slowest, slowest, ceiling, limit, figures)
                    if cost >= limit:
                        continue
                    replica = _pipelined(b, figures)
                    if replica.fixed + replica.per_ms * pipe_ms > _worth(prices, replica):
                        found.append(replica)
                    elif slowest / fastest > FINEST_STEP:
                        middle = math.sqrt(fastest * slowest)
                        work += [(fastest, middle), (middle, slowest)]
                    else:
                        # Its samples at the better ends of the step: no replica, but above all.
                        fixed = b * (1 - figures[-2] / slowest)
                        found.append(_Replica(fixed, b / fastest, replica.figures))
                    if len(found) >= NEW_REPLICAS:
                        return found
        return found

    def _pieces(self, table: _Tables) -> list[tuple[int, float, float]]:
        """(ceiling of micro-batches in flight, range of the slowest stage's time) to search.

        Replicas of at least KEPT_CEILING micro-batches; then, for each smaller number, those that
        keep some stage busy for more than 1/FEW of the longest X (the others are counted apart).
        """
        least = table.least_slowest_ms * (1 - 1e-9)
        ranges = [(KEPT_CEILING, least, self.longest_ms / KEPT_CEILING)]
        for many in range(1, KEPT_CEILING):
            low = max(least, self.longest_ms / (FEW * many))
            ranges.append((many, low, self.longest_ms / many))
        found = []
        for ceiling, low, high in ranges:
            if low < high:
                edges = np.geomspace(low, high, math.ceil(math.log(high / low) / PIECE) + 1)
                found += [(ceiling, a, b) for a, b in pairwise(edges.tolist())]
        return found

    def _price(
        self,
        table: _Tables,
        prices: Array,
        weight: float,
        slowest: float,
        ceiling: int,
        limit: float,
        figures: Array,
    ) -> float:
        cost: float = cheapest_replica(
            table.option_from,
            table.option_tp,
            table.option_host,
            table.time,
            table.update,
            table.first,
            self.size,
            self.latency,
            table.card,
            table.near,
            self.sync,
            table.label,
            table.share,
            prices,
            weight,
            slowest,
            ceiling,
            limit,
            figures,
        )
        return cost


def _pipelined(micro_batch: int, figures: Array) -> _Replica:
    """Samples in X of a pipeline: b ((X - sum t) / max t + 1)."""
    total, slowest = figures[-2], figures[-1]
    return _Replica(micro_batch * (1 - total / slowest), micro_batch / slowest, figures[:-2].copy())


def _worth(prices: Array, replica: _Replica) -> float:
    return float(prices.reshape(-1) @ replica.figures)


def _least_between(a: _Proof, b: _Proof, batch: float) -> _Lowest:
    """The least X + G between two proofs.

    The minimum of theta -> X + max(0, (p + q theta) / (r + s theta)) over 0..1: at an end, where
    the slope is 0, or where the fraction reaches 0.
    """
    p, q = batch - a.budget, a.budget - b.budget
    r, s = a.per_ms, b.per_ms - a.per_ms
    width = b.pipe_ms - a.pipe_ms
    candidates = [0.0, 1.0]
    if q:
        candidates.append(-p / q)
    steep = (p * s - q * r) / width
    if s and steep > 0:
        candidates.append((math.sqrt(steep) - r) / s)
    value, theta = min(
        (a.pipe_ms + theta * width + _once_ms(1.0, 1.0 - (p + q * theta), r + s * theta), theta)
        for theta in candidates
        if 0 <= theta <= 1
    )
    end = a if theta == 0 else b if theta == 1 else None
    if end is not None and end.margin > LEAST_MARGIN:
        return _Lowest(value, end.pipe_ms, width, end)
    inside = min(0.85, max(0.15, theta))
    return _Lowest(value, a.pipe_ms + inside * width, width)


def _labels(kind: NodeClass, micro_batch: int, largest: int) -> list[tuple[float, float]]:
    """(bytes leaving the node over own message at least, own share of them at least).

    What leaves a node is a whole number of messages of the smallest micro-batch, 1: the possible
    ratios are multiples of 1/b, cut into steps of at least 1/2. At most `size` messages leave,
    none larger than that of the largest micro-batch.
    """
    step = 1.0 if micro_batch == 1 else 0.5
    points = [1 + step * n for n in range(int((kind.size - 1) / step) + 1)]
    highest = [min(point + step - 1 / micro_batch, kind.size) for point in points]
    highest[-1] = 1 + (kind.size - 1) * largest / micro_batch
    return [(point, 1 / top) for point, top in zip(points, highest, strict=True)]


def _padded(rows: list[list[float]], width: int, filler: float) -> Array:
    return np.array([[*row, *[filler] * (width - len(row))] for row in rows])


def _earliest_starts(memory: list[tuple[float, float, float]], room: float) -> Array:
    """Per micro-batches in flight k and boundary j: the earliest start of a stage that fits.

    memory: state, activation (per micro-batch), transient bytes of each layer. Shape (K+1, Z+1).
    """
    starts = np.zeros((KEPT_CEILING + 1, len(memory) + 1), np.int64)
    for k in range(1, KEPT_CEILING + 1):
        for j in range(1, len(memory) + 1):
            i, held, transient = j, 0.0, 0.0
            while i > 0:
                state, activation, spare = memory[i - 1]
                held += state + k * activation
                transient = max(transient, spare)
                if held + transient > room:
                    break
                i -= 1
            starts[k, j] = i
    return starts
