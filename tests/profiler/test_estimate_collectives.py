"""Collectives and links inside a node."""

from __future__ import annotations

import pytest

from profiler.estimates.collectives import (
    collective_ms,
    fabric,
    nearest_ranks,
    topologies_of_type,
    wire_share,
)
from profiler.estimates.devices import Grade
from profiler.estimates.links import (
    GROUPS,
    default_topologies,
    estimate_host,
    estimate_links,
    message_sizes,
)
from specs.errors import SpecError
from specs.gpu import GPU_TYPES, gpu_type
from specs.profile import Operation
from specs.topology import Topology

REAL = [name for name in GPU_TYPES if name != "cpu"]
MIB64 = 64 * 1024**2


def test_small_messages_take_the_low_latency_line_and_large_ones_the_other() -> None:
    # a100-80gb, two ranks: 0.01035 ms + 36.71 GB/s, or 0.03824 ms + 189.8 GB/s; wire share 1.
    small = collective_ms("a100-80gb", Topology.NVLINK, Operation.ALL_REDUCE, 2, 1024)
    large = collective_ms("a100-80gb", Topology.NVLINK, Operation.ALL_REDUCE, 2, MIB64)
    assert small == pytest.approx(0.01035 + 1024 / 36.71e6)
    assert large == pytest.approx(0.03824 + MIB64 / 189.8e6)


def test_a_link_with_one_fitted_line_uses_it() -> None:
    # a40, PCIe, four ranks: 0.02055 ms and 12.35 GB/s, wire share 1.5.
    found = collective_ms("a40", Topology.PCIE, Operation.ALL_REDUCE, 4, MIB64)
    assert found == pytest.approx(0.02055 + 1.5 * MIB64 / 12.35e6)


def test_a_ring_sends_its_share_of_the_buffer() -> None:
    assert wire_share(Operation.ALL_REDUCE, 4) == 1.5
    assert wire_share(Operation.ALL_GATHER, 4) == 0.75
    assert wire_share(Operation.REDUCE_SCATTER, 8) == 0.875
    assert wire_share(Operation.ALL_TO_ALL, 2) == 0.5
    assert wire_share(Operation.P2P, 2) == 1.0


def test_a_group_size_that_was_not_fitted_takes_the_nearest_and_of_two_the_larger() -> None:
    assert [nearest_ranks((2, 4, 8), n) for n in (2, 3, 4, 5, 6, 7, 8, 16)] == [
        2, 4, 4, 4, 8, 8, 8, 8,
    ]  # fmt: skip
    # Three ranks: the four-rank lines with the wire share of three.
    found = collective_ms("h100", Topology.NVLINK, Operation.ALL_REDUCE, 3, MIB64)
    assert found == pytest.approx(0.02637 + (4 / 3) * MIB64 / 344.0e6)


def test_every_group_size_of_v100_was_measured() -> None:
    # Its cube mesh is uneven: five ranks are slower than four.
    four, five = (
        collective_ms("v100-16gb", Topology.NVLINK, Operation.ALL_REDUCE, n, MIB64) for n in (4, 5)
    )
    assert four == pytest.approx(0.06204 + 1.5 * MIB64 / 88.32e6)
    assert five == pytest.approx(0.04376 + 1.6 * MIB64 / 37.23e6)


def test_point_to_point_is_a_fixed_latency_and_the_two_rank_bandwidth() -> None:
    # The calibration's one line of two ranks: 160.4, 250.6 and 17.45 GB/s.
    for gpu, topology, gb_per_s in (
        ("a100-40gb", Topology.NVLINK, 160.4),
        ("h100", Topology.NVSWITCH, 250.6),
        ("a6000", Topology.PCIE, 17.45),
    ):
        found = collective_ms(gpu, topology, Operation.P2P, 2, 2**20)
        assert found == pytest.approx(0.02 + 2**20 / (gb_per_s * 1e6))


def test_an_older_pcie_is_a_share_of_the_measured_host_at_more_latency() -> None:
    # All-to-all of two ranks on the gen 5 host: 0.00739 ms, 25.31 GB/s; gen 3 has a quarter.
    found = collective_ms("titan-rtx", Topology.PCIE, Operation.ALL_TO_ALL, 2, MIB64)
    assert found == pytest.approx(1.5 * 0.00739 + 0.5 * MIB64 / (0.25 * 25.31e6))


def test_a_gen_5_card_on_pcie_is_as_the_measured_host() -> None:
    h100 = collective_ms("h100", Topology.PCIE, Operation.ALL_REDUCE, 4, MIB64)
    assert h100 == collective_ms("rtx-pro-6000", Topology.PCIE, Operation.ALL_REDUCE, 4, MIB64)


