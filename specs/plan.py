"""A plan: filled templates, each holding its own GPUs. It cannot be wrong by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from specs.cluster import Cluster
from specs.errors import PlanError
from specs.layer import LayerKind
from specs.model import Model
from specs.prediction import Prediction
from specs.workload import Workload


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on one tensor-parallel group of one GPU type.

    layers: indices into the model's list [embedding, blocks, head]. ep, etp: expert tiling of a
    stage with MoE blocks (DESIGN section 13, 21).
    """

    gpu: str
    tp: int
    layers: range
    ep: int = 1
    etp: int = 1

    def __post_init__(self) -> None:
        if (
            self.tp < 1
            or self.ep < 1
            or self.etp < 1
            or len(self.layers) == 0
            or self.layers.step != 1
        ):
            raise PlanError(
                f"a stage has tp, ep, etp >= 1 and a layer, got tp={self.tp} ep={self.ep} "
                f"etp={self.etp} layers={self.layers.start}..{self.layers.stop}"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """The GPUs of one TP group: indices inside one node."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a template: where each stage runs, and its share of the batch.

    micro_batches: how many it runs per iteration; last_micro_batch: samples in the last one, the
    others are full.
    """

    micro_batches: int
    last_micro_batch: int
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Template:
    """A pipeline of stages and its replicas; micro_batch in samples."""

    micro_batch: int
    stages: tuple[Stage, ...]
    replicas: tuple[Replica, ...]

    def __post_init__(self) -> None:
        if self.micro_batch < 1 or not self.stages or not self.replicas:
            raise PlanError(
                f"a template has a micro-batch >= 1, a stage and a replica, got micro-batch "
                f"{self.micro_batch}, {len(self.stages)} stages, {len(self.replicas)} replicas"
            )
        for replica in self.replicas:
            if len(replica.places) != len(self.stages):
                raise PlanError(
                    f"a replica has a place for each of {len(self.stages)} stages, "
                    f"got {len(replica.places)}"
                )
            if replica.micro_batches < 1 or not 1 <= replica.last_micro_batch <= self.micro_batch:
                raise PlanError(
                    "a replica runs at least one micro-batch, the last of 1 to "
                    f"{self.micro_batch} samples, got {replica.micro_batches} "
                    f"with a last of {replica.last_micro_batch}"
                )

    @property
    def depth(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages)

    @property
    def gpus_per_replica(self) -> int:
        """GPUs that one replica holds."""
        return sum(stage.tp for stage in self.stages)

    def samples(self, replica: Replica) -> int:
        """Samples of the global batch that a replica trains on."""
        return (replica.micro_batches - 1) * self.micro_batch + replica.last_micro_batch


@dataclass(frozen=True)
class Plan:
    """How a model is trained on a cluster.

    Checked when made: every layer exactly once and in order in each template, every GPU used at
    most once and of its stage's type, each TP group inside one node, batch shares that sum to the
    global batch, expert tilings that exist. Raises PlanError naming what is wrong.
    """

    planner: str
    model: Model
    workload: Workload
    cluster: Cluster
    templates: tuple[Template, ...]
    prediction: Prediction | None = None

    def __post_init__(self) -> None:
        if not self.templates:
            raise PlanError("a plan has at least one template, got none")
        used: dict[tuple[str, int], str] = {}
        for k, template in enumerate(self.templates):
            self._check_layers(k, template)
            self._check_tiling(k, template)
            for r, replica in enumerate(template.replicas):
                for s, (stage, place) in enumerate(
                    zip(template.stages, replica.places, strict=True)
                ):
                    here = f"template {k} replica {r} stage {s}"
                    self._check_place(here, stage, place, used)
        total = sum(t.samples(r) for t in self.templates for r in t.replicas)
        if total != self.workload.global_batch:
            raise PlanError(
                "the replicas' shares sum to the global batch "
                f"{self.workload.global_batch}, got {total}"
            )

    def _check_layers(self, k: int, template: Template) -> None:
        expected = 0
        for s, stage in enumerate(template.stages):
            if stage.layers.start != expected:
                raise PlanError(
                    f"template {k} stage {s} starts at layer {stage.layers.start}, "
                    f"expected {expected}: every layer stands exactly once and in order"
                )
            expected = stage.layers.stop
        if expected != len(self.model.layers):
            raise PlanError(
                f"template {k} ends at layer {expected}, expected {len(self.model.layers)}, "
                f"the layers of {self.model.name}"
            )

    def _check_tiling(self, k: int, template: Template) -> None:
        for s, stage in enumerate(template.stages):
            tile = stage.ep * stage.etp
            if tile == 1:
                continue
            moe = [
                self.model.layers[i]
                for i in stage.layers
                if self.model.layers[i].kind is LayerKind.MOE_BLOCK
            ]
            devices = stage.tp * len(template.replicas)
            here = f"template {k} stage {s}: ep={stage.ep} etp={stage.etp}"
            if not moe:
                raise PlanError(f"{here}, expected 1 and 1 on a stage without experts")
            if devices % tile:
                raise PlanError(
                    f"{here}, expected a product that divides the stage's {devices} devices"
                )
            for layer in moe:
                if layer.shape("experts") % stage.ep or layer.shape("expert_ffn") % stage.etp:
                    raise PlanError(
                        f"{here}, expected ep to divide {layer.shape('experts')} experts and etp "
                        f"their width {layer.shape('expert_ffn')}"
                    )

    def _check_place(
        self, here: str, stage: Stage, place: Place, used: dict[tuple[str, int], str]
    ) -> None:
        node = self.cluster.node_by_name.get(place.node)
        if node is None:
            raise PlanError(
                f"{here} is on node {place.node!r}, which cluster {self.cluster.name!r} lacks"
            )
        if node.gpu != stage.gpu:
            raise PlanError(f"{here} wants {stage.gpu}, node {node.name} has {node.gpu}")
        if len(place.gpus) != stage.tp:
            raise PlanError(
                f"{here} has tp={stage.tp}, expected as many GPUs, got {list(place.gpus)}"
            )
        for gpu in place.gpus:
            if not 0 <= gpu < node.gpus:
                raise PlanError(
                    f"{here} uses GPU {gpu} of node {node.name}, which has 0..{node.gpus - 1}"
                )
            before = used.setdefault((place.node, gpu), here)
            if before != here:
                raise PlanError(
                    f"GPU {gpu} of node {node.name} is used twice: by {before} and by {here}"
                )
        if len(set(place.gpus)) != len(place.gpus):
            raise PlanError(f"{here} uses a GPU of node {node.name} twice: {list(place.gpus)}")

    def with_prediction(self, prediction: Prediction) -> Plan:
        """The same plan with what it is predicted to do."""
        return replace(self, prediction=prediction)

    def places(self) -> Iterator[tuple[int, int, int, Place]]:
        """(template, replica, stage, place) of every TP group, in order."""
        for k, template in enumerate(self.templates):
            for r, replica in enumerate(template.replicas):
                for s, place in enumerate(replica.places):
                    yield k, r, s, place

    @cached_property
    def gpus_used(self) -> int:
        """GPUs that the plan holds."""
        return sum(len(t.replicas) * t.gpus_per_replica for t in self.templates)

    @cached_property
    def idle_gpus(self) -> dict[str, int]:
        """GPUs per type that the plan leaves idle, types without any left out."""
        left = dict(self.cluster.gpus_by_type)
        for template in self.templates:
            for stage in template.stages:
                left[stage.gpu] -= stage.tp * len(template.replicas)
        return {gpu: count for gpu, count in left.items() if count}
