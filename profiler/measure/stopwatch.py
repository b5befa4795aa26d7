"""A stopwatch for work on one device: wall clock on the CPU, events on a GPU."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Marks points in a stream of work; the times between them are read when all is done.

    On a GPU a mark is an event in the current stream, so that marking never waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """The end of one interval and the start of the next."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def intervals_ms(self) -> list[float]:
        """Times between successive marks in ms; on a GPU, waits for the last one."""
        if self._events:
            self._events[-1].synchronize()
            pairs = zip(self._events, self._events[1:])
            return [start.elapsed_time(end) for start, end in pairs]
        return [(end - start) * 1e3 for start, end in zip(self._times, self._times[1:])]
