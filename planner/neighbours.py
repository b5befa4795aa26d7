"""Plans one step away from a plan: what local search tries and `explain` compares with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.fill.template import Structure, fill_template
from planner.filled import FilledTemplate
from planner.packing import Demand
from planner.problem import Problem
from planner.refusal import Refusal

FEWER = (0, 1, 2, 4)  # replicas given up, so that what is left makes a further template (13.20)


@dataclass(frozen=True)
class Step:
    """One change of a structural template, in words, and what becomes of it."""

    words: str
    structure: Structure
    fewer: int = 0


def structure_of(template: FilledTemplate) -> Structure:
    """The structural template of a filled one."""
    return tuple(Demand(stage.gpu, stage.tp) for stage in template.stages)


def steps(structure: Structure, kinds: Sequence[Demand]) -> Iterator[Step]:
    """Every structure one change away: a stage changed, removed, added, two stages swapped.

    kinds: the (GPU type, TP) that stages may have.
    """
    for s, old in enumerate(structure):
        for kind in kinds:
            if kind != old:
                yield Step(
                    f"stage {s} on {kind.gpu} tp={kind.tp} instead of {old.gpu} tp={old.tp}",
                    (*structure[:s], kind, *structure[s + 1 :]),
                )
    if len(structure) > 1:
        for s, old in enumerate(structure):
            if s == 0 or structure[s - 1] != old:
                yield Step(
                    f"without stage {s} ({old.gpu} tp={old.tp})",
                    structure[:s] + structure[s + 1 :],
                )
    for s in range(len(structure) + 1):
        for kind in kinds:
            if s == 0 or structure[s - 1] != kind:
                yield Step(
                    f"one more stage on {kind.gpu} tp={kind.tp} at position {s}",
                    (*structure[:s], kind, *structure[s:]),
                )
    for a in range(len(structure)):
        for b in range(a + 1, len(structure)):
            if structure[a] != structure[b]:
                swapped = list(structure)
                swapped[a], swapped[b] = swapped[b], swapped[a]
                yield Step(f"stages {a} and {b} swapped", tuple(swapped))
    for fewer in FEWER[1:]:
        yield Step(f"{fewer} fewer replica{'s' if fewer > 1 else ''}", structure, fewer)


@dataclass(frozen=True)
class Alternative:
    """A neighbour of a plan: what is different, and its iteration time or why it is none."""

    words: str
    templates: tuple[FilledTemplate, ...] = ()
    iteration_ms: float | None = None
    refusal: Refusal | None = None


def alternatives(
    problem: Problem, templates: Sequence[FilledTemplate], kinds: Sequence[Demand]
) -> Iterator[Alternative]:
    """Every plan in which one template is changed by one step, or left out, priced.

    The changed template is filled anew, after the others.
    """
    many = len(templates) > 1
    for k, template in enumerate(templates):
        others = [*templates[:k], *templates[k + 1 :]]
        prefix = f"template {k}: " if many else ""
        for step in steps(structure_of(template), kinds):
            fill = fill_template(problem, step.structure, others, fewer=step.fewer)
            if fill.best is None:
                refusal = fill.refusals[0] if fill.refusals else None
                yield Alternative(prefix + step.words, refusal=refusal)
                continue
            yield Alternative(
                prefix + step.words, (*others, fill.best[0]), fill.best[1].iteration_ms
            )
