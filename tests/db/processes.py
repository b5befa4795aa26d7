"""Python in processes of its own, for what one process cannot show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class Process:
    """A Python program that says "ready" on stdout when it has come to the point of the test."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def wait_for_ready(self) -> None:
        """Until it said so; what it wrote to stderr where it ended instead."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        assert self.process.stderr is not None
        raise AssertionError(self.process.stderr.read())

    def go(self) -> None:
        """Give it the line it reads after "ready"."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: no handler, no exit code of its own, no goodbye to the database."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def output(self) -> str:
        """What it printed, once it ended well."""
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, err
        return out
