"""What an import leaves in the store, and the command around it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from db.store import Store, open_store
from profiler.cli import main
from profiler.importers import sailor
from profiler.importers.imported import ImportedRun, ImportOptions
from profiler.importers.record import Outcome, record
from specs.profile import EntryStatus, RunStatus, Source

SEED = Path(__file__).resolve().parents[2] / "examples" / "sailor"


@pytest.fixture(scope="module")
def imported() -> list[ImportedRun]:
    return sailor.read(SEED, ImportOptions(models=("OPT-30", "OPT-350"), copies=("planner",)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "arachne.db"))


def test_an_import_is_a_complete_run_with_origin_licence_and_refusals(
    store: Store, imported: list[ImportedRun]
) -> None:
    recorded = [record(store, run) for run in imported]
    assert [entry.outcome for entry in recorded] == [Outcome.ADDED] * 3
    opt30 = store.profile_run(recorded[0].run_id)
    assert (opt30.status, opt30.run.source) == (RunStatus.COMPLETE, Source.IMPORTED)
    assert opt30.run.licence.startswith("MIT")
    assert (opt30.layer_rows, opt30.refused_rows) == (87, 12)
    refusal = store.layer_refusals(run_id=opt30.id)[0].refusal
    assert refusal.status is EntryStatus.REFUSED
    assert "OPT-30 V100-16 mbs 1 tp 8" in refusal.reason
    links = store.profile_run(recorded[2].run_id)
    assert (links.link_rows, links.host_rows) == (1723, 7)


def test_the_rows_in_the_store_are_those_that_were_read(
    store: Store, imported: list[ImportedRun]
) -> None:
    for run in imported:
        run_id = record(store, run).run_id
        assert [s.profile for s in store.layer_profiles(run_id=run_id)] == list(run.layers)
        assert [s.profile for s in store.link_profiles(run_id=run_id)] == list(run.links)
        assert [s.profile for s in store.host_profiles(run_id=run_id)] == list(run.hosts)


def test_the_same_import_again_changes_nothing(store: Store, imported: list[ImportedRun]) -> None:
    first = [record(store, run).run_id for run in imported]
    again = [record(store, run) for run in imported]
    assert [entry.outcome for entry in again] == [Outcome.UNCHANGED] * 3
    assert [entry.run_id for entry in again] == first
    assert len(store.profile_runs()) == 3


def test_an_import_that_was_killed_is_completed(store: Store, imported: list[ImportedRun]) -> None:
    run = imported[0]
    for model in run.models:
        store.add_model(model)
    half = store.start_run(run.new)
    store.add_layer_profiles(half, run.layers[:10])
    done = record(store, run)
    assert (done.outcome, done.run_id) == (Outcome.COMPLETED, half)
    assert store.profile_run(half).layer_rows == len(run.layers)
    assert store.profile_run(half).status is RunStatus.COMPLETE


def test_rows_of_an_older_rule_are_left_alone(store: Store, imported: list[ImportedRun]) -> None:
    old = replace(imported[0], layers=imported[0].layers[:30])
    first = record(store, old).run_id
    second = record(store, imported[0])
    assert second.outcome is Outcome.ADDED
    assert second.run_id != first
    assert store.profile_run(first).layer_rows == 30


def run_command(tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, [*arguments, "--store", str(tmp_path / "arachne.db")])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_lists_runs_and_every_refused_row(tmp_path: Path) -> None:
    code, out, _ = run_command(
        tmp_path, "import", "sailor", str(SEED), "--copy", "planner", "--model", "OPT-30", "--json"
    )
    assert code == 0
    runs = json.loads(out)["runs"]
    assert [(run["outcome"], run["layer_rows"], run["refused_rows"]) for run in runs] == [
        ("added", 87, 12),
        ("added", 0, 0),
    ]
    assert len(runs[0]["refused"]) == 12
    assert "no sizes of this model at TP 8" in runs[0]["refused"][0]["reason"]
    assert "eth-easl/sailor@cf2c8e3cc53c" in runs[0]["origin"]


def test_the_command_says_when_nothing_changed(tmp_path: Path) -> None:
    arguments = ("import", "sailor", str(SEED), "--copy", "planner", "--model", "OPT-350")
    code, out, err = run_command(tmp_path, *arguments)
    assert (code, "added" in out) == (0, True)
    assert "optimizer step is 0" in err
    code, out, err = run_command(tmp_path, *arguments, "-q")
    assert code == 0
    assert "unchanged" in out
    assert "nothing changed" in err
    assert "optimizer step" not in err


def test_an_import_of_nothing_is_an_error_of_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "model_memory").mkdir(parents=True)
    shutil.copy(SEED / "model_memory/llm_info.json", folder / "model_memory")
    file = folder / "planner_profiles/GPT-Neo-2.7/GH-96/profile.json"
    file.parent.mkdir(parents=True)
    shutil.copy(SEED / "planner_profiles/GPT-Neo-2.7/GH-96/profile.json", file)
    code, out, err = run_command(tmp_path, "import", "sailor", str(folder))
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert "63 refused" in err
    assert "has 26 layers" in err
    assert not (tmp_path / "arachne.db").exists()


@pytest.mark.parametrize("form", ["sailor", "reference", "csv", "metis", "amp"])
def test_a_path_that_is_not_there_is_an_error(tmp_path: Path, form: str) -> None:
    code, _, err = run_command(tmp_path, "import", form, str(tmp_path / "nowhere"))
    assert code == 1
    assert "nowhere: no such file or folder" in err


def test_a_gpu_name_without_its_meaning_is_a_wrong_option(tmp_path: Path) -> None:
    code, _, err = run_command(
        tmp_path, "import", "metis", str(tmp_path), "--model", "opt-350m", "--gpu-name", "A100"
    )
    assert code == 2
    assert "'A100' is not FILE=GPU" in err
