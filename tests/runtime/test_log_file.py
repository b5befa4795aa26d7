from __future__ import annotations

import pytest

from runtime.log_file import read_times
from specs.errors import SpecError

CSV = """iteration,iteration_ms,peak_bytes,loss,warm_up,samples
0,250.5,100;200,6.9,true,1
1,200,100;210,,false,7
"""


def test_a_csv_gives_a_measurement_a_row() -> None:
    first, second = read_times(CSV, "t.csv", host="lab", origin="mine", run="r1")
    assert (first.iteration_ms, first.warm_up, first.loss) == (250.5, True, 6.9)
    assert second.peak_bytes == (100, 210)
    assert (second.samples, second.loss, second.warm_up) == (7, None, False)
    assert {first.host, first.origin, first.run} == {"lab", "mine", "r1"}


def test_columns_say_host_and_origin_before_options_do() -> None:
    text = "iteration,iteration_ms,host,origin\n0,5,a,b\n"
    (row,) = read_times(text, "t.csv", host="x", origin="y", run=None)
    assert (row.host, row.origin) == ("a", "b")


@pytest.mark.parametrize(
    "text",
    [
        '[{"iteration": 0, "iteration_ms": 5.5, "peak_bytes": [1, 2]}]',
        '{"iterations": [{"iteration": 0, "iteration_ms": 5.5, "peak_bytes": [1, 2]}]}',
    ],
)
def test_json_gives_the_same(text: str) -> None:
    (row,) = read_times(text, "-", host="h", origin="o", run=None)
    assert (row.iteration_ms, row.peak_bytes) == (5.5, (1, 2))


def test_the_same_figures_are_the_same_run_and_others_another() -> None:
    def run_of(text: str, host: str) -> str:
        return read_times(text, "t.csv", host=host, origin="o", run=None)[0].run

    assert run_of(CSV, "a") == run_of(CSV, "a")
    assert run_of(CSV, "a") != run_of(CSV, "b")
    assert run_of(CSV, "a") != run_of(CSV.replace("200,", "201,"), "a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("iteration,iteration_ms\n0,-5\n", "row 1: iteration_ms is '-5', expected more than 0"),
        ("iteration,iteration_ms\n0,soon\n", "iteration_ms is 'soon', expected a number"),
        ("iteration,iteration_ms\n0,nan\n", "iteration_ms is 'nan', expected a number"),
        ("iteration,iteration_ms\nx,5\n", "iteration is 'x', expected a whole number"),
        ("iteration,time\n0,5\n", "a column is 'time', expected one of"),
        ("iteration\n0\n", "iteration_ms is None, expected a column"),
        ("iteration,iteration_ms\n", "has no iterations"),
        ("iteration,iteration_ms\n0,5\n0,6\n", "iteration is 0, expected each iteration"),
        ("iteration,iteration_ms\n0,5,6\n", "columns is"),
        ("iteration,iteration_ms,warm_up\n0,5,maybe\n", "warm_up is 'maybe'"),
        ("[1, 2]", "expected a list of objects"),
        ("{not json", "is not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_row_field_and_value(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_times(text, "t.csv", host="h", origin="o", run=None)
    assert said in str(caught.value)


def test_times_without_host_or_origin_are_refused_with_the_option_to_add() -> None:
    with pytest.raises(SpecError, match="add --host TEXT"):
        read_times(CSV, "t.csv", host=None, origin="o", run=None)
    with pytest.raises(SpecError, match="add --origin TEXT"):
        read_times(CSV, "t.csv", host="h", origin=None, run=None)
