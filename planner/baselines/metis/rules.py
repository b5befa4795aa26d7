"""What Metis asks of a layout: does it exist, how are its layers split, what does it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Protocol

from planner.baselines.metis.balance import StageLimits, balanced
from planner.baselines.metis.groups import device_groups
from planner.baselines.metis.inputs import Inputs, Layout
from planner.baselines.metis.stages import NoRow, StageWork, stage_work

# GPU type of each rank, (DP, TP), micro-batches.
StageKey = tuple[tuple[str, ...], tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class StageCount:
    """A number of stages to try, and how many of them the cost counts (for a fault: not all)."""

    groups: int
    costed: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A layer split. at_once: found without giving way to memory. free: memory left per stage."""

    bounds: tuple[int, ...]
    at_once: bool
    free: tuple[float, ...]


class Rules(Protocol):
    """How the search is answered; the released code's own answers live in tests."""

    def passes(self, inputs: Inputs) -> Iterator[tuple[tuple[str, ...], StageCount]]:
        """Orders of the GPU types with numbers of stages, as they are searched."""

    def groups(self, inputs: Inputs, stages: int) -> Iterator[tuple[int, ...]]:
        """GPUs of each stage."""

    def complaint(self, inputs: Inputs, layout: Layout) -> tuple[str, bool]:
        """Why a layout is none ("" where it is one), and whether more TP could mend it."""

    def partition(self, inputs: Inputs, layout: Layout) -> Partition | None:
        """The layer split; None where memory allows none. Raises NoRow."""

    def cost_ms(self, inputs: Inputs, layout: Layout, bounds: Sequence[int], costed: int) -> float:
        """Iteration time. Raises NoRow."""


class Intended:
    """Metis as its paper means it; what was corrected stands in the package's docstring."""

    def __init__(self, variance: float, most_permuted: int) -> None:
        self.variance = variance
        self.most_permuted = most_permuted
        self._stages: dict[StageKey, StageWork | NoRow] = {}
        self._limits: dict[tuple[StageKey, int], StageLimits] = {}

    def passes(self, inputs: Inputs) -> Iterator[tuple[tuple[str, ...], StageCount]]:
        """Few stages before many; for each number all orders of types, the cluster file's first.

        (Metis goes through all numbers of stages before it takes the next order of types.)
        """
        for stages in range(1, min(inputs.gpus, inputs.layers) + 1):
            for order in permutations(inputs.types):
                yield order, StageCount(stages, stages)

    def groups(self, inputs: Inputs, stages: int) -> Iterator[tuple[int, ...]]:
        """Groups of like size."""
        yield from device_groups(inputs.gpus, stages, self.variance, self.most_permuted)

    def complaint(self, inputs: Inputs, layout: Layout) -> tuple[str, bool]:
        """Every replica has a sample, and every TP group lies in one node."""
        for stage, (_, tp) in enumerate(layout.degrees):
            span = layout.span(stage)
            if any(span[i] != span[i + tp - 1] for i in range(0, len(span), tp)):
                return "a TP group across nodes", False
        if any(inputs.global_batch // dp < layout.micro_batches for dp, _ in layout.degrees):
            return "less than one sample a micro-batch", True
        return "", True

    def _work(self, inputs: Inputs, layout: Layout, stage: int) -> StageWork:
        key = _stage_key(inputs, layout, stage)
        found = self._stages.get(key)
        if found is None:
            try:
                found = stage_work(inputs, layout, stage)
            except NoRow as missing:
                found = missing
            self._stages[key] = found
        if isinstance(found, NoRow):
            raise found
        return found

    def _limit(self, inputs: Inputs, layout: Layout, stage: int) -> StageLimits:
        flight = min(layout.micro_batches, len(layout.groups) - stage)
        key = _stage_key(inputs, layout, stage), flight
        found = self._limits.get(key)
        if found is None:
            found = _limits(inputs, flight, self._work(inputs, layout, stage))
            self._limits[key] = found
        return found

    def partition(self, inputs: Inputs, layout: Layout) -> Partition | None:
        """The fastest split within memory, of min(M, S - k) micro-batches in flight at stage k."""
        limits = [self._limit(inputs, layout, k) for k in range(len(layout.groups))]
        at_once = True
        bounds = balanced(limits, inputs.layers, memory=False)
        free = _free(limits, bounds)
        if bounds is None or min(free) < 0:
            at_once = False
            bounds = balanced(limits, inputs.layers)
            if bounds is None:
                return None
            free = _free(limits, bounds)
        return Partition(bounds, at_once, free)

    def cost_ms(self, inputs: Inputs, layout: Layout, bounds: Sequence[int], costed: int) -> float:
        """(M-1) max e + sum e + M overhead + slowest update + slowest gradient ring + sends.

        e: stage times. Overhead: of one micro-batch on the last stage. A ring of dp replicas takes
        2 (dp-1)/dp * gradient bytes / tp / its slowest link; a send its bytes over the slowest
        link between the nodes of both stages, counted once. Source: Metis (USENIX ATC '24).
        """
        micro_batches = layout.micro_batches
        works = [self._work(inputs, layout, k) for k in range(costed)]
        times = [works[k].time_ms(bounds[k], bounds[k + 1]) for k in range(costed)]
        overhead = max(rows.overhead_ms for rows in works[-1].rows())
        update = ring = sends = 0.0
        for k in range(costed):
            first, end = bounds[k], bounds[k + 1]
            dp, tp = layout.degrees[k]
            slowest = max(rows.update_ms[end] - rows.update_ms[first] for rows in works[k].rows())
            update = max(update, slowest)
            span = layout.span(k)
            if dp > 1:
                nbytes = (inputs.gradient_bytes[end] - inputs.gradient_bytes[first]) / tp
                speed = min(link(inputs, span[i::tp]) for i in range(tp))
                ring = max(ring, 2 * (dp - 1) / dp * nbytes / speed)
            if k + 1 < costed:
                speed = link(inputs, (*span, *layout.span(k + 1)))
                sends += inputs.activation_bytes * max(works[k].samples) / speed
        execution = (micro_batches - 1) * max(times) + sum(times)
        return execution + micro_batches * overhead + update + ring + sends


def link(inputs: Inputs, nodes: Sequence[int]) -> float:
    """Bytes/ms of the slowest link among ranks on these nodes."""
    distinct = set(nodes)
    if len(distinct) == 1:
        return inputs.nodes[nodes[0]].intra
    return min(inputs.nodes[node].inter for node in distinct)


def _free(limits: Sequence[StageLimits], bounds: Sequence[int] | None) -> tuple[float, ...]:
    if bounds is None:
        return ()
    return tuple(limit.free(*pair) for limit, pair in zip(limits, pairwise(bounds), strict=True))


def _stage_key(inputs: Inputs, layout: Layout, stage: int) -> StageKey:
    types = tuple(inputs.nodes[node].gpu for node in layout.span(stage))
    return types, layout.degrees[stage], layout.micro_batches


def _limits(inputs: Inputs, flight: int, work: StageWork) -> StageLimits:
    columns = range(inputs.layers + 1)
    times, memory = [], []
    for gpu, pieces in work.pieces:
        if not pieces:
            continue
        times.append(tuple(sum(rows.times[i] for rows in pieces) for i in columns))
        held = tuple(
            pieces[0].held[i] + flight * sum(rows.kept[i] for rows in pieces) for i in columns
        )
        memory.append((held, inputs.room[gpu]))
    return StageLimits(tuple(times), tuple(memory))
