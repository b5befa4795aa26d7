"""`arachne-plan train` and `arachne-plan replan` from the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from planner.cli import main
from planner.policy.weights import load_weights

CLUSTER = """
name: {name}
inter_node: {{bandwidth_gb_per_s: 12.5}}
nodes:
  - {{gpu: h100, gpus: 4, count: {h100}}}
  - {{gpu: a6000, gpus: 4, count: {a6000}}}
"""


def cluster(path: Path, h100: int, a6000: int) -> str:
    path.write_text(CLUSTER.format(name=path.stem, h100=h100, a6000=a6000))
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a plan for 16 H100 and 8 A6000."""
    path = tmp_path_factory.mktemp("replan")
    found = run(
        "plan",
        "--cluster",
        cluster(path / "before.yaml", 4, 2),
        "--planner",
        "arachne",
        "--estimate-missing",
        "--store",
        str(path / "s.db"),
        "-o",
        str(path / "plan.json"),
        "--json",
    )
    assert found.exit_code == 0, found.output
    return path


def replan(folder: Path, new: str, *more: str) -> Result:
    plan, store = str(folder / "plan.json"), str(folder / "s.db")
    return run(
        "replan", "--from", plan, "--cluster", new, "--store", store, "--estimate-missing", *more
    )


def test_more_gpus_are_never_slower(folder: Path) -> None:
    found = replan(folder, cluster(folder / "more.yaml", 8, 2), "--json")
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["old_stands"]
    assert not said["kept"]
    assert said["iteration_s"] <= said["old_iteration_s"] * 1.000001
    assert said["plan"]["cluster"]["name"] == "more"


def test_a_lost_node_makes_a_new_plan_and_says_what_fell(folder: Path) -> None:
    found = replan(
        folder,
        cluster(folder / "less.yaml", 3, 2),
        "--keep-if-better",
        "--json",
        "-o",
        str(folder / "new.json"),
    )
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert not said["old_stands"]
    assert said["why_old_falls"] == "node h100-3 is gone"
    assert not said["kept"]
    assert json.loads((folder / "new.json").read_text())["cluster"]["name"] == "less"


def test_an_old_plan_as_fast_as_the_new_is_kept_on_request(folder: Path) -> None:
    same = cluster(folder / "same.yaml", 4, 2)
    said = json.loads(replan(folder, same, "--keep-if-better", "--json").stdout)
    assert said["kept"]
    assert said["gpus_moved"] == 0
    assert not json.loads(replan(folder, same, "--json").stdout)["kept"]


def test_a_cluster_without_room_is_said_in_one_line(folder: Path) -> None:
    one = folder / "one.yaml"
    one.write_text(
        "name: one\ninter_node: {bandwidth_gb_per_s: 12.5}\nnodes:\n  - {gpu: h100, gpus: 1}\n"
    )
    found = replan(folder, str(one))
    assert found.exit_code == 1
    assert found.stderr.strip().splitlines()[-1].startswith("Error: no plan on one")


def test_training_writes_weights_metrics_and_a_record(tmp_path: Path) -> None:
    weights, store = tmp_path / "my.safetensors", str(tmp_path / "s.db")
    words = ["train", "--models", "llama-3-8b", "--gpus", "a100-80gb,h100", "--compositions", "2"]
    words += ["--steps", "1", "--limit-s", "3600", "--workers", "1", "--store", store]
    found = run(*words, "-o", str(weights), "--json")
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert said["steps"] == 1
    loaded = load_weights(weights)
    assert loaded.file_hash == said["sha256"]
    assert loaded.record["models"] == ["llama-3-8b"]
    assert loaded.record["gpus"] == ["a100-80gb", "h100"]
    rows = [json.loads(x) for x in (tmp_path / "my.metrics.jsonl").read_text().splitlines()]
    assert {"teacher", "imitation", "reinforcement"} == {row["stage"] for row in rows}

    from db.store import open_store

    with open_store(store) as opened:
        (policy,) = opened.policies()
    assert policy.policy.file_hash == loaded.file_hash
    assert list(policy.policy.models) == ["llama-3-8b"]


def test_an_unknown_part_is_one_line(tmp_path: Path) -> None:
    found = run("train", "--ablate", "magic", "--store", str(tmp_path / "s.db"))
    assert found.exit_code == 1
    assert "no part 'magic'" in found.stderr
