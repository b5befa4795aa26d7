"""What every test finds: signals and log levels as in a fresh process."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and the commands under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The root logger's level, which `--verbose` and `--quiet` set, is put back."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)
