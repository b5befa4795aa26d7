"""torchtitan: one template of one TP degree and any layer split, for the models that it knows."""

from __future__ import annotations

import json
from dataclasses import dataclass

from planner.export.expressible import has_experts, idle_note, one_tp, only_template, refuse
from planner.export.launch import Launch, describe, grid_ranks, launch_script, unnamed_note
from specs.model import Model
from specs.plan import Plan, Template
from specs.workload import DType, Optimizer, Recompute

LAUNCHER = "torchtitan"
CONFIG = "arachne_plan"  # the module that the script writes, and --module names


@dataclass(frozen=True, slots=True)
class Flavor:
    """A model of torchtitan by what decides its layers."""

    module: str
    name: str
    hidden: int
    blocks: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool = False
    experts: int = 0


# torchtitan 0.3.0, models/llama3/__init__.py and models/qwen3/__init__.py.
FLAVORS = (
    Flavor("llama3", "1B", 2048, 16, 32, 8, 8192, 128256, tied=True),
    Flavor("llama3", "3B", 3072, 28, 24, 8, 8192, 128256, tied=True),
    Flavor("llama3", "8B", 4096, 32, 32, 8, 14336, 128256),
    Flavor("llama3", "70B", 8192, 80, 64, 8, 28672, 128256),
    Flavor("llama3", "405B", 16384, 126, 128, 8, 53248, 128256),
    Flavor("qwen3", "0.6B", 1024, 28, 16, 8, 3072, 151936, tied=True),
    Flavor("qwen3", "1.7B", 2048, 28, 16, 8, 6144, 151936, tied=True),
    Flavor("qwen3", "4B", 2560, 36, 32, 8, 9728, 151936, tied=True),
    Flavor("qwen3", "8B", 4096, 36, 32, 8, 12288, 151936),
    Flavor("qwen3", "14B", 5120, 40, 40, 8, 17408, 151936),
    Flavor("qwen3", "32B", 5120, 64, 64, 8, 25600, 151936),
    Flavor("qwen3", "30B-A3B", 2048, 48, 32, 4, 768, 151936, experts=128),
)
_MODULE = {"llama": "llama3", "qwen3": "qwen3", "qwen3_moe": "qwen3"}
_BASE = {"llama3": "llama3_8b", "qwen3": "qwen3_14b"}  # the config whose other settings are taken


def flavor_of(model: Model) -> Flavor:
    """The model there that has these layers. Raises PlanError where there is none."""
    module = _MODULE.get(str(model.config.get("model_type")))
    block = model.layers[1]
    experts = int(block.flag("experts") or 0)
    for flavor in FLAVORS:
        if module == flavor.module and (
            model.hidden,
            model.blocks,
            block.shape("heads"),
            block.shape("kv_heads"),
            block.shape("expert_ffn" if experts else "ffn"),
            model.layers[0].shape("vocab"),
            model.tied,
            experts,
        ) == (
            flavor.hidden,
            flavor.blocks,
            flavor.heads,
            flavor.kv_heads,
            flavor.ffn,
            flavor.vocab,
            flavor.tied,
            flavor.experts,
        ):
            return flavor
    raise refuse(
        LAUNCHER,
        f"version 0.3.0 has no model with the layers of {model.name}, only "
        + ", ".join(f"{flavor.module} {flavor.name}" for flavor in FLAVORS),
    )


def module_names(model: Model, template: Template) -> list[list[str]]:
    """The layer split as `module_fqns_per_model_part` has it."""
    last = len(model.layers) - 1
    parts = []
    for stage in template.stages:
        names: list[str] = []
        for i in stage.layers:
            if i == 0:
                names.append("tok_embeddings")
            elif i == last:
                names += ["norm", "lm_head"]
            else:
                names.append(f"layers.{i - 1}")
        parts.append(names)
    return parts


