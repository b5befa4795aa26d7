"""Which rows a prediction reads where a store has several (DESIGN section 4)."""

from __future__ import annotations

from pathlib import Path

from db.store import Store, open_store
from planner.profiles import HostKey, ProfileSet, load_profiles
from specs.cluster import cluster_from_document
from specs.model import load_model
from specs.profile import (
    HostProfile,
    LayerKey,
    LayerProfile,
    LinkProfile,
    NewRun,
    Operation,
    RunStatus,
    Source,
)
from specs.topology import Topology

TINY = load_model("tiny-llama-test")
WORKLOAD = TINY.default_workload
CLUSTER = cluster_from_document(
    {
        "name": "one",
        "inter_node": {"bandwidth_gb_per_s": 10},
        "nodes": [{"gpu": "h100", "gpus": 2, "count": 2}],
    },
    "test",
)


def add_run(
    store: Store,
    source: Source,
    *,
    layers: bool,
    others: bool = True,
    host_ms: float,
    link_ms: float,
    forward_ms: float,
) -> int:
    run = store.start_run(NewRun(source, f"{source} {host_ms} {forward_ms}"))
    store.add_model(TINY)
    if layers:
        store.add_layer_profiles(
            run,
            [
                LayerProfile(
                    LayerKey(
                        "h100",
                        layer.hash,
                        tp,
                        1,
                        WORKLOAD.seq_len,
                        WORKLOAD.dtype,
                        WORKLOAD.recompute,
                        WORKLOAD.optimizer,
                        Topology.NVLINK,
                    ),
                    forward_ms,
                    2 * forward_ms,
                    0.1,
                    0.1,
                    1000,
                    1000,
                    1000,
                )
                for layer in TINY.layer_types
                for tp in (1, 2)
            ],
        )
    if others:
        store.add_host_profile(run, HostProfile("h100", host_ms, 10**9, 8 * 10**10))
        store.add_link_profiles(
            run,
            [
                LinkProfile("h100", Topology.NVLINK, operation, 2, 1 << 20, link_ms)
                for operation in (Operation.P2P, Operation.ALL_REDUCE, Operation.ALL_GATHER)
            ],
        )
    store.finish_run(run, RunStatus.COMPLETE)
    return run


def chosen(store: Store, source: Source | None = None) -> tuple[ProfileSet, float, float, float]:
    found = load_profiles(store, TINY, WORKLOAD, CLUSTER, source=source)
    row = found.layer("h100", TINY.layers[1].hash, 1, 1, Topology.NVLINK)
    link = found.link("h100", "h100", Topology.NVLINK, Operation.P2P, 2)
    host = found.host("h100")
    assert row is not None
    assert link is not None
    assert host is not None
    return found, row.forward_ms, link.time_ms(1 << 20), host.host_ms


def test_measured_rows_come_before_imported_before_estimated(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db")) as store:
        for i, source in enumerate((Source.ESTIMATED, Source.IMPORTED, Source.MEASURED), 1):
            add_run(store, source, layers=True, host_ms=i, link_ms=i, forward_ms=i)
            assert chosen(store)[1:] == (i, i, i)
        assert chosen(store, Source.ESTIMATED)[1:] == (1, 1, 1)


def test_the_newest_complete_row_of_a_source_counts(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db")) as store:
        for i in (1, 2):
            add_run(store, Source.MEASURED, layers=True, host_ms=i, link_ms=i, forward_ms=i)
        assert chosen(store)[1:] == (2, 2, 2)


def test_links_and_host_rows_follow_the_source_of_the_layers(tmp_path: Path) -> None:
    """Host rows that somebody measured for another model do not slip under estimated layers."""
    with open_store(str(tmp_path / "s.db")) as store:
        add_run(store, Source.IMPORTED, layers=False, host_ms=9, link_ms=9, forward_ms=9)
        run = add_run(store, Source.ESTIMATED, layers=True, host_ms=1, link_ms=2, forward_ms=3)
        found, *figures = chosen(store)
        assert figures == [3, 2, 1]
        assert found.run_ids == (run,)
        assert found.origins[HostKey("h100")].source is Source.ESTIMATED


def test_a_source_without_links_or_host_falls_back_to_one_that_has_them(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db")) as store:
        other = add_run(store, Source.ESTIMATED, layers=True, host_ms=1, link_ms=2, forward_ms=3)
        own = add_run(
            store, Source.MEASURED, layers=True, others=False, host_ms=5, link_ms=6, forward_ms=7
        )
        found, *figures = chosen(store)
        assert figures == [7, 2, 1]
        assert found.run_ids == (other, own)


def test_inter_links_that_the_cluster_file_overrides_are_warned_of_and_not_used(
    tmp_path: Path,
) -> None:
    with open_store(str(tmp_path / "s.db")) as store:
        used = add_run(store, Source.ESTIMATED, layers=True, host_ms=1, link_ms=2, forward_ms=3)
        other = store.start_run(NewRun(Source.IMPORTED, "between nodes"))
        slow = LinkProfile("h100", Topology.INTER, Operation.P2P, 2, 10**7, 2.0)  # 5 GB/s
        store.add_link_profiles(other, [slow])
        store.finish_run(other, RunStatus.COMPLETE)
        found = chosen(store)[0]
        assert found.run_ids == (used,)
        assert "10.00 GB/s between nodes, link profiles 5.00 GB/s: the file is used" in str(
            found.warnings
        )
