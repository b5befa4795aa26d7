"""Estimates in the store: written once, completed, and made for what a plan would miss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from db.store import Store, open_store
from profiler.calibration import constants_version
from profiler.cli import main
from profiler.estimate import Outcome, estimate, estimate_missing
from profiler.estimates.question import Question, answer, constants_version_of
from specs.cluster import Cluster, Node
from specs.errors import SpecError
from specs.model import load_model
from specs.profile import (
    LayerKey,
    LayerProfile,
    LayerRefusal,
    LinkProfile,
    NewRun,
    Operation,
    RunStatus,
    Source,
)
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute, Workload

TINY = load_model("tiny-llama-test")
WORKLOAD = TINY.default_workload


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "profiles.db") as opened:
        yield opened


def question(**changes: Any) -> Question:
    values: dict[str, Any] = {
        "gpus": ("a100-40gb", "a6000"),
        "model": TINY,
        "tps": (1, 2),
        "micro_batches": (1, 4),
        "seq_len": 128,
        "dtype": DType.FP32,
        "optimizer": Optimizer.ADAMW,
    }
    return Question(**values | changes)


def cluster(*nodes: tuple[str, int, Topology]) -> Cluster:
    return Cluster(
        "test",
        tuple(
            Node(f"{gpu}-{i}", gpu, gpus, topology, 12.5, 10.0)
            for i, (gpu, gpus, topology) in enumerate(nodes)
        ),
    )


MIXED = cluster(
    ("a100-40gb", 4, Topology.NVSWITCH), ("a6000", 2, Topology.PCIE), ("h100", 1, Topology.NVLINK)
)


def test_an_estimate_is_one_run_with_layers_links_and_hosts(store: Store) -> None:
    recorded = estimate(store, question())
    run = store.profile_run(recorded.run_id)
    assert recorded.outcome is Outcome.ADDED
    assert run.status is RunStatus.COMPLETE
    assert run.run.source is Source.ESTIMATED
    assert "MIT" in run.run.licence
    # 3 layer types, 2 micro-batches; TP 2 on a100 for nvlink and nvswitch.
    assert run.layer_rows == 3 * 2 * (1 + 2) + 3 * 2 * (1 + 1)
    assert run.link_rows == 3 * 551
    assert run.host_rows == 2
    stored = {row.profile for row in store.layer_profiles(run_id=run.id)}
    assert stored == set(recorded.estimates.layers)


def test_the_origin_is_a_command_with_the_model_s_config_and_the_constants(store: Store) -> None:
    recorded = estimate(store, question())
    origin = store.profile_run(recorded.run_id).run.origin
    assert origin == (
        "arachne-prof estimate --gpu a100-40gb,a6000 --model tiny-llama-test --tp 1,2 "
        "--micro-batch 1,4 --seq-len 128 --dtype fp32 --recompute none --optimizer adamw "
        f"(config {TINY.config_hash}, constants {constants_version()})"
    )


def test_the_version_of_the_constants_can_be_read_from_an_origin() -> None:
    assert constants_version_of(question().origin) == constants_version()
    assert constants_version_of("arachne-prof run --gpu cpu") == ""
    assert constants_version_of("") == ""


def test_the_same_estimate_again_adds_nothing(store: Store) -> None:
    first = estimate(store, question())
    again = estimate(store, question())
    assert (again.run_id, again.outcome) == (first.run_id, Outcome.UNCHANGED)
    assert len(store.profile_runs()) == 1
    other = estimate(store, question(tps=(1,)))
    assert (other.run_id, other.outcome) == (first.run_id + 1, Outcome.ADDED)


def test_an_estimate_that_was_killed_is_completed_in_its_own_run(store: Store) -> None:
    asked = question()
    store.add_model(TINY)
    run_id = store.start_run(NewRun(Source.ESTIMATED, asked.origin))
    store.add_layer_profiles(run_id, answer(asked).layers[:5])
    recorded = estimate(store, asked)
    assert (recorded.run_id, recorded.outcome) == (run_id, Outcome.COMPLETED)
    assert len(store.layer_profiles(run_id=run_id)) == len(recorded.estimates.layers)
    assert len(store.profile_runs()) == 1


def test_a_degree_that_does_not_divide_is_stored_with_its_reason(store: Store) -> None:
    recorded = estimate(store, question(tps=(1, 3)))
    refused = store.layer_refusals(run_id=recorded.run_id)
    # The block alone, for two micro-batches, on nvlink, nvswitch and pcie.
    assert len(refused) == 6
    assert {row.refusal.reason for row in refused} == {
        "8 attention heads cannot be split over tp=3"
    }


def test_recompute_topology_and_tilings_are_part_of_the_question() -> None:
    found = answer(
        question(
            gpus=("h100",),
            model=load_model("mixtral-8x7b"),
            tps=(2,),
            micro_batches=(1,),
            seq_len=4096,
            dtype=DType.BF16,
            recomputes=(Recompute.NONE, Recompute.FULL),
            topologies={"h100": (Topology.PCIE,)},
            eps=(1, 4),
            etps=(1, 2),
        )
    )
    keys = {(row.key.ep, row.key.etp, row.key.recompute, row.key.topology) for row in found.layers}
    assert {key[:2] for key in keys} == {(1, 1), (1, 2), (4, 1), (4, 2)}
    assert {key[3] for key in keys} == {Topology.PCIE}
    assert len([row for row in found.layers if row.expert_parameter_bytes]) == 8
    assert len(found.layers) == 8 + 2 * 2


def test_what_is_missing_for_a_cluster_is_made_and_made_once(store: Store) -> None:
    runs = estimate_missing(store, TINY, WORKLOAD, MIXED)
    assert len(runs) == 3
    rows = store.layer_profiles(gpus={"a100-40gb"})
    assert {row.profile.key.tp for row in rows} == {1, 2, 4}
    assert {row.profile.key.micro_batch for row in rows} == {1, 2, 4, 8}
    assert {row.profile.key.topology for row in rows} == {Topology.NVSWITCH}
    assert {row.profile.key.tp for row in store.layer_profiles(gpus={"h100"})} == {1}
    assert estimate_missing(store, TINY, WORKLOAD, MIXED) == runs
    assert len(store.profile_runs()) == 3


def test_the_planner_has_all_it_needs_after_what_was_missing_was_made(store: Store) -> None:
    from planner.profiles import load_profiles

    estimate_missing(store, TINY, WORKLOAD, MIXED)
    profiles = load_profiles(store, TINY, WORKLOAD, MIXED)
    assert profiles.sources == dict.fromkeys(("a100-40gb", "a6000", "h100"), Source.ESTIMATED)


def test_an_estimate_that_already_has_the_rows_is_not_repeated(store: Store) -> None:
    asked = question(gpus=("a100-40gb", "a6000", "h100"), tps=(1, 2, 4), micro_batches=(1, 2, 4, 8))
    run = estimate(store, asked).run_id
    assert estimate_missing(store, TINY, WORKLOAD, MIXED) == [run]


def test_another_length_or_precision_is_missing_again(store: Store) -> None:
    first = estimate_missing(store, TINY, WORKLOAD, MIXED)
    longer = estimate_missing(store, TINY, replace(WORKLOAD, seq_len=256), MIXED)
    assert not set(first) & set(longer)


def measured_like(store: Store, gpu: str, *, links: bool = True, hosts: bool = True) -> None:
    """Rows of a GPU type as if an import had brought them."""
    rows = answer(question(gpus=(gpu,), topologies={gpu: (Topology.PCIE,)}))
    store.add_model(TINY)
    run = store.start_run(NewRun(Source.IMPORTED, "a data set"))
    store.add_layer_profiles(run, rows.layers)
    if links:
        store.add_link_profiles(run, rows.links)
    if hosts:
        store.add_host_profile(run, rows.hosts[0])
    store.finish_run(run, RunStatus.COMPLETE)


def test_a_type_with_imported_rows_is_left_alone(store: Store) -> None:
    measured_like(store, "a6000")
    runs = estimate_missing(store, TINY, WORKLOAD, MIXED)
    assert len(runs) == 2
    sources = {row.run.run.source for row in store.layer_profiles(gpus={"a6000"})}
    assert sources == {Source.IMPORTED}


@pytest.mark.parametrize("lacking", ["links", "hosts"])
def test_a_type_whose_import_lacks_links_or_a_host_row_is_estimated(
    store: Store, lacking: str
) -> None:
    from planner.profiles import load_profiles

    measured_like(store, "a6000", **{lacking: False})
    assert len(estimate_missing(store, TINY, WORKLOAD, MIXED)) == 3
    found = load_profiles(store, TINY, WORKLOAD, MIXED)
    assert found.sources["a6000"] is Source.IMPORTED  # its own layer rows still come first


def test_rows_of_another_topology_do_not_count(store: Store) -> None:
    measured_like(store, "a6000")
    bridged = cluster(("a6000", 2, Topology.NVLINK))
    assert len(estimate_missing(store, TINY, WORKLOAD, bridged)) == 1


def test_processors_are_not_estimated(store: Store) -> None:
    assert estimate_missing(store, TINY, WORKLOAD, cluster(("cpu", 2, Topology.HOST))) == []
    assert store.profile_runs() == []


def test_every_tiling_that_the_gpus_of_a_type_can_hold_is_made(store: Store) -> None:
    moe = load_model("mixtral-8x7b")
    small = Workload(global_batch=8, seq_len=64)
    two_nodes = cluster(("h100", 2, Topology.NVLINK), ("h100", 2, Topology.NVLINK))
    estimate_missing(store, moe, small, two_nodes, micro_batches=(1,))
    keys = {
        (row.profile.key.tp, row.profile.key.ep, row.profile.key.etp)
        for row in store.layer_profiles(gpus={"h100"})
        if row.profile.expert_parameter_bytes
    }
    assert keys == {(tp, ep, etp) for tp in (1, 2) for ep in (1, 2, 4) for etp in (1, 2)}


def test_a_model_known_only_by_sizes_cannot_be_estimated(store: Store) -> None:
    with pytest.raises(SpecError, match="known only by their sizes"):
        estimate(store, question(model=load_model("sailor-opt-350m")))
    assert store.profile_runs() == []


def run_command(store: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["estimate", "--store", str(store), *words])


def test_the_command_writes_a_run_and_says_where_the_constants_are_from(tmp_path: Path) -> None:
    words = ("--gpu", "a100-40gb,a6000,h100", "--model", "tiny-llama-test", "--tp", "1,2")
    first = run_command(tmp_path / "s.db", *words)
    assert first.exit_code == 0, first.output
    assert "profile run 1, added" in first.output
    assert "a100-80gb" in first.output
    assert "itself" in first.output
    again = run_command(tmp_path / "s.db", *words)
    assert "already in the store as profile run 1" in " ".join(again.output.split())


def test_the_document_has_every_row_and_the_grade_of_every_part(tmp_path: Path) -> None:
    found = run_command(
        tmp_path / "s.db", "--gpu", "a6000", "--model", "tiny-llama-test", "--tp", "1,2", "--json"
    )
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document["source"] == "estimated"
    assert document["constants_version"] == constants_version()
    assert len(document["rows"]) == 3 * 2 * 4
    assert document["rows"][0]["forward_ms"] > 0
    grades = {part["component"]: part["grade"] for part in document["provenance"]["a6000"]}
    assert grades["matrix products"] == "carried over"
    with open_store(tmp_path / "s.db") as store:
        assert store.profile_run(document["run_id"]).layer_rows == 24


def test_a_dry_run_shows_the_same_figures_and_makes_no_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    words = ("--gpu", "h100", "--model", "tiny-llama-test", "--tp", "1", "--json")
    dry = json.loads(run_command(path, *words, "--dry-run").stdout)
    assert dry["run_id"] is None
    assert not path.exists()
    assert json.loads(run_command(path, *words).stdout)["rows"] == dry["rows"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--gpu", "cpu"), 1, "cpu has no datasheet to estimate from"),
        (("--gpu", "a6000", "--topology", "nvswitch"), 1, "does not come with nvswitch"),
        (("--gpu", "h100", "--model", "sailor-opt-350m"), 1, "known only by their sizes"),
        (("--gpu", "h100", "--model", "nowhere.json"), 1, "no model 'nowhere.json'"),
        (("--gpu", "v100-16gb", "--attention", "flash"), 1, "no flash attention kernel"),
        (("--gpu", "h999"), 2, "is not one of"),
        (("--gpu", "h100", "--tp", "0"), 2, "whole numbers of at least 1"),
        ((), 2, "--gpu"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    found = run_command(tmp_path / "s.db", *words)
    assert found.exit_code == code
    assert said in found.output
    if code == 1:
        assert found.output.startswith("Error: ")
        assert found.output.count("\n") == 1


def test_bf16_on_a_card_without_it_is_said_and_not_refused(tmp_path: Path) -> None:
    found = run_command(
        tmp_path / "s.db", "--gpu", "v100-16gb", "--model", "tiny-llama-test", "--dtype", "bf16"
    )
    assert found.exit_code == 0
    assert "no bf16 tensor cores" in found.output


def test_topologies_go_to_the_types_that_come_in_them(tmp_path: Path) -> None:
    found = run_command(
        tmp_path / "s.db",
        *("--gpu", "a6000,h100", "--model", "tiny-llama-test", "--tp", "2"),
        *("--topology", "nvswitch,pcie", "--json"),
    )
    rows = json.loads(found.stdout)["rows"]
    assert {(row["gpu"], row["topology"]) for row in rows} == {
        ("a6000", "pcie"),
        ("h100", "nvswitch"),
        ("h100", "pcie"),
    }


def test_the_rows_of_links_hold_every_operation(store: Store) -> None:
    run = estimate(store, question(gpus=("h100",))).run_id
    rows: list[LinkProfile] = [stored.profile for stored in store.link_profiles(run_id=run)]
    assert {row.operation for row in rows} == set(Operation)
    assert {row.ranks for row in rows} == {2, 3, 4, 5, 6, 7, 8}
    assert {row.topology for row in rows} == {Topology.NVLINK, Topology.NVSWITCH}


def test_keys_with_and_without_figures_are_told_apart() -> None:
    found = answer(question(tps=(1, 3)))
    assert all(isinstance(row, LayerProfile) for row in found.layers)
    assert all(isinstance(row, LayerRefusal) for row in found.refusals)
    keys: list[LayerKey] = [row.key for row in found.layers] + [row.key for row in found.refusals]
    assert len(keys) == len(set(keys))
