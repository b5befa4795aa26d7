"""Layer, link and host profiles."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from db.store import Store
from specs.errors import SpecError, StoreError
from specs.profile import EntryStatus, LinkProfile, Operation, RunStatus, Source
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute
from tests.db.samples import (
    BLOCK,
    HEAD,
    HOST,
    LINK,
    MODEL,
    REFUSAL,
    RUN,
    key,
    measured_run,
    profile,
)


def test_rows_come_back_as_they_went_in_to_the_last_digit(store: Store) -> None:
    run = measured_run(store, rows=3)
    found = store.layer_profiles()
    assert [stored.profile for stored in found] == [profile(1), profile(2), profile(3)]
    assert {stored.run.id for stored in found} == {run}
    assert found[0].run.run == RUN


def test_refusals_keep_their_reason_and_are_no_profiles(store: Store) -> None:
    run = measured_run(store, rows=1)
    (found,) = store.layer_refusals(run_id=run)
    assert found.refusal == REFUSAL
    assert store.entries(run) == {
        profile(1).key: EntryStatus.OK,
        REFUSAL.key: EntryStatus.OUT_OF_MEMORY,
    }


def test_links_and_hosts_come_back(store: Store) -> None:
    run = measured_run(store)
    assert [stored.profile for stored in store.link_profiles()] == [LINK]
    assert [stored.profile for stored in store.host_profiles(run_id=run)] == [HOST]
    assert store.link_profiles(gpus=["a6000"]) == []
    assert store.host_profiles(gpus=["h100"]) == []
    assert [s.profile for s in store.host_profiles(gpus=["cpu", "h100"])] == [HOST]


def test_a_link_between_two_types_keeps_both_ends(store: Store) -> None:
    run = store.start_run(RUN)
    mixed = LinkProfile("a6000", Topology.INTER, Operation.P2P, 2, 1024, 0.5, "h100")
    same = replace(mixed, peer_gpu="a6000")
    store.add_link_profiles(run, [mixed, same])
    found = [stored.profile for stored in store.link_profiles(run_id=run)]
    assert [(link.gpu, link.peer) for link in found] == [("a6000", "h100"), ("a6000", "a6000")]
    assert found[0] == mixed


def test_the_same_key_again_in_a_run_replaces_the_row(store: Store) -> None:
    run = measured_run(store, rows=2)
    store.add_layer_profiles(run, [profile(2, forward_ms=9.0)])
    assert [s.profile.forward_ms for s in store.layer_profiles()] == [0.1, 9.0]
    store.add_layer_profiles(run, [replace(REFUSAL, key=key(2))])
    assert [s.profile.key.micro_batch for s in store.layer_profiles()] == [1]
    store.add_layer_profiles(run, [profile(64)])  # the refused key worked the second time
    assert store.entries(run)[key(64)] is EntryStatus.OK
    store.add_link_profiles(run, [replace(LINK, time_ms=2.5)])
    assert [s.profile.time_ms for s in store.link_profiles()] == [2.5]
    store.add_host_profile(run, replace(HOST, host_ms=0.5))
    assert [s.profile.host_ms for s in store.host_profiles()] == [0.5]


def test_two_runs_of_one_key_stand_beside_each_other(store: Store) -> None:
    first, second = measured_run(store, rows=1), measured_run(store, rows=1)
    assert [s.run.id for s in store.layer_profiles()] == [first, second]
    assert len(store.layer_profiles(run_id=second)) == 1


def test_rows_are_found_by_any_part_of_the_question(store: Store) -> None:
    store.add_model(MODEL)
    run = store.start_run(RUN)
    block, head, gpu = key(1), key(1, layer=HEAD.hash), key(1, gpu="h100", tp=2)
    longer = replace(block, seq_len=4096)
    half = replace(block, dtype=DType.BF16)
    again = replace(block, recompute=Recompute.FULL)
    plain = replace(block, optimizer=Optimizer.SGD)
    every = [block, head, gpu, longer, half, again, plain]
    store.add_layer_profiles(run, [replace(profile(), key=one) for one in every])

    def found(**question: object) -> list[object]:
        rows = store.layer_profiles(**question)  # type: ignore[arg-type]
        return [stored.profile.key for stored in rows]

    assert found() == every
    assert found(gpus=["h100"]) == [gpu]
    assert found(layer_types={HEAD.hash}) == [head]
    assert found(seq_len=4096) == [longer]
    assert found(dtype=DType.BF16) == [half]
    assert found(recompute=Recompute.FULL) == [again]
    assert found(optimizer=Optimizer.SGD) == [plain]
    assert found(gpus=["cpu"], seq_len=128, layer_types=[BLOCK.hash], dtype=DType.FP32) == [
        block,
        again,
        plain,
    ]
    assert found(gpus=[]) == []


@pytest.mark.parametrize("bad", [-0.001, math.nan, math.inf])
def test_times_that_cannot_be_are_refused_and_nothing_is_written(store: Store, bad: float) -> None:
    run = measured_run(store, rows=0)
    with pytest.raises(StoreError, match=r"backward_ms is .* expected a number of at least 0"):
        store.add_layer_profiles(run, [profile(1), profile(2, backward_ms=bad)])
    assert store.layer_profiles() == []
    with pytest.raises(StoreError, match="forward_mad_ms"):
        store.add_layer_profiles(run, [profile(1, forward_mad_ms=bad)])
    with pytest.raises(StoreError, match="time_ms"):
        store.add_link_profiles(run, [replace(LINK, time_ms=bad)])
    with pytest.raises(StoreError, match="host_ms"):
        store.add_host_profile(run, replace(HOST, host_ms=bad))


def test_sizes_that_cannot_be_are_refused(store: Store) -> None:
    run = measured_run(store, rows=0)
    for fields, said in (
        ({"activation_bytes": -1}, "activation_bytes is -1"),
        ({"activation_bytes": 1.5}, "activation_bytes is 1.5"),
        ({"activation_bytes": 2**63}, "activation_bytes"),
        ({"samples": 0}, "samples is 0"),
        ({"key": replace(key(), tp=0)}, "tp is 0"),
        ({"key": replace(key(), tp=2**31)}, "tp is 2147483648"),
    ):
        with pytest.raises(StoreError, match=said):
            store.add_layer_profiles(run, [profile(1, **fields)])
    with pytest.raises(StoreError, match="ranks is 1"):
        store.add_link_profiles(run, [replace(LINK, ranks=1)])


def test_numbers_of_numpy_are_numbers(store: Store) -> None:
    run = measured_run(store, rows=0)
    row = profile(
        1,
        forward_ms=np.float64(1.5),
        update_ms=np.float32(0.5),
        activation_bytes=np.int64(2**40),
        samples=np.int32(5),
    )
    store.add_layer_profiles(run, [row])
    (found,) = store.layer_profiles()
    assert (found.profile.forward_ms, found.profile.update_ms) == (1.5, 0.5)
    assert (found.profile.activation_bytes, found.profile.samples) == (2**40, 5)
    assert type(found.profile.activation_bytes) is int


def test_a_layer_type_without_a_model_is_refused_by_name(store: Store) -> None:
    run = store.start_run(RUN)
    with pytest.raises(StoreError, match=f"no layer type {BLOCK.hash} in the store"):
        store.add_layer_profiles(run, [profile()])
    store.add_layer_types([BLOCK])
    store.add_layer_profiles(run, [profile()])
    assert len(store.layer_profiles()) == 1


def test_a_gpu_type_that_the_catalogue_lacks_is_refused(store: Store) -> None:
    run = measured_run(store, rows=0)
    with pytest.raises(SpecError, match="no GPU type 'h1000'"):
        store.add_layer_profiles(run, [replace(profile(), key=key(gpu="h1000"))])


def test_a_run_that_is_not_there_is_named(store: Store) -> None:
    for call in (
        lambda: store.add_layer_profiles(99, []),
        lambda: store.add_link_profiles(99, []),
        lambda: store.add_host_profile(99, HOST),
        lambda: store.entries(99),
        lambda: store.layer_profiles(run_id=99),
        lambda: store.layer_refusals(run_id=99),
        lambda: store.link_profiles(run_id=99),
        lambda: store.host_profiles(run_id=99),
        lambda: store.finish_run(99, RunStatus.COMPLETE),
    ):
        with pytest.raises(StoreError, match="no profile run 99 in the store"):
            call()


def test_an_empty_list_writes_nothing(store: Store) -> None:
    run = store.start_run(RUN)
    store.add_layer_profiles(run, [])
    store.add_link_profiles(run, [])
    assert store.profile_run(run).layer_rows == 0


def test_a_refusal_must_say_what_happened(store: Store) -> None:
    run = measured_run(store, rows=0)
    with pytest.raises(StoreError, match="status ok"):
        store.add_layer_profiles(run, [replace(REFUSAL, status=EntryStatus.OK)])
    for i, status in enumerate(status for status in EntryStatus if status is not EntryStatus.OK):
        store.add_layer_profiles(run, [replace(REFUSAL, key=key(i + 1), status=status)])
    assert len(store.layer_refusals(run_id=run)) == len(EntryStatus)  # one was there, less `ok`


def test_thousands_of_rows_go_in_and_out(store: Store) -> None:
    store.add_model(MODEL)
    run = store.start_run(replace(RUN, source=Source.ESTIMATED))
    rows = [profile(i + 1, forward_ms=i / 7) for i in range(5000)]
    store.add_layer_profiles(run, rows)
    assert [stored.profile for stored in store.layer_profiles(run_id=run)] == rows
