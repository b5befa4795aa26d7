"""A polite kill of the command is treated like Ctrl-C: what was measured is kept."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def as_keyboard_interrupt(number: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """While inside, the signal raises KeyboardInterrupt; only in the main thread of a process."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)
