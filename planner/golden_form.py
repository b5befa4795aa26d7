"""Plans in the form of the reference problems: templates with node numbers, no GPU indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from planner.filled import FilledTemplate
from planner.problem import Problem
from specs.errors import PlanError, SpecError
from specs.files import Document, validate
from specs.plan import Stage


class GoldenStage(Document):
    """Consecutive layers [first, end) on one TP group."""

    gpu: str
    tp: int = Field(ge=1)
    layers: tuple[int, int]
    ep: int = Field(1, ge=1)
    etp: int = Field(1, ge=1)


class GoldenTemplate(Document):
    """A pipeline, with the number of the node of each stage of each replica."""

    micro_batch: int = Field(ge=1)
    stages: list[GoldenStage] = Field(min_length=1)
    nodes: list[list[int]] = Field(min_length=1, description="nodes[replica][stage], in file order")


class GoldenPlan(Document):
    """A plan without model and cluster; the batch is dealt by rule."""

    global_batch: int | None = Field(None, ge=1)
    templates: list[GoldenTemplate] = Field(min_length=1)


def is_golden(content: Any) -> bool:
    """Whether a parsed document has this form: one plan, one entry with a plan, or many."""
    if isinstance(content, list):
        return bool(content) and all(is_golden(entry) for entry in content)
    if not isinstance(content, dict) or "schema" in content:
        return False
    return isinstance(content.get("plan"), dict) or "templates" in content


def entries_of(content: Any) -> list[dict[str, Any]]:
    """The plans of a document with what stands beside each: model, cluster, expected figures."""
    if isinstance(content, list):
        return [entry for one in content for entry in entries_of(one)]
    return [content if "plan" in content else {"plan": content}]


def filled_of_golden(
    problem: Problem, plan: Any, where: str | Path
) -> tuple[Problem, Sequence[FilledTemplate]]:
    """The filled templates of one plan, and the problem with the plan's own global batch.

    Raises SpecError with file, field, value and expectation for a document that is not right, and
    for a node or GPU that the problem's cluster does not have.
    """
    document = validate(GoldenPlan, plan, where)
    nodes = problem.cluster.nodes
    for k, template in enumerate(document.templates):
        for r, row in enumerate(template.nodes):
            for s, node in enumerate(row):
                if not 0 <= node < len(nodes):
                    raise SpecError.in_file(
                        where,
                        f"templates[{k}].nodes[{r}][{s}]",
                        node,
                        f"a node number from 0 to {len(nodes) - 1} of cluster "
                        f"{problem.cluster.name!r}",
                    )
    try:
        templates = [
            FilledTemplate(
                template.micro_batch,
                tuple(
                    Stage(stage.gpu, stage.tp, range(*stage.layers), stage.ep, stage.etp)
                    for stage in template.stages
                ),
                tuple(tuple(row) for row in template.nodes),
            )
            for template in document.templates
        ]
    except PlanError as error:
        raise SpecError(f"{where}: {error}") from None
    if document.global_batch is not None:
        workload = replace(problem.workload, global_batch=document.global_batch)
        problem = replace(problem, workload=workload)
    return problem, templates
