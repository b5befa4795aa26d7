"""`arachne-prof links`: real transfers between real processes, and which points are asked for."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from db.store import open_store
from profiler.cli import main
from profiler.host import Devices, HostFacts, read_host
from profiler.measure.links import (
    CPU_LARGEST_BYTES,
    Transfer,
    largest_bytes,
    measure_links,
    sizes,
    transfers_of,
)
from specs.errors import HostError
from specs.profile import Operation, RunStatus, Source
from specs.topology import Topology
from tests.profiler.test_measure_crew import cpu_devices


def devices_with(memory: int, count: int = 2) -> Devices:
    return Devices("cpu", Topology.HOST, tuple(range(count)), (), memory)


def test_sizes_grow_fourfold_from_4_kib() -> None:
    assert sizes(100_000) == [4096, 16384, 65536]
    assert sizes(4096) == [4096]
    assert sizes(CPU_LARGEST_BYTES)[-1] == 64 * 2**20


def test_little_memory_means_smaller_messages() -> None:
    assert largest_bytes(devices_with(64 * 2**30)) == 64 * 2**20
    assert largest_bytes(devices_with(2**30)) == 64 * 2**20  # 512 MiB each, an eighth of it
    assert largest_bytes(devices_with(2**28)) == 16 * 2**20


def test_every_operation_meets_every_rank_count_and_p2p_meets_two() -> None:
    points = transfers_of((2, 4), 20_000)
    assert len(points) == 2 * (1 + 4 * 2)
    assert [point.nbytes for point in points] == sorted(point.nbytes for point in points)
    assert {point.ranks for point in points if point.operation is Operation.P2P} == {2}


def test_a_size_is_cut_to_whole_elements_for_every_rank() -> None:
    points = transfers_of((3,), 4096)
    assert Transfer(Operation.ALL_GATHER, 3, 4092) in points  # 341 elements of 4 bytes for each


def test_links_are_measured_and_stored(tmp_path: Path) -> None:
    cpu_devices(2)
    store = tmp_path / "store.db"
    done = CliRunner().invoke(
        main,
        [
            *("links", "--gpu", "cpu", "--max-bytes", "16384", "--tries", "1"),
            *("--store", str(store), "--json"),
        ],
    )
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["refused"] == []
    measured = {(row["operation"], row["ranks"], row["nbytes"]) for row in document["rows"]}
    for size in (4096, 16384):
        for operation in Operation:
            assert (operation.value, 2, size) in measured
    for row in document["rows"]:
        assert row["topology"] == "host"
        assert row["samples"] >= 15
        assert row["time_ms"] > 0
        assert row["mad_ms"] >= 0
    with closing(open_store(store)) as opened:
        (run,) = opened.profile_runs()
        assert run.status is RunStatus.COMPLETE
        assert run.run.source is Source.MEASURED
        assert run.run.host == read_host().fingerprint
        stored = [link.profile for link in opened.link_profiles(run_id=run.id)]
        assert {(row.operation.value, row.ranks, row.nbytes) for row in stored} >= measured


def refused(devices: Devices, ranks: tuple[int, ...], host: HostFacts | None = None) -> str:
    def never() -> None:
        raise AssertionError("no store is opened for what cannot be measured")

    with pytest.raises(HostError) as caught:
        measure_links(
            devices,
            host or read_host(),
            ranks,
            4096,
            never,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
        )
    return str(caught.value)


def test_one_device_has_no_link() -> None:
    assert "needs two devices, this host has 1 cpu" in refused(devices_with(2**30, 1), (2,))


def test_more_ranks_than_devices_are_refused_before_anything_starts() -> None:
    assert "--ranks 8 needs 8 devices, this host has 2 cpu" in refused(devices_with(2**30), (2, 8))


def test_a_gpu_that_is_not_here_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if read_host().gpu_report.of_type("h100"):
        pytest.skip("this host has an h100")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["links", "--gpu", "h100"])
    assert done.exit_code == 1
    (line,) = done.stderr.strip().splitlines()
    assert "arachne-prof estimate --gpu h100" in line
    assert list(tmp_path.iterdir()) == []


def test_a_message_below_4_kib_is_a_wrong_option() -> None:
    done = CliRunner().invoke(main, ["links", "--gpu", "cpu", "--max-bytes", "100"])
    assert done.exit_code == 2


@pytest.mark.gpu
def test_links_of_gpus_are_measured(tmp_path: Path) -> None:
    gpus = read_host().gpu_report.gpus
    if len(gpus) < 2 or not gpus[0].type:
        pytest.skip("needs two GPUs of the catalogue")
    options = ["--gpu", gpus[0].type, "--allow-busy", "--json", "--store", str(tmp_path / "s.db")]
    done = CliRunner().invoke(main, ["links", *options])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"]
