"""The certificate: how fast any plan of this cost model could be at most.

`certificate` gives a lower bound on the iteration time of every plan that fits: any number of
templates, any depth, split, DP, TP and EP degree, micro-batch and placement. Two proofs stand
behind it. This file has the closed one of DESIGN section 13, 24 to 26, which takes milliseconds;
planner/replica_bound.py has the stronger one, which takes seconds, and whose proof is in
docs/decisions/0003-certificate.md.

Proof of the closed bound. B samples, N GPUs in classes c of n_c GPUs (nodes alike but for their
network card); a plan has R replicas in all, X ms for its slowest pipeline, G ms for what comes
once: its iteration is X + G.

1. Work. tau*(c,l) is the least t (forward + backward + comm) / b of layer l over the TP degrees
   and micro-batches that have a profile and fit one layer (MoE: over all expert tilings too).
   With x_cl samples of layer l trained on class c, every plan is a point of the linear program
   min P, sum_c x_cl = B count_l, sum_l tau* x_cl <= n_c P. So X >= P. Its duals pi_c >= 0 have
   sum n_c pi_c = 1 and sum_l count_l min_c pi_c tau*(c,l) = P/B =: Y, for: any replica spends, at
   prices pi, at least Y per sample.
2. Bubbles. A pipeline takes X >= M t_s + sum_{u != s} t_u for each of its stages s. Weighted with
   w_s = pi tp_s and summed: Pi_r X >= (work of replica r) + sum_s w_s (sum_u t_u - t_s), where
   Pi_r = sum_s w_s. All w_s <= w = max_c pi_c tp_max(c), so the second sum is at least
   W (Pi_r / w - 1), W = sum_s w_s t_s >= Y; and it is never negative. Over all replicas, with
   sum Pi_r <= 1: X >= P + (Y/w) max(0, 1 - R w) =: Q. (Less than 1: both sides scale.)
3. Host overhead. Each GPU of a replica also pays host_ms per micro-batch: S_r/b_max Pi_r h more
   for S_r samples. From S_r Y <= Pi_r X and Cauchy-Schwarz sum S_r Pi_r >= (Y/X) sum S_r^2 >=
   Y B^2 / (R X), so X >= Q + P K / X with K = (B/R) h / b_max:
   X >= (Q + sqrt(Q^2 + 4 P K)) / 2.
4. Once. Some replica has at most N/R GPUs; each layer is on at least one of them, so one of its
   GPUs has at least G_model R/N bytes of gradients and U R/N ms of updates, U = sum_l min t
   update_l. A layer on N_l >= ceil(R/m) nodes (m GPUs in the largest) takes 2 (N_l-1)/N_l bytes /
   nic; on one node at least its bytes / bus. G >= (f G_model/bw + U) R/N with f = 0 for R = 1, 1
   for R <= m (bw the fastest card or bus), else 2 (1 - 1/ceil(R/m)) (bw the fastest card).
5. The bound is the least over R = 1..N of the sum of 3 and 4.

What it leaves out: transfers between stages, network cards shared by them, whole layers, memory
beyond one layer, embedding and head in one place. The stronger proof has these; it leaves out
that micro-batches are whole, that all replicas of a template are alike and where groups pack, and
what a receiving node's card and the all-gather behind it take. Of routed experts both leave out
dispatch, combine and gradient synchronisation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from planner.floors import Floors, gradient_bytes, require_layers
from planner.problem import Problem

LEFT_OUT = (
    "whole micro-batches, equal replicas of a template, packing, receiving network cards and the "
    "all-gather behind them, dispatch and synchronisation of routed experts"
)


@dataclass(frozen=True)
class ClosedBound:
    """The bound of section 13, 24 to 26; times in ms.

    iteration_ms: no plan is faster; inf where no layer fits anywhere. work_ms: P, total work at
    the best rates that the mix of GPUs allows. pipe_ms: no pipeline is faster, whatever R.
    replicas: the R that the bound is attained at. prices: pi per GPU of each class, in the order
    of `Floors.classes`.
    """

    iteration_ms: float
    work_ms: float
    pipe_ms: float
    replicas: int
    prices: tuple[float, ...]


@dataclass(frozen=True)
class Certificate:
    """A proven lower bound on the iteration time of every plan of a problem, in ms.

    iteration_ms: the best that was proven. closed_ms: of it, by the closed formula alone.
    left_out: what a plan also has to pay and the bound does not count.
    """

    iteration_ms: float
    closed_ms: float
    left_out: str = LEFT_OUT

    def gap(self, iteration_ms: float) -> float:
        """By what share an iteration time lies above the bound: the most it could still gain."""
        return iteration_ms / self.iteration_ms - 1


def certificate(problem: Problem, *, points: int = 14) -> Certificate:
    """The best lower bound that is proven for a problem.

    points: effort of the stronger proof, in lengths of the pipeline at which it is sought; 0 =
    the closed bound alone, in milliseconds. Deterministic. Raises ProfileMissing where a layer
    type has no profile on any GPU of the cluster.
    """
    floors = Floors.of(problem)
    closed = closed_bound(problem, floors)
    best = closed.iteration_ms
    if points > 0 and math.isfinite(best):
        # Compiled code is loaded only where it is used: the closed bound must stay quick to import.
        from planner.replica_bound import ReplicaBound

        best = ReplicaBound(problem, floors).improve(best, closed.pipe_ms, points)
    return Certificate(best, closed.iteration_ms)


def closed_bound(problem: Problem, floors: Floors | None = None) -> ClosedBound:
    """The lower bound of DESIGN section 13, 24 to 26; the proof stands at the top of this file.

    Raises ProfileMissing where a layer type has no profile on any GPU of the cluster.
    """
    floors = floors or Floors.of(problem)
    require_layers(problem, floors)
    work = _work(problem, floors)
    if work is None:
        return ClosedBound(math.inf, math.inf, math.inf, 0, (0.0,) * len(floors.classes))
    work_ms, prices = work
    batch = problem.workload.global_batch
    classes = floors.classes
    widest = [0] * len(classes)
    for options in floors.options.values():
        for c, tp in options:
            widest[c] = max(widest[c], tp)
    heaviest = max(price * tp for price, tp in zip(prices, widest, strict=True))
    # Every replica trains at least one sample.
    replicas = np.arange(1, min(sum(kind.gpus for kind in classes), batch) + 1)
    per_sample = work_ms / batch
    bubbles = work_ms + per_sample / heaviest * np.maximum(0.0, 1 - replicas * heaviest)
    host = min(kind.host_ms for c, kind in enumerate(classes) if widest[c])
    overhead = batch / replicas * host / max(floors.options)
    pipe = (bubbles + np.sqrt(bubbles**2 + 4 * work_ms * overhead)) / 2
    total = pipe + _once_ms(problem, floors, replicas)
    best = int(np.argmin(total))
    return ClosedBound(
        float(total[best]) * (1 - 1e-12),  # rounding
        work_ms,
        float(pipe.min()) * (1 - 1e-12),
        int(replicas[best]),
        prices,
    )


def _work(problem: Problem, floors: Floors) -> tuple[float, tuple[float, ...]] | None:
    """P and its prices pi by the linear program of 13.24; None where some layer fits nowhere.

    P is computed from the prices, B * sum_l count_l min_c pi_c tau*(c,l): so the solver's
    tolerance can make it a little smaller, never too large.
    """
    counts = Counter(problem.model.layers)
    classes = floors.classes
    rates = np.full((len(classes), len(counts)), math.inf)  # tau*
    for c in range(len(classes)):
        for n, layer in enumerate(counts):
            for tp, b, floor in floors.fitting(c, layer):
                rates[c, n] = min(rates[c, n], tp * floor.time_ms / b)
    if np.isinf(rates).all(axis=0).any():
        return None
    width = rates.size
    busy = np.zeros((len(classes), width + 1))
    trained = np.zeros((len(counts), width + 1))
    bounds: list[tuple[float, float | None]] = []
    for c, kind in enumerate(classes):
        busy[c, -1] = -kind.gpus
        for n in range(len(counts)):
            possible = math.isfinite(rates[c, n])
            if possible:
                busy[c, c * len(counts) + n] = rates[c, n]
                trained[n, c * len(counts) + n] = 1.0
            bounds.append((0.0, None if possible else 0.0))
    costs = np.zeros(width + 1)
    costs[-1] = 1.0
    demand = np.array(list(counts.values()), float)
    solved = linprog(
        costs,
        busy,
        np.zeros(len(classes)),
        trained,
        demand,
        [*bounds, (0.0, None)],
        method="highs",
    )
    prices = np.maximum(0.0, -solved.ineqlin.marginals)
    spent = float(prices @ np.array([kind.gpus for kind in classes], float))
    if not spent > 0:
        return 0.0, (1 / sum(kind.gpus for kind in classes),) * len(classes)
    prices /= spent
    with np.errstate(invalid="ignore"):
        paid = np.where(np.isinf(rates), math.inf, prices[:, None] * rates)
    work = problem.workload.global_batch * float(demand @ paid.min(axis=0))
    return work, tuple(float(price) for price in prices)


def _once_ms(problem: Problem, floors: Floors, replicas: np.ndarray) -> np.ndarray:
    """Step 4 of the proof, for every R of `replicas`, in ms."""
    classes = floors.classes
    counts = Counter(problem.model.layers)
    update = 0.0
    for layer, count in counts.items():
        least = [
            tp * floor.update_ms
            for c in range(len(classes))
            for tp, _, floor in floors.fitting(c, layer)
        ]
        update += count * min(least)
    card = max(kind.nic_bytes_per_ms for kind in classes)
    buses = [problem.profiles.bus_bytes_per_ms(kind.gpu, kind.topology) for kind in classes]
    fastest = max(card, *(math.inf if bus is None else bus for bus in buses))
    largest = max(kind.size for kind in classes)
    nodes = np.ceil(replicas / largest)
    ring = np.where(replicas <= largest, 1.0 / fastest, 2 * (1 - 1 / nodes) / card)
    ring = np.where(replicas == 1, 0.0, ring)
    gpus = sum(kind.gpus for kind in classes)
    once: np.ndarray = (ring * sum(gradient_bytes(problem)) + update) * replicas / gpus
    return once


@dataclass(frozen=True)
class Candidate:
    """A priced template, one replica of it: GPUs by type, times in ms.

    sum_ms, max_ms: of its stage times t_s. once_ms: its largest gradient synchronisation and
    update.
    """

    micro_batch: int
    gpus: Mapping[str, int]
    sum_ms: float
    max_ms: float
    once_ms: float = field(default=0.0)

    def samples(self, iteration_ms: float) -> float:
        """Samples that one replica trains in an iteration, with fractions of micro-batches."""
        left = iteration_ms - self.once_ms - self.sum_ms
        return self.micro_batch * (1 + left / self.max_ms) if left >= 0 else 0.0


def relaxed_packing(problem: Problem, candidates: Sequence[Candidate]) -> float:
    """Iteration time if fractions of replicas of these templates could be mixed freely, in ms.

    The least T for which some mix r_k >= 0 with sum_k r_k gpus_k <= the GPUs of each type trains
    sum_k r_k samples_k(T) >= B. Only the templates given count, so this is no proof: it says how
    much a better mix of what was tried could gain (DESIGN section 13, 26). inf without candidates.
    """
    if not candidates:
        return math.inf
    available = problem.cluster.gpus_by_type
    held = np.array([[one.gpus.get(gpu, 0) for one in candidates] for gpu in available], float)
    limits = np.array(list(available.values()), float)
    batch = problem.workload.global_batch

    def enough(iteration_ms: float) -> bool:
        samples = np.array([one.samples(iteration_ms) for one in candidates])
        solved = linprog(-samples, held, limits, method="highs")
        return bool(solved.success and -solved.fun >= batch)

    low = 0.0
    high = min(
        one.once_ms + one.sum_ms + math.ceil(batch / one.micro_batch) * one.max_ms
        for one in candidates
    )
    while not enough(high):
        # One replica of a candidate that needs more GPUs than there are: only a fraction exists.
        low, high = high, 2 * high
        if not math.isfinite(high):
            return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
