"""Suites as files: what the paper's holds, and how a wrong one is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.suite import (
    SuiteFile,
    TableFile,
    WorkloadFile,
    load_suite,
    shipped_suites,
    suite_of,
)
from specs.errors import SpecError
from specs.workload import Recompute

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def document(**table: Any) -> dict[str, Any]:
    """A right suite of one table, with what is said otherwise."""
    cluster = {"name": "two", "nodes": [{"gpu": "h100", "gpus": 2}]}
    right = {"table": "one", "title": "One", "models": ["tiny-llama-test"], "clusters": [cluster]}
    return {
        "name": "mine",
        "planners": ["random"],
        "inter_node": {"bandwidth_gb_per_s": 12.5},
        "tables": [{**right, **table}],
    }


def test_the_paper_suite_has_every_cell_of_the_evaluation() -> None:
    suite = load_suite("paper")
    sizes = {
        table.name: sorted((cell.model.name, cell.cluster.gpus) for cell in table.cells)
        for table in suite.tables
    }
    both = ("llama-3-8b", "qwen3-32b")
    assert sizes["two-types"] == [(name, n) for name in both for n in (64, 128, 256)]
    assert sizes["three-types"] == [(name, n) for name in both for n in (128, 256, 512)]
    assert [n for _, n in sizes["non-uniform"]] == [52, 104, 208, 312, 416]
    assert [n for _, n in sizes["four-types"]] == [48, 84, 96, 168, 192]
    assert [n for _, n in sizes["growing"]] == [3, 7, 11, 15, 19]
    assert [n for _, n in sizes["types"]] == [256, 512, 768]
    moe = ("mixtral-8x7b", "qwen3-30b-a3b")
    assert sizes["experts"] == [(name, n) for name in moe for n in (64, 160, 256)]
    assert [n for _, n in sizes["large-experts"]] == [160, 256, 512]
    assert [n for _, n in sizes["larger-model"]] == [128, 256, 512]
    larger = next(table for table in suite.tables if table.name == "larger-model")
    assert all(cell.workload.recompute is Recompute.FULL for cell in larger.cells)


def test_its_clusters_have_the_mixes_that_the_paper_gives() -> None:
    tables = {table.name: table.cells for table in load_suite("paper").tables}
    counts = [cell.cluster.gpus_by_type for cell in tables["two-types"]]
    assert {"a100-40gb": 32, "h100": 32} in counts
    assert all(
        2 * cell.cluster.gpus_by_type["a100-40gb"]
        == 2 * cell.cluster.gpus_by_type["a6000"]
        == cell.cluster.gpus_by_type["h100"]
        for cell in tables["three-types"]
    )
    for cell in tables["non-uniform"]:
        assert {node.gpus for node in cell.cluster.nodes} == {1, 4}
        assert len(cell.cluster.gpus_by_type) == 3
    shares = [c.cluster.gpus_by_type["a6000"] / c.cluster.gpus for c in tables["four-types"]]
    assert sorted(round(100 * share) for share in shares) == [25, 25, 25, 57, 57]
    grown = [[node.name for node in cell.cluster.nodes] for cell in tables["growing"]]
    assert all(after[: len(before)] == before for before, after in pairwise(grown))


@pytest.mark.parametrize("name", ["paper", "small"])
def test_a_shipped_suite_is_the_file_of_the_examples(name: str) -> None:
    assert name in shipped_suites()
    by_path = load_suite(str(EXAMPLES / "suites" / f"{name}.yaml"))
    assert [c.title for c in by_path.cells] == [c.title for c in load_suite(name).cells]


def test_models_times_clusters_are_cells_with_the_said_workload() -> None:
    suite = suite_of(document(workload={"global_batch": 9, "recompute": "full"}), "suite")
    (cell,) = suite.cells
    assert (cell.workload.global_batch, cell.workload.recompute.value) == (9, "full")
    assert cell.planners == ("random",)
    assert cell.title == "tiny-llama-test on two, recomputed"


def test_a_cluster_may_be_a_path_beside_the_suite(tmp_path: Path) -> None:
    cluster = {
        "name": "beside",
        "inter_node": {"bandwidth_gb_per_s": 1},
        "nodes": [{"gpu": "h100", "gpus": 3}],
    }
    (tmp_path / "beside.yaml").write_text(yaml.safe_dump(cluster))
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(document(clusters=["beside.yaml"])))
    (cell,) = load_suite(str(tmp_path / "suite.yaml")).cells
    assert (cell.cluster.name, cell.cluster.gpus) == ("beside", 3)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"planners": ["nobody"]}, r"tables\[0\].planners\[0\] is 'nobody', expected one of: "),
        ({"untiled": ["nobody"]}, r"tables\[0\].untiled\[0\] is 'nobody', expected one of: "),
        ({"clusters": None}, r"expected either clusters, at least one, or grows"),
        ({"clusters": []}, r"expected either clusters, at least one, or grows"),
        ({"clusters": ["nowhere"]}, r"tables\[0\].clusters\[0\]: no cluster 'nowhere'"),
        ({"models": ["nothing"]}, r"tables\[0\].models\[0\]: no model 'nothing'"),
        ({"table": "Two Words"}, r"tables\[0\].table is 'Two Words', expected"),
        ({"budget": 3}, r"tables\[0\].budget is 3, expected no such field"),
        (
            {"clusters": [{"name": "x", "nodes": [{"gpu": "h100", "gpus": 0}]}]},
            r"tables\[0\].clusters\[0\]: nodes\[0\].gpus is 0, expected",
        ),
        (
            {"clusters": None, "grows": {"name": "g", "joins": [{"gpu": "h999", "gpus": 1}]}},
            r"tables\[0\].grows: nodes\[0\].gpu: ",
        ),
    ],
)
def test_a_wrong_suite_is_refused_by_field_value_and_expectation(
    table: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SpecError, match=r"^mine\.yaml: .*" + complaint):
        suite_of(document(**table), "mine.yaml")


def test_two_tables_of_one_name_are_refused() -> None:
    twice = document()
    twice["tables"] *= 2
    with pytest.raises(SpecError, match=r"tables\[1\].table is 'one', expected a name of its own"):
        suite_of(twice, "mine.yaml")


def test_only_some_tables_can_be_asked_for() -> None:
    suite = load_suite("paper")
    assert [table.name for table in suite.only(["growing"]).tables] == ["growing"]
    with pytest.raises(SpecError, match="has no table 'grown', expected some of: two-types, "):
        suite.only(["grown"])


def test_a_suite_that_is_nowhere_is_refused_with_the_shipped_names() -> None:
    with pytest.raises(SpecError, match=r"no suite 'nowhere': .* paper, small"):
        load_suite("nowhere")


def test_the_docs_name_every_field_of_a_suite() -> None:
    text = (EXAMPLES.parent / "docs" / "suites.md").read_text()
    named = {*SuiteFile.model_fields, *TableFile.model_fields, *WorkloadFile.model_fields}
    assert [name for name in sorted(named) if f"`{name}`" not in text] == []
