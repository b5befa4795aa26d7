from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specs.cluster import Cluster, Node
from specs.errors import PlanError, SpecError
from specs.model import load_model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.plan_file import load_plan, plan_from_document, plan_hash, plan_to_document
from specs.prediction import Prediction, StageMemory, StagePrediction
from specs.topology import Topology
from specs.workload import Workload

ROOT = Path(__file__).resolve().parent.parent.parent
CLUSTER = Cluster(
    "two",
    (
        Node("h100-0", "h100", 4, Topology.NVLINK, 12.5, 10.0),
        Node("a6000-0", "a6000", 2, Topology.PCIE, 12.5, 10.0),
    ),
)


def two_stage_plan(**changes: Any) -> Plan:
    """llama-3-8b: layers 0..29 on two H100, the last four on an A6000; a replica of 8 samples."""
    template = Template(
        2,
        (Stage("h100", 2, range(30)), Stage("a6000", 1, range(30, 34))),
        (Replica(4, 2, (Place("h100-0", (0, 1)), Place("a6000-0", (0,)))),),
    )
    fields: dict[str, Any] = {
        "planner": "by hand",
        "model": load_model("llama-3-8b"),
        "workload": Workload(8, 4096),
        "cluster": CLUSTER,
        "templates": (template,),
    }
    return Plan(**(fields | changes))


def with_stage(plan: Plan, s: int, **changes: Any) -> tuple[Template, ...]:
    template = plan.templates[0]
    stages = list(template.stages)
    stages[s] = dataclasses.replace(stages[s], **changes)
    return (dataclasses.replace(template, stages=tuple(stages)),)


def with_replica(plan: Plan, **changes: Any) -> tuple[Template, ...]:
    template = plan.templates[0]
    return (
        dataclasses.replace(
            template, replicas=(dataclasses.replace(template.replicas[0], **changes),)
        ),
    )


def test_a_plan_knows_what_it_uses_and_leaves() -> None:
    plan = two_stage_plan()
    assert plan.gpus_used == 3
    assert plan.idle_gpus == {"h100": 2, "a6000": 1}
    assert plan.templates[0].depth == 2


def test_a_layer_twice_or_missing_is_refused() -> None:
    plan = two_stage_plan()
    with pytest.raises(PlanError, match="stage 1 starts at layer 29, expected 30"):
        two_stage_plan(templates=with_stage(plan, 1, layers=range(29, 34)))
    with pytest.raises(PlanError, match="stage 1 starts at layer 31, expected 30"):
        two_stage_plan(templates=with_stage(plan, 1, layers=range(31, 34)))
    with pytest.raises(PlanError, match="ends at layer 33, expected 34"):
        two_stage_plan(templates=with_stage(plan, 1, layers=range(30, 33)))
    with pytest.raises(PlanError, match="and a layer"):
        Stage("h100", 1, range(3, 3))


def test_a_gpu_used_twice_is_refused() -> None:
    plan = two_stage_plan()
    again = (*plan.templates, with_replica(plan, places=plan.templates[0].replicas[0].places)[0])
    with pytest.raises(PlanError, match="GPU 0 of node h100-0 is used twice"):
        two_stage_plan(templates=again, workload=Workload(16, 4096))
    same = (Place("h100-0", (1, 1)), Place("a6000-0", (0,)))
    with pytest.raises(PlanError, match="uses a GPU of node h100-0 twice"):
        two_stage_plan(templates=with_replica(plan, places=same))


def test_a_tp_group_off_its_node_or_type_is_refused() -> None:
    plan = two_stage_plan()
    for places, message in [
        ((Place("h100-0", (3, 4)), Place("a6000-0", (0,))), "uses GPU 4 of node h100-0"),
        ((Place("h100-0", (0,)), Place("a6000-0", (0,))), "has tp=2, expected as many GPUs"),
        ((Place("a6000-0", (0, 1)), Place("a6000-0", (0,))), "wants h100, node a6000-0 has a6000"),
        ((Place("h100-9", (0, 1)), Place("a6000-0", (0,))), "which cluster 'two' lacks"),
    ]:
        with pytest.raises(PlanError, match=message):
            two_stage_plan(templates=with_replica(plan, places=places))


def test_shares_must_sum_to_the_global_batch() -> None:
    plan = two_stage_plan()
    assert two_stage_plan(
        templates=with_replica(plan, last_micro_batch=1), workload=Workload(7, 4096)
    )
    with pytest.raises(PlanError, match="sum to the global batch 8, got 7"):
        two_stage_plan(templates=with_replica(plan, last_micro_batch=1))
    with pytest.raises(PlanError, match="the last of 1 to 2 samples"):
        two_stage_plan(templates=with_replica(plan, last_micro_batch=3))


def test_an_expert_tiling_must_exist() -> None:
    with pytest.raises(PlanError, match="on a stage without experts"):
        two_stage_plan(templates=with_stage(two_stage_plan(), 0, ep=2))
    moe = Template(
        1,
        (Stage("h100", 4, range(34), ep=2, etp=2),),
        (Replica(8, 1, (Place("h100-0", (0, 1, 2, 3)),)),),
    )
    assert two_stage_plan(model=load_model("mixtral-8x7b"), templates=(moe,))
    for ep, etp, message in [
        (8, 1, "divides the stage's 4 devices"),
        (1, 3, "divides the stage's 4"),
    ]:
        bad = dataclasses.replace(moe, stages=(Stage("h100", 4, range(34), ep, etp),))
        with pytest.raises(PlanError, match=message):
            two_stage_plan(model=load_model("mixtral-8x7b"), templates=(bad,))


