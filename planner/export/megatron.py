"""Megatron-LM: one template of one TP degree, any layer split, by `pretrain_gpt.py`."""

from __future__ import annotations

from planner.export.expressible import (
    has_experts,
    idle_note,
    master_weights,
    one_tiling,
    one_tp,
    only_template,
    refuse,
)
from planner.export.launch import Launch, describe, grid_ranks, launch_script, unnamed_note
from planner.export.megatron_model import model_arguments
from specs.model import Model
from specs.plan import Plan, Template
from specs.workload import DType, Optimizer, Recompute

LAUNCHER = "Megatron-LM"
PRECISION = {DType.BF16: ["--bf16", "--grad-reduce-in-bf16"], DType.FP16: ["--fp16"]}


def layout_string(model: Model, template: Template) -> str:
    """The layer split as `--pipeline-model-parallel-layout` has it: `Et*3|t*5L`.

    Stages between bars: E the embedding, t*n n blocks, L the loss with its head. Source:
    megatron-core 0.16.1, `transformer/pipeline_parallel_layer_layout.py`.
    """
    stages = []
    for stage in template.stages:
        blocks = sum(model.layers[i].kind.is_block for i in stage.layers)
        text = "E" if stage.layers.start == 0 else ""
        text += "" if blocks == 0 else "t" if blocks == 1 else f"t*{blocks}"
        stages.append(text + ("L" if stage.layers.stop == len(model.layers) else ""))
    return "|".join(stages)


def training_arguments(plan: Plan, template: Template, launcher: str) -> list[str]:
    """Options for batch, sequence length, precision, optimizer and recomputation.

    Raises PlanError where its memory would not be the plan's.
    """
    master_weights(plan, launcher)
    work = plan.workload
    words = ["--seq-length", str(work.seq_len)]
    context = max(int(plan.model.config.get("max_position_embeddings", 0)), work.seq_len)
    words += ["--max-position-embeddings", str(context)]
    words += ["--micro-batch-size", str(template.micro_batch)]
    words += ["--global-batch-size", str(work.global_batch)]
    words += PRECISION.get(work.dtype, [])
    if work.optimizer is Optimizer.SGD:
        words += ["--optimizer", "sgd", "--sgd-momentum", "0"]
    else:
        words += ["--optimizer", "adam"]
    if work.recompute is Recompute.FULL:
        words += ["--recompute-granularity", "full", "--recompute-method", "uniform"]
        words += ["--recompute-num-layers", "1"]
    words += ["--attention-dropout", "0", "--hidden-dropout", "0"]
    words += ["--use-mcore-models", "--mock-data", "--train-iters", "100", "--lr", "1e-4"]
    return [*words, "--log-interval", "1", "--eval-iters", "0"]


def sequence_parallel(template: Template, sparse: bool) -> tuple[list[str], list[str]]:
    """The option, and the remark on it: experts under TP are refused there without it."""
    if not sparse or all(stage.tp == 1 for stage in template.stages):
        return [], []
    return ["--sequence-parallel"], [
        "Experts under TP need sequence parallelism there; the plan was priced without it."
    ]


def export(plan: Plan) -> Launch:
    """The launch of a plan. Raises PlanError that names what Megatron-LM cannot express."""
    template = only_template(plan, LAUNCHER)
    tp = one_tp(template, LAUNCHER)
    ep, etp = one_tiling(plan, template, LAUNCHER)
    replicas = len(template.replicas)
    if tp * replicas % (ep * etp):
        raise refuse(LAUNCHER, f"EPxETP {ep}x{etp} does not divide TP x DP {tp * replicas}")
    ranks = grid_ranks(plan, template)
    layout = layout_string(plan.model, template) if template.depth > 1 else None
    arguments = ["--tensor-model-parallel-size", str(tp)]
    arguments += ["--pipeline-model-parallel-size", str(template.depth)]
    if layout is not None:
        arguments += ["--pipeline-model-parallel-layout", layout]
    sparse = any(has_experts(plan, stage) for stage in template.stages)
    remarks = [*unnamed_note(plan, ranks), *idle_note(plan)]
    if sparse:
        arguments += ["--expert-model-parallel-size", str(ep)]
        arguments += ["--expert-tensor-parallel-size", str(etp)]
    words, more = sequence_parallel(template, sparse)
    arguments += [*words, *model_arguments(plan.model, LAUNCHER)]
    arguments += training_arguments(plan, template, LAUNCHER)
    remarks += [*more, *model_remarks(plan.model, tp)]
    script = launch_script(
        ranks,
        title=describe(plan, template, LAUNCHER, ranks),
        remarks=remarks,
        command='python "${MEGATRON_LM:-.}/pretrain_gpt.py"',
        arguments=arguments,
        environment=["CUDA_DEVICE_MAX_CONNECTIONS=1"],
    )
    return Launch("megatron", ranks, tuple(arguments), layout, script, tuple(remarks))


def model_remarks(model: Model, tp: int) -> list[str]:
    """Where Megatron-LM splits a model otherwise than the plan was priced for."""
    if tp > 1 and model.layers[1].flag("attention") == "mla":
        return ["Latent attention is split over TP there; the plan holds it whole on every rank."]
    return []
