from __future__ import annotations

from reports.runs import Statistic, median_absolute_deviation, run_time
from specs.measurement import Measurement
from tests.reports.stores import iterations


def test_a_run_is_the_median_of_its_iterations_without_the_warm_ups() -> None:
    found = run_time(iterations([100.0, 104.0, 98.0, 101.0, 150.0], warm_ups=2))
    assert found is not None
    # sorted 98 100 101 104 150; distances from 101: 3 1 0 3 49, their median 3
    assert (found.iteration_ms, found.mad_ms) == (101.0, 3.0)
    assert (found.iterations, found.warm_ups) == (5, 2)
    assert found.label == "median of 5"


def test_the_median_absolute_deviation_ignores_one_outlier() -> None:
    assert median_absolute_deviation([1.0, 2.0, 3.0, 1000.0]) == 1.0


def test_a_published_mean_is_called_a_mean_and_has_no_spread() -> None:
    row = Measurement("published", "clariden", "a data set", 0, 1240.0, samples=7)
    found = run_time([row])
    assert found is not None
    assert (found.statistic, found.iteration_ms, found.mad_ms) == (Statistic.MEAN, 1240.0, None)
    assert found.label == "mean of 7"


def test_two_published_means_are_weighted_by_their_samples() -> None:
    rows = [
        Measurement("r", "h", "o", 0, 100.0, samples=1),
        Measurement("r", "h", "o", 1, 200.0, samples=3),
    ]
    found = run_time(rows)
    assert found is not None
    assert (found.iteration_ms, found.label) == (175.0, "mean of 4")


def test_one_iteration_has_no_spread() -> None:
    found = run_time([Measurement("r", "h", "o", 0, 5.0)])
    assert found is not None
    assert (found.mad_ms, found.label) == (None, "one iteration")


def test_a_run_of_warm_ups_only_has_no_figure() -> None:
    assert run_time([Measurement("r", "h", "o", 0, 5.0, warm_up=True)]) is None
    assert run_time([]) is None


def test_the_peak_is_that_of_the_fullest_rank_in_any_iteration_warm_ups_too() -> None:
    rows = [
        Measurement("r", "h", "o", 0, 9.0, warm_up=True, peak_bytes=(7, 90)),
        Measurement("r", "h", "o", 1, 5.0, peak_bytes=(80, 60)),
    ]
    found = run_time(rows)
    assert found is not None
    assert found.peak_bytes == 90


def test_the_drift_of_a_run_is_the_largest_one_whatever_its_sign() -> None:
    rows = [
        Measurement("r", "h", "o", 0, 5.0, drift=0.01),
        Measurement("r", "h", "o", 1, 5.0, drift=-0.04),
    ]
    found = run_time(rows)
    assert found is not None
    assert found.drift == -0.04
