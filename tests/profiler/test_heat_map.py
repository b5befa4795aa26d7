from __future__ import annotations

from dataclasses import replace

import pytest

from profiler.heat_map import HeatMap, heat_maps
from specs.model import load_model
from specs.profile import EntryStatus, LayerKey, LayerProfile, LayerRefusal
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute

MODEL = load_model("tiny-llama-test")
BLOCK = MODEL.layers[1]


def row(tp: int, micro_batch: int, forward_ms: float, mad_ms: float | None = None) -> LayerProfile:
    """Backward takes twice forward, collectives 1 ms."""
    key = LayerKey(
        "a6000", BLOCK.hash, tp, micro_batch, 128, DType.BF16, Recompute.NONE, Optimizer.ADAMW,
        Topology.PCIE,
    )  # fmt: skip
    return LayerProfile(
        key, forward_ms, 2 * forward_ms, 1.0, 0.5, 1000 * micro_batch, 0, 10,
        forward_mad_ms=mad_ms, backward_mad_ms=mad_ms,
    )  # fmt: skip


def one_map(rows: list[LayerProfile], metric: str = "total", *refusals: LayerRefusal) -> HeatMap:
    [found] = heat_maps(rows, refusals, MODEL.layer_types, metric)
    return found


def test_total_is_forward_backward_and_collectives() -> None:
    found = one_map([row(1, 1, 3.0)])
    assert found.cells[1, 1].value == 3 + 6 + 1


@pytest.mark.parametrize(
    ("metric", "value"),
    [("forward", 3.0), ("backward", 6.0), ("comm", 1.0), ("update", 0.5), ("activation", 1000.0)],
)
def test_a_metric_is_that_figure(metric: str, value: float) -> None:
    assert one_map([row(1, 1, 3.0)], metric).cells[1, 1].value == value


def test_rows_of_the_map_are_tp_degrees_and_columns_micro_batches() -> None:
    found = one_map([row(4, 2, 1.0), row(1, 8, 9.0), row(1, 2, 3.0)])
    assert (found.tps, found.micro_batches) == ([1, 4], [2, 8])
    assert (4, 8) not in found.cells


def test_shades_go_by_time_per_sample() -> None:
    # Per sample 1, 10 and 100: the ends and the middle of a scale of five.
    found = one_map([row(1, 1, 1.0), row(2, 2, 20.0), row(4, 4, 400.0)], "forward")
    assert [found.cells[tp, tp].level for tp in (1, 2, 4)] == [0, 2, 4]


def test_equal_times_have_one_shade() -> None:
    found = one_map([row(1, 1, 2.0), row(1, 2, 4.0)], "forward")
    assert {cell.level for cell in found.cells.values()} == {0}


def test_spreads_of_the_parts_add_up_and_a_large_one_is_unsteady() -> None:
    steady, unsteady = row(1, 1, 3.0, 0.2), row(1, 2, 3.0, 0.6)
    found = one_map([steady, unsteady])
    assert found.cells[1, 1].spread == pytest.approx(0.4 / 10)
    assert not found.cells[1, 1].unsteady
    assert found.cells[1, 2].unsteady


def test_without_a_spread_in_the_source_there_is_none() -> None:
    assert one_map([row(1, 1, 3.0)]).cells[1, 1].spread is None


def test_a_key_without_figures_says_why_in_a_word() -> None:
    key = row(2, 8, 1.0).key
    refusal = LayerRefusal(key, EntryStatus.OUT_OF_MEMORY, "needed 90 GiB")
    found = one_map([row(1, 1, 3.0)], "total", refusal)
    assert found.cells[2, 8].refusal == "out of memory"
    assert found.cells[2, 8].value is None


def test_every_status_has_a_word() -> None:
    key = row(2, 8, 1.0).key
    for status in EntryStatus:
        if status is not EntryStatus.OK:
            [found] = heat_maps([], [LayerRefusal(key, status, "why")], MODEL.layer_types)
            assert found.cells[2, 8].refusal


def test_workloads_and_layers_are_not_mixed() -> None:
    block = row(1, 1, 3.0)
    longer = replace(block, key=replace(block.key, seq_len=256))
    head = replace(block, key=replace(block.key, layer_type=MODEL.layers[-1].hash))
    maps = heat_maps([block, longer, head], [], MODEL.layer_types)
    assert [found.title for found in maps] == [
        "a6000 block, length 128, bf16, adamw, pcie",
        "a6000 block, length 256, bf16, adamw, pcie",
        "a6000 head, length 128, bf16, adamw, pcie",
    ]
