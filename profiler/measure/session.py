"""A profile run: asks the crew entry by entry, commits each, survives what goes wrong."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from profiler.measure.bench import copies_of
from profiler.measure.crew import Crew, CrewError
from profiler.measure.entries import Entry
from profiler.measure.messages import key_document
from profiler.measure.patience import Patience
from profiler.measure.timing import Figure, figure, repetitions, same_speed, steady
from specs.profile import EntryStatus, LayerKey, LayerProfile, LayerRefusal

if TYPE_CHECKING:
    from db.store import Store

Answers = list[dict[str, Any]]

HOPELESS = 3  # entries in a row without a steady window: this machine is never quiet
UPDATE_WINDOW_S = 0.4
MAX_UPDATES = 25  # once an iteration: a few per cent of it, and caches are emptied before each


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one entry.

    level_ms: the reference work around its window. unsteady: no window was free of drift.
    """

    entry: Entry
    row: LayerProfile | LayerRefusal
    level_ms: float = 0.0
    unsteady: bool = False

    @property
    def measured(self) -> bool:
        """Whether there are figures."""
        return isinstance(self.row, LayerProfile)


class Listener(Protocol):
    """Told how a run goes on."""

    def entry_started(self, entry: Entry) -> None:
        """Before an entry is measured."""

    def entry_finished(self, outcome: Outcome) -> None:
        """After its row is in the store."""

    def again(self, entries: Sequence[Entry]) -> None:
        """All are done once; these had bad windows and are measured again."""


@dataclass
class Session:
    """Measures entries into one profile run of the store.

    reference_ms: the fastest that the reference work ran so far. A shared machine has regimes
    that differ by far more than any error of a plan; figures of one run shall be of one.
    """

    crew: Crew
    store: Store
    run_id: int
    reference_ms: float
    listener: Listener
    patience: Patience = field(default_factory=Patience)
    _too_large: dict[LayerKey, int] = field(default_factory=dict)
    _unsteady_in_a_row: int = 0

    def run(
        self,
        entries: Sequence[Entry],
        refusals: Sequence[LayerRefusal],
        done: Collection[LayerKey] = (),
    ) -> list[Outcome]:
        """Measure every entry whose key is not done, in order; each is committed when finished.

        A key that cannot be measured is stored with its reason and the run goes on. Then those
        whose windows were bad are measured again, and the better figures are kept. Raises
        StoreError where a row cannot be stored.
        """
        new = [refusal for refusal in refusals if refusal.key not in done]
        if new:
            self.store.add_layer_profiles(self.run_id, new)
        begun = time.monotonic()
        outcomes: dict[LayerKey, Outcome] = {}
        for entry in entries:
            if entry.key not in done:
                outcome = self._measured(entry)
                self._keep(outcomes, outcome)
        until = time.monotonic() + self.patience.extra_time * (time.monotonic() - begun)
        suspects = [outcome for outcome in outcomes.values() if self.suspect(outcome)]
        if not self.patience.extra_time:
            suspects = []
        if suspects:
            self.listener.again([outcome.entry for outcome in suspects])
        for old in suspects:
            if time.monotonic() > until:
                break
            if self.suspect(old):
                new_one = self._measured(old.entry)
                better = new_one.measured and _badness(new_one) < _badness(old)
                self._keep(outcomes, new_one if better else old)
        return list(outcomes.values())

    def suspect(self, outcome: Outcome) -> bool:
        """Whether the machine was not itself while an entry was measured."""
        slow = not same_speed(outcome.level_ms, self.reference_ms)
        return outcome.measured and (outcome.unsteady or slow)

    def _keep(self, outcomes: dict[LayerKey, Outcome], outcome: Outcome) -> None:
        self.store.add_layer_profiles(self.run_id, [outcome.row])
        outcomes[outcome.entry.key] = outcome
        self.listener.entry_finished(outcome)

    def _measured(self, entry: Entry) -> Outcome:
        self.listener.entry_started(entry)
        like = replace(entry.key, micro_batch=1)
        smaller = self._too_large.get(like)
        if smaller is not None and smaller < entry.key.micro_batch:
            reason = f"not tried: micro-batch {smaller} already ran out of memory"
            return Outcome(entry, LayerRefusal(entry.key, EntryStatus.OUT_OF_MEMORY, reason))
        copies = copies_of(entry.layer_type, entry.key)
        try:
            return self._measured_copies(entry, copies)
        except CrewError as error:
            trouble = error
        if trouble.status is EntryStatus.OUT_OF_MEMORY and copies > 1:
            # The copies only keep the caches honest: where memory is short, one has to do.
            try:
                return self._measured_copies(entry, 1)
            except CrewError as error:
                trouble = error
        if trouble.status is EntryStatus.OUT_OF_MEMORY:
            self._too_large[like] = entry.key.micro_batch
        return Outcome(entry, LayerRefusal(entry.key, trouble.status, trouble.reason))

    def _measured_copies(self, entry: Entry, copies: int) -> Outcome:
        prepared = self.crew.ask(
            {"do": "prepare", "key": key_document(entry.key), "copies": copies},
            self.patience.for_work(entry.expected_s),
        )
        busy = [answer for answer in prepared if not answer["idle"]]
        pass_ms = max(answer["pass_ms"] for answer in busy)
        update_ms = max(answer["update_ms"] for answer in busy)
        updates = repetitions(update_ms, window_s=UPDATE_WINDOW_S, most=MAX_UPDATES)
        counts = {"passes": repetitions(pass_ms), "updates": updates}
        expected_s = (counts["passes"] * pass_ms + counts["updates"] * update_ms) / 1e3
        windows: list[Answers] = []
        while len(windows) < self._windows():
            answers = self.crew.ask({"do": "window", **counts}, self.patience.for_work(expected_s))
            level_ms = _level_ms([answers])
            if all(steady(answer["before_ms"], answer["after_ms"]) for answer in answers):
                self.reference_ms = min(self.reference_ms, level_ms)
                self._unsteady_in_a_row = 0
                return Outcome(entry, _profile(entry.key, [answers], prepared), level_ms)
            windows.append(answers)
        self._unsteady_in_a_row += 1
        # None was steady. All of them together: the median of many, with a spread that tells.
        row = _profile(entry.key, windows, prepared)
        return Outcome(entry, row, _level_ms(windows), unsteady=True)

    def _windows(self) -> int:
        """How many windows the next entry may have: one where waiting has not helped lately."""
        return 1 if self._unsteady_in_a_row >= HOPELESS else self.patience.windows


