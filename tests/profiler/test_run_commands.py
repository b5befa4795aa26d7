"""`arachne-prof list`, `show` and `delete` on a store with imported runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from db.store import open_store
from profiler.cli import main
from profiler.importers import sailor
from profiler.importers.imported import ImportOptions
from profiler.importers.record import record
from specs.files import read_yaml_or_json
from specs.plan import Plan
from specs.plan_file import plan_from_document
from specs.prediction import Prediction, StageMemory, StagePrediction

SEED = Path(__file__).resolve().parents[2] / "examples" / "sailor"


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with OPT-30 of the planner copy (run 1), links and hosts (run 2)."""
    where = tmp_path_factory.mktemp("imported") / "arachne.db"
    with open_store(where) as opened:
        for run in sailor.read(SEED, ImportOptions(models=("OPT-30",), copies=("planner",))):
            record(opened, run)
    return where


@pytest.fixture
def store(imported: Path, tmp_path: Path) -> str:
    """A copy of that store for each test."""
    return str(shutil.copy(imported, tmp_path / "arachne.db"))


def call(store: str, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--store", store], input=answer)


def call_json(store: str, *arguments: str) -> Any:
    done = call(store, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def plan_predicted_from(*runs: int) -> Plan:
    plan = plan_from_document(
        read_yaml_or_json(SEED / "plans/gh200-opt-350m-n1-d1-m4-g1.json"), "plan"
    )
    memory = StageMemory(1, 1, 1, 1, 1, 1, 10)
    stage = StagePrediction(1, 0, 0, 0, 0, 0, memory)
    return plan.with_prediction(Prediction(1.0, (1.0,), (1,), ((stage,),), runs, ("imported",)))


def test_list_says_where_runs_come_from_and_what_they_are_of(store: str) -> None:
    first, second = call_json(store, "list")["runs"]
    assert (first["run"], first["source"], first["status"]) == (1, "imported", "complete")
    assert first["models"] == ["sailor-opt-30b"]
    assert set(first["gpus"]) == {"a100-40gb", "gh200", "v100-16gb"}
    assert (first["layer_rows"], first["refused_rows"]) == (87, 12)
    assert "eth-easl/sailor@cf2c8e3cc53c" in first["origin"]
    assert (second["link_rows"], second["host_rows"], second["models"]) == (1723, 7, [])


def test_list_of_a_store_without_runs_says_how_to_get_some(tmp_path: Path) -> None:
    where = str(tmp_path / "empty.db")
    open_store(where).close()
    done = call(where, "list")
    assert done.exit_code == 0
    assert "import" in done.stderr
    assert call_json(where, "list") == {"runs": []}


def test_list_names_the_plans_that_rest_on_a_run(store: str) -> None:
    with open_store(store) as opened:
        plan = opened.add_plan(plan_predicted_from(2))
    assert [run["plans"] for run in call_json(store, "list")["runs"]] == [[], [plan]]


def test_show_gives_every_row_as_json(store: str) -> None:
    shown = call_json(store, "show", "1")
    assert len(shown["layers"]) == 87
    assert len(shown["refused"]) == 12
    assert shown["licence"].startswith("MIT")
    block = next(
        r for r in shown["layers"] if (r["layer"], r["gpu"], r["tp"]) == ("block", "gh200", 1)
    )
    assert block["forward_ms"] == pytest.approx((10.644 + 47 * 10.311) / 48)
    assert block["forward_mad_ms"] == pytest.approx((10.644 - 10.311) / 2)
    links = call_json(store, "show", "2", "--gpu", "rtx-3090")
    assert [host["gpu"] for host in links["hosts"]] == ["rtx-3090"]
    assert all("rtx-3090" in (row["gpu"], row["peer_gpu"]) for row in links["links"])


def test_show_draws_maps_with_spread_and_refusals_with_reasons(store: str) -> None:
    done = call(store, "show", "1", "--gpu", "gh200")
    assert done.exit_code == 0
    assert "gh200 block, length 2048, fp32, adamw, nvlink: total ms" in done.stdout
    assert "±" in done.stdout
    assert "collectives of a TP group are inside" in done.stdout
    refused = call(store, "show", "1", "--gpu", "v100-16gb").stdout
    assert "Keys without figures" in refused
    assert "no sizes" in " ".join(refused.split())


def test_show_of_links_gives_a_line_per_curve(store: str) -> None:
    done = call(store, "show", "2", "--gpu", "gh200")
    assert "Hosts" in done.stdout
    assert "all_reduce" in done.stdout


@pytest.mark.parametrize("command", ["show", "delete"])
def test_a_run_that_is_not_there_is_an_error_of_one_line(store: str, command: str) -> None:
    done = call(store, command, "77")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "no profile run 77" in done.stderr


def test_delete_asks_and_a_no_deletes_nothing(store: str) -> None:
    done = call(store, "delete", "1", answer="n\n")
    assert done.exit_code == 1
    assert "with its 99 rows?" in done.stderr
    assert [run["run"] for run in call_json(store, "list")["runs"]] == [1, 2]


def test_delete_after_a_yes_takes_the_run_with_its_rows(store: str) -> None:
    assert call(store, "delete", "1", answer="y\n").exit_code == 0
    assert [run["run"] for run in call_json(store, "list")["runs"]] == [2]
    with open_store(store) as opened:
        assert opened.layer_profiles() == []


def test_delete_without_asking(store: str) -> None:
    assert call_json(store, "delete", "2", "--yes") == {
        "deleted_run": 2,
        "rows": 1730,
        "plans": [],
    }


def test_a_run_that_plans_used_is_kept_unless_forced(store: str) -> None:
    with open_store(store) as opened:
        plan = opened.add_plan(plan_predicted_from(1, 2))
    done = call(store, "delete", "1", "--yes")
    assert done.exit_code == 1
    assert f"plan(s) {plan} were predicted from" in done.stderr
    assert call_json(store, "list")["runs"][0]["layer_rows"] == 87
    assert call(store, "delete", "1", "--yes", "--force").exit_code == 0
    assert [run["run"] for run in call_json(store, "list")["runs"]] == [2]


def test_show_of_estimates_says_on_which_type_each_part_was_fitted(tmp_path: Path) -> None:
    where = str(tmp_path / "estimated.db")
    estimate = ("estimate", "--gpu", "a6000,h100", "--model", "llama-3-8b", "--tp", "1")
    assert call(where, *estimate, "--micro-batch", "1").exit_code == 0
    shown = call_json(where, "show", "1")
    assert set(shown["provenance"]) == {"a6000", "h100"}
    parts = {part["component"]: part for part in shown["provenance"]["h100"]}
    assert parts["matrix products"]["grade"] == "fitted"
    assert parts["host floor and overhead"]["fitted_on"] == "a100-80gb"
    assert "On which GPU type the constants were fitted" in call(where, "show", "1").stdout
    assert set(call_json(where, "show", "1", "--gpu", "a6000")["provenance"]) == {"a6000"}


def test_show_of_imported_rows_has_no_constants(store: str) -> None:
    assert "provenance" not in call_json(store, "show", "1")
