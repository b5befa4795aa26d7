from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from db.store import open_store
from runtime.launcher import LocalLauncher, check_local
from runtime.training import Options
from specs.cluster import Cluster, Node
from specs.errors import HostError, RunError
from specs.plan import Plan
from specs.plan_file import plan_to_document
from specs.topology import Topology
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model

PIPES = [Pipe(2, [(1, 1), (1, 1)], [(2, 1)])]


def _plan() -> Plan:
    return make_plan(tiny_model("llama"), PIPES)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_a_plan_runs_in_real_processes_and_learns() -> None:
    with LocalLauncher(_plan(), Options(iterations=12, warm_up=1, learning_rate=0.01)) as launcher:
        found = list(launcher.run())
        pids = launcher.process_ids
    assert [iteration.number for iteration in found] == list(range(13))
    assert [iteration.warm_up for iteration in found[:2]] == [True, False]
    assert found[-1].loss < found[0].loss
    assert all(len(i.steps) == 2 and min(i.peak_bytes) > 10_000_000 for i in found)
    assert all(i.ms >= max(s.elapsed_ms for s in i.steps) > 0 for i in found)
    assert not any(_alive(pid) for pid in pids)


def test_a_killed_worker_is_named_and_takes_all_others_with_it() -> None:
    with LocalLauncher(_plan(), Options(iterations=100_000)) as launcher:
        pids = launcher.process_ids
        iterations = launcher.run()
        next(iterations)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(RunError, match=r"rank 1 \(template 0 replica 0 stage 1.*SIGKILL"):
            list(iterations)
    assert not any(_alive(pid) for pid in pids)


def test_a_workers_own_error_is_the_one_line_that_is_reported(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.npy"
    np.save(tokens, np.full(100, 77))
    with (
        LocalLauncher(_plan(), Options(data=str(tokens))) as launcher,
        pytest.raises(RunError, match=r"rank \d .*has token 77, expected 0 to 49") as caught,
    ):
        list(launcher.run())
    assert "\n" not in str(caught.value)


def test_workers_die_with_the_command_that_started_them(tmp_path: Path) -> None:
    code = (
        "from tests.runtime.test_launcher import _plan\n"
        "from runtime.launcher import LocalLauncher\n"
        "from runtime.training import Options\n"
        "with LocalLauncher(_plan(), Options(iterations=100000)) as launcher:\n"
        "    run = launcher.run(); next(run)\n"
        "    print(*launcher.process_ids, flush=True)\n"
        "    list(run)\n"
    )
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    pids = [int(word) for word in command.stdout.readline().split()]
    assert len(pids) == 2
    command.kill()
    command.wait()
    command.stdout.close()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


def test_ctrl_c_ends_the_command_and_its_workers_with_exit_130(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_document(_plan())))
    words = [sys.executable, "-c", "from runtime.cli import main; main()"]
    words += [str(tmp_path / "plan.json"), "--iterations", "100000"]
    command = subprocess.Popen(
        [*words, "--store", str(tmp_path / "store.db")],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert command.stderr is not None
    said = [next(line for line in command.stderr if line.startswith("iteration 0"))]
    pids = _children(command.pid)
    command.send_signal(signal.SIGINT)
    said += command.communicate(timeout=60)[1].splitlines()
    assert command.returncode == 130
    assert said[-1] == "Interrupted."
    assert not any("Traceback" in line for line in said)
    assert len(pids) == 2
    assert not any(_alive(pid) for pid in pids)
    with open_store(tmp_path / "store.db") as store:
        assert len(store.measurements()) >= 1  # what was measured before stays


def _children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(word) for word in text.split()]


def _on_hosts(*hosts: str, gpu: str = "cpu") -> Plan:
    topology = Topology.HOST if gpu == "cpu" else Topology.NVLINK
    nodes = tuple(
        Node(f"cpu-{n}", gpu, 2, topology, 1.0, 10.0, host) for n, host in enumerate(hosts)
    )
    plan = make_plan(tiny_model("llama"), PIPES, nodes=len(hosts))
    templates = tuple(
        replace(t, stages=tuple(replace(stage, gpu=gpu) for stage in t.stages))
        for t in plan.templates
    )
    return replace(plan, cluster=Cluster("test", nodes), templates=templates)


def test_a_plan_on_another_host_is_refused_with_what_to_do() -> None:
    with pytest.raises(HostError, match=r"node cpu-1 is host far-away.*arachne-run worker"):
        check_local(_on_hosts("localhost", "far-away"))
    check_local(_on_hosts("here", "localhost"), host_name="here")


def test_a_plan_for_gpus_is_refused_on_a_host_without() -> None:
    with pytest.raises(HostError, match="h100"):
        check_local(_on_hosts("", gpu="h100"))
