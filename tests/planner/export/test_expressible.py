"""What no other launcher expresses is refused by each of them, in one line with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.export import FORMATS
from specs.errors import PlanError
from specs.plan import Place, Plan, Replica, Template
from specs.workload import DType, Optimizer
from tests.planner.export.gpu_plans import gpu_plan

EVERY = pytest.mark.parametrize("name", FORMATS)


def refusal(name: str, plan: Plan) -> str:
    with pytest.raises(PlanError) as raised:
        FORMATS[name](plan)
    said = str(raised.value)
    assert "cannot express this plan: " in said
    assert said.endswith("; arachne-plan export --format torchrun starts any plan")
    assert "\n" not in said
    return said


@EVERY
def test_several_templates(name: str) -> None:
    plan = gpu_plan([("h100", 1, 32)], replicas=2)
    (template,) = plan.templates
    halves = tuple(Template(2, template.stages, (replica,)) for replica in template.replicas)
    assert "2 templates" in refusal(name, replace(plan, templates=halves))


@EVERY
def test_unequal_micro_batch_counts(name: str) -> None:
    said = refusal(name, gpu_plan([("h100", 1, 32)], replicas=2, counts=[7, 9]))
    assert "its replicas run [7, 9] micro-batches" in said


@EVERY
def test_a_short_last_micro_batch(name: str) -> None:
    said = refusal(name, gpu_plan([("h100", 1, 32)], micro_batch=4, last=3))
    assert "a last micro-batch has 3 of 4 samples" in said


@EVERY
def test_processors(name: str) -> None:
    assert "run on cpu" in refusal(name, gpu_plan([("cpu", 1, 32)]))


@EVERY
def test_16_bit_optimizers_without_master_weights(name: str) -> None:
    said = refusal(name, gpu_plan([("h100", 1, 32)], optimizer=Optimizer.SGD))
    assert "sgd in bf16" in said
    plan = gpu_plan([("h100", 1, 32)], optimizer=Optimizer.ADAMW_NO_MASTER)
    assert "adamw-no-master in bf16" in refusal(name, plan)


@pytest.mark.parametrize("name", ["megatron", "torchtitan", "deepspeed"])
def test_another_tp_degree_per_stage(name: str) -> None:
    said = refusal(name, gpu_plan([("a6000", 1, 10), ("h100", 4, 22)]))
    assert "its stages have TP [1, 4]" in said


@pytest.mark.parametrize("name", ["megatron", "flagscale", "deepspeed"])
def test_models_of_another_make(name: str) -> None:
    plan = gpu_plan([("h100", 1, 24)], model="opt-350m", dtype=DType.FP32, seq_len=2048)
    assert "opt" in refusal(name, plan)


@EVERY
def test_a_plan_that_all_express_and_nothing_is_left_out(name: str) -> None:
    """Uneven split, two replicas: every launcher has it, with all GPUs under their ranks."""
    plan = gpu_plan([("a6000", 1, 10), ("h100", 1, 22)], replicas=2)
    launch = FORMATS[name](plan)
    assert launch.launcher == name
    assert len(launch.ranks) == plan.gpus_used == 4
    held = {(rank.stage, rank.replica): Place(rank.node, (rank.gpu,)) for rank in launch.ranks}
    shares: tuple[Replica, ...] = plan.templates[0].replicas
    assert held == {(s, r): shares[r].places[s] for s in range(2) for r in range(2)}
    assert launch.to_json()["script"] == launch.script
