"""Which `inter` link rows stand for the network card of a node."""

from __future__ import annotations

import pytest

from planner.profiles import ProfileSet
from specs.cluster import cluster_from_document
from specs.profile import LinkProfile, Operation
from specs.topology import Topology


def row(ranks: int, gb_per_s: float, gpu: str = "gh200", peer: str = "") -> LinkProfile:
    nbytes = 1_000_000
    return LinkProfile(
        gpu, Topology.INTER, Operation.P2P, ranks, nbytes, nbytes / (gb_per_s * 1e6), peer
    )


def card_gb_per_s(rows: list[LinkProfile], gpus: int) -> float | None:
    cluster = cluster_from_document(
        {
            "name": "two",
            "inter_node": {"bandwidth": "measured"},
            "nodes": [{"gpu": "gh200", "gpus": gpus, "count": 2}],
        },
        "test",
    )
    rate = ProfileSet.of_rows([], rows, []).nic_bytes_per_ms(cluster.nodes[0])
    return None if rate is None else rate / 1e6


@pytest.mark.parametrize(("gpus", "expected"), [(1, 20), (2, 40), (3, 40), (4, 80), (8, 80)])
def test_a_card_has_the_bandwidth_of_as_many_pairs_as_its_node_has_gpus(
    gpus: int, expected: float
) -> None:
    rows = [row(2, 20), row(4, 40), row(8, 80)]
    assert card_gb_per_s(rows, gpus) == pytest.approx(expected)


def test_rows_to_another_type_count_only_without_own_ones() -> None:
    mixed = [row(2, 30, peer="a100-40gb"), row(2, 50, gpu="a6000", peer="gh200")]
    assert card_gb_per_s([row(2, 20), *mixed], 1) == pytest.approx(20)
    assert card_gb_per_s(mixed, 1) == pytest.approx(50)


def test_more_pairs_than_the_node_has_gpus_say_nothing_of_it() -> None:
    assert card_gb_per_s([row(8, 80)], 2) is None
