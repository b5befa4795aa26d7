"""The search of Metis: groups of GPUs from outside in, data before tensor parallelism inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from planner.baselines.metis.inputs import Costed, Inputs, Layout
from planner.baselines.metis.rules import Partition, Rules
from planner.baselines.metis.stages import NoRow


class MetisSearch:
    """Runs the search and keeps count; `stop` is asked before each layout."""

    def __init__(
        self, inputs: Inputs, rules: Rules, stop: Callable[[int], bool] = lambda evaluations: False
    ) -> None:
        self.inputs = inputs
        self.rules = rules
        self.stop = stop
        self.evaluations = 0
        self.rejected: Counter[str] = Counter()
        self.finished = False

    def run(self) -> Iterator[Costed]:
        """Every plan that is costed, as it is found.

        For every order of GPU types, number of stages, groups of GPUs and divisor of the batch
        (micro-batches, most first): the (DP, TP) of the stages from pure data parallelism on.
        """
        batch = self.inputs.global_batch
        divisors = [m for m in range(batch, 0, -1) if batch % m == 0]
        for order, count in self.rules.passes(self.inputs):
            ranks = self.inputs.ranks(order)
            for groups in self.rules.groups(self.inputs, count.groups):
                degrees = tuple((size, 1) for size in groups)
                for micro_batches in divisors:
                    if self.stop(self.evaluations):
                        return
                    first = Layout(order, ranks, groups, degrees, micro_batches)
                    yield from self._degrees(first, count.costed)
        self.finished = True

    def _degrees(self, layout: Layout, costed: int) -> Iterator[Costed]:
        """Costed plans of one layout and those that follow from it.

        The first that is split without giving way to memory ends it. Otherwise one stage halves
        its DP and doubles its TP degree: of those with DP left the one with least free memory, or,
        where the last attempt found no split, with the largest DP degree.
        """
        current: Layout | None = layout
        free: tuple[float, ...] | None = None
        while current is not None:
            complaint, mendable = self.rules.complaint(self.inputs, current)
            if complaint:
                self.rejected[complaint] += 1
                if not mendable:
                    return
            else:
                try:
                    found = self.rules.partition(self.inputs, current)
                    costed_plan = self._cost(current, found, costed)
                except NoRow as missing:
                    # More TP of one stage never brings back a size that another has outgrown.
                    self.rejected[str(missing)] += 1
                    return
                if found is not None and costed_plan is not None:
                    yield costed_plan
                    if found.at_once:
                        return
                free = None if found is None else found.free
            current = self._next(current, free)

    def _cost(self, layout: Layout, found: Partition | None, costed: int) -> Costed | None:
        self.evaluations += 1
        if found is None:
            self.rejected["memory"] += 1
            return None
        cost = self.rules.cost_ms(self.inputs, layout, found.bounds, costed)
        return Costed(cost, layout, found.bounds)

    def _next(self, layout: Layout, free: tuple[float, ...] | None) -> Layout | None:
        degrees = layout.degrees
        order = sorted(
            range(len(degrees)), key=lambda k: free[k] if free is not None else 1 / degrees[k][0]
        )
        for k in order:
            dp, tp = degrees[k]
            if dp > 1:
                changed = (*degrees[:k], (dp // 2, tp * 2), *degrees[k + 1 :])
                return Layout(
                    layout.order, layout.ranks, layout.groups, changed, layout.micro_batches
                )
        return None
