"""Profile runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from db.store import Store
from specs.errors import StoreError
from specs.profile import NewRun, RunStatus, Source
from tests.db.samples import RUN, measured_run, plan


def test_a_run_keeps_what_is_known_of_it(store: Store) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    run_id = store.start_run(RUN)
    run = store.profile_run(run_id)
    assert (run.id, run.run, run.status, run.ended) == (run_id, RUN, RunStatus.RUNNING, None)
    assert before < run.started < datetime.now(UTC) + timedelta(seconds=1)
    store.finish_run(run_id, RunStatus.FAILED)
    run = store.profile_run(run_id)
    assert run.status is RunStatus.FAILED
    assert run.ended is not None
    assert run.ended >= run.started
    store.resume_run(run_id)
    assert (store.profile_run(run_id).status, store.profile_run(run_id).ended) == ("running", None)


def test_a_run_counts_its_rows(store: Store) -> None:
    run = measured_run(store, rows=3)
    empty = store.start_run(RUN)
    first, second = store.profile_runs()
    assert (first.id, second.id) == (run, empty)
    assert (first.layer_rows, first.refused_rows, first.link_rows, first.host_rows) == (3, 1, 1, 1)
    assert (second.layer_rows, second.refused_rows, second.link_rows, second.host_rows) == (0,) * 4
    assert store.profile_run(run) == first


def test_the_newest_run_of_exactly_this_origin_is_found(store: Store) -> None:
    older, newer = store.start_run(RUN), store.start_run(RUN)
    other_host = store.start_run(replace(RUN, host="host-2"))
    store.start_run(replace(RUN, origin=RUN.origin + " --tp 2"))
    store.start_run(replace(RUN, source=Source.IMPORTED))

    def found(host: str = "") -> int:
        run = store.find_run(Source.MEASURED, RUN.origin, host)
        assert run is not None
        return run.id

    assert found() == other_host
    assert found("host-1") == newer > older
    assert store.find_run(Source.MEASURED, RUN.origin, "host-3") is None
    assert store.find_run(Source.ESTIMATED, RUN.origin) is None


def test_a_command_line_that_is_no_utf8_is_found_again(store: Store) -> None:
    new = replace(RUN, origin="arachne-prof import csv caf\udce9\x00.csv")
    run_id = store.start_run(new)
    found = store.find_run(new.source, new.origin)
    assert found is not None
    assert found.id == run_id


def test_a_deleted_run_takes_its_rows_with_it(store: Store) -> None:
    keep, gone = measured_run(store), measured_run(store)
    store.delete_run(gone)
    assert [run.id for run in store.profile_runs()] == [keep]
    assert {stored.run.id for stored in store.layer_profiles()} == {keep}
    assert {stored.run.id for stored in store.link_profiles()} == {keep}
    assert {stored.run.id for stored in store.host_profiles()} == {keep}
    for call in (store.profile_run, store.delete_run):
        with pytest.raises(StoreError, match=f"no profile run {gone} in the store"):
            call(gone)


def test_the_id_of_a_deleted_run_never_comes_back(store: Store) -> None:
    gone = store.start_run(RUN)
    store.delete_run(gone)
    assert store.start_run(RUN) > gone


def test_a_run_that_plans_used_is_deleted_only_by_force(store: Store) -> None:
    run = measured_run(store)
    first = store.add_plan(plan(run))
    second = store.add_plan(plan(run, split=3))
    with pytest.raises(StoreError, match=rf"plan\(s\) {first}, {second} were predicted from"):
        store.delete_run(run)
    assert len(store.layer_profiles()) == 3
    store.delete_run(run, force=True)
    assert store.profile_runs() == []
    assert store.layer_profiles() == []
    assert store.layer_refusals() == []
    assert store.link_profiles() == []
    assert store.host_profiles() == []
    assert store.find_run(RUN.source, RUN.origin) is None
    assert store.plan(first).profile_runs == (run,)  # what it came from is still said
    assert store.plan(first).plan == plan(run)
    with pytest.raises(StoreError, match=f"profile run {run} was deleted on 20"):
        store.profile_run(run)


def test_a_seed_may_be_any_number_of_eight_bytes(store: Store) -> None:
    for seed in (-(2**63) + 1, 2**63 - 1):
        assert store.profile_run(store.start_run(replace(RUN, seed=seed))).run.seed == seed
    with pytest.raises(StoreError, match="seed is"):
        store.start_run(replace(RUN, seed=2**63))


def test_an_id_too_large_for_any_store_is_an_error_in_one_line(store: Store) -> None:
    with pytest.raises(StoreError):
        store.profile_run(2**70)


def test_a_run_without_facts_is_a_run(store: Store) -> None:
    run = store.profile_run(store.start_run(NewRun(Source.ESTIMATED, "")))
    assert run.run == NewRun(Source.ESTIMATED, "")
