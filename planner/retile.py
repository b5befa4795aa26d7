"""Expert tiling for a plan that somebody else made: its layout stays, its experts are tiled.

What the paper calls re-tiling. Templates, layer split, replicas, places, micro-batches and shares
of the batch are the plan's own; only (EP, ETP) of its stages with experts is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from planner.cost import price
from planner.experts import moe_layer, tilings
from planner.filled import FilledPlan
from planner.problem import Problem
from planner.result import PlanResult, Status
from specs.errors import PlanError, ProfileMissing
from specs.plan import Plan, Stage

Tiling = tuple[int, int]
Group = tuple[int, str, int]  # template, GPU type, TP degree: stages that are tiled alike
CLEARLY = 1 - 1e-9  # sums differ in the last digits: equal tilings must not chase each other


def retiled(problem: Problem, plan: Plan) -> PlanResult:
    """The plan with the expert tiling by which its whole iteration is shortest.

    As the fill does it: first all stages take tilings of ever more devices a copy together, then
    one (template, GPU type, TP degree) at a time, until a round changes nothing. A plan that does
    not fit comes before one that does, whatever its time. `unsupported` for a model without
    experts.
    """
    began = time.perf_counter()
    open_ = _tilings(problem, plan)
    if not open_:
        reason = "no stage of this plan holds routed experts"
        return PlanResult(None, time.perf_counter() - began, 0, {}, Status.UNSUPPORTED, reason)
    trials = _Trials(problem, plan)
    best = plan
    own = _key(plan)
    for size in sorted({ep * etp for found in open_.values() for ep, etp in found}):
        together = {group: _at_least(found, size) for group, found in open_.items()}
        best = min(best, trials.tiled(best, together) or best, key=_key)
    better = True
    while better:
        better = False
        for group, found in open_.items():
            for tiling in found:
                trial = trials.tiled(best, {group: tiling})
                if trial is not None and _key(trial) < _shorter(_key(best)):
                    best, better = trial, True
    assert best.prediction is not None  # the plan was priced, and so is every trial
    changed = "its own tiling stays" if _key(best) == own else "tiled anew"
    reason = f"the layout of {plan.planner}, {changed}"
    fits = best.prediction.fits
    return PlanResult(
        plan=replace(best, planner=plan.planner),
        planning_s=time.perf_counter() - began,
        evaluations=trials.count,
        rejected=dict(trials.rejected),
        status=Status.OK if fits else Status.NO_PLAN,
        reason=reason if fits else f"{reason}; it does not fit",
    )


def _tilings(problem: Problem, plan: Plan) -> dict[Group, list[Tiling]]:
    """The tilings that every stage of a group may run by, least devices a copy first."""
    found: dict[Group, list[Tiling]] = {}
    for k, filled in enumerate(FilledPlan.of(plan).templates):
        for s, stage in enumerate(filled.stages):
            moe = moe_layer(problem.model, stage)
            if moe is None:
                continue
            nodes = [row[s] for row in filled.nodes]
            here = tilings(moe.shape("experts"), moe.shape("expert_ffn"), stage.tp, nodes)[::-1]
            group = (k, stage.gpu, stage.tp)
            found[group] = [t for t in found.get(group, here) if t in here]
    return {group: both for group, both in found.items() if both}


def _at_least(found: list[Tiling], size: int) -> Tiling:
    """The tiling of the fewest devices a copy that are enough; the widest where none is."""
    enough = [tiling for tiling in found if tiling[0] * tiling[1] >= size]
    return enough[0] if enough else found[-1]


def _key(plan: Plan) -> tuple[float, float]:
    """Plans that fit first, then the shortest iteration."""
    assert plan.prediction is not None
    over = [
        max(0.0, stage.memory.total - stage.memory.limit)
        for stages in plan.prediction.stages
        for stage in stages
    ]
    return max(over), plan.prediction.iteration_ms


def _shorter(key: tuple[float, float]) -> tuple[float, float]:
    return key[0], key[1] * CLEARLY


class _Trials:
    """Prices a plan in other tilings, and counts."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem = problem
        self.plan = plan
        self.count = 0
        self.rejected: dict[str, int] = {}

    def tiled(self, plan: Plan, chosen: dict[Group, Tiling]) -> Plan | None:
        """The plan with these groups tiled so, priced; None where it cannot be."""
        templates = tuple(
            replace(template, stages=tuple(self._stages(k, template.stages, chosen)))
            for k, template in enumerate(plan.templates)
        )
        self.count += 1
        try:
            trial = replace(plan, templates=templates, prediction=None)
            return trial.with_prediction(price(self.problem, trial))
        except (PlanError, ProfileMissing) as error:
            self.rejected[str(error)] = self.rejected.get(str(error), 0) + 1
            return None

    def _stages(
        self, k: int, stages: tuple[Stage, ...], chosen: dict[Group, Tiling]
    ) -> Iterator[Stage]:
        for stage in stages:
            tiling = chosen.get((k, stage.gpu, stage.tp))
            if tiling is None or moe_layer(self.problem.model, stage) is None:
                yield stage
            else:
                yield replace(stage, ep=tiling[0], etp=tiling[1])
