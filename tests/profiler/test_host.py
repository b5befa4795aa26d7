"""Facts of this host, and what is said where a device is missing, busy or cut in slices."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from profiler.cli import main
from profiler.gpus import Gpu, GpuReport, read_gpus, slow_reasons, topology_of, visible
from profiler.host import (
    Devices,
    HostFacts,
    describe_gpus,
    find_devices,
    group_memory_limit_bytes,
    read_host,
)
from specs.errors import HostError
from specs.topology import Topology

INSTEAD = "arachne-prof estimate --gpu h100 --model llama-3-8b --tp 1,2"


def h100(index: int, **changes: object) -> Gpu:
    gpu = Gpu(
        index=index,
        uuid=f"GPU-{index}{index}",
        nvml_name="NVIDIA H100 80GB HBM3",
        type="h100",
        memory_bytes=81559 * 2**20,
        used_bytes=0,
        sm_clock_mhz=1980,
        max_sm_clock_mhz=1980,
    )
    return replace(gpu, **changes)  # type: ignore[arg-type]


def host_with(*gpus: Gpu) -> HostFacts:
    return replace(read_host(), gpu_report=GpuReport(gpus, driver="570.1"))


def test_this_host_has_the_cores_and_memory_that_the_kernel_says() -> None:
    facts = read_host()
    assert facts.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert facts.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < facts.memory_limit_bytes <= facts.memory_bytes


def test_the_command_prints_the_facts_as_one_document() -> None:
    done = CliRunner().invoke(main, ["host", "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["fingerprint"] == read_host().fingerprint
    assert document["cores_allowed"] == sorted(os.sched_getaffinity(0))


def test_the_command_prints_a_table() -> None:
    done = CliRunner().invoke(main, ["host"])
    assert done.exit_code == 0
    assert read_host().fingerprint in done.stdout


def test_without_a_driver_the_report_is_empty_and_says_why() -> None:
    report = read_gpus()
    if report.gpus:
        pytest.skip("this host has GPUs")
    assert report.problem
    assert describe_gpus(report) == f"no GPU ({report.problem})"


def test_cpu_devices_are_the_allowed_cores_and_share_the_memory() -> None:
    host = read_host()
    devices, _ = find_devices(host, "cpu", instead=INSTEAD)
    assert devices.is_cpu
    assert devices.count == len(os.sched_getaffinity(0))
    assert devices.topology is Topology.HOST
    assert devices.usable_bytes == host.memory_limit_bytes


def test_a_missing_gpu_is_refused_with_what_is_there_and_what_to_run_instead() -> None:
    host = host_with(h100(0, type="a40", nvml_name="NVIDIA A40"), h100(1, type="", nvml_name="X9"))
    with pytest.raises(HostError) as caught:
        find_devices(host, "h100", instead=INSTEAD)
    text = str(caught.value)
    assert "1 x NVIDIA A40 (a40), 1 x X9 (not in the catalogue)" in text
    assert text.endswith(INSTEAD)


def test_a_mixed_host_gives_only_the_devices_of_the_type() -> None:
    host = host_with(h100(0), h100(1, type="a40"), h100(2))
    devices, remarks = find_devices(host, "h100", instead=INSTEAD)
    assert [gpu.index for gpu in devices.gpus] == [0, 2]
    assert remarks == ()


def test_usable_memory_is_what_nvml_calls_total_less_600_mib() -> None:
    devices, _ = find_devices(host_with(h100(0)), "h100", instead=INSTEAD)
    assert devices.usable_bytes == (81559 - 600) * 2**20


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"processes": 2}, "is busy (2 processes"),
        ({"used_bytes": 3 * 2**30}, "3072 MiB in use"),
        ({"busy_percent": 55}, "55 % of the time"),
        (
            {"slow_because": ("power brake",), "sm_clock_mhz": 700},
            "runs at 700 of 1980 MHz (power brake)",
        ),
    ],
)
def test_a_disturbed_gpu_is_refused_unless_allowed(changes: dict[str, object], said: str) -> None:
    host = host_with(h100(0), h100(1, **changes))
    with pytest.raises(HostError, match="--allow-busy") as caught:
        find_devices(host, "h100", instead=INSTEAD)
    assert said in str(caught.value)
    devices, remarks = find_devices(host, "h100", instead=INSTEAD, allow_busy=True)
    assert devices.count == 2
    assert len(remarks) == 1
    assert said in remarks[0]


def test_a_gpu_in_slices_is_refused_even_when_busy_ones_are_allowed() -> None:
    host = host_with(h100(0, mig=True))
    with pytest.raises(HostError, match="MIG"):
        find_devices(host, "h100", instead=INSTEAD, allow_busy=True)


def test_on_a_cpu_as_many_devices_are_busy_as_the_largest_degree_needs() -> None:
    cpu = Devices("cpu", Topology.HOST, tuple(range(8)), (), 2**30)
    assert cpu.for_degrees(None, ()).count == 8
    assert cpu.for_degrees(None, (1, 2)).cores == (0, 1)
    assert cpu.for_degrees(None, (1, 64)).count == 8
    assert cpu.for_degrees(4, (1, 2)).count == 4
    with pytest.raises(HostError, match="--devices 9, but this host has 8 of cpu"):
        cpu.for_degrees(9, ())


def test_on_gpus_all_devices_are_busy_unless_told_otherwise() -> None:
    devices, _ = find_devices(host_with(*(h100(i) for i in range(4))), "h100", instead=INSTEAD)
    assert devices.for_degrees(None, (1, 2)).count == 4
    assert [gpu.index for gpu in devices.for_degrees(2, ()).gpus] == [0, 1]


def test_the_topology_is_that_of_the_weakest_pair() -> None:
    pair = [h100(0, peers=frozenset({1})), h100(1, peers=frozenset({0}))]
    assert topology_of(pair) is Topology.NVLINK
    assert topology_of([*pair, h100(2)]) is Topology.PCIE
    assert topology_of([h100(i, switched=True) for i in range(4)]) is Topology.NVSWITCH
    assert topology_of([h100(0)]) is Topology.NVLINK  # alone: the default of its type
    with pytest.raises(ValueError, match="at least one"):
        topology_of([])


def test_hidden_gpus_are_left_out_as_cuda_leaves_them_out() -> None:
    gpus = [h100(0), h100(1), h100(2)]
    assert visible(gpus, None) == tuple(gpus)
    assert visible(gpus, "") == ()
    assert [gpu.index for gpu in visible(gpus, "2,0")] == [2, 0]
    assert [gpu.index for gpu in visible(gpus, "GPU-11")] == [1]
    assert [gpu.index for gpu in visible(gpus, "1,-1,2")] == [1]  # ends at the first bad entry


def test_only_reasons_that_cost_speed_are_named() -> None:
    assert slow_reasons(0x01) == ()  # idle
    assert slow_reasons(0x04 | 0x40 | 0x100) == ("power cap", "hardware thermal slowdown")


def test_a_control_group_limits_the_memory(tmp_path: Path) -> None:
    assert group_memory_limit_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert group_memory_limit_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert group_memory_limit_bytes(tmp_path) == 2**30


@pytest.mark.gpu
def test_nvml_tells_the_gpus_of_this_host() -> None:
    report = read_gpus()
    assert report.driver
    for gpu in report.gpus:
        assert gpu.nvml_name
        assert gpu.memory_bytes > 2**30
        assert gpu.uuid.startswith("GPU-")
