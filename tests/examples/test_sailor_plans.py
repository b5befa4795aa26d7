from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from profiler.importers.sailor import release
from specs.plan_file import load_plan

SEED = Path(__file__).resolve().parents[2] / "examples" / "sailor"


@pytest.fixture(scope="module")
def make_plans() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_plans", SEED / "make_plans.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_plans_and_times_are_those_the_script_makes(make_plans: ModuleType) -> None:
    made: dict[str, str] = make_plans.files()
    held = {
        path.relative_to(SEED).as_posix(): path.read_text()
        for folder in ("plans", "times")
        for path in (SEED / folder).iterdir()
    }
    assert held == made, "run: python examples/sailor/make_plans.py"


def test_data_files_are_the_published_bytes() -> None:
    known = dict(release().sha256)
    found = {
        path.relative_to(SEED).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in SEED.rglob("*.json")
        if path.parent != SEED / "plans"
    }
    assert found == known


def test_every_run_but_the_corrupt_one_is_a_plan_with_a_time() -> None:
    plans = {path.stem for path in (SEED / "plans").glob("*.json")}
    assert plans == {path.stem for path in (SEED / "times").glob("*.csv")}
    assert len(list((SEED / "validation").rglob("*.json"))) == 20
    assert len([name for name in plans if name.startswith("gh200-")]) == 14
    assert len([name for name in plans if name.startswith("rtx-")]) == 5
    assert "gh200-gpt-neo-2.7b-n4-d4" not in plans


def test_replicas_of_mixed_stages_become_a_template_per_sequence_of_gpus() -> None:
    plan = load_plan(SEED / "plans" / "rtx-opt-350m-n4-d2.json")
    assert [[stage.gpu for stage in t.stages] for t in plan.templates] == [
        ["rtx-3090", "titan-rtx"],
        ["rtx-2080-ti", "rtx-2080-ti"],
    ]
    # 256 samples / (micro-batch 2 * DP 2) = 64 micro-batches on each of the two pipelines.
    assert [r.micro_batches for t in plan.templates for r in t.replicas] == [64, 64]
    assert [stage.layers for stage in plan.templates[0].stages] == [range(12), range(12, 26)]


def test_equal_pipelines_are_replicas_of_one_template() -> None:
    plan = load_plan(SEED / "plans" / "rtx-opt-350m-n4-d4.json")
    assert [(t.stages[0].gpu, len(t.replicas)) for t in plan.templates] == [
        ("rtx-3090", 1),
        ("rtx-2080-ti", 2),
        ("titan-rtx", 1),
    ]


def test_times_are_in_ms_and_say_how_many_iterations_they_are_the_mean_of() -> None:
    source = json.loads(
        (SEED / "validation/clariden/OPT-350/N8/plan_config_N8_D2.json").read_text()
    )
    with (SEED / "times" / "gh200-opt-350m-n8-d2.csv").open() as file:
        [row] = csv.DictReader(file)
    assert float(row["iteration_ms"]) == pytest.approx(1000 * source["real"])
    assert row["samples"] == "7"
    assert int(row["peak_bytes"]) == source["max_mem"]


@pytest.mark.parametrize(
    "name", ["rtx-opt-350m-n2-d1", "rtx-opt-350m-n2-d2", "gh200-gpt-neo-2.7b-n8-d2"]
)
def test_memory_that_cannot_be_right_is_left_out(name: str) -> None:
    with (SEED / "times" / f"{name}.csv").open() as file:
        [row] = csv.DictReader(file)
    assert row["peak_bytes"] == ""


def test_links_between_nodes_are_the_measured_ones() -> None:
    for path in (SEED / "plans").glob("*.json"):
        for node in load_plan(path).cluster.nodes:
            assert node.bandwidth_gb_per_s is None
            assert node.latency_us == 0
