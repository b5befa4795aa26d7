"""What a session keeps, repeats and refuses, with a crew whose answers are written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from db.store import Store, open_store
from profiler.measure.crew import Crew, CrewError
from profiler.measure.entries import Entry, entries_of
from profiler.measure.patience import Patience
from profiler.measure.session import Outcome, Session
from specs.profile import EntryStatus, LayerRefusal, NewRun, Source
from tests.profiler.test_measure_entries import question

Answers = list[dict[str, Any]]


class WrittenCrew:
    """Drift and exhausted memory cannot be ordered from a machine: here they are written down.

    window: gives before, forward and after in ms for each window in turn.
    """

    def __init__(
        self,
        windows: Sequence[tuple[float, float, float]],
        trouble: Callable[[Mapping[str, Any]], CrewError | None] = lambda message: None,
    ) -> None:
        self.windows = list(windows)
        self.trouble = trouble
        self.prepared: list[Mapping[str, Any]] = []

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> Answers:
        trouble = self.trouble(message)
        if trouble is not None:
            raise trouble
        if message["do"] == "prepare":
            self.prepared.append(message)
            return [
                {
                    "idle": False,
                    "pass_ms": 1e4,
                    "update_ms": 1e4,
                    "activation_bytes": 7,
                    "transient_bytes": 5,
                    "parameter_bytes": 3,
                    "expert_parameter_bytes": 0,
                }
            ]
        before, forward, after = self.windows.pop(0)
        return [
            {
                "idle": False,
                "before_ms": before,
                "after_ms": after,
                "forward_ms": [forward] * message["passes"],
                "backward_ms": [2 * forward] * message["passes"],
                "comm_ms": [0.5] * message["passes"],
                "update_ms": [0.1] * message["updates"],
            }
        ]


class Quiet:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.repeated = 0

    def entry_started(self, entry: Entry) -> None:
        pass

    def entry_finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def again(self, entries: Sequence[Entry]) -> None:
        self.repeated += len(entries)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = open_store(tmp_path / "store.db")
    opened.add_model(question().model)
    return opened


def run_session(
    store: Store, crew: WrittenCrew, listener: Quiet, micro_batches: tuple[int, ...] = (1,)
) -> tuple[int, list[Outcome]]:
    entries, _ = entries_of(question(tps=(1,), micro_batches=micro_batches))
    blocks = [entry for entry in entries if entry.layer_type.kind == "block"]
    run_id = store.start_run(NewRun(Source.MEASURED, "test"))
    session = Session(cast(Crew, crew), store, run_id, 10.0, listener, Patience(extra_time=1e9))
    return run_id, session.run(blocks, [])


def test_a_steady_window_is_taken_at_once(store: Store) -> None:
    listener = Quiet()
    run_id, outcomes = run_session(store, WrittenCrew([(10.0, 4.0, 10.1)]), listener)
    assert [outcome.unsteady for outcome in outcomes] == [False]
    (stored,) = store.layer_profiles(run_id=run_id)
    row = stored.profile
    assert (row.forward_ms, row.backward_ms, row.comm_ms, row.update_ms) == (4.0, 8.0, 0.5, 0.1)
    assert (row.activation_bytes, row.transient_bytes, row.parameter_bytes) == (7, 5, 3)
    assert row.samples == 15
    assert listener.repeated == 0


def test_a_window_with_drift_is_repeated_and_forgotten(store: Store) -> None:
    crew = WrittenCrew([(10.0, 9.0, 12.0), (10.0, 4.0, 10.0)])
    run_id, outcomes = run_session(store, crew, Quiet())
    assert not outcomes[0].unsteady
    assert store.layer_profiles(run_id=run_id)[0].profile.forward_ms == 4.0


def test_without_a_steady_window_all_are_pooled_and_marked(store: Store) -> None:
    drifting = [(10.0, 4.0, 12.0), (12.0, 6.0, 10.0), (10.0, 5.0, 12.0)]
    listener = Quiet()
    crew = WrittenCrew(drifting * 2)
    run_id, outcomes = run_session(store, crew, listener)
    assert outcomes[0].unsteady
    assert listener.repeated == 1
    row = store.layer_profiles(run_id=run_id)[0].profile
    assert row.samples == 45
    assert row.forward_ms == 5.0  # 15 samples each of 4, 5, 6
    assert row.forward_mad_ms == 1.0


def test_where_no_window_is_ever_steady_each_entry_has_one(store: Store) -> None:
    crew = WrittenCrew([(10.0, 4.0, 12.0)] * 40)
    run_session(store, crew, Quiet(), (1, 2, 3, 4, 5))
    # Three entries with three windows each, then one each: 9 + 2, and 5 in the second turn.
    assert len(crew.windows) == 40 - 9 - 2 - 5


def test_an_entry_of_a_slow_regime_is_measured_again_and_the_better_kept(store: Store) -> None:
    # The second entry shows that the machine can do 5 ms: the first ran at half of its speed.
    crew = WrittenCrew([(10.0, 8.0, 10.0), (5.0, 6.0, 5.0), (5.0, 4.0, 5.0)])
    listener = Quiet()
    run_id, outcomes = run_session(store, crew, listener, (1, 2))
    assert listener.repeated == 1
    rows = {s.profile.key.micro_batch: s.profile for s in store.layer_profiles(run_id=run_id)}
    assert (rows[1].forward_ms, rows[2].forward_ms) == (4.0, 6.0)
    assert not any(outcome.unsteady for outcome in outcomes)


def test_a_second_try_that_is_worse_does_not_replace_the_first(store: Store) -> None:
    crew = WrittenCrew([(10.0, 8.0, 10.0), (5.0, 6.0, 5.0), (20.0, 16.0, 20.0)])
    run_id, _ = run_session(store, crew, Quiet(), (1, 2))
    rows = {s.profile.key.micro_batch: s.profile for s in store.layer_profiles(run_id=run_id)}
    assert rows[1].forward_ms == 8.0


def test_no_memory_for_copies_is_tried_again_with_one(store: Store) -> None:
    def trouble(message: Mapping[str, Any]) -> CrewError | None:
        if message["do"] == "prepare" and message["copies"] > 1:
            return CrewError(EntryStatus.OUT_OF_MEMORY, "process 0: too much")
        return None

    crew = WrittenCrew([(10.0, 4.0, 10.0)], trouble)
    run_id, _ = run_session(store, crew, Quiet())
    assert [message["copies"] for message in crew.prepared] == [1]
    assert len(store.layer_profiles(run_id=run_id)) == 1


def test_a_larger_micro_batch_than_one_that_did_not_fit_is_not_tried(store: Store) -> None:
    asked: list[int] = []

    def trouble(message: Mapping[str, Any]) -> CrewError | None:
        if message["do"] == "prepare":
            asked.append(message["key"]["micro_batch"])
            if message["key"]["micro_batch"] >= 2:
                return CrewError(EntryStatus.OUT_OF_MEMORY, "process 0: can't allocate memory")
        return None

    crew = WrittenCrew([(10.0, 4.0, 10.0)], trouble)
    run_id, outcomes = run_session(store, crew, Quiet(), (1, 2, 4, 8))
    assert asked == [1, 2, 2]  # with three copies, then with one
    refusals = [outcome.row for outcome in outcomes if isinstance(outcome.row, LayerRefusal)]
    assert [refusal.status for refusal in refusals] == [EntryStatus.OUT_OF_MEMORY] * 3
    assert "can't allocate" in refusals[0].reason
    assert refusals[1].reason == "not tried: micro-batch 2 already ran out of memory"
    assert len(store.layer_refusals(run_id=run_id)) == 3


def test_a_lost_crew_costs_one_key_and_the_run_goes_on(store: Store) -> None:
    def trouble(message: Mapping[str, Any]) -> CrewError | None:
        if message["do"] == "prepare" and message["key"]["micro_batch"] == 1:
            return CrewError(EntryStatus.WORKER_DIED, "process 1 was ended by SIGKILL")
        return None

    crew = WrittenCrew([(10.0, 4.0, 10.0)], trouble)
    run_id, _ = run_session(store, crew, Quiet(), (1, 2))
    assert store.layer_refusals(run_id=run_id)[0].refusal.reason.endswith("SIGKILL")
    assert [s.profile.key.micro_batch for s in store.layer_profiles(run_id=run_id)] == [2]
