"""The search of AMP: every combination of degrees and micro-batch size on equal nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from planner.baselines.amp.inputs import Costed, Inputs, Strategy
from planner.baselines.amp.rules import NoRow, Rules


def divisors(number: int) -> list[int]:
    """Divisors of a number, rising."""
    return [k for k in range(1, number + 1) if number % k == 0]


class AmpSearch:
    """Runs the search and keeps count; `stop` is asked before each strategy."""

    def __init__(
        self, inputs: Inputs, rules: Rules, stop: Callable[[int], bool] = lambda evaluations: False
    ) -> None:
        self.inputs = inputs
        self.rules = rules
        self.stop = stop
        self.evaluations = 0
        self.rejected: Counter[str] = Counter()
        self.finished = False

    def strategies(self) -> Iterator[Strategy]:
        """TP divides a node, DP what is left of all GPUs and the batch, the rest is depth."""
        inputs = self.inputs
        for order in self.rules.orders(inputs):
            ranks = tuple(node for node in order for _ in range(inputs.per_node))
            for tp in divisors(inputs.per_node):
                for dp in divisors(inputs.gpus // tp):
                    pp = inputs.gpus // (tp * dp)
                    if inputs.global_batch % dp:
                        self.rejected["batch does not divide"] += 1
                        continue
                    if pp > inputs.layers:
                        self.rejected["more stages than layers"] += 1
                        continue
                    for micro_batch in divisors(inputs.global_batch // dp):
                        yield Strategy(micro_batch, tp, dp, pp, ranks)

    def run(self) -> list[Costed]:
        """Every strategy that is costed, fastest first; of equals the first found."""
        found: list[Costed] = []
        for strategy in self.strategies():
            if self.stop(self.evaluations):
                return _ranked(found)
            try:
                bounds = self.rules.split(self.inputs, strategy)
            except NoRow as missing:
                self.rejected[str(missing)] += 1
                continue
            self.evaluations += 1
            if bounds is None:
                self.rejected["memory"] += 1
                continue
            cost = self.rules.cost_ms(self.inputs, strategy, bounds)
            found.append(Costed(cost, strategy, bounds))
        self.finished = True
        return _ranked(found)


def _ranked(found: list[Costed]) -> list[Costed]:
    return sorted(found, key=lambda costed: costed.cost_ms)
