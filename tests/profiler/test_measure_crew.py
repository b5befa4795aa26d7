"""The measuring processes: pinned, all busy at once, replaced when lost, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiler.host import Devices, find_devices, read_host
from profiler.measure.crew import Crew, CrewError
from profiler.measure.entries import Question, entries_of
from profiler.measure.messages import key_document
from specs.errors import RunError
from specs.model import Model
from specs.profile import EntryStatus
from tests.profiler.test_measure_entries import question

ROOT = Path(__file__).resolve().parents[2]

SMALL_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
SMALL = Model.from_config("small", SMALL_CONFIG)


def cpu_devices(count: int = 2) -> Devices:
    devices, _ = find_devices(read_host(), "cpu", instead="")
    if devices.count < count:
        pytest.skip(f"needs {count} cores")
    return Devices("cpu", devices.topology, devices.cores[:count], (), devices.usable_bytes)


@pytest.fixture(scope="module")
def shared() -> Iterator[Crew]:
    with Crew(cpu_devices(), SMALL, (1, 2)) as crew:
        yield crew


def small_question(model: Model = SMALL, **changes: object) -> Question:
    return replace(question(), model=model, seq_len=32, **changes)  # type: ignore[arg-type]


def prepare(tp: int, kind: str = "block") -> dict[str, Any]:
    entries, _ = entries_of(small_question(tps=(tp,), micro_batches=(1,), devices=tp))
    entry = next(entry for entry in entries if entry.layer_type.kind == kind)
    return {"do": "prepare", "key": key_document(entry.key), "copies": 2}


def test_processes_are_pinned_to_a_core_each_and_run_one_thread_of_work(shared: Crew) -> None:
    shared.ask({"do": "reference"}, 60)
    cores = [os.sched_getaffinity(pid) for pid in shared.process_ids]
    assert cores == [{core} for core in shared.devices.cores]


def test_two_replicas_of_one_device_measure_at_the_same_time(shared: Crew) -> None:
    answers = shared.ask(prepare(tp=1), 60)
    assert [answer["idle"] for answer in answers] == [False, False]
    window = shared.ask({"do": "window", "passes": 5, "updates": 4}, 60)
    for answer in window:
        assert len(answer["forward_ms"]) == len(answer["backward_ms"]) == 5
        assert len(answer["update_ms"]) == 4
        assert min(answer["forward_ms"]) > 0
        assert set(answer["comm_ms"]) == {0.0}
        assert answer["before_ms"] > 0
        assert answer["after_ms"] > 0


def test_a_group_of_two_splits_the_layer_and_times_its_collectives_apart(shared: Crew) -> None:
    whole = shared.ask(prepare(tp=1), 60)[0]
    halves = shared.ask(prepare(tp=2), 60)
    # Everything but the two norms of 64 weights is cut in two.
    assert halves[0]["parameter_bytes"] == (whole["parameter_bytes"] - 512) // 2 + 512
    window = shared.ask({"do": "window", "passes": 5, "updates": 4}, 60)
    assert all(min(answer["comm_ms"]) > 0 for answer in window)


def test_every_kind_of_layer_runs_in_a_group(shared: Crew) -> None:
    for kind in ("embedding", "head"):
        shared.ask(prepare(tp=2, kind=kind), 60)
        window = shared.ask({"do": "window", "passes": 2, "updates": 2}, 60)
        assert all(min(answer["comm_ms"]) > 0 for answer in window)


def test_the_executor_adds_little_and_something_to_a_micro_batch(shared: Crew) -> None:
    answers = shared.ask({"do": "overhead"}, 60)
    for answer in answers:
        assert all(0 < ms < 50 for ms in answer["overhead_ms"])
        # A process with torch and transformers, without a layer.
        assert 100e6 < answer["framework_bytes"] < 3e9


def test_a_killed_process_is_told_and_the_next_question_finds_a_new_crew(shared: Crew) -> None:
    shared.ask({"do": "reference"}, 60)
    old = shared.process_ids
    shared.ask(prepare(tp=1), 60)
    threading.Timer(0.3, os.kill, (old[1], signal.SIGKILL)).start()
    long_window = {"do": "window", "passes": 100_000, "updates": 1}
    with pytest.raises(CrewError, match="process 1 was ended by SIGKILL") as caught:
        shared.ask(long_window, 60)
    assert caught.value.status is EntryStatus.WORKER_DIED
    assert not any(psutil.pid_exists(pid) for pid in old)
    assert len(shared.ask({"do": "reference"}, 60)) == 2
    assert not set(old) & set(shared.process_ids)


def test_a_process_that_hangs_is_given_up_after_the_timeout(shared: Crew) -> None:
    shared.ask({"do": "reference"}, 60)
    old = shared.process_ids
    os.kill(old[0], signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(CrewError, match="no answer from process 0, 1 within 2 s") as caught:
        shared.ask({"do": "reference"}, 2)
    assert caught.value.status is EntryStatus.TIMED_OUT
    assert time.monotonic() - begun < 30
    assert not any(psutil.pid_exists(pid) for pid in old)


def test_four_processes_measure_as_one_group_as_two_and_each_alone() -> None:
    two = cpu_devices(2)
    # Two to a core: their times mean nothing, their answers do.
    four = replace(two, cores=two.cores * 2)
    with Crew(four, SMALL, (1, 2, 4)) as crew:
        for tp in (1, 2, 4):
            answers = crew.ask(prepare(tp), 120)
            assert [answer["idle"] for answer in answers] == [False] * 4
            window = crew.ask({"do": "window", "passes": 2, "updates": 2}, 120)
            assert all((min(answer["comm_ms"]) > 0) == (tp > 1) for answer in window)


def test_ranks_without_a_whole_group_stay_idle() -> None:
    two = cpu_devices(2)
    with Crew(replace(two, cores=(*two.cores, two.cores[0])), SMALL, (2,)) as crew:
        assert [answer["idle"] for answer in crew.ask(prepare(2), 120)] == [False, False, True]
        window = crew.ask({"do": "window", "passes": 2, "updates": 2}, 120)
        assert [answer["idle"] for answer in window] == [False, False, True]


def test_memory_beyond_the_limit_is_out_of_memory_and_no_crash_of_the_host() -> None:
    wide = Model.from_config("wide", SMALL_CONFIG | {"vocab_size": 1_000_000})
    entries, _ = entries_of(small_question(wide, tps=(1,), micro_batches=(1,)))
    head = next(entry for entry in entries if entry.layer_type.kind == "head")
    message = {"do": "prepare", "key": key_document(head.key), "copies": 1}
    # The weights alone are 256 MB, with gradient and moments 1 GB.
    with (
        Crew(cpu_devices(1), wide, (1,), memory_limit_bytes=900_000_000) as crew,
        pytest.raises(CrewError) as caught,
    ):
        crew.ask(message, 120)
    assert caught.value.status is EntryStatus.OUT_OF_MEMORY
    assert "allocate" in caught.value.reason


def test_a_family_that_cannot_be_built_is_told_by_name() -> None:
    opt = Model.from_config(
        "opt",
        {
            "model_type": "opt",
            "hidden_size": 64,
            "ffn_dim": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "vocab_size": 128,
            "max_position_embeddings": 128,
        },
    )
    with Crew(cpu_devices(1), opt, (1,)) as crew:
        assert "'opt'" in crew.start()[0]["problem"]


def test_processes_that_cannot_start_are_an_error_with_their_last_words() -> None:
    # 30 MB hold no torch.
    with (
        Crew(cpu_devices(1), SMALL, (1,), memory_limit_bytes=30_000_000) as crew,
        pytest.raises(RunError, match="the measuring processes do not start: process 0"),
    ):
        crew.start()


def test_no_process_outlives_a_command_that_is_killed() -> None:
    script = (
        "import sys, time\n"
        "from tests.profiler.test_measure_crew import Crew, SMALL, cpu_devices\n"
        "crew = Crew(cpu_devices(1), SMALL, (1,))\n"
        "crew.start()\n"
        "print(*crew.process_ids, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        pids = [int(word) for word in command.stdout.readline().split()]
        assert pids
        assert all(psutil.pid_exists(pid) for pid in pids)
        command.kill()
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.gpu
def test_a_gpu_measures_a_layer_as_the_cpu_does() -> None:
    host = read_host()
    kind = next(gpu.type for gpu in host.gpu_report.gpus if gpu.type)
    devices, _ = find_devices(host, kind, instead="", allow_busy=True)
    one = Devices(kind, devices.topology, devices.cores, devices.gpus[:1], devices.usable_bytes)
    message = prepare(tp=1)
    message["key"] = {**message["key"], "gpu": kind}
    with Crew(one, SMALL, (1,)) as crew:
        assert crew.start()[0]["nccl"]
        prepared = crew.ask(message, 120)
        assert prepared[0]["activation_bytes"] > 0
        assert prepared[0]["transient_bytes"] > 0
        window = crew.ask({"do": "window", "passes": 5, "updates": 5}, 120)
        assert min(window[0]["forward_ms"]) > 0
        overhead = crew.ask({"do": "overhead"}, 120)[0]
        assert overhead["overhead_ms"]
        assert overhead["framework_bytes"] > 100e6
