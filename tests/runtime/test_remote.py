from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from db.store import open_store
from runtime.launch_script import torchrun_lines, torchrun_script
from runtime.remote import launched, place_of
from specs.cluster import Cluster, Node
from specs.errors import HostError, PlanError
from specs.plan import Plan
from specs.plan_file import plan_to_document
from specs.topology import Topology
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
}


def _plan(*hosts: str) -> Plan:
    """Stages of TP 2, 1 and 2, on nodes in turn."""
    pipes = [Pipe(2, [(2, 1), (1, 1), (2, 1)], [(2, 1)])]
    plan = make_plan(tiny_model("llama", num_hidden_layers=3), pipes, nodes=len(hosts))
    nodes = tuple(
        Node(f"cpu-{n}", "cpu", 5, Topology.HOST, 1.0, 10.0, host) for n, host in enumerate(hosts)
    )
    return replace(plan, cluster=Cluster("test", nodes))


def test_processes_of_a_host_are_the_plans_ranks_there_in_order() -> None:
    plan = _plan("a", "b")  # stages 0 and 2 on a, stage 1 on b
    assert [place_of(plan, "a", local, 5).rank for local in range(4)] == [0, 1, 3, 4]
    assert place_of(plan, "b.lab.org", 0, 5).rank == 2
    with pytest.raises(HostError, match="process 1 of host 'b' has no device: the plan uses 1"):
        place_of(plan, "b", 1, 5)
    with pytest.raises(HostError, match="no node of the plan is on host 'c', expected one of: a"):
        place_of(plan, "c", 0, 5)
    with pytest.raises(HostError, match="4 processes were started, the plan has 5 devices"):
        place_of(plan, "a", 0, 4)


def test_a_cluster_without_hosts_is_one_host() -> None:
    plan = _plan("")
    assert [place_of(plan, "anywhere", local, 5).rank for local in range(5)] == list(range(5))


def test_torchrun_and_slurm_say_who_a_process_is() -> None:
    assert launched(TORCHRUN) == TORCHRUN
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}
    assert launched(slurm | {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}) == TORCHRUN
    with pytest.raises(HostError, match="MASTER_ADDR is not set"):
        launched(slurm)
    with pytest.raises(HostError, match="neither RANK nor SLURM_PROCID is set"):
        launched({})


def test_every_host_has_a_line_with_as_many_processes_as_devices() -> None:
    lines = torchrun_lines(_plan("a", "b"), "my plan.json", port=1234, options="--iterations 5")
    assert list(lines) == ["a", "b"]
    assert "--nnodes=2 --node-rank=0 --nproc-per-node=4 --master-addr=a" in lines["a"]
    assert "--node-rank=1 --nproc-per-node=1 --master-addr=a --master-port=1234" in lines["b"]
    assert lines["b"].endswith("arachne-run worker 'my plan.json' --host b --iterations 5")
    with pytest.raises(PlanError, match="node cpu-1 has no host name"):
        torchrun_lines(_plan("a", ""), "plan.json")


def test_the_script_is_one_that_a_shell_reads(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(torchrun_script(_plan("a", "b.lab.org"), "plan.json"))
    subprocess.run(["sh", "-n", str(script)], check=True)
    stranger = subprocess.run(["sh", str(script), "c"], capture_output=True, text=True)
    assert stranger.returncode == 1
    assert stranger.stderr == "this host is not in the plan\n"


def test_torchrun_starts_the_ranks_of_a_plan(tmp_path: Path) -> None:
    plan = make_plan(tiny_model("llama"), [Pipe(2, [(1, 1), (1, 1)], [(2, 1)])])
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_document(plan)))
    code = "from runtime.cli import main; main()"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words += ["--no-python", sys.executable, "-c", code, "worker", str(tmp_path / "plan.json")]
    words += ["--iterations", "2", "--warm-up", "0", "--json", "--store", str(tmp_path / "s.db")]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["counted"] == 2
    with open_store(tmp_path / "s.db") as store:
        assert len(store.measurements(document["plan_id"])) == 2
