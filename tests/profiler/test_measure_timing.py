"""Medians, spread, counts of repetitions and drift, by hand."""

from __future__ import annotations

import time

import pytest
import torch

from profiler.measure.stopwatch import Stopwatch
from profiler.measure.timing import (
    MAX_SAMPLES,
    MIN_SAMPLES,
    Figure,
    drift,
    figure,
    repetitions,
    same_speed,
    steady,
)


def test_a_figure_is_the_median_and_the_median_distance_from_it() -> None:
    # Sorted 1 2 3 10 100: median 3; distances 2 1 0 7 97, sorted 0 1 2 7 97: median 2.
    assert figure([100, 1, 10, 2, 3]) == Figure(3, 2, 5)


def test_one_outlier_does_not_move_a_figure() -> None:
    assert figure([5.0] * 9 + [500.0]) == Figure(5.0, 0.0, 10)


def test_a_figure_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        figure([])


def test_the_count_fills_the_window_within_its_bounds() -> None:
    assert repetitions(20.0, window_s=1.0) == 50
    assert repetitions(1000.0, window_s=1.0) == MIN_SAMPLES == 15
    assert repetitions(0.01, window_s=1.0) == MAX_SAMPLES
    assert repetitions(0.0, window_s=1.0) == MAX_SAMPLES


def test_drift_is_positive_where_the_machine_got_slower() -> None:
    assert drift(10.0, 10.3) == pytest.approx(0.03)
    assert drift(10.0, 9.0) == pytest.approx(-0.1)


def test_a_window_is_steady_within_five_percent_both_ways() -> None:
    assert steady(10.0, 10.49)
    assert not steady(10.0, 10.6)
    assert steady(10.0, 9.51)
    assert not steady(10.0, 9.4)


def test_a_slow_regime_is_another_speed_and_a_fast_one_is_welcome() -> None:
    assert same_speed(11.0, 10.0)
    assert not same_speed(11.5, 10.0)
    assert same_speed(5.0, 10.0)


def test_a_stopwatch_gives_the_times_between_its_marks() -> None:
    watch = Stopwatch(torch.device("cpu"))
    watch.mark()
    time.sleep(0.02)
    watch.mark()
    watch.mark()
    first, second = watch.intervals_ms()
    assert first >= 20.0
    assert 0.0 <= second < first
