from __future__ import annotations

from runtime.lanes import Lane, boundary, edges_of, feeders
from specs.layout import RankPlace
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model


def _places(first: int, count: int, node: str) -> list[RankPlace]:
    return [RankPlace(first + j, 0, 0, 0, j, node, j) for j in range(count)]


def test_two_senders_feed_four_receivers_two_each() -> None:
    assert feeders(2, 4) == [0, 0, 1, 1]


def test_of_four_senders_two_feed_two_receivers() -> None:
    assert feeders(4, 2) == [0, 2]
    assert feeders(1, 3) == [0, 0, 0]
    assert feeders(3, 1) == [0]


def test_inside_a_node_every_receiver_gets_the_whole_tensor_once() -> None:
    way = boundary(_places(0, 2, "n0"), _places(2, 4, "n0"))
    assert way.sent_by(0) == [Lane(0, 2), Lane(0, 3)]
    assert way.received_by(5) == Lane(1, 5)
    assert way.received_by(0) is None


def test_between_nodes_the_receivers_get_a_slice_each() -> None:
    way = boundary(_places(0, 1, "n0"), _places(1, 2, "n1"))
    assert way.sent_by(0) == [Lane(0, 1, 0, 2), Lane(0, 2, 1, 2)]


def test_a_plan_has_an_edge_for_each_direction_of_each_lane() -> None:
    plan = make_plan(tiny_model("llama"), [Pipe(1, [(2, 1), (1, 1)], [(2, 1)])])
    # Forward: the one receiver, rank 2, is fed by rank 0; backward both senders by rank 2.
    assert edges_of(plan) == {(0, 2), (2, 0), (2, 1)}