def _badness(outcome: Outcome) -> tuple[bool, float]:
    """Of two outcomes of an entry the one with less is kept: steady before fast."""
    return outcome.unsteady, outcome.level_ms


def _level_ms(windows: Sequence[Answers]) -> float:
    """Time of the reference work around these windows, over all processes."""
    timings = [
        float(answer[when])
        for answers in windows
        for answer in answers
        for when in ("before_ms", "after_ms")
    ]
    return median(timings)


def _profile(key: LayerKey, windows: Sequence[Answers], prepared: Answers) -> LayerProfile:
    """One row from the samples of all ranks of all windows."""

    def pooled(name: str) -> Figure:
        return figure(
            [
                sample
                for answers in windows
                for answer in answers
                if not answer["idle"]
                for sample in answer[name]
            ]
        )

    def largest(name: str) -> int:
        return max(int(answer[name]) for answer in prepared if not answer["idle"])

    forward, backward = pooled("forward_ms"), pooled("backward_ms")
    comm, update = pooled("comm_ms"), pooled("update_ms")
    return LayerProfile(
        key=key,
        forward_ms=forward.ms,
        backward_ms=backward.ms,
        comm_ms=comm.ms,
        update_ms=update.ms,
        activation_bytes=largest("activation_bytes"),
        transient_bytes=largest("transient_bytes"),
        parameter_bytes=largest("parameter_bytes"),
        expert_parameter_bytes=largest("expert_parameter_bytes"),
        samples=forward.samples,
        forward_mad_ms=forward.mad_ms,
        backward_mad_ms=backward.mad_ms,
        comm_mad_ms=comm.mad_ms,
        update_mad_ms=update.mad_ms,
    )
