"""A plan with its figures as one JSON document: what `arachne-plan --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specs.errors import PlanError
from specs.plan import Plan
from specs.plan_file import plan_to_document
from specs.prediction import Prediction


def prediction_of(plan: Plan) -> Prediction:
    """The plan's prediction. Raises PlanError for a plan that was never priced."""
    if plan.prediction is None:
        raise PlanError("the plan has no prediction: price it with arachne-plan evaluate")
    return plan.prediction


def figures(plan: Plan) -> dict[str, Any]:
    """Throughput and time of a priced plan; times in s, per optimizer step of the whole batch."""
    prediction = prediction_of(plan)
    iteration_s = prediction.iteration_ms / 1000
    samples_per_s = plan.workload.global_batch / iteration_s
    bound = prediction.bound_iteration_ms
    return {
        "iteration_s": iteration_s,
        "samples_per_s": samples_per_s,
        "tokens_per_s": samples_per_s * plan.workload.seq_len,
        "bound_iteration_s": None if bound is None else bound / 1000,
        "fits": prediction.fits,
        "gpus_used": plan.gpus_used,
        "gpus": plan.cluster.gpus,
        "depth": max(template.depth for template in plan.templates),
        "templates": len(plan.templates),
        "profile_runs": list(prediction.profile_runs),
        "sources": list(prediction.sources),
    }


def stage_rows(plan: Plan) -> list[dict[str, Any]]:
    """One entry per stage of every template: where it runs, its times in ms, memory in bytes.

    bubble_share: part of the template's pipeline time in which the stage neither computes nor
    sends, 1 - M t_s / pipe.
    """
    prediction = prediction_of(plan)
    rows = []
    for k, template in enumerate(plan.templates):
        micro_batches, pipe = prediction.micro_batches[k], prediction.pipe_ms[k]
        for s, stage in enumerate(template.stages):
            figure = prediction.stages[k][s]
            parts = figure.memory.to_json()
            limit = parts.pop("limit")
            rows.append(
                {
                    "template": k,
                    "stage": s,
                    "gpu": stage.gpu,
                    "tp": stage.tp,
                    "ep": stage.ep,
                    "etp": stage.etp,
                    "layers": [stage.layers.start, stage.layers.stop],
                    "replicas": len(template.replicas),
                    "micro_batch": template.micro_batch,
                    "micro_batches": micro_batches,
                    "time_ms": figure.time_ms,
                    "compute_ms": figure.compute_ms,
                    "comm_ms": figure.comm_ms,
                    "host_ms": figure.host_ms,
                    "send_ms": figure.send_ms,
                    "sync_ms": figure.sync_ms,
                    "update_ms": figure.update_ms,
                    "bubble_share": 1 - micro_batches * figure.time_ms / pipe,
                    "memory_bytes": {**parts, "total": figure.memory.total},
                    "limit_bytes": limit,
                    "fits": figure.memory.fits,
                }
            )
    return rows


def answer_document(plan: Plan, more: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer: the plan document, its figures, its stages, and what the caller adds."""
    return {
        "plan": plan_to_document(plan),
        **figures(plan),
        "stages": stage_rows(plan),
        "idle_gpus": dict(plan.idle_gpus),
        **more,
    }
