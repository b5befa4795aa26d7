from __future__ import annotations

import pytest

from db.store import Store
from reports.layer_times import coverage, estimate_errors
from reports.profile_page import read_profiles
from specs.profile import Source
from tests.reports.stores import fill_with_profiles


def test_the_newest_row_of_each_key_and_source_counts(store: Store) -> None:
    fill_with_profiles(store, ["h100"])
    newer = fill_with_profiles(store, ["h100"], factor=2.0)
    times = read_profiles(store).layers
    assert {time.run_id for time in times} == {newer}
    # 3 layer types * (TP 1: 3 sizes, TP 2: 3 sizes) less the one that ran out of memory
    assert len(times) == 17


def test_a_layer_is_named_by_kind_and_models(store: Store) -> None:
    fill_with_profiles(store, ["h100"])
    names = {time.layer for time in read_profiles(store).layers}
    assert names == {
        "embedding of tiny-llama-test",
        "block of tiny-llama-test",
        "head of tiny-llama-test",
    }


def test_an_estimate_is_held_against_the_same_key(store: Store) -> None:
    fill_with_profiles(store, ["h100"])
    fill_with_profiles(store, ["h100"], source=Source.ESTIMATED, factor=1.2)
    pairs = estimate_errors(read_profiles(store).layers)
    assert len(pairs) == 17
    alone = [pair for pair in pairs if pair.other.key.tp == 1]
    assert all(pair.error == pytest.approx(0.2) for pair in alone)


def test_nothing_is_compared_where_only_one_source_is(store: Store) -> None:
    fill_with_profiles(store, ["h100", "a6000"])
    assert estimate_errors(read_profiles(store).layers) == []


def test_coverage_says_what_is_known_of_each_type(store: Store) -> None:
    run = fill_with_profiles(store, ["h100", "a6000"])
    first, second = coverage(read_profiles(store).layers)
    assert (first.gpu, second.gpu) == ("a6000", "h100")
    assert (first.rows, first.layers, first.tps, first.micro_batches) == (17, 3, (1, 2), (1, 2, 4))
    assert first.runs == (run,)
    # 0.03 f over 3 f at TP 1; a little less at TP 2, where collectives are in the time
    assert first.median_spread_percent == pytest.approx(1.0, abs=0.06)
    assert first.best_share_percent is not None