def test_a_bridge_joins_two_cards_and_larger_groups_go_over_pcie() -> None:
    # 0.8 of 56.25 GB/s.
    pair = collective_ms("a6000", Topology.NVLINK, Operation.ALL_REDUCE, 2, MIB64)
    assert pair == pytest.approx(0.02 + MIB64 / 45e6)
    four = collective_ms("a6000", Topology.NVLINK, Operation.ALL_REDUCE, 4, MIB64)
    assert four == collective_ms("a6000", Topology.PCIE, Operation.ALL_REDUCE, 4, MIB64)


def test_an_operation_that_was_not_fitted_takes_the_all_reduce_lines() -> None:
    # v100: only all-reduce was measured. Eight ranks: 0.1243 ms, 141.6 GB/s.
    found = collective_ms("v100-32gb", Topology.NVLINK, Operation.ALL_TO_ALL, 8, MIB64)
    assert found == pytest.approx(0.1243 + 0.875 * MIB64 / 141.6e6)


def test_one_rank_needs_no_time() -> None:
    assert collective_ms("h100", Topology.NVLINK, Operation.ALL_REDUCE, 1, MIB64) == 0.0


@pytest.mark.parametrize(
    ("gpu", "topology", "expected"),
    [
        ("a6000", Topology.NVSWITCH, "pcie, nvlink"),
        ("l40s", Topology.NVLINK, "pcie"),
        ("h100", Topology.HOST, "nvlink, pcie, nvswitch"),
        ("h100", Topology.INTER, "nvlink, pcie, nvswitch"),
        ("v100-16gb", Topology.NVSWITCH, "nvlink, pcie"),
        ("cpu", Topology.HOST, "host"),
    ],
)
def test_a_topology_that_a_type_does_not_come_in_is_refused(
    gpu: str, topology: Topology, expected: str
) -> None:
    with pytest.raises(SpecError, match=f"{gpu} does not come with .*expected one of: {expected}$"):
        fabric(gpu, topology)


@pytest.mark.parametrize("gpu", REAL)
def test_every_gpu_type_has_links_in_every_topology_it_comes_in(gpu: str) -> None:
    for topology in topologies_of_type(gpu_type(gpu)):
        rows = estimate_links(gpu, topology)
        assert len(rows) == 19 * (4 * len(GROUPS) + 1)
        assert all(row.time_ms > 0 for row in rows)
        curves: dict[tuple[Operation, int], list[float]] = {}
        for row in rows:
            curves.setdefault((row.operation, row.ranks), []).append(row.time_ms)
        assert set(curves) == {(op, n) for op in Operation for n in GROUPS} - {
            (Operation.P2P, n) for n in GROUPS if n != 2
        }
        assert all(times == sorted(times) for times in curves.values())


def test_message_sizes_are_powers_of_two_from_4_kib_to_1_gib() -> None:
    assert message_sizes()[0] == 4096
    assert message_sizes()[-1] == 2**30
    assert len(message_sizes()) == 19


def test_links_say_where_they_were_fitted() -> None:
    assert fabric("h100", Topology.NVLINK).component.grade is Grade.FITTED
    a100 = fabric("a100-40gb", Topology.NVSWITCH).component
    assert (a100.grade, a100.donor) == (Grade.CARRIED, "a100-80gb")
    a6000 = fabric("a6000", Topology.PCIE).component
    assert (a6000.grade, a6000.donor) == (Grade.CARRIED, "rtx-pro-6000")
    assert fabric("a6000", Topology.NVLINK).component.grade is Grade.DEFAULT
    assert fabric("l40s", Topology.PCIE).component.donor == "l40s"


def test_the_default_topologies_cover_a_fabric_with_and_without_a_switch() -> None:
    assert default_topologies("h100") == (Topology.NVLINK, Topology.NVSWITCH)
    assert default_topologies("a6000") == (Topology.PCIE,)
    assert default_topologies("v100-16gb") == (Topology.NVLINK,)
    for size in (4096, MIB64):
        nvlink, switch = (
            collective_ms("a100-40gb", t, Operation.ALL_GATHER, 4, size)
            for t in default_topologies("a100-40gb")
        )
        assert nvlink == switch


def test_a_host_row_is_nvml_memory_less_600_mib() -> None:
    row = estimate_host("a100-40gb")
    assert row.usable_bytes == (40960 - 600) * 1024**2
    assert row.framework_bytes == 1_500_000_000
    assert row.host_ms == 3.027
    with pytest.raises(SpecError, match="arachne-prof run --gpu cpu"):
        estimate_host("cpu")
