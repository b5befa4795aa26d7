"""Processes that do what a training asks of its compositions, on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from planner.policy.composition import Composition
from planner.problem import Problem
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

    The processes are forked, so that the profiles of thousands of problems are not sent to them
    one by one: make this before torch starts threads.
    """

    def __init__(self, problems: Sequence[Problem], workers: int) -> None:
        self._own = Compositions(problems)
        self._pool = None
        if workers > 1:
            self._pool = multiprocessing.get_context("fork").Pool(
                workers, _begin, (problems, os.getpid())
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()

    def each(self, work: Work, tasks: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """(number, what the work makes of its composition and argument), in the order of tasks."""
        if self._pool is None:
            for number, asked in tasks:
                yield number, work(self._own[number], asked)
        else:
            yield from self._pool.imap(_do, ((work, number, asked) for number, asked in tasks))


def _begin(problems: Sequence[Problem], parent: int) -> None:
    global _inherited
    die_with_parent(parent)
    _inherited = Compositions(problems)


def _do(task: tuple[Work, int, Any]) -> tuple[int, Any]:
    work, number, asked = task
    return number, work(_inherited[number], asked)
