"""`arachne-plan compare`, from the door: one question, a suite, and going on."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from planner.cli import main

SUITE = {
    "name": "mine",
    "planners": ["random"],
    "budget_s": 0.3,
    "inter_node": {"bandwidth_gb_per_s": 12.5},
    "tables": [
        {
            "table": "grow",
            "title": "Growing",
            "models": ["tiny-llama-test"],
            "chosen": "all of it",
            "grows": {
                "name": "g",
                "joins": [{"gpu": "h100", "gpus": 1}, {"gpu": "a6000", "gpus": 2}],
            },
        }
    ],
}


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": "three",
                "inter_node": {"bandwidth_gb_per_s": 12.5},
                "nodes": [{"gpu": "h100", "gpus": 1}, {"gpu": "a6000", "gpus": 2}],
            }
        )
    )
    return str(path)


def compare(tmp_path: Path, *words: str) -> Result:
    store = ["--store", str(tmp_path / "store.db"), "--certificate", "quick", "--jobs", "1"]
    return CliRunner().invoke(main, ["compare", *words, *store, "--estimate-missing"])


def one_question(tmp_path: Path, cluster: str, *words: str) -> dict[str, Any]:
    asked = ["--model", "tiny-llama-test", "--cluster", cluster, "--budget-s", "0.3"]
    found = compare(tmp_path, *asked, "--planners", "random", "--json", *words)
    assert found.exit_code == 0, found.output
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def test_rows_say_stages_idle_gpus_and_refusals(tmp_path: Path, cluster: str) -> None:
    document = one_question(tmp_path, cluster, "--csv", str(tmp_path / "rows.csv"))
    rows = document["rows"]
    assert [row["planner"] for row in rows] == ["arachne", "random"]
    assert max(row["relative_to_best"] for row in rows) == 1.0
    for row in rows:
        assert ":" in row["stages"]
        assert row["gpus_used"] + row["gpus_idle"] == 3
        assert row["refused"] == sum(row["rejected"].values())
    written = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [line["stages"] for line in written] == [row["stages"] for row in rows]


def test_resuming_a_finished_comparison_asks_nobody(tmp_path: Path, cluster: str) -> None:
    first = one_question(tmp_path, cluster)
    again = one_question(tmp_path, cluster, "--resume")
    assert again["comparison_id"] == first["comparison_id"]
    assert again["rows"] == first["rows"]
    assert one_question(tmp_path, cluster)["comparison_id"] != first["comparison_id"]


def test_a_suite_asks_every_question_and_prints_its_tables(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    found = compare(tmp_path, "--suite", str(tmp_path / "suite.yaml"))
    assert found.exit_code == 0, found.output
    assert "grow: all of it" in found.stdout
    assert "tiny-llama-test on g-1" in found.stdout
    assert "tiny-llama-test on g-3" in found.stdout
    assert "random: throughput fell at 0 of 1 joins" in found.stdout
    assert "[2/2] grow: tiny-llama-test on g-3" in found.stderr
    document = json.loads(
        compare(tmp_path, "--suite", str(tmp_path / "suite.yaml"), "--json", "--resume").stdout
    )
    assert [cell["gpus"] for cell in document["cells"]] == [1, 3]
    assert document["cells"][0]["comparison_id"] == 1
    assert document["published"] == []


def test_what_the_suite_says_cannot_be_said_beside_it(tmp_path: Path) -> None:
    found = compare(tmp_path, "--suite", "small", "--model", "llama-3-8b")
    assert found.exit_code == 2
    assert "--model does not go with --suite" in found.stderr
    assert compare(tmp_path, "--tables", "pairs").exit_code == 2


def test_a_wrong_suite_is_one_line(tmp_path: Path) -> None:
    wrong = {**SUITE, "planners": ["nobody"]}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(wrong))
    found = compare(tmp_path, "--suite", str(tmp_path / "suite.yaml"))
    assert found.exit_code == 1
    assert "suite.yaml: planners[0] is 'nobody', expected one of: arachne, " in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
