"""The plan document: a plan as JSON, and back (form: DESIGN section 12, schema in docs/)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from specs.cluster import ClusterFile, cluster_from_document
from specs.errors import PlanError, SpecError
from specs.files import Document, read_yaml_or_json, validate
from specs.gpu import gpu_type
from specs.model import Model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.prediction import Prediction, StageMemory, StagePrediction
from specs.workload import (
    MOST_GLOBAL_BATCH,
    MOST_SEQ_LEN,
    DType,
    Optimizer,
    Recompute,
    Workload,
)

SCHEMA_VERSION = 1

Count = Annotated[int, Field(ge=1, le=10**9)]
Index = Annotated[int, Field(ge=0, le=10**9)]


class ModelFile(Document):
    """The model, whole: a plan needs nothing beside it."""

    name: str = Field(min_length=1, max_length=300)
    config_hash: str = Field(description="first 16 hex digits of SHA-256 of the canonical config")
    config: dict[str, Any] = Field(description="content of the Hugging Face config.json")


class WorkloadFile(Document):
    """How it is trained."""

    global_batch: int = Field(
        ge=1, le=MOST_GLOBAL_BATCH, description="sequences per optimizer step"
    )
    seq_len: int = Field(ge=1, le=MOST_SEQ_LEN, description="tokens per sequence")
    dtype: DType
    optimizer: Optimizer
    recompute: Recompute


class StageFile(Document):
    """Consecutive layers [first, end) on one TP group."""

    gpu: str
    tp: Count
    layers: tuple[Index, Index]
    ep: Count = 1
    etp: Count = 1


class PlaceFile(Document):
    """The GPUs of one TP group."""

    node: str
    gpus: list[Index]


class ReplicaFile(Document):
    """One copy of the pipeline and its share of the batch."""

    micro_batches: Count
    last_micro_batch: Count
    places: list[PlaceFile]


class TemplateFile(Document):
    """A pipeline and its replicas."""

    micro_batch: Count
    stages: list[StageFile] = Field(min_length=1)
    replicas: list[ReplicaFile] = Field(min_length=1)


class MemoryFile(Document):
    """Memory of one GPU of a stage, bytes."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    transient: float
    framework: float
    limit: float


class PredictionFile(Document):
    """What the plan is predicted to do; per template and stage where nested."""

    iteration_ms: float
    pipe_ms: list[float]
    micro_batches: list[int]
    stage_ms: list[list[float]] = Field(description="one micro-batch on the stage, all parts")
    compute_ms: list[list[float]]
    comm_ms: list[list[float]]
    host_ms: list[list[float]]
    send_ms: list[list[float]]
    sync_ms: list[list[float]] = Field(description="gradient synchronisation, once an iteration")
    update_ms: list[list[float]] = Field(description="optimizer step, once an iteration")
    memory_bytes: list[list[MemoryFile]]
    bound_iteration_ms: float | None = None
    profile_runs: list[int]
    sources: list[str]


class PlanFile(Document):
    """A plan document."""

    schema_version: Literal[1] = Field(alias="schema", description="version of this form")
    planner: str
    model: ModelFile
    workload: WorkloadFile
    cluster: ClusterFile
    templates: list[TemplateFile] = Field(min_length=1)
    prediction: PredictionFile | None = None


def plan_to_document(plan: Plan) -> dict[str, Any]:
    """The plan as the JSON document of DESIGN section 12."""
    document: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "planner": plan.planner,
        "model": {
            "name": plan.model.name,
            "config_hash": plan.model.config_hash,
            "config": dict(plan.model.config),
        },
        "workload": {
            "global_batch": plan.workload.global_batch,
            "seq_len": plan.workload.seq_len,
            "dtype": plan.workload.dtype.value,
            "optimizer": plan.workload.optimizer.value,
            "recompute": plan.workload.recompute.value,
        },
        "cluster": plan.cluster.to_json(),
        "templates": [_template_to_json(template) for template in plan.templates],
    }
    if plan.prediction is not None:
        document["prediction"] = prediction_to_document(plan.prediction)
    return document


def _template_to_json(template: Template) -> dict[str, Any]:
    return {
        "micro_batch": template.micro_batch,
        "stages": [
            {
                "gpu": stage.gpu,
                "tp": stage.tp,
                "layers": [stage.layers.start, stage.layers.stop],
                "ep": stage.ep,
                "etp": stage.etp,
            }
            for stage in template.stages
        ],
        "replicas": [
            {
                "micro_batches": replica.micro_batches,
                "last_micro_batch": replica.last_micro_batch,
                "places": [
                    {"node": place.node, "gpus": list(place.gpus)} for place in replica.places
                ],
            }
            for replica in template.replicas
        ],
    }


