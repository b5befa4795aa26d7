from __future__ import annotations

import pytest

from db.store import Store
from reports.links import bus_gb_per_s, fit_line, link_series
from specs.profile import LinkProfile, Operation, Source
from specs.topology import Topology
from tests.reports.stores import fill_with_profiles


def test_a_line_is_found_again() -> None:
    fit = fit_line([(n, 0.02 + n / 1e7) for n in (4096, 65536, 2**20, 2**24)])
    assert fit.latency_ms == pytest.approx(0.02)
    assert fit.gb_per_s == pytest.approx(10.0)
    assert fit.residual_percent == pytest.approx(0, abs=1e-6)


def test_a_latency_is_never_negative() -> None:
    fit = fit_line([(100, 0.01), (200, 0.03), (400, 0.07)])
    assert fit.latency_ms == 0.0
    assert fit.gb_per_s is not None
    assert fit.residual_percent > 0


def test_one_size_gives_its_time_and_no_bandwidth() -> None:
    fit = fit_line([(100, 0.5), (100, 0.7)])
    assert (fit.latency_ms, fit.gb_per_s) == (pytest.approx(0.6), None)
    assert fit.time_ms(1e9) == pytest.approx(0.6)


def test_a_time_that_falls_with_size_gives_no_bandwidth() -> None:
    assert fit_line([(100, 3.0), (200, 2.0), (300, 1.0)]).gb_per_s is None


@pytest.mark.parametrize(
    ("operation", "ranks", "expected"),
    [
        (Operation.P2P, 2, 1.0),
        (Operation.ALL_REDUCE, 4, 1.5),
        (Operation.ALL_GATHER, 4, 0.75),
        (Operation.REDUCE_SCATTER, 4, 0.75),
        (Operation.ALL_TO_ALL, 4, 1.0),
    ],
)
def test_bus_bandwidth_is_traffic_per_link(
    operation: Operation, ranks: int, expected: float
) -> None:
    # 1e6 bytes in 1 ms are 1 GB/s
    row = LinkProfile("h100", Topology.NVLINK, operation, ranks, 10**6, 1.0)
    assert bus_gb_per_s(row) == pytest.approx(expected)


def test_no_time_is_no_bandwidth() -> None:
    assert bus_gb_per_s(LinkProfile("h100", Topology.NVLINK, Operation.P2P, 2, 1, 0.0)) is None


def test_the_newest_run_of_a_source_gives_the_curve(store: Store) -> None:
    fill_with_profiles(store, ["h100"])
    newer = fill_with_profiles(store, ["h100"], origin="again")
    other = fill_with_profiles(store, ["h100"], source=Source.ESTIMATED)
    series = link_series(store.link_profiles())
    assert {s.run_id for s in series} == {newer, other}
    assert len(series) == 2 * len(Operation)
    assert all(len(s.points) == 4 for s in series)
    assert series[0].label == "h100, nvlink, all_gather over 2"
