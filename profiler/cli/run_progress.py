"""How a profile run shows itself on stderr: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress

from profiler.measure.entries import Entry
from profiler.measure.session import Outcome
from specs.profile import LayerKey, LayerRefusal
from specs.units import human_ms

_REFRESH_PER_S = 1  # each refresh takes time of a core that is being measured


class Progress:
    """Entries done, time elapsed, time remaining.

    Remaining time goes by the expected seconds of the entries, corrected by how the ones so far
    compare with what was expected of them.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.run_id: int | None = None
        self.kept = 0
        self._total = self._finished = 0
        self._expected_s = self._done_s = 0.0
        self._begun = time.monotonic()
        self._bar: RichProgress | None = None
        self._again = False

    def __enter__(self) -> Progress:
        self.console.print("Starting the measuring processes ...", style="dim")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is not None and self.run_id is not None:
            self.console.print(
                f"Profile run {self.run_id} keeps {self.kept} entries; "
                "the same command with --resume goes on.",
                highlight=False,
            )

    def run_started(self, run_id: int, entries: list[Entry], done: int, resumed: bool) -> None:
        """Say what is about to happen."""
        self.run_id, self.kept, self._total = run_id, done, len(entries)
        self._expected_s = sum(entry.expected_s for entry in entries)
        self._begun = time.monotonic()
        what = f"Profile run {run_id}: {len(entries)} entries to measure"
        if resumed:
            what = f"Resuming profile run {run_id}: {done} entries are there, {len(entries)} left"
        self.console.print(what, highlight=False)
        if self.console.is_terminal and entries:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=self.console,
                refresh_per_second=_REFRESH_PER_S,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=len(entries), left="")

    def again(self, entries: Sequence[Entry]) -> None:
        """A second turn: the count and the time left grow."""
        self._again = True
        self._total += len(entries)
        self._expected_s += sum(entry.expected_s for entry in entries)
        self.console.print(
            f"The machine was not steady: measuring {len(entries)} entries again", style="yellow"
        )
        if self._bar is not None:
            self._bar.update(self._task, total=self._total)

    def entry_started(self, entry: Entry) -> None:
        """Name the entry that is being measured."""
        if self._bar is not None:
            self._bar.update(self._task, description=describe(entry))

    def entry_finished(self, outcome: Outcome) -> None:
        """Move on by one entry."""
        self._finished += 1
        self.kept += not self._again
        self._done_s += outcome.entry.expected_s
        if self._bar is not None:
            self._bar.update(self._task, advance=1, left=f"{self._left_s():.0f} s left")
            if isinstance(outcome.row, LayerRefusal):
                self._bar.console.print(self._line(outcome), highlight=False, markup=False)
        else:
            self.console.print(self._line(outcome), highlight=False, markup=False, soft_wrap=True)

    def _left_s(self) -> float:
        elapsed = time.monotonic() - self._begun
        return elapsed * (self._expected_s - self._done_s) / max(self._done_s, 1e-9)

    def _line(self, outcome: Outcome) -> str:
        row = outcome.row
        if isinstance(row, LayerRefusal):
            result = f"{row.status.value}: {row.reason}"
        else:
            result = (
                f"forward {human_ms(row.forward_ms)}, backward {human_ms(row.backward_ms)}, "
                f"collectives {human_ms(row.comm_ms)}"
            )
            if outcome.unsteady:
                result += " (the machine was not steady)"
        elapsed = time.monotonic() - self._begun
        return (
            f"[{self._finished}/{self._total}] {describe(outcome.entry)}: {result} "
            f"({elapsed:.0f} s, about {self._left_s():.0f} s left)"
        )


def describe(entry: Entry) -> str:
    """An entry in a few words: "block tp=2 micro-batch=4"."""
    return f"{entry.layer_type.label} {describe_key(entry.key)}"


def describe_key(key: LayerKey) -> str:
    """The parts of a key that differ inside a run."""
    text = f"tp={key.tp} micro-batch={key.micro_batch}"
    if key.recompute.value != "none":
        text += f" recompute={key.recompute.value}"
    if key.ep * key.etp > 1:
        text += f" ep={key.ep} etp={key.etp}"
    return text
