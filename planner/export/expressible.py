"""What every launcher but our own asks of a plan, and why a plan does not have it."""

from __future__ import annotations

from specs.errors import PlanError
from specs.gpu import gpu_type
from specs.layer import LayerKind
from specs.plan import Plan, Stage, Template
from specs.workload import DType, Optimizer


def refuse(launcher: str, reason: str) -> PlanError:
    """The one form of every refusal: who, why, and what runs the plan nevertheless."""
    return PlanError(
        f"{launcher} cannot express this plan: {reason}; arachne-plan export --format torchrun "
        "starts any plan"
    )


def only_template(plan: Plan, launcher: str) -> Template:
    """The plan's one template, all of whose replicas have equal shares.

    Raises PlanError for several templates, micro-batches in unequal numbers, a short one, or
    processors without CUDA.
    """
    if len(plan.templates) > 1:
        raise refuse(
            launcher, f"it has {len(plan.templates)} templates, and a job there is one pipeline"
        )
    (template,) = plan.templates
    for stage in template.stages:
        if gpu_type(stage.gpu).is_cpu:
            raise refuse(launcher, "its stages run on cpu, and jobs there run on CUDA devices")
    counts = sorted({replica.micro_batches for replica in template.replicas})
    if len(counts) > 1:
        raise refuse(
            launcher, f"its replicas run {counts} micro-batches, and there all run as many"
        )
    short = [
        r.last_micro_batch for r in template.replicas if r.last_micro_batch < template.micro_batch
    ]
    if short:
        raise refuse(
            launcher,
            f"a last micro-batch has {short[0]} of {template.micro_batch} samples, and there all "
            "are full",
        )
    return template


def one_tp(template: Template, launcher: str) -> int:
    """The TP degree of all stages. Raises PlanError where they differ."""
    degrees = [stage.tp for stage in template.stages]
    if len(set(degrees)) > 1:
        raise refuse(
            launcher, f"its stages have TP {degrees}, and there is one degree for all stages"
        )
    return degrees[0]


def has_experts(plan: Plan, stage: Stage) -> bool:
    """Whether a stage holds a block with routed experts."""
    return any(plan.model.layers[i].kind is LayerKind.MOE_BLOCK for i in stage.layers)


def one_tiling(plan: Plan, template: Template, launcher: str) -> tuple[int, int]:
    """(EP, ETP) of all stages with experts; (1, 1) of a dense model. Raises where they differ."""
    tilings = [(s.ep, s.etp) for s in template.stages if has_experts(plan, s)]
    if len(set(tilings)) > 1:
        said = ", ".join(f"{ep}x{etp}" for ep, etp in tilings)
        raise refuse(
            launcher, f"its stages tile experts EPxETP {said}, and there is one tiling for all"
        )
    return tilings[0] if tilings else (1, 1)


def master_weights(plan: Plan, launcher: str) -> None:
    """Raises PlanError for a 16-bit optimizer without fp32 master weights, which others keep."""
    work = plan.workload
    if work.dtype is not DType.FP32 and work.optimizer is not Optimizer.ADAMW:
        raise refuse(
            launcher,
            f"its memory is that of optimizer {work.optimizer} in {work.dtype}, and there fp32 "
            "master weights are kept",
        )


def idle_note(plan: Plan) -> list[str]:
    """What a user should know of GPUs that the plan leaves idle: the job must not count them."""
    idle = ", ".join(f"{count} {gpu}" for gpu, count in plan.idle_gpus.items())
    return [f"The plan leaves idle: {idle}."] if idle else []
