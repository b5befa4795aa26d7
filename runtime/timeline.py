"""Time stamps of what a rank does in an iteration, on the clock of its device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import torch


class Kind(StrEnum):
    """What a rank spends its time on."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECEIVE = "receive"  # waiting included
    SEND = "send"
    SYNC = "sync"  # gradients between replicas
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Action:
    """One stretch of time; ms since the start of the iteration. micro_batch -1: of none."""

    kind: Kind
    micro_batch: int
    start_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        """How long it took."""
        return self.end_ms - self.start_ms


class Timeline:
    """Records the actions of one iteration; on CUDA by events, so that nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device.type == "cuda"
        self._begun = time.perf_counter()
        self._start = self._mark()
        self._marks: list[tuple[Kind, int, float | torch.cuda.Event, float | torch.cuda.Event]] = []

    def _mark(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return (time.perf_counter() - self._begun) * 1e3
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    @contextmanager
    def during(self, kind: Kind, micro_batch: int = -1) -> Iterator[None]:
        """Record what happens inside as one action."""
        start = self._mark()
        yield
        self._marks.append((kind, micro_batch, start, self._mark()))

    def elapsed_ms(self) -> float:
        """ms since the start, after all queued work is done."""
        if self._cuda:
            torch.cuda.synchronize(self.device)
        return (time.perf_counter() - self._begun) * 1e3

    def actions(self) -> list[Action]:
        """All that was recorded, in order; waits for the device."""
        if self._cuda:
            torch.cuda.synchronize(self.device)
        return [
            Action(kind, m, self._since(start), self._since(end))
            for kind, m, start, end in self._marks
        ]

    def _since(self, mark: float | torch.cuda.Event) -> float:
        if isinstance(mark, float):
            return mark
        assert isinstance(self._start, torch.cuda.Event)
        return float(self._start.elapsed_time(mark))
