"""Searches side by side: at most as many at once as there are cores, each in its own process."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from planner.problem import Problem
from planner.result import Budget, PlanResult, Status
from planner.search import WATCHER, Search
from specs.errors import ArachneError
from specs.plan import Plan

log = logging.getLogger(__name__)

POLL_S = 0.25


@dataclass(frozen=True)
class Task:
    """One search. label: how rows and progress name it.

    curve: the search is made to go on to its ceiling on evaluations. retile: no search; the expert
    tiling of this plan is chosen anew.
    """

    label: str
    planner: str
    problem: Problem
    budget: Budget
    seed: int
    curve: bool = False
    retile: Plan | None = None


@dataclass(frozen=True)
class Standing:
    """How far a search is. best_ms: inf before the first plan."""

    label: str
    seconds: float
    evaluations: int
    best_ms: float


Show = Callable[[dict[str, Standing]], None]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares_of(jobs: int) -> list[tuple[int, ...]]:
    """The cores of each of so many searches, so that none takes time from another.

    Those that this process may use, dealt evenly; where there are fewer than searches, shared.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [()] * jobs
    mine = sorted(os.sched_getaffinity(0))
    each = max(1, len(mine) // jobs)
    return [tuple(mine[(i * each + j) % len(mine)] for j in range(each)) for i in range(jobs)]


def answer(task: Task) -> PlanResult:
    """Do a task here. A planner that fails is a row that says so, not the end of the others."""
    from planner.baselines import planner_named
    from planner.curves import curve_planner
    from planner.retile import retiled

    try:
        if task.retile is not None:
            return retiled(task.problem, task.retile)
        search = curve_planner(task.planner) if task.curve else planner_named(task.planner)
        return search(task.problem, task.budget, task.seed)
    except ArachneError as error:
        return _no_answer(Status.UNSUPPORTED, str(error))
    except Exception as error:
        log.exception("%s failed", task.label)
        return _no_answer(Status.NO_PLAN, f"the planner failed: {type(error).__name__}: {error}")


def _no_answer(status: Status, reason: str) -> PlanResult:
    return PlanResult(None, 0.0, 0, {}, status, reason)


class Race:
    """Processes that search; keep one for many questions, so that code is loaded once.

    jobs: searches at once; 1 = in this process. show: is told how all running searches stand.
    Use it as a context manager; what still runs is stopped when it is left by an error.
    """

    def __init__(self, jobs: int, show: Show | None = None) -> None:
        self.jobs = max(1, jobs)
        self._show = show
        self._standing: dict[str, Standing] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._context = multiprocessing.get_context("spawn")
        self._heard: Any = None

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop(at_once=error[0] is not None)

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, PlanResult]]:
        """The answer of every task, as they come; more tasks may be added with `add` meanwhile."""
        self._waiting = deque(tasks)
        self._standing.clear()
        yield from self._here() if self.jobs == 1 else self._there()

    def add(self, task: Task) -> None:
        """One task more for the run that goes on, before those that still wait."""
        self._waiting.appendleft(task)

    def _here(self) -> Iterator[tuple[Task, PlanResult]]:
        while self._waiting:
            task = self._waiting.popleft()
            token = WATCHER.set(partial(self._hear, task.label))
            try:
                result = answer(task)
            finally:
                WATCHER.reset(token)
            self._standing.pop(task.label, None)
            yield task, result

    def _there(self) -> Iterator[tuple[Task, PlanResult]]:
        running: dict[Future[PlanResult], Task] = {}
        began: dict[str, float] = {}
        while self._waiting or running:
            while self._waiting and len(running) < self.jobs:
                task = self._waiting.popleft()
                running[self._processes().submit(_answer_there, task)] = task
                began[task.label] = time.perf_counter()
                self._note(Standing(task.label, 0.0, 0, float("inf")))
            done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            self._listen(began)
            broken = []
            for future in done:
                task = running.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    broken.append(task)
                    continue
                self._standing.pop(task.label, None)
                yield task, result
            if broken:
                # Nobody knows whose process died: all that ran are asked again, one at a time.
                broken += running.values()
                running.clear()
                for task in broken:
                    yield task, self._alone(task)

    def _alone(self, task: Task) -> PlanResult:
        self._stop(at_once=True)
        try:
            return self._processes().submit(_answer_there, task).result()
        except BrokenProcessPool:
            self._stop(at_once=True)
            return _no_answer(
                Status.NO_PLAN, "its process died while it searched, perhaps for want of memory"
            )
        finally:
            self._standing.pop(task.label, None)

    def _processes(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._heard = self._context.Queue()
            shares = self._context.Queue()
            for share in shares_of(self.jobs):
                shares.put(share)
            self._pool = ProcessPoolExecutor(
                self.jobs,
                mp_context=self._context,
                initializer=_begin,
                initargs=(self._heard, shares),
            )
        return self._pool

    def _listen(self, began: Mapping[str, float]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                said: Standing = self._heard.get_nowait()
                if said.label in self._standing:
                    self._standing[said.label] = said
        now = time.perf_counter()
        for label, standing in list(self._standing.items()):
            # Not every planner says how it stands; the clock is ours.
            self._note(replace(standing, seconds=now - began[label]))

    def _hear(self, label: str, search: Search) -> None:
        self._note(_standing(label, search))

    def _note(self, standing: Standing) -> None:
        self._standing[standing.label] = standing
        if self._show is not None:
            self._show(self._standing)

    def _stop(self, *, at_once: bool) -> None:
        if self._pool is None:
            return
        if at_once:
            # The pool has no way to end what runs. It joins its processes itself: two that wait
            # for one child take its exit status from each other.
            for process in list((getattr(self._pool, "_processes", None) or {}).values()):
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None


def _standing(label: str, search: Search) -> Standing:
    return Standing(label, search.seconds, search.evaluations, search.best_ms)


_told: Any = None  # in a process of a race: where it says how it stands


def _begin(told: Any, shares: Any) -> None:
    """What a process does first: take its cores, listen to its parent alone, end when that does."""
    global _told
    _told = told
    share = shares.get()
    if share:
        os.sched_setaffinity(0, share)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and stops us
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _answer_there(task: Task) -> PlanResult:
    WATCHER.set(lambda search: _told.put(_standing(task.label, search)))
    return answer(task)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
