"""Searches in processes: side by side, told of as they go, and none takes the others with it."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import pytest

from planner.race import Race, Standing, Task, shares_of
from planner.result import Budget, Status
from tests.planner.random_problems import random_problem


def task(label: str, planner: str = "random", budget: Budget | None = None) -> Task:
    problem = random_problem(3, "dense")
    return Task(label, planner, problem, budget or Budget(evaluations=40), 0)


def test_processes_give_the_same_answer_as_this_one() -> None:
    tasks = [task("one"), task("two")]
    with Race(1) as here:
        alone = {one.label: result for one, result in here.run(tasks)}
    with Race(2) as there:
        beside = {one.label: result for one, result in there.run(tasks)}
    assert set(alone) == set(beside) == {"one", "two"}
    for label, result in alone.items():
        assert result.plan == beside[label].plan
        assert result.evaluations == beside[label].evaluations


def test_each_search_has_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2, 10)))
    assert shares_of(1) == [tuple(range(2, 10))]
    assert shares_of(3) == [(2, 3), (4, 5), (6, 7)]
    shared = shares_of(10)
    assert [len(share) for share in shared] == [1] * 10
    assert {core for share in shared for core in share} == set(range(2, 10))


def test_two_searches_run_at_once_and_say_how_they_stand() -> None:
    seen: list[set[str]] = []
    told: list[Standing] = []

    def show(standing: dict[str, Standing]) -> None:
        seen.append(set(standing))
        told.extend(standing.values())

    with Race(2, show) as race:
        budget = Budget(seconds=1.5)
        tasks = [task(name, budget=budget) for name in "abc"]
        found = {one.label: result for one, result in race.run(tasks)}
    assert set(found) == {"a", "b", "c"}
    assert max(len(labels) for labels in seen) == 2
    assert any(one.evaluations > 0 for one in told)


def test_a_planner_that_is_not_there_is_a_row_that_says_so() -> None:
    with Race(1) as race:
        results = {one.label: result for one, result in race.run([task("x", "nobody"), task("y")])}
    assert results["x"].status is Status.UNSUPPORTED
    assert "nobody" in results["x"].reason
    assert results["y"].status is Status.OK


def test_a_process_that_dies_does_not_take_the_others_with_it() -> None:
    killed = threading.Event()

    def kill_one() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            children = multiprocessing.active_children()
            if started.is_set() and children:
                children[0].kill()
                killed.set()
                return
            time.sleep(0.05)

    started = threading.Event()

    def show(standing: dict[str, Standing]) -> None:
        if any(one.evaluations for one in standing.values()):
            started.set()

    thread = threading.Thread(target=kill_one)
    thread.start()
    with Race(2, show) as race:
        budget = Budget(seconds=2.0)
        tasks = [task(name, budget=budget) for name in ("a", "b")]
        results = {one.label: result for one, result in race.run(tasks)}
    thread.join()
    assert killed.is_set()
    assert {label: result.status for label, result in results.items()} == {
        "a": Status.OK,
        "b": Status.OK,
    }


def test_no_process_outlives_a_race_that_is_left_by_an_error() -> None:
    def leave_after_the_first() -> None:
        with Race(2) as race:
            tasks = [task("short"), task("long", budget=Budget(seconds=500))]
            for _ in race.run(tasks):
                raise RuntimeError("left")

    with pytest.raises(RuntimeError, match="left"):
        leave_after_the_first()
    assert not multiprocessing.active_children()
