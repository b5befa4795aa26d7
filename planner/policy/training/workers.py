"""Processes that do what a training asks of its compositions, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from planner.policy.composition import Composition
from planner.problem import Problem
from specs.errors import PlanError
from specs.parent import die_with_parent

KEPT = 512  # compositions that a process keeps ready

Work = Callable[[Composition, Any], Any]


class Compositions:
    """The compositions of some problems, made ready when first asked for."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = problems
        self._ready: dict[int, Composition] = {}

    def __getitem__(self, number: int) -> Composition:
        found = self._ready.pop(number, None) or Composition(self.problems[number])
        self._ready[number] = found
        if len(self._ready) > KEPT:
            del self._ready[next(iter(self._ready))]
        return found


_inherited = Compositions(())


class Workers(AbstractContextManager["Workers"]):
    """Does work on compositions, given by their numbers, in some processes or in this one.

    The processes are forked at once, so that the profiles of thousands of problems are not sent to
    them one by one: make this before torch starts threads. They end with this process.
    """

    def __init__(self, problems: Sequence[Problem], workers: int) -> None:
        self._own = Compositions(problems)
        self._pool = None
        if workers > 1:
            self._pool = ProcessPoolExecutor(
                workers,
                multiprocessing.get_context("fork"),
                initializer=_begin,
                initargs=(problems, os.getpid()),
            )
            self._pool.submit(os.getpid).result()  # the first task is what starts them

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def each(self, work: Work, tasks: Sequence[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """(number, what the work makes of its composition and argument), in the order of tasks.

        Raises PlanError where a process was killed, such as for its memory.
        """
        if self._pool is None:
            for number, asked in tasks:
                yield number, work(self._own[number], asked)
            return
        try:
            yield from self._pool.map(_do, [(work, number, asked) for number, asked in tasks])
        except BrokenProcessPool:
            raise PlanError(
                "a process of the training was killed: the same command goes on from the last "
                "checkpoint (--workers 1 takes least memory)"
            ) from None


def _begin(problems: Sequence[Problem], parent: int) -> None:
    global _inherited
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    _inherited = Compositions(problems)


def _do(task: tuple[Work, int, Any]) -> tuple[int, Any]:
    work, number, asked = task
    return number, work(_inherited[number], asked)
