"""A whole profile run: a question in, rows in the store out, resumable at any moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from profiler.host import Devices, HostFacts
from profiler.measure.crew import Crew, CrewError
from profiler.measure.entries import Entry, Question, entries_of
from profiler.measure.patience import Patience
from profiler.measure.session import Listener, Outcome, Session
from profiler.measure.timing import drift, figure, same_speed, steady
from specs.errors import ArachneError, RunError
from specs.profile import (
    EntryStatus,
    HostProfile,
    LayerKey,
    LayerRefusal,
    NewRun,
    ProfileRun,
    RunStatus,
    Source,
)

if TYPE_CHECKING:
    from db.store import Store

# What may have been the machine's fault and not the key's: a resumed run tries it again.
_WORTH_ANOTHER_TRY = (EntryStatus.TIMED_OUT, EntryStatus.WORKER_DIED)


class RunListener(Listener, Protocol):
    """Told how a whole run goes on."""

    def run_started(self, run_id: int, entries: list[Entry], done: int, resumed: bool) -> None:
        """Once, before the first entry. entries: what is left; done: what was there already."""


@dataclass(frozen=True)
class Finished:
    """What a run measured.

    reference_ms: the fastest that the reference work ran in it. drift: the same work at the end
    over the start, less 1.
    """

    run_id: int
    outcomes: list[Outcome] = field(default_factory=list)
    skipped: int = 0
    reference_ms: float = 0.0
    drift: float = 0.0

    @property
    def unsteady(self) -> set[LayerKey]:
        """Keys whose windows all drifted, or ran while the machine was slow."""
        return {
            outcome.entry.key
            for outcome in self.outcomes
            if outcome.unsteady or not same_speed(outcome.level_ms, self.reference_ms)
        }


def measure(
    question: Question,
    devices: Devices,
    host: HostFacts,
    open_store: Callable[[], Store],
    listener: RunListener,
    *,
    resume: bool = False,
    seed: int = 0,
    patience: Patience | None = None,
) -> Finished:
    """Answer a question: start the processes, measure every key, store each when it is finished.

    The store is opened only once the processes stand and can build the model, so that what cannot
    be measured leaves nothing behind. On Ctrl-C or any error the run stays in the store as
    `failed`, with all rows it has; `resume` goes on with the newest such run of the same question.
    Raises RunError where the processes do not start or the model cannot be built; StoreError where
    the store fails.
    """
    entries, refusals = entries_of(question)
    patience = patience or Patience()
    if not entries:
        return _only_refused(question, host, open_store, refusals)
    degrees = sorted({n for entry in entries for n in (entry.key.tp, entry.key.etp)})
    limit = devices.usable_bytes // devices.count if devices.is_cpu else None
    with Crew(devices, question.model, degrees, memory_limit_bytes=limit, seed=seed) as crew:
        words = crew.start()
        if words[0]["problem"]:
            raise RunError(words[0]["problem"])
        new = NewRun(
            source=Source.MEASURED,
            origin=question.origin,
            host=host.fingerprint,
            driver=host.gpu_report.driver if not devices.is_cpu else "",
            torch_version=words[0]["torch"],
            nccl_version=words[0]["nccl"],
            seed=seed,
            reference_ms=crew.reference_ms(),
        )
        with open_store() as store:
            old = unfinished_run(store, new) if resume else None
            store.add_model(question.model)
            if old is None:
                run_id = store.start_run(new)
            else:
                run_id = old.id
                store.resume_run(run_id)
            session = Session(crew, store, run_id, _fastest_ms(new, old), listener, patience)
            with _failed_unless_finished(store, run_id):
                done = _done(store, run_id)
                left = [entry for entry in entries if entry.key not in done]
                listener.run_started(run_id, left, len(done), old is not None)
                if left and not store.host_profiles(run_id=run_id):
                    row = host_row(crew, devices, patience)
                    store.add_host_profile(run_id, row)
                outcomes = session.run(left, refusals, done)
                measured = EntryStatus.OK in store.entries(run_id).values()
                store.finish_run(run_id, RunStatus.COMPLETE if measured else RunStatus.FAILED)
        drifted = drift(new.reference_ms or 1.0, crew.reference_ms())
    return Finished(run_id, outcomes, len(done), session.reference_ms, drifted)


def _only_refused(
    question: Question,
    host: HostFacts,
    open_store: Callable[[], Store],
    refusals: list[LayerRefusal],
) -> Finished:
    """Keep the reasons where arithmetic alone refuses every key: no process has to start."""
    with open_store() as store:
        store.add_model(question.model)
        run_id = store.start_run(
            NewRun(source=Source.MEASURED, origin=question.origin, host=host.fingerprint)
        )
        store.add_layer_profiles(run_id, refusals)
        store.finish_run(run_id, RunStatus.FAILED)
    return Finished(run_id)


def _fastest_ms(new: NewRun, old: ProfileRun | None) -> float:
    """The reference work at its fastest, of this start and of the one that is resumed."""
    timings = [new.reference_ms, old.run.reference_ms if old else None]
    return min(ms for ms in timings if ms is not None)


def _done(store: Store, run_id: int) -> set[LayerKey]:
    """Keys that need no further try."""
    entries = store.entries(run_id).items()
    return {key for key, status in entries if status not in _WORTH_ANOTHER_TRY}


@contextlib.contextmanager
def _failed_unless_finished(store: Store, run_id: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # Best effort: a full disk that broke the run may refuse this word as well.
        with contextlib.suppress(ArachneError):
            store.finish_run(run_id, RunStatus.FAILED)
        raise


def host_row(crew: Crew, devices: Devices, patience: Patience) -> HostProfile:
    """What a process of this host costs before any layer, and per micro-batch beside its layers.

    Raises RunError where the overhead cannot be measured: without it no plan can be priced.
    """
    samples: list[float] = []
    framework_bytes = 0
    for _ in range(patience.windows):
        try:
            answers = crew.ask({"do": "overhead"}, patience.for_work(2.0))
        except CrewError as error:
            raise RunError(
                f"the overhead of a micro-batch cannot be measured: {error.reason}"
            ) from None
        framework_bytes = max(answer["framework_bytes"] for answer in answers)
        window = [sample for answer in answers for sample in answer["overhead_ms"]]
        if all(steady(answer["before_ms"], answer["after_ms"]) for answer in answers):
            samples = window
            break
        samples += window
    overhead = figure(samples)
    return HostProfile(
        gpu=devices.gpu,
        host_ms=overhead.ms,
        framework_bytes=framework_bytes,
        usable_bytes=devices.usable_bytes,
        host_mad_ms=overhead.mad_ms,
    )


def unfinished_run(store: Store, new: NewRun) -> ProfileRun | None:
    """The newest run of the same question, host and software that is not complete."""
    same = [
        run
        for run in store.profile_runs()
        if run.run.source is Source.MEASURED
        and run.run.origin == new.origin
        and run.run.host == new.host
        and (run.run.torch_version, run.run.driver) == (new.torch_version, new.driver)
        and run.status is not RunStatus.COMPLETE
    ]
    return max(same, key=lambda run: run.id, default=None)
