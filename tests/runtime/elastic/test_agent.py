"""An agent that a person starts, as on another host: at another address of this one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.elastic.messages import Start, from_controller
from runtime.elastic.session import read_session, token_of
from runtime.process import is_running
from specs.cluster import Cluster
from specs.errors import RunError
from specs.plan_file import plan_to_document
from tests.runtime.elastic.alone import compare
from tests.runtime.elastic.live import Live, cluster_of, orphans, pipeline

RUN = [sys.executable, "-c", "from runtime.cli import main; main()"]


def _agent(where: str, token: Path, *more: str) -> subprocess.Popen[str]:
    words = ["agent", "--join", where, "--token-file", str(token), *more]
    return subprocess.Popen(
        [*RUN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _end(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=120)
    return said


def test_a_node_joins_from_another_address_and_leaves_when_its_agent_is_told_to(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    settings = {"address": "127.0.0.2", "token": token_of(token, create=True)}
    with Live(tmp_path, pipeline(cluster_of(1), 100_000.0), settings=settings) as live:
        live.iterations(3)
        session = read_session(live.session)
        assert session.address == "127.0.0.2"
        where = f"{session.address}:{session.port}"
        wrong = tmp_path / "wrong"
        wrong.write_text("x" * 40)
        stranger = _agent(where, wrong, "--name", "cpu-9")
        assert _end(stranger) == "Error: the token is missing or wrong\n"
        assert stranger.returncode == 1
        twin = _agent(where, token, "--name", "cpu-0")
        assert "node cpu-0 has an agent already: give another --name" in _end(twin)
        agent = _agent(where, token, "--name", "cpu-1", "--address", "127.0.0.3")
        try:
            live.changes(2)
            live.iterations(3)
            nodes = {n["name"]: n for n in live.ask("GET", "/status")[1]["nodes"]}
            both = live.workers()
            agent.send_signal(signal.SIGTERM)
            live.changes(3)
            said = _end(agent)
        finally:
            agent.kill()
        live.iterations(3)
        alone = live.workers()
    assert agent.returncode == 0, said
    assert f"node cpu-1 is with {where}" in said
    assert (nodes["cpu-0"]["address"], nodes["cpu-1"]["address"]) == ("127.0.0.2", "127.0.0.3")
    assert alone == {"cpu-0": both["cpu-0"]}
    assert not is_running(both["cpu-1"])
    assert [c.event for c in live.notes.changes] == ["started", "node joined", "node left"]
    assert [c.origin for c in live.notes.changes] == ["seed", "memory", "memory"]
    assert orphans() == []
    compare(live.notes.losses, tmp_path)


def test_a_run_waits_for_the_nodes_of_other_hosts(tmp_path: Path) -> None:
    near, far = cluster_of(2).nodes
    plan = pipeline(Cluster("two", (near, replace(far, host="far-away"))))
    path, token = tmp_path / "plan.json", tmp_path / "token"
    path.write_text(json.dumps(plan_to_document(plan)))
    words = ["elastic", "start", str(path), "--store", str(tmp_path / "a.db"), "--json"]
    words += ["--session", str(tmp_path / "session.json"), "--iterations", "5"]
    alone = subprocess.run([*RUN, *words], capture_output=True, text=True)
    assert alone.returncode == 1
    assert "nodes cpu-1 are other hosts: give --listen" in alone.stderr
    words += ["--listen", "127.0.0.2", "--token-file", str(token)]
    run = subprocess.Popen(
        [*RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stderr is not None
    waiting = next(line for line in run.stderr if line.startswith("waiting for"))
    assert waiting.startswith("waiting for the agents of cpu-1: on the host of each arachne-run")
    where = waiting.split("--join ")[1].split()[0]
    agent = _agent(where, token, "--name", "cpu-1", "--address", "127.0.0.3")
    out, said = run.communicate(timeout=150)
    assert run.returncode == 0, said
    assert _end(agent) != ""
    assert agent.returncode == 0
    rows = json.loads(out)["iterations"]
    assert [row["devices"] for row in rows] == [2] * 7
    assert orphans() == []


def test_an_agent_does_not_wait_forever(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token_of(token, create=True)
    nobody = _agent("127.0.0.1:9", token, "--away-s", "0.5")
    assert _end(nobody) == "Error: no controller answered at 127.0.0.1:9 for 0 s\n"
    assert nobody.returncode == 1
    absent = _agent("127.0.0.1:9", tmp_path / "none")
    assert "no token can be read or written there" in _end(absent)


def test_a_token_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = token_of(path, create=True)
    assert token_of(path, create=True) == token_of(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("short")
    with pytest.raises(RunError, match="holds no token"):
        token_of(path)


ORDER: dict[str, Any] = {
    "do": "start",
    "worker": "w",
    "gpu": 0,
    "core": 0,
    "setup": {"options": {}, "plan": {}},
}


def test_orders_to_an_agent_are_checked() -> None:
    assert isinstance(from_controller(json.dumps(ORDER).encode()), Start)
    for wrong in (
        b"quit",
        b'{"do": "run", "command": "true"}',
        json.dumps(ORDER | {"gpu": 64}).encode(),
        json.dumps(ORDER | {"more": 1}).encode(),
        json.dumps(ORDER | {"setup": "x"}).encode(),
    ):
        with pytest.raises(RunError, match="what the controller said is no message"):
            from_controller(wrong)
