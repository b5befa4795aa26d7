"""What the doors share: one line for a mistake, codes 0, 1, 2, lazy commands."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from specs.door import ArachneGroup, Number, json_option, print_json, store_option
from specs.errors import SpecError


@click.group(cls=ArachneGroup, lazy={"late": "tests.test_door:late"})
def main() -> None:
    """A door."""


@main.command()
@click.option("--wrong", is_flag=True)
@store_option
@json_option
def thing(wrong: bool, store: str, as_json: bool) -> None:
    """A command."""
    if wrong:
        raise SpecError.in_file("lab.yaml", "nodes[0].gpus", 0, "at least 1", "correct\nit")
    print_json({"store": store, "json": as_json})


@click.command()
def late() -> None:
    """A command that is imported when it runs."""
    click.echo("here")


def test_an_error_is_one_line_on_stderr_and_exit_1() -> None:
    done = CliRunner().invoke(main, ["thing", "--wrong"])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == "Error: lab.yaml: nodes[0].gpus is 0, expected at least 1; correct it\n"


def test_a_wrong_option_is_exit_2() -> None:
    assert CliRunner().invoke(main, ["thing", "--nothing"]).exit_code == 2


def test_the_store_comes_from_the_option_then_the_environment() -> None:
    runner = CliRunner()
    from_env = runner.invoke(main, ["thing"], env={"ARACHNE_STORE": "sqlite:///env.db"})
    assert json.loads(from_env.stdout)["store"] == "sqlite:///env.db"
    both = runner.invoke(main, ["thing", "--store", "s.db"], env={"ARACHNE_STORE": "e.db"})
    assert json.loads(both.stdout)["store"] == "s.db"


def test_a_lazy_command_is_listed_and_runs() -> None:
    runner = CliRunner()
    assert "late" in runner.invoke(main, ["--help"]).stdout
    assert runner.invoke(main, ["late"]).stdout == "here\n"


def test_json_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"x": float("nan")})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_a_number_that_is_none_is_refused_by_the_name_of_its_option(value: str) -> None:
    @click.command()
    @click.option("--budget-s", type=Number(min=0, min_open=True))
    def search(budget_s: float) -> None:
        """Never reached."""

    done = CliRunner().invoke(search, ["--budget-s", value])
    assert done.exit_code == 2
    assert "--budget-s" in done.stderr