_PARTS = ("compute_ms", "comm_ms", "host_ms", "send_ms", "sync_ms", "update_ms")


def prediction_to_document(prediction: Prediction) -> dict[str, Any]:
    """The prediction as it stands in a plan document."""
    parts = {
        part: [[getattr(stage, part) for stage in template] for template in prediction.stages]
        for part in _PARTS
    }
    return {
        "iteration_ms": prediction.iteration_ms,
        "pipe_ms": list(prediction.pipe_ms),
        "micro_batches": list(prediction.micro_batches),
        "stage_ms": [[stage.time_ms for stage in template] for template in prediction.stages],
        **parts,
        "memory_bytes": [
            [stage.memory.to_json() for stage in template] for template in prediction.stages
        ],
        "bound_iteration_ms": prediction.bound_iteration_ms,
        "profile_runs": list(prediction.profile_runs),
        "sources": list(prediction.sources),
    }


def _prediction_of(file: PredictionFile, where: str | Path) -> Prediction:
    shape = [len(template) for template in file.memory_bytes]
    for part in ("stage_ms", *_PARTS):
        if [len(template) for template in getattr(file, part)] != shape:
            raise SpecError.in_file(
                where, f"prediction.{part}", getattr(file, part), f"figures of shape {shape}"
            )
    stages = tuple(
        tuple(
            StagePrediction(
                **{part: getattr(file, part)[k][s] for part in _PARTS},
                memory=StageMemory(**memory.model_dump()),
            )
            for s, memory in enumerate(template)
        )
        for k, template in enumerate(file.memory_bytes)
    )
    return Prediction(
        iteration_ms=file.iteration_ms,
        pipe_ms=tuple(file.pipe_ms),
        micro_batches=tuple(file.micro_batches),
        stages=stages,
        profile_runs=tuple(file.profile_runs),
        sources=tuple(file.sources),
        bound_iteration_ms=file.bound_iteration_ms,
    )


def plan_from_document(content: Any, where: str | Path) -> Plan:
    """The plan of a parsed document.

    Raises SpecError where the document is not of the form, or the plan breaks a rule of plans.
    """
    if isinstance(content, dict) and content.get("schema") not in (None, SCHEMA_VERSION):
        raise SpecError.in_file(
            where,
            "schema",
            content["schema"],
            str(SCHEMA_VERSION),
            "the plan was written by a newer Arachne",
        )
    file = validate(PlanFile, content, where)
    model = Model.from_config(file.model.name, file.model.config, f"{where}: model.config")
    if model.config_hash != file.model.config_hash:
        raise SpecError.in_file(
            where,
            "model.config_hash",
            file.model.config_hash,
            f"{model.config_hash}, that of model.config",
        )
    for k, template in enumerate(file.templates):
        for s, stage in enumerate(template.stages):
            try:
                gpu_type(stage.gpu)
            except SpecError as error:
                raise SpecError(f"{where}: templates[{k}].stages[{s}].gpu: {error}") from None
    cluster = cluster_from_document(content["cluster"], f"{where}: cluster")
    try:
        return Plan(
            planner=file.planner,
            model=model,
            workload=Workload(**file.workload.model_dump()),
            cluster=cluster,
            templates=tuple(_template_of(template) for template in file.templates),
            prediction=_prediction_of(file.prediction, where) if file.prediction else None,
        )
    except PlanError as error:
        raise SpecError(f"{where}: {error}") from None


def _template_of(file: TemplateFile) -> Template:
    return Template(
        file.micro_batch,
        tuple(
            Stage(stage.gpu, stage.tp, range(stage.layers[0], stage.layers[1]), stage.ep, stage.etp)
            for stage in file.stages
        ),
        tuple(
            Replica(
                replica.micro_batches,
                replica.last_micro_batch,
                tuple(Place(place.node, tuple(place.gpus)) for place in replica.places),
            )
            for replica in file.replicas
        ),
    )


def load_plan(path: str | Path) -> Plan:
    """The plan of a JSON file. Raises SpecError with file, field, value and expectation."""
    return plan_from_document(read_yaml_or_json(path), path)


def plan_hash(plan: Plan) -> str:
    """First 16 hex digits of the SHA-256 of what the plan lays down, without its prediction."""
    document = plan_to_document(plan)
    document.pop("prediction", None)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
