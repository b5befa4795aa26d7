"""DeepSpeed's pipeline engine: one template without TP, any layer split, dense models."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from planner.export.expressible import (
    has_experts,
    idle_note,
    master_weights,
    one_tp,
    only_template,
    refuse,
)
from planner.export.launch import Launch, describe, grid_ranks, launch_script, unnamed_note
from specs.plan import Plan, Template
from specs.workload import DType, Optimizer, Recompute

LAUNCHER = "DeepSpeed"
PROGRAM = "deepspeed_train.py"  # beside this file, written into every script
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def engine_config(plan: Plan, template: Template) -> dict[str, Any]:
    """What `deepspeed.initialize` is given: batch shares, precision, optimizer."""
    work = plan.workload
    config: dict[str, Any] = {
        "train_batch_size": work.global_batch,
        "train_micro_batch_size_per_gpu": template.micro_batch,
        "gradient_accumulation_steps": template.replicas[0].micro_batches,
        "zero_optimization": {"stage": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    }
    if work.optimizer is Optimizer.SGD:
        config["optimizer"] = {"type": "SGD", "params": {"lr": 1e-4}}
    if work.dtype is DType.BF16:
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}
    elif work.dtype is DType.FP16:
        config |= {"fp16": {"enabled": True}}
    return config


def export(plan: Plan) -> Launch:
    """The launch of a plan. Raises PlanError that names what DeepSpeed cannot express.

    DeepSpeed partitions by `uniform`, `parameters` or `type:REGEX` and takes no list: the program
    in the script fixes the parts of a `PipelineModule` itself. It brings no tensor-parallel layers
    for training in a pipeline, so TP is 1.
    """
    template = only_template(plan, LAUNCHER)
    tp = one_tp(template, LAUNCHER)
    if tp > 1:
        raise refuse(
            LAUNCHER, f"its stages have TP {tp}, and its pipeline has no tensor-parallel layers"
        )
    if any(has_experts(plan, stage) for stage in template.stages):
        raise refuse(LAUNCHER, "the model has experts, which its pipeline does not carry")
    master_weights(plan, LAUNCHER)
    family = str(plan.model.config.get("model_type"))
    if family not in _FAMILIES:
        raise refuse(
            LAUNCHER, f"the exported program builds {', '.join(_FAMILIES)} layers, not {family}"
        )
    if plan.model.tied and template.depth > 1:
        raise refuse(
            LAUNCHER, "first and last stage share the embedding, which the program does not tie"
        )
    work = plan.workload
    parts = [stage.layers.start for stage in template.stages] + [len(plan.model.layers)]
    settings = {
        "model": dict(plan.model.config),
        "parts": parts,
        "seq_len": work.seq_len,
        "recompute": work.recompute is Recompute.FULL,
        "engine": engine_config(plan, template),
    }
    ranks = grid_ranks(plan, template)
    remarks = [*unnamed_note(plan, ranks), *idle_note(plan)]
    if work.dtype is DType.BF16 and len(template.replicas) > 1:
        remarks.append(
            "In bf16 its optimizer state is spread over the replicas: less memory, other "
            "synchronisation than the plan was priced for."
        )
    program = resources.files(__package__).joinpath(PROGRAM).read_text(encoding="utf-8")
    arguments = ["--iterations", "100"]
    script = launch_script(
        ranks,
        title=describe(plan, template, LAUNCHER, ranks),
        remarks=remarks,
        command='python "$work/train.py" --settings "$work/settings.json"',
        arguments=arguments,
        files=[("settings.json", json.dumps(settings, indent=2)), ("train.py", program)],
    )
    layout = " ".join(map(str, parts))
    return Launch("deepspeed", ranks, tuple(arguments), layout, script, tuple(remarks))