def config_text(plan: Plan, template: Template, flavor: Flavor) -> str:
    """The Python module with the config of the run."""
    work = plan.workload
    replica = template.replicas[0]
    local = template.micro_batch * (replica.micro_batches if template.depth > 1 else 1)
    precision = "float32" if work.dtype is DType.FP32 else "bfloat16"
    base = _BASE[flavor.module]
    lines = [
        f'"""{plan.model.name} as planned: a config of torchtitan 0.3.0."""',
        "",
        "from torchtitan.components.optimizer import default_adamw",
        "from torchtitan.config import ParallelismConfig, TrainingConfig",
        "from torchtitan.distributed.activation_checkpoint import FullAC",
        f"from torchtitan.models.{flavor.module} import model_registry",
        f"from torchtitan.models.{flavor.module}.config_registry import {base}",
        "",
        "",
        "def planned():",
        f"    config = {base}()",
        f"    config.model_spec = model_registry({json.dumps(flavor.name)})",
        "    config.optimizer = default_adamw(lr=1e-4)",
        "    config.training = TrainingConfig(",
        f"        local_batch_size={local},",
        f"        global_batch_size={work.global_batch},",
        f"        seq_len={work.seq_len},",
        f'        mixed_precision_param="{precision}",',
        "        steps=100,",
        "        disable_cuda_graphs=True,",  # refused there together with a pipeline
        "    )",
        "    config.parallelism = ParallelismConfig(",
        f"        data_parallel_replicate_degree={len(template.replicas)},",
        "        data_parallel_shard_degree=1,",
        f"        tensor_parallel_degree={template.stages[0].tp},",
        "        enable_sequence_parallel=False,",
        f"        pipeline_parallel_degree={template.depth},",
    ]
    if template.depth > 1:
        lines += [
            '        pipeline_parallel_schedule="1F1B",',
            f"        pipeline_parallel_microbatch_size={template.micro_batch},",
            "        module_fqns_per_model_part=[",
        ]
        for names in module_names(plan.model, template):
            lines += [f"            {json.dumps(names)},"]
        lines += ["        ],"]
    recompute = "FullAC.Config()" if work.recompute is Recompute.FULL else "None"
    lines += ["    )", f"    config.activation_checkpoint = {recompute}", "    return config", ""]
    return "\n".join(lines)


def export(plan: Plan) -> Launch:
    """The launch of a plan. Raises PlanError that names what torchtitan 0.3.0 cannot express.

    Weights are kept in fp32 and cast for computing, replicas synchronise in fp32: 16 bytes a
    parameter as AdamW in bf16 is planned, twice the bytes of a bf16 synchronisation.
    """
    template = only_template(plan, LAUNCHER)
    tp = one_tp(template, LAUNCHER)
    work = plan.workload
    if work.optimizer is not Optimizer.ADAMW or work.dtype is DType.FP16:
        raise refuse(
            LAUNCHER,
            f"it keeps fp32 weights under AdamW and computes in bf16 or fp32, the plan has "
            f"{work.optimizer} in {work.dtype}",
        )
    if any(has_experts(plan, stage) for stage in template.stages):
        tiles = {(s.ep, s.etp, s.tp) for s in template.stages if has_experts(plan, s)}
        if tiles != {(1, 1, 1)}:
            raise refuse(
                LAUNCHER,
                "it shards experts over the ranks of one replica and has no expert tensor "
                "parallelism; only plans of EP 1, ETP 1 and TP 1 are the same there",
            )
    count = template.replicas[0].micro_batches
    if count < template.depth:
        raise refuse(
            LAUNCHER,
            f"{count} micro-batches are fewer than its {template.depth} stages, which torch's "
            "1F1B schedule does not run",
        )
    flavor = flavor_of(plan.model)
    if plan.model.tied and template.depth > 1:
        raise refuse(LAUNCHER, "first and last stage share the embedding, which it does not tie")
    if flavor.kv_heads % tp:
        raise refuse(LAUNCHER, f"TP {tp} does not divide the {flavor.kv_heads} key and value heads")
    ranks = grid_ranks(plan, template)
    remarks = [*unnamed_note(plan, ranks), *idle_note(plan)]
    if len(template.replicas) > 1 and work.dtype is not DType.FP32:
        remarks.append(
            "Gradients are summed in fp32 there: synchronisation moves twice the bytes that the "
            "plan was priced for."
        )
    arguments = ["--module", CONFIG, "--config", "planned"]
    script = launch_script(
        ranks,
        title=describe(plan, template, LAUNCHER, ranks),
        remarks=remarks,
        command='PYTHONPATH="$work${PYTHONPATH:+:$PYTHONPATH}" python -m torchtitan.train',
        arguments=arguments,
        files=[(f"{CONFIG}.py", config_text(plan, template, flavor))],
    )
    layout = None
    if template.depth > 1:
        layout = json.dumps(module_names(plan.model, template), separators=(",", ":"))
    return Launch("torchtitan", ranks, tuple(arguments), layout, script, tuple(remarks))
