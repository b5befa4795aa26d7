"""A run between two profiles: what is predicted from both, and that it is done from the door."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.live_plans import replicas
from db.store import open_store
from planner.profiles import ProfileSet
from runtime.cli import main
from runtime.cli.bracket import mean_host, mean_layer, mean_profiles
from runtime.comparison import Bracket
from specs.cluster import Cluster, Node
from specs.model import load_model
from specs.plan_file import plan_to_document
from specs.profile import HostProfile, LayerKey, LayerProfile
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute

KEY = LayerKey("cpu", "some", 1, 2, 128, DType.FP32, Recompute.NONE, Optimizer.ADAMW, Topology.HOST)
ROW = LayerProfile(KEY, 10.0, 20.0, 1.0, 4.0, 100, 50, 400, samples=30)
SLOWER = replace(ROW, forward_ms=12.0, backward_ms=26.0, comm_ms=2.0, update_ms=5.0)


def test_times_are_means_and_memory_is_the_larger() -> None:
    row = mean_layer(ROW, replace(SLOWER, activation_bytes=90, transient_bytes=70, samples=20))
    assert (row.forward_ms, row.backward_ms, row.comm_ms, row.update_ms) == (11.0, 23.0, 1.5, 4.5)
    assert (row.activation_bytes, row.transient_bytes, row.samples) == (100, 70, 50)
    host = mean_host(HostProfile("cpu", 0.2, 7, 900), HostProfile("cpu", 0.4, 9, 800))
    assert (host.host_ms, host.framework_bytes, host.usable_bytes) == (pytest.approx(0.3), 9, 800)


def test_a_key_of_one_profile_alone_stays_as_it_is() -> None:
    other = replace(ROW, key=replace(KEY, micro_batch=4))
    base = ProfileSet.of_rows([SLOWER, other], (), ())
    first, second = ProfileSet.of_rows([ROW], (), ()), ProfileSet.of_rows([SLOWER, other], (), ())
    found = {key.micro_batch: row for key, row in mean_profiles(base, first, second).layers.items()}
    assert found[2].forward_ms == 11.0
    assert found[4] is other


def test_profiles_that_differ_too_far_are_no_window() -> None:
    assert Bracket((1, 2), (100.0, 104.0)).steady
    apart = Bracket((1, 2), (100.0, 94.0))
    assert not apart.steady
    assert apart.to_json(50.0) == {
        "runs": [1, 2],
        "before_ms": 100.0,
        "after_ms": 94.0,
        "before_error": 1.0,
        "drift": pytest.approx(-0.06),
        "steady": False,
    }


def _cluster(devices: int) -> Cluster:
    return Cluster("here", (Node("cpu-0", "cpu", devices, Topology.HOST, 1.0, 100.0),))


def test_more_processes_than_cores_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiler.host.allowed_cores", lambda: [0])
    path = tmp_path / "plan.json"
    plan = replicas(load_model("tiny-llama-test"), _cluster(2), 4)
    path.write_text(json.dumps(plan_to_document(plan)))
    words = [str(path), "--profile", "--store", str(tmp_path / "a.db")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "the plan runs 2 processes and this host has 1 cores" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_between_two_profiles_is_predicted_within_a_loose_bound(tmp_path: Path) -> None:
    plan = replicas(load_model("tiny-llama-test"), _cluster(2), 4)
    path, store = tmp_path / "plan.json", str(tmp_path / "a.db")
    path.write_text(json.dumps(plan_to_document(plan)))
    words = [str(path), "--profile", "--iterations", "5", "--json", "--store", store]
    errors = []
    for _ in range(3):  # the machine may be busy with something else in one window
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        bracket = document["bracket"]
        between = sorted([bracket["before_ms"], bracket["after_ms"]])
        assert between[0] * 0.999 <= document["predicted_ms"] <= between[1] * 1.001
        errors.append(abs(document["error"]))
        if errors[-1] < 0.25:
            break
    assert min(errors) < 0.4, errors
    with open_store(store) as opened:
        rows = opened.measurements(document["plan_id"])
        priced = opened.plan(document["plan_id"]).plan.prediction
    assert [row.measurement.iteration for row in rows] == list(range(7))
    assert priced is not None
    assert set(bracket["runs"]) <= set(priced.profile_runs)
    assert document["profile_reference_ms"] > 0
