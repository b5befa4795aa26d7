"""FlagScale (a fork of Megatron-LM): one template, a process mesh for stages of one TP degree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from planner.export.expressible import has_experts, idle_note, only_template, refuse
from planner.export.launch import Launch, describe, grid_ranks, launch_script, unnamed_note
from planner.export.megatron import model_remarks, sequence_parallel, training_arguments
from planner.export.megatron_model import model_arguments
from specs.plan import Plan, Template

LAUNCHER = "FlagScale"


@dataclass(frozen=True, slots=True)
class Mesh:
    """Consecutive stages of one GPU type, TP degree and expert tiling. name: unique in the job."""

    name: str
    tp: int
    ep: int
    etp: int
    stages: tuple[int, ...]


def meshes_of(plan: Plan, template: Template) -> tuple[Mesh, ...]:
    """The process meshes of a template, in stage order.

    Ranks there are sorted by the device type that each says it is, so a type that comes back after
    another has a name of its own: `a6000`, `h100`, `a6000-2`.
    """
    found: list[Mesh] = []
    kinds: list[tuple[str, int, int, int]] = []
    seen: Counter[str] = Counter()
    for s, stage in enumerate(template.stages):
        tiles = (stage.ep, stage.etp) if has_experts(plan, stage) else (1, 1)
        kind = (stage.gpu, stage.tp, *tiles)
        if kinds and kinds[-1] == kind:
            last = found.pop()
            found.append(Mesh(last.name, *kind[1:], (*last.stages, s)))
            continue
        seen[stage.gpu] += 1
        number = f"-{seen[stage.gpu]}" if seen[stage.gpu] > 1 else ""
        kinds.append(kind)
        found.append(Mesh(stage.gpu + number, *kind[1:], (s,)))
    return tuple(found)


def export(plan: Plan) -> Launch:
    """The launch of a plan. Raises PlanError that names what FlagScale cannot express.

    Options and rules: `_add_hetero_args` and `pre_validate_args` of FlagScale's Megatron plugin
    (a mesh is TP, CP, EP, DP, PP; DP alike, sequence parallelism where TP differs, the ends of a
    model with tied embeddings of one TP degree, EP 1 in all meshes or in none).
    """
    template = only_template(plan, LAUNCHER)
    for s, stage in enumerate(template.stages):
        if not any(plan.model.layers[i].kind.is_block for i in stage.layers):
            raise refuse(LAUNCHER, f"stage {s} holds no block, and its layer split counts blocks")
    meshes = meshes_of(plan, template)
    if plan.model.tied and template.stages[0].tp != template.stages[-1].tp:
        raise refuse(
            LAUNCHER,
            f"first and last stage share the embedding and have TP {template.stages[0].tp} and "
            f"{template.stages[-1].tp}",
        )
    sparse = any(has_experts(plan, stage) for stage in template.stages)
    if sparse and len({mesh.ep > 1 for mesh in meshes}) > 1:
        raise refuse(LAUNCHER, f"EP is {[m.ep for m in meshes]}, and there it is 1 in all or none")
    replicas = len(template.replicas)
    for mesh in meshes:
        if mesh.tp * replicas % (mesh.ep * mesh.etp):
            raise refuse(LAUNCHER, f"EPxETP {mesh.ep}x{mesh.etp} does not divide TP x DP")
    split = [
        sum(plan.model.layers[i].kind.is_block for i in stage.layers) for stage in template.stages
    ]
    ranks = grid_ranks(plan, template)
    arguments = ["--tensor-model-parallel-size", str(meshes[0].tp)]
    arguments += ["--pipeline-model-parallel-size", str(template.depth)]
    arguments += ["--enable-hetero", "--hetero-pipeline-layer-split", *map(str, split)]
    arguments += ["--hetero-process-meshes"]
    for mesh in meshes:
        arguments += map(str, (mesh.tp, 1, mesh.ep, replicas, len(mesh.stages)))
    arguments += ["--hetero-device-types", *(mesh.name for mesh in meshes)]
    remarks = [*unnamed_note(plan, ranks), *idle_note(plan)]
    words, more = sequence_parallel(template, sparse)
    if sparse:
        arguments += ["--expert-model-parallel-size", str(meshes[0].ep)]
        arguments += ["--expert-tensor-parallel-size-per-process-mesh"]
        arguments += [str(mesh.etp) for mesh in meshes]
    if len({mesh.tp for mesh in meshes}) > 1:
        words, more = (
            ["--sequence-parallel"],
            ["Unequal TP needs sequence parallelism there; the plan was priced without it."],
        )
    arguments += [*words, *model_arguments(plan.model, LAUNCHER)]
    arguments += training_arguments(plan, template, LAUNCHER)
    remarks += [*more, *model_remarks(plan.model, max(mesh.tp for mesh in meshes))]
    mesh_of_stage = {s: mesh.name for mesh in meshes for s in mesh.stages}
    names = [mesh_of_stage[rank.stage] for rank in ranks]
    script = launch_script(
        ranks,
        title=describe(plan, template, LAUNCHER, ranks),
        remarks=remarks,
        command='python "${FLAGSCALE_TRAIN:-flagscale/train/megatron/train_gpt.py}" '
        '--hetero-current-device-type "${device_types[$rank]}"',
        arguments=arguments,
        environment=["CUDA_DEVICE_MAX_CONNECTIONS=1"],
        by_rank=[("device_types", names)],
    )
    layout = " ".join(map(str, split))
    return Launch("flagscale", ranks, tuple(arguments), layout, script, tuple(remarks))
