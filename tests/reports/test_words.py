from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from reports import words


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.0123, "12.30 µs"),
        (1.0, "1.000 ms"),
        (123.456, "123.5 ms"),
        (1234.5, "1.234 s"),
        (150_000, "2.500 min"),
        (7.2e6, "2.000 h"),
    ],
)
def test_a_time_has_four_digits_and_a_unit(value: float | None, said: str) -> None:
    assert words.ms(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "–"), (0.0, "0.00 %"), (3.25, "+3.3 %"), (-12.5, "−12.5 %"), (-0.5, "−0.50 %")],
)
def test_an_error_has_a_sign(value: float | None, said: str) -> None:
    assert words.signed_percent(value) == said


def test_a_moment_is_said_in_utc() -> None:
    berlin = timezone(timedelta(hours=1))
    assert words.moment(datetime(2026, 11, 30, 13, 5, tzinfo=berlin)) == "2026-11-30 12:05 UTC"
    assert words.moment("2026-11-30T12:05:00+00:00") == "2026-11-30 12:05 UTC"
    assert words.moment(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02 00:00 UTC"


def test_counts_have_thousands() -> None:
    assert words.number(1234567) == "1\u202f234\u202f567"
    assert words.plural(1, "run") == "1 run"
    assert words.plural(2, "run") == "2 runs"
    assert words.plural(0, "entry", "entries") == "0 entries"


def test_cells_say_what_they_hold() -> None:
    assert [words.cell(v) for v in (None, True, False, 1.5, "x")] == [
        "–",
        "yes",
        "no",
        "1.500",
        "x",
    ]
