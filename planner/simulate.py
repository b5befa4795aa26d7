"""Discrete-event simulation of a 1F1B pipeline: the check on the closed form, and its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specs.errors import PlanError


class Action(StrEnum):
    """What a stage does with one micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One micro-batch on one stage, in ms.

    Each pass includes what the stage sends in it: the activation in forward_ms, the gradient of
    its input in backward_ms (the sender is busy while it sends, DESIGN section 6).
    """

    forward_ms: float
    backward_ms: float

    def __post_init__(self) -> None:
        if not (self.forward_ms >= 0 and self.backward_ms >= 0):
            raise PlanError(
                f"a stage takes times of at least 0, got forward {self.forward_ms} ms "
                f"and backward {self.backward_ms} ms"
            )

    @property
    def total_ms(self) -> float:
        """t_s: forward and backward of one micro-batch."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class Event:
    """One pass of one micro-batch on one stage; times in ms from the start of the iteration."""

    stage: int
    action: Action
    micro_batch: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Timeline:
    """Everything one pipeline does in one iteration, in order of start."""

    events: tuple[Event, ...]

    @property
    def makespan_ms(self) -> float:
        """Time from the start to the end of the last backward."""
        return max(event.end_ms for event in self.events)

    def busy_ms(self, stage: int) -> float:
        """Time in which a stage computes or sends."""
        return sum(e.end_ms - e.start_ms for e in self.events if e.stage == stage)


def one_f_one_b_order(stage: int, stages: int, micro_batches: int) -> list[tuple[Action, int]]:
    """The order of passes of one stage: (action, micro-batch).

    min(M, d-s-1) forwards to fill the stages behind it, then one forward and one backward in turn,
    then the backwards that are left (DESIGN section 6).
    """
    warm_up = min(micro_batches, stages - stage - 1)
    order = [(Action.FORWARD, m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        order.append((Action.FORWARD, warm_up + m))
        order.append((Action.BACKWARD, m))
    order.extend((Action.BACKWARD, m) for m in range(micro_batches - warm_up, micro_batches))
    return order


def simulate_1f1b(stages: Sequence[StageTimes], micro_batches: int) -> Timeline:
    """The timeline of a 1F1B pipeline in which every pass starts as early as it can.

    A stage runs its passes one at a time in the order of `one_f_one_b_order`. A forward waits for
    that of the stage before, a backward for that of the stage behind, the last stage's backward
    for its own forward. No gradient synchronisation and no optimizer step.

    Between its bounds (d stages, M micro-batches, t_s = forward + backward):
    max_s (M t_s + sum_{u<s} t_u) <= makespan <= pipe + excess, with `closed_form_ms` and
    `excess_bound_ms`. Raises PlanError for a pipeline without a stage or a micro-batch.
    """
    depth = len(stages)
    if depth == 0 or micro_batches < 1:
        raise PlanError(
            f"a pipeline has a stage and a micro-batch, got {depth} stages "
            f"and {micro_batches} micro-batches"
        )
    orders = [one_f_one_b_order(s, depth, micro_batches) for s in range(depth)]
    ended: dict[tuple[int, Action, int], float] = {}
    free_at = [0.0] * depth
    position = [0] * depth
    events: list[Event] = []
    # Each sweep runs every stage as far as its inputs are known. A forward sweep followed by a
    # backward sweep finishes at least one micro-batch, so this ends.
    while len(events) < 2 * depth * micro_batches:
        for s in (*range(depth), *reversed(range(depth))):
            while position[s] < len(orders[s]):
                action, m = orders[s][position[s]]
                ready = _ready_at(ended, s, depth, action, m)
                if ready is None:
                    break
                times = stages[s]
                start = max(free_at[s], ready)
                duration = times.forward_ms if action is Action.FORWARD else times.backward_ms
                free_at[s] = ended[s, action, m] = start + duration
                events.append(Event(s, action, m, start, free_at[s]))
                position[s] += 1
    events.sort(key=lambda e: (e.start_ms, e.end_ms, e.stage, e.micro_batch))
    return Timeline(tuple(events))


def _ready_at(
    ended: dict[tuple[int, Action, int], float], s: int, depth: int, action: Action, m: int
) -> float | None:
    """When the input of a pass is there; None while that is not known yet."""
    if action is Action.FORWARD:
        return 0.0 if s == 0 else ended.get((s - 1, Action.FORWARD, m))
    if s == depth - 1:
        return ended.get((s, Action.FORWARD, m))
    return ended.get((s + 1, Action.BACKWARD, m))


def closed_form_ms(stages: Sequence[StageTimes], micro_batches: int) -> float:
    """pipe = (M - 1) max_s t_s + sum_s t_s, in ms (DESIGN section 13, 8)."""
    totals = [times.total_ms for times in stages]
    return (micro_batches - 1) * max(totals) + sum(totals)


def least_makespan_ms(stages: Sequence[StageTimes], micro_batches: int) -> float:
    """max_s (M t_s + sum_{u<s} t_u), in ms: no schedule of these stages ends sooner.

    Stage s waits for one forward of the stages before it, works M t_s, and its last backward
    still has to go back through those stages (DESIGN section 13, 8).
    """
    before = 0.0
    least = 0.0
    for times in stages:
        least = max(least, micro_batches * times.total_ms + before)
        before += times.total_ms
    return least


def excess_bound_ms(stages: Sequence[StageTimes], micro_batches: int) -> float:
    """How much 1F1B can at most take beyond the closed form, in ms.

    E = max(0, max_s (min(M - 1, d - s - 1) * max_{u<=s} f_u - sum_{u>s} t_u)).

    DESIGN section 13.8 calls the closed form an upper bound of 1F1B. That holds when forward and
    backward are in one proportion on all stages (tests search for a counterexample), but not in
    general: f = (0, 1, 0), b = (1, 0, 0), M = 2 takes 4 where the closed form says 3, because the
    first backward queues behind the second warm-up forward. What always holds is pipe + E, by
    this schedule with P = max t, w_s = d - s - 1, f and b the passes, k the micro-batch:

      last backward chain: B(s,k) starts at E + sum_u f_u + sum_{u>s} b_u + k P
      forward: F(s,k) starts at max(E + sum_u f_u + sum_{u>=s} b_u - (d - s - k) P,
                                    sum_{u<s} f_u + k max_{u<=s} f_u)

    F(s,k) ends before F(s+1,k) starts, term by term (P >= f_s + b_s). The second term never makes
    F(s,k) late for B(s, k - w_s): that is what E is for. Passes of a stage are at least f_s, b_s
    apart in the order of 1F1B. The last backward ends at pipe + E, and starting passes as early
    as possible in the same order ends no later. E is 0 whenever each stage takes at least the
    longest forward of the stages before it: so for every roughly balanced pipeline.
    """
    depth = len(stages)
    behind = 0.0
    excess = 0.0
    longest = [max(times.forward_ms for times in stages[: s + 1]) for s in range(depth)]
    for s in reversed(range(depth)):
        excess = max(excess, min(micro_batches - 1, depth - s - 1) * longest[s] - behind)
        behind += stages[s].total_ms
    return excess
