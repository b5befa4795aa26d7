"""From a structural template to a filled one: the fastest fill by rule (DESIGN section 8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.cost import price_filled
from planner.fill.options import block_kinds, stage_options
from planner.fill.split import Split, StageOption, split_blocks
from planner.filled import FilledPlan, FilledTemplate
from planner.packing import Demand, FreeGpus, Placement, largest_replicas, pack
from planner.problem import Problem
from planner.refusal import NO_PACKING, NO_TURN, TOO_FEW_BLOCKS, TOO_FEW_SAMPLES, Refusal
from planner.transfers import send_ms
from specs.errors import PlanError, ProfileMissing
from specs.layer import LayerKind
from specs.plan import Stage
from specs.prediction import Prediction

CLEARLY = 1 - 1e-9
Structure = tuple[Demand, ...]
"""A structural template: GPU type and TP degree of every stage."""


@dataclass
class Fill:
    """What came of filling one template.

    best: the filled template and the prediction for the whole plan with it, None where nothing
    fits. evaluations: plans priced or refused (DESIGN section 13, 27). refusals: why not.
    """

    best: tuple[FilledTemplate, Prediction] | None = None
    evaluations: int = 0
    refusals: list[Refusal] = field(default_factory=list)

    def offer(self, template: FilledTemplate, prediction: Prediction) -> bool:
        """Keep a priced candidate if it is the fastest so far; whether it is."""
        if self.best is not None and self.best[1].iteration_ms <= prediction.iteration_ms:
            return False
        self.best = template, prediction
        return True

    def refuse(self, refusal: Refusal) -> None:
        """Note why a candidate was refused."""
        self.refusals.append(refusal)


def profiled_micro_batches(problem: Problem, structure: Structure) -> list[int]:
    """Powers of two that some stage type has rows of, rising; a missing row refuses one later."""
    sizes = {b for demand in structure for b in problem.profiles.micro_batches(demand.gpu)}
    return sorted(b for b in sizes if b & (b - 1) == 0)


def fill_template(
    problem: Problem,
    structure: Structure,
    earlier: Sequence[FilledTemplate] = (),
    *,
    fewer: int = 0,
) -> Fill:
    """The fastest fill of a new template, given what earlier templates hold.

    Packing gives the DP degree r (`fewer` replicas than the most that pack: section 13.20); for
    every profiled micro-batch size and both placements the layer split and the expert tiling
    follow, the whole plan is priced, and the shortest iteration is kept. Deterministic; ties go to
    the smaller micro-batch, then to the placement by stage.
    """
    fill = Fill()
    if len(structure) > problem.model.blocks:
        blocks = problem.model.blocks
        fill.evaluations += 1
        fill.refuse(Refusal(TOO_FEW_BLOCKS, detail=f"{blocks} for {len(structure)} stages"))
        return fill
    free = FreeGpus.of(problem, FilledPlan(problem.cluster, tuple(earlier)).used)
    ceiling = problem.workload.global_batch - sum(template.replicas for template in earlier)
    if ceiling < 1:
        fill.evaluations += 1
        fill.refuse(Refusal(TOO_FEW_SAMPLES))
        return fill
    r = largest_replicas(free, structure, ceiling) - fewer
    if r < 1:
        fill.evaluations += 1
        fill.refuse(Refusal(NO_PACKING))
        return fill
    packings = dict.fromkeys(pack(free, structure, r, placement) for placement in Placement)
    for micro_batch in profiled_micro_batches(problem, structure):
        for nodes in packings:
            assert nodes is not None  # r replicas pack, and both placements pack alike
            fill_placed(problem, structure, earlier, micro_batch, nodes, fill)
    return fill


def fill_placed(
    problem: Problem,
    structure: Structure,
    earlier: Sequence[FilledTemplate],
    micro_batch: int,
    nodes: tuple[tuple[int, ...], ...],
    fill: Fill,
) -> None:
    """Offer `fill` one (template, micro-batch, placement), priced in every tiling worth a price.

    nodes: shape (replicas, stages).
    """
    draft = FilledTemplate(
        micro_batch,
        tuple(Stage(d.gpu, d.tp, range(s, s + 1)) for s, d in enumerate(structure)),
        nodes,
    )
    batch = problem.workload.global_batch
    alone = -(-batch // (draft.replicas * micro_batch))
    together = sum(t.replicas * t.micro_batch for t in (*earlier, draft))
    pace = max(1, batch // together) if earlier else alone
    try:
        sends = send_ms(problem, [*earlier, draft])[-1]
        options = [
            stage_options(problem, draft, s, alone, sum(sends[s])) for s in range(draft.depth)
        ]
    except ProfileMissing as error:
        fill.evaluations += 1
        fill.refuse(Refusal(str(error)))
        return
    chosen: tuple[FilledTemplate, Prediction, Split] | None = None
    for choice in option_choices(options):
        priced = _price_split(problem, draft, earlier, choice, pace, fill)
        if priced and (chosen is None or _is_shorter(priced[1], chosen[1])):
            chosen = priced
    if chosen is None:
        return
    if max(map(len, options)) > 1:
        chosen = _retile(problem, draft, earlier, options, pace, chosen, fill)
    fill.offer(chosen[0], chosen[1])


def _is_shorter(prediction: Prediction, than: Prediction) -> bool:
    """Shorter by more than the last digits of a sum: equal tilings must not chase each other."""
    return prediction.iteration_ms < than.iteration_ms * CLEARLY


def option_choices(
    options: Sequence[Sequence[StageOption]],
) -> Iterator[list[list[StageOption]]]:
    """Which tilings the split may choose from: all, then only those of ever more devices a copy.

    Wider tilings cost more to dispatch and less to synchronise. What one stage saves counts only
    when all do, so the stages move together: at size n each keeps the tilings of EP * ETP >= n,
    or its widest where it has none.
    """
    sizes = sorted({o.tiling[0] * o.tiling[1] for stage in options for o in stage})
    for size in sizes:
        kept = []
        for stage in options:
            widest = max(o.tiling[0] * o.tiling[1] for o in stage)
            kept.append([o for o in stage if o.tiling[0] * o.tiling[1] >= min(size, widest)])
        yield kept


def _price_split(
    problem: Problem,
    draft: FilledTemplate,
    earlier: Sequence[FilledTemplate],
    options: Sequence[Sequence[StageOption]],
    pace: int,
    fill: Fill,
) -> tuple[FilledTemplate, Prediction, Split] | None:
    """Split the blocks by these options and price the whole plan; None where it is refused."""
    fill.evaluations += 1
    split = split_blocks(options, block_kinds(problem), pace)
    if isinstance(split, Refusal):
        fill.refuse(split)
        return None
    template = with_split(problem, draft, split)
    try:
        prediction = price_filled(problem, [*earlier, template])
    except ProfileMissing as error:
        fill.refuse(Refusal(str(error)))
        return None
    except PlanError:
        fill.refuse(Refusal(NO_TURN))
        return None
    for stages in prediction.stages:
        for s, stage in enumerate(stages):
            if not stage.memory.fits:
                fill.refuse(Refusal.memory(s, stage.memory.total - stage.memory.limit))
                return None
    return template, prediction, split


def with_split(problem: Problem, draft: FilledTemplate, split: Split) -> FilledTemplate:
    """The draft with the layers and tilings of a split; a stage without experts has none."""
    first = 0
    stages = []
    last = len(draft.stages) - 1
    for s, (stage, blocks, option) in enumerate(
        zip(draft.stages, split.blocks, split.options, strict=True)
    ):
        end = first + blocks + (s == 0) + (s == last)
        layers = range(first, end)
        moe = any(problem.model.layers[i].kind is LayerKind.MOE_BLOCK for i in layers)
        stages.append(Stage(stage.gpu, stage.tp, layers, *(option.tiling if moe else (1, 1))))
        first = end
    return replace(draft, stages=tuple(stages))


def _retile(
    problem: Problem,
    draft: FilledTemplate,
    earlier: Sequence[FilledTemplate],
    options: Sequence[Sequence[StageOption]],
    pace: int,
    chosen: tuple[FilledTemplate, Prediction, Split],
    fill: Fill,
) -> tuple[FilledTemplate, Prediction, Split]:
    """Re-select tilings against the whole iteration, the split made anew each time.

    One (GPU type, TP) at a time: all its stages take another tiling together; kept if the whole
    iteration is shorter; until a round changes nothing.
    """
    kinds = list(dict.fromkeys((stage.gpu, stage.tp) for stage in draft.stages))
    better = True
    while better:
        better = False
        for kind in kinds:
            members = [s for s, g in enumerate(draft.stages) if (g.gpu, g.tp) == kind]
            common = Counter(o.tiling for s in members for o in options[s])
            for tiling in sorted(t for t, n in common.items() if n == len(members)):
                trial = [[option] for option in chosen[2].options]
                for s in members:
                    trial[s] = [o for o in options[s] if o.tiling == tiling]
                if all(trial[s][0] == chosen[2].options[s] for s in members):
                    continue
                priced = _price_split(problem, draft, earlier, trial, pace, fill)
                if priced and _is_shorter(priced[1], chosen[1]):
                    chosen, better = priced, True
    return chosen
