from __future__ import annotations

from runtime.drift import reference_ms


def test_the_reference_takes_a_time_that_repeats_within_a_factor_of_ten() -> None:
    # Loose on purpose: the machine may be busy, but a clock in other units would miss by 1000.
    first, second = reference_ms(), reference_ms()
    assert 0.1 < first < 10_000
    assert 0.1 < first / second < 10
