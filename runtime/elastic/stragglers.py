"""Which process is slower than its work explains, for long enough to be no accident."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from specs.layout import ranks_of
from specs.plan import Plan

WINDOW = 5  # iterations in a row


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose computation takes `factor` times what the others' says it should."""

    rank: int
    node: str
    gpu: int
    factor: float


class StragglerWatch:
    """Watches the computation of every rank of one plan.

    A rank's work is what its stage was predicted to compute, times its micro-batches; of a plan
    without prediction, its parameters times its samples. Its pace is its time over its work. It
    is a straggler where its pace was more than `factor` times the median of the others' in each of
    the last WINDOW iterations.
    """

    def __init__(self, plan: Plan, factor: float) -> None:
        self.plan = plan
        self.factor = factor
        self._work = _work_of(plan)
        self._slow: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))

    def add(self, compute_ms: Mapping[int, float]) -> Straggler | None:
        """One more iteration, ms of forward and backward by rank; the slowest straggler.

        Without collectives inside layers: there the others of a group wait for the slow one.
        """
        if len(compute_ms) < 2 or len(compute_ms) < len(self._work):
            return None
        pace = {rank: ms / self._work[rank] for rank, ms in compute_ms.items()}
        for rank, own in pace.items():
            others = median(other for r, other in pace.items() if r != rank)
            self._slow[rank].append(own / others if others > 0 else 1.0)
        worst: Straggler | None = None
        for place in ranks_of(self.plan):
            factors = self._slow[place.rank]
            if len(factors) == WINDOW and min(factors) > self.factor:
                found = Straggler(place.rank, place.node, place.gpu, median(factors))
                if worst is None or found.factor > worst.factor:
                    worst = found
        return worst


def _work_of(plan: Plan) -> dict[int, float]:
    found = {}
    for place in ranks_of(plan):
        template = plan.templates[place.template]
        replica = template.replicas[place.replica]
        if plan.prediction is not None:
            each = plan.prediction.stages[place.template][place.stage].compute_ms
            found[place.rank] = each * replica.micro_batches
        else:
            stage = template.stages[place.stage]
            parameters = sum(plan.model.layers[i].parameters for i in stage.layers) / stage.tp
            found[place.rank] = parameters * template.samples(replica)
    return found
