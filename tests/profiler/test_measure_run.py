"""`arachne-prof run` as a user has it: real processes, a real store, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from db.store import open_store
from profiler.cli import main
from profiler.gpus import read_gpus
from specs.host import host_fingerprint
from specs.profile import EntryStatus, RunStatus, Source
from tests.profiler.test_measure_crew import SMALL_CONFIG, cpu_devices

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = 6  # three layer types, two micro-batches


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL_CONFIG))
    return folder


def command(model: Path, store: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "profiler.cli", "run", "--gpu", "cpu", "--model", str(model)),
        *("--tp", "1", "--micro-batch", "1,2", "--seq-len", "32", "--tries", "1"),
        *("--store", str(store), *options),
    ]


def run(words: list[str], timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def entries(store: Path) -> dict[Any, EntryStatus]:
    """What the newest run of a store has, read as another process reads it."""
    if not store.exists():
        return {}
    with closing(open_store(store)) as opened:
        runs = opened.profile_runs()
        return opened.entries(runs[-1].id) if runs else {}


def wait_for_entries(store: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while len(entries(store)) < count:
        assert process.poll() is None, "the run ended before it was interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_run_measures_every_key_and_tells_it_as_one_document(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    cpu_devices(2)
    words = command(model, store, "--json")
    words[words.index("--tp") + 1] = "1,2,64"
    done = run(words)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "complete"
    assert document["host"] == host_fingerprint()
    assert len(document["rows"]) == 2 * ENTRIES
    for row in document["rows"]:
        assert row["forward_ms"] > 0
        assert row["backward_ms"] > 0
        assert row["update_ms"] > 0
        assert (row["comm_ms"] > 0) == (row["tp"] == 2)
        assert row["samples"] >= 15
        assert row["parameter_bytes"] > 0
    assert {row["tp"] for row in document["refused"]} == {64}
    assert {row["status"] for row in document["refused"]} == {"not_enough_devices"}
    (host,) = document["host_rows"]
    assert 0 < host["host_ms"] < 50
    assert host["framework_bytes"] > 50e6
    assert host["usable_bytes"] > host["framework_bytes"]
    assert "about" in done.stderr  # progress, with the time left
    with closing(open_store(store)) as opened:
        (stored,) = opened.profile_runs()
        assert stored.run.source is Source.MEASURED
        assert stored.run.reference_ms
        assert stored.run.torch_version
        assert (stored.layer_rows, stored.refused_rows, stored.host_rows) == (12, 6, 1)


def test_a_killed_run_loses_nothing_and_resume_measures_only_the_rest(
    model: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store.db"
    with started(command(model, store)) as process:
        wait_for_entries(store, 2, process)
        workers = workers_of(process)
        assert workers
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert gone(workers)
    before = entries(store)
    assert 2 <= len(before) < ENTRIES
    with closing(open_store(store)) as opened:
        rows = {s.profile.key: s.profile for s in opened.layer_profiles(run_id=1)}
        host = opened.host_profiles(run_id=1)[0].profile
    done = run(command(model, store, "--resume"))
    assert done.returncode == 0, done.stderr
    assert f"Resuming profile run 1: {len(before)} entries are there" in done.stderr
    with closing(open_store(store)) as opened:
        (resumed,) = opened.profile_runs()
        assert resumed.status is RunStatus.COMPLETE
        after = {s.profile.key: s.profile for s in opened.layer_profiles(run_id=1)}
        assert len(after) == ENTRIES
        assert {key: after[key] for key in rows} == rows
        assert opened.host_profiles(run_id=1)[0].profile == host


def test_ctrl_c_keeps_what_is_measured_and_says_how_to_go_on(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with started(command(model, store)) as process:
        wait_for_entries(store, 1, process)
        workers = workers_of(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert gone(workers)
    assert "--resume goes on" in err
    assert "Traceback" not in err
    assert len(entries(store)) >= 1
    with closing(open_store(store)) as opened:
        assert opened.profile_run(1).status is RunStatus.FAILED


@pytest.mark.long
def test_a_killed_worker_costs_its_key_and_the_run_ends_well(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with started(command(model, store, "--json")) as process:
        wait_for_entries(store, 1, process)
        workers_of(process)[0].kill()
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
    document = json.loads(out)
    assert document["status"] == "complete"
    assert [row["status"] for row in document["refused"]] == ["worker_died"]
    assert "SIGKILL" in document["refused"][0]["reason"]
    assert len(document["rows"]) == ENTRIES - 1


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a small file system needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(ballast: Path) -> None:
    """Take all the space that is left."""
    handle = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    try:
        with suppress(OSError):
            while True:
                os.write(handle, b"\0" * 4096)
    finally:
        os.close(handle)


@pytest.mark.long
def test_a_full_disk_ends_the_run_in_one_line_and_keeps_what_was_there(
    model: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 16384) as disk:
        store = disk / "store.db"
        ballast = disk / "ballast"
        with started(command(model, store)) as process:
            wait_for_entries(store, 1, process)
            fill(ballast)
            _, err = process.communicate(timeout=240)
            assert process.returncode == 1, err
        assert "Traceback" not in err
        (line,) = [line for line in err.splitlines() if line.startswith("Error: ")]
        assert "full" in line
        ballast.unlink()
        before = entries(store)
        assert 1 <= len(before) < ENTRIES
        done = run(command(model, store, "--resume"))
        assert done.returncode == 0, done.stderr
        assert len(entries(store)) == ENTRIES


def test_a_gpu_that_is_not_here_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if read_gpus().of_type("h100"):
        pytest.skip("this host has an h100")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", "--gpu", "h100", "--tp", "1,2"])
    assert done.exit_code == 1
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("Error: this host has ")
    assert line.endswith("arachne-prof estimate --gpu h100 --model llama-3-8b --tp 1,2")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_the_entries_and_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--gpu", "cpu", "--tp", "1,1024", "--micro-batch", "1,2", "--dry-run"]
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert len(document["entries"]) == 6
    assert len(document["refused"]) == 6
    assert document["expected_s"] == pytest.approx(
        sum(entry["expected_s"] for entry in document["entries"])
    )
    table = CliRunner().invoke(main, words)
    assert table.exit_code == 0
    assert "Nothing was measured" in table.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--gpu", "h9000"],
        ["--gpu", "cpu", "--tp", "0"],
        ["--gpu", "cpu", "--tp", "one"],
        ["--gpu", "cpu", "--micro-batch", "1,,2"],
        ["--gpu", "cpu", "--dtype", "fp8"],
        ["--gpu", "cpu", "--recompute", "some"],
        ["--gpu", "cpu", "--seq-len", "0"],
        ["--gpu", "cpu", "--tp", "2", "--devices", "1"],
    ],
)
def test_wrong_options_are_refused_with_2(options: list[str]) -> None:
    done = CliRunner().invoke(main, ["run", *options])
    assert done.exit_code == 2
    assert options[-1].split(",")[0] in done.stderr


def test_nothing_measured_at_all_is_an_error_with_the_reason(model: Path, tmp_path: Path) -> None:
    words = command(model, tmp_path / "store.db")
    words[words.index("--tp") + 1] = "1024"
    done = run(words)
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("Error: nothing could be measured: tp=1024 needs 1024 devices")
    with closing(open_store(tmp_path / "store.db")) as opened:
        assert opened.profile_run(1).status is RunStatus.FAILED


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_family_that_cannot_be_measured_is_refused_by_name_and_leaves_nothing(
    tmp_path: Path, more: list[str]
) -> None:
    store = tmp_path / "store.db"
    words = command(tmp_path, store, *more)
    words[words.index("--model") + 1] = "opt-350m"
    done = run(words)
    assert done.returncode == 1
    assert "'opt'" in done.stderr.strip().splitlines()[-1]
    assert not store.exists()


@pytest.mark.gpu
def test_a_gpu_of_this_host_is_profiled(model: Path, tmp_path: Path) -> None:
    kind = next(gpu.type for gpu in read_gpus().gpus if gpu.type)
    words = command(model, tmp_path / "store.db", "--json", "--allow-busy", "--dtype", "bf16")
    words[words.index("--gpu") + 1] = kind
    done = run(words)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["rows"]) == ENTRIES
    assert {row["gpu"] for row in document["rows"]} == {kind}
    assert all(row["activation_bytes"] > 0 for row in document["rows"])
