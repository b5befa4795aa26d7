"""Monte Carlo tree search over the decisions of a plan, with a forest that picks rollouts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.baselines.hetauto.choices import STOP, Choices, Partial
from planner.baselines.hetauto.forest import Forest
from planner.filled import FilledTemplate
from planner.kernel.engine import Engine
from planner.search import Search

Floats = NDArray[np.float64]
EXPLORATION = 1.4  # c of the tree policy
BEST_VALUE = 2.0  # values are clipped to [0, 2]
TREES = 20
FIT_FROM = 64  # templates priced before the forest is fitted, and again at each doubling
FIT_ON = 1024  # the last so many
DRAWN = 4  # completions of which the forest picks one
IDLE = 1_000


@dataclass
class Node:
    """A state of the tree. actions, priors: what may follow; children: what has been tried."""

    actions: list[int]
    priors: Floats
    children: dict[int, Node] = field(default_factory=dict)
    visits: int = 0
    total: float = 0.0
    best: float = 0.0

    @property
    def value(self) -> float:
        """Half the mean and half the best of what was found below."""
        return (self.total / self.visits + self.best) / 2 if self.visits else 0.0


@dataclass(frozen=True)
class Filled:
    """A template as filled behind others, and the iteration of the plan so far; -1 = none fits."""

    time_ms: float
    template: FilledTemplate | None


class TreeSearch:
    """The search. A plan is decided template after template; each is filled by the shared rules."""

    def __init__(self, engine: Engine, search: Search, seed: int) -> None:
        self.engine = engine
        self.search = search
        self.choices = Choices(engine)
        self.forest = Forest(TREES, seed)
        self.simulations = 0
        self._draw = np.random.default_rng(seed)
        self._filled: dict[tuple[tuple[int, ...], ...], Filled] = {}
        self._rows: list[Floats] = []
        self._times: list[float] = []
        self._fit_at = FIT_FROM
        self._baseline_ms = 0.0
        self._free0 = tuple(node.gpus for node in engine.problem.cluster.nodes)
        self.root = self._depth_node(self.choices.start(self._free0), first=True)

    def run(self) -> bool:
        """Simulate until the budget is spent; whether it came to an end before.

        That is where nothing can be decided, or IDLE simulations in a row met nothing new.
        """
        idle = 0
        while not self.search.spent:
            if not self.root.actions or idle == IDLE:
                return True
            before = self.engine.evaluations
            self._simulate()
            self.simulations += 1
            idle = 0 if self.engine.evaluations > before else idle + 1
        return False

    def _depth_node(self, start: Partial, first: bool) -> Node:
        actions, weights = self.choices.depths(start, first)
        return Node(actions, _normalised(weights))

    def _stage_node(self, partial: Partial) -> Node:
        actions, weights = self.choices.stages(partial)
        return Node(actions, _normalised(weights))

    def _select(self, node: Node) -> int:
        """The action with the largest value + c P sqrt(N) / (1 + n)."""
        best, chosen = -np.inf, node.actions[0]
        root = np.sqrt(node.visits + 1)
        for action, prior in zip(node.actions, node.priors, strict=True):
            child = node.children.get(action)
            visits = child.visits if child else 0
            value = child.value if child else 0.0
            score = value + EXPLORATION * prior * root / (1 + visits)
            if score > best:
                best, chosen = score, action
        return chosen

    def _simulate(self) -> None:
        """Walk to a new node, complete the plan from there, and pass the value back."""
        path = [self.root]
        structures: list[tuple[int, ...]] = []
        best_ms = np.inf
        inside = True  # whether the tree knows where we are
        node = self.root
        free = self._free0
        while len(structures) < self.engine.templates and not self.search.spent:
            start = self.choices.start(free)
            if inside:
                depth = self._select(node) if node.actions else STOP
            else:
                depth = self._drawn(*self.choices.depths(start, not structures))
            partial = Partial(depth, (), start.free)
            if inside:
                inside, node = self._descend(path, node, depth, partial, bool(structures))
            if depth == STOP:
                break
            while inside and not partial.done and node.actions:
                q = self._select(node)
                partial = self.choices.add(partial, q)
                inside, node = self._descend(path, node, q, partial, bool(structures))
            if not partial.done:
                completed = self._complete(partial, len(structures))
                if completed is None:
                    break
                partial = completed
                inside = False
            structures.append(partial.kinds)
            filled = self._fill(tuple(structures))
            if filled.template is None or filled.time_ms >= best_ms:
                break
            best_ms = filled.time_ms
            free = tuple(self._left(structures))
            if inside and not node.actions:
                node.actions, weights = self.choices.depths(self.choices.start(free), False)
                node.priors = _normalised(weights)
        self._back_up(path, best_ms)

    def _descend(
        self, path: list[Node], node: Node, action: int, partial: Partial, later: bool
    ) -> tuple[bool, Node]:
        """The child of an action; new ones end the walk inside the tree."""
        known = action in node.children
        if not known:
            if partial.done or partial.depth == STOP:
                node.children[action] = Node([], np.zeros(0))  # told what follows once filled
            else:
                node.children[action] = self._stage_node(partial)
        child = node.children[action]
        path.append(child)
        return known, child

    def _drawn(self, actions: list[int], weights: Floats) -> int:
        if not actions:
            return STOP
        return actions[int(self._draw.choice(len(actions), p=_normalised(weights)))]

    def _complete(self, partial: Partial, earlier: int) -> Partial | None:
        """A template completed at random by the priors; of several the forest's favourite."""
        count = DRAWN if self.forest.trees else 1
        found = []
        for _ in range(count):
            drawn = partial
            while not drawn.done:
                actions, weights = self.choices.stages(drawn)
                if not actions:
                    break
                drawn = self.choices.add(drawn, self._drawn(actions, weights))
            if drawn.done:
                found.append(drawn)
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        rows = [self.choices.features(drawn.kinds, earlier) for drawn in found]
        predicted = [self.forest.predict(row) for row in rows]
        return found[int(np.argmin(predicted))]

    def _earlier(self, structures: tuple[tuple[int, ...], ...]) -> list[FilledTemplate]:
        found = []
        for k in range(1, len(structures) + 1):
            template = self._filled[structures[:k]].template
            assert template is not None  # a plan goes on only behind what fits
            found.append(template)
        return found

    def _left(self, structures: list[tuple[int, ...]]) -> list[int]:
        left = list(self._free0)
        for template in self._earlier(tuple(structures)):
            for row in template.nodes:
                for stage, node in zip(template.stages, row, strict=True):
                    left[node] -= stage.tp
        return left

    def _fill(self, structures: tuple[tuple[int, ...], ...]) -> Filled:
        """Fill the last of these templates behind the others; known ones cost nothing."""
        found = self._filled.get(structures)
        if found is not None:
            return found
        k = len(structures) - 1
        earlier = self._earlier(structures[:-1])
        self.engine.lay(earlier)
        before = self.engine.evaluations
        time_ms = self.engine.fill(k, np.array(structures[-1], np.int64))
        self.search.count(self.engine.evaluations - before, ())
        template = self.engine.template(k) if time_ms > 0 else None
        found = Filled(time_ms, template)
        self._filled[structures] = found
        if template is not None:
            self.search.offer(time_ms, [*earlier, template])
            self._baseline_ms = self._baseline_ms or time_ms
            self._learn(structures[-1], k, time_ms)
        return found

    def _learn(self, kinds: tuple[int, ...], earlier: int, time_ms: float) -> None:
        self._rows.append(self.choices.features(kinds, earlier))
        self._times.append(float(np.log(time_ms)))
        if len(self._times) >= self._fit_at:
            self._fit_at *= 2
            self.forest.fit(np.array(self._rows[-FIT_ON:]), np.array(self._times[-FIT_ON:]))

    def _back_up(self, path: list[Node], best_ms: float) -> None:
        value = 0.0 if np.isinf(best_ms) else min(BEST_VALUE, self._baseline_ms / best_ms)
        for node in path:
            node.visits += 1
            node.total += value
            node.best = max(node.best, value)


def _normalised(weights: Floats) -> Floats:
    total = weights.sum()
    return weights / total if total > 0 else weights
