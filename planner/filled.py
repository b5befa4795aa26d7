"""A filled template: what the cost model prices, before the batch is dealt to its replicas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from specs.cluster import Cluster
from specs.errors import PlanError
from specs.layer import LayerType
from specs.model import Model
from specs.plan import Plan, Stage


@dataclass(frozen=True)
class FilledTemplate:
    """Stages with layers, a micro-batch size, and the node of every stage of every replica.

    nodes: indices into the cluster's nodes, shape (replicas, stages).
    """

    micro_batch: int
    stages: tuple[Stage, ...]
    nodes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.micro_batch < 1 or not self.stages or not self.nodes:
            raise PlanError(
                f"a filled template has a micro-batch >= 1, a stage and a replica, got "
                f"{self.micro_batch}, {len(self.stages)} and {len(self.nodes)}"
            )
        if any(len(row) != len(self.stages) for row in self.nodes):
            raise PlanError(f"every replica has a node for each of {len(self.stages)} stages")

    @property
    def replicas(self) -> int:
        """The DP degree r."""
        return len(self.nodes)

    @property
    def depth(self) -> int:
        """The number of stages d."""
        return len(self.stages)

    def stage_nodes(self, s: int) -> tuple[int, ...]:
        """The nodes that hold stage s, each once, in order of first appearance."""
        return tuple(dict.fromkeys(row[s] for row in self.nodes))


def layer_counts(model: Model, stage: Stage) -> Counter[LayerType]:
    """How many layers of each type a stage holds, in order of first appearance."""
    return Counter(model.layers[i] for i in stage.layers)


@dataclass(frozen=True)
class FilledPlan:
    """Filled templates on one cluster."""

    cluster: Cluster
    templates: tuple[FilledTemplate, ...]

    @classmethod
    def of(cls, plan: Plan) -> FilledPlan:
        """What a plan lays down, without its shares of the batch."""
        index = {node.name: i for i, node in enumerate(plan.cluster.nodes)}
        return cls(
            plan.cluster,
            tuple(
                FilledTemplate(
                    template.micro_batch,
                    template.stages,
                    tuple(
                        tuple(index[place.node] for place in replica.places)
                        for replica in template.replicas
                    ),
                )
                for template in plan.templates
            ),
        )

    @cached_property
    def used(self) -> Counter[int]:
        """GPUs that the templates hold on each node."""
        held: Counter[int] = Counter()
        for template in self.templates:
            for row in template.nodes:
                for stage, node in zip(template.stages, row, strict=True):
                    held[node] += stage.tp
        return held