def predicted(plan: Plan) -> Plan:
    memory = StageMemory(1e9, 1e9, 6e9, 2e9, 5e8, 1.5e9, 4e10)
    stage = StagePrediction(10.5, 1.25, 3.0, 0.5, 4.0, 2.0, memory)
    return plan.with_prediction(
        Prediction(77.0, (71.0,), (4,), ((stage, stage),), (1, 2), ("estimated",), 50.0)
    )


def test_a_plan_document_reads_back_equal(tmp_path: Path) -> None:
    plan = predicted(two_stage_plan())
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_to_document(plan)))
    again = load_plan(path)
    assert again == plan
    assert plan_hash(again) == plan_hash(two_stage_plan())


def test_the_published_schema_accepts_what_we_write_and_is_up_to_date() -> None:
    document = json.loads(json.dumps(plan_to_document(predicted(two_stage_plan()))))
    jsonschema.validate(document, json.loads((ROOT / "docs" / "plan.schema.json").read_text()))
    jsonschema.validate(
        CLUSTER.to_json(), json.loads((ROOT / "docs" / "cluster.schema.json").read_text())
    )
    namespace: dict[str, Any] = {"__name__": "make_commands"}
    exec((ROOT / "docs" / "make_commands.py").read_text(), namespace)
    for name, text in namespace["schemas"]().items():
        assert (ROOT / "docs" / name).read_text() == text, "run: python docs/make_commands.py"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 2, "schema is 2, expected 1"),
        (("templates",), [], "templates is \\[\\], expected"),
        (("templates", 0, "stages", 0, "tp"), 0, r"templates\[0\]\.stages\[0\]\.tp is 0, expected"),
        (("templates", 0, "stages", 0, "gpu"), "b300", r"stages\[0\]\.gpu: no GPU type 'b300'"),
        (("templates", 0, "stages", 1, "layers"), [29, 34], "starts at layer 29, expected 30"),
        (("model", "config_hash"), "0" * 16, r"model\.config_hash is '0000000000000000', expected"),
        (("model", "config", "hidden_size"), -1, "hidden_size is -1, expected"),
        (("workload", "dtype"), "int4", r"workload\.dtype is 'int4', expected"),
        (("cluster", "nodes", 0, "gpus"), "four", r"nodes\[0\]\.gpus is 'four', expected"),
        (
            ("prediction", "sync_ms"),
            [[1.0]],
            r"prediction\.sync_ms is .* expected figures of shape",
        ),
    ],
)
def test_a_wrong_document_names_the_field(path: tuple[Any, ...], value: Any, message: str) -> None:
    document = json.loads(json.dumps(plan_to_document(predicted(two_stage_plan()))))
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(SpecError, match=message):
        plan_from_document(document, "plan.json")


def complaint_about(document: Any) -> str:
    try:
        plan_from_document(document, "plan.json")
    except SpecError as error:
        return str(error)
    return ""


def test_no_damaged_document_gives_anything_but_a_plan_or_one_line() -> None:
    """Random damage: a value replaced, a key dropped, a list cut."""
    base = json.loads(json.dumps(plan_to_document(predicted(two_stage_plan()))))
    rng = random.Random(0)
    junk: list[Any] = [None, -1, 0, 1e308, "x", [], {}, True, [[]], {"a": 1}, 10**30]
    for _ in range(1500):
        document = json.loads(json.dumps(base))
        target: Any = document
        while True:
            keys = list(target) if isinstance(target, dict) else list(range(len(target)))
            if not keys:
                break
            key = rng.choice(keys)
            child = target[key]
            if isinstance(child, dict | list) and rng.random() < 0.8:
                target = child
                continue
            if rng.random() < 0.2:
                del target[key]
            else:
                target[key] = rng.choice(junk)
            break
        complaint = complaint_about(document)
        assert "\n" not in complaint


def test_a_huge_number_anywhere_gives_a_plan_or_one_line() -> None:
    """Every number of a document in turn, one digit more than floats or memory bear."""
    base = json.loads(json.dumps(plan_to_document(predicted(two_stage_plan()))))

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if isinstance(value, dict | list):
            keys = value.keys() if isinstance(value, dict) else range(len(value))
            return [place for key in keys for place in places(value[key], (*path, key))]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return [path] if is_number else []

    found = places(base)
    assert ("templates", 0, "stages", 0, "layers", 1) in found
    assert ("model", "config", "num_hidden_layers") in found
    for *parents, last in found:
        for huge in (10**9, 10**30):
            document = json.loads(json.dumps(base))
            target = document
            for key in parents:
                target = target[key]
            target[last] = huge
            assert "\n" not in complaint_about(document)


@pytest.mark.parametrize("field", ["global_batch", "seq_len"])
def test_a_workload_is_no_larger_than_figures_can_say(field: str) -> None:
    with pytest.raises(SpecError, match=r"at most 1,?0"):
        Workload(**{"global_batch": 8, "seq_len": 8, field: 10**22})
