"""Links between hosts: two processes, told by torchrun's variables that they are on two hosts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.measure.links import Transfer
from profiler.measure.spread import Spread, pair_counts, spread_of, spread_transfers
from specs.errors import HostError
from specs.profile import Operation
from tests.profiler.test_measure_crew import cpu_devices

ROOT = Path(__file__).resolve().parents[2]
MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def torchrun(rank: int, ranks: int, local_ranks: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank % local_ranks),
        "LOCAL_WORLD_SIZE": str(local_ranks),
        "GROUP_RANK": str(rank // local_ranks),
        **MASTER,
    }


def test_a_process_started_by_itself_is_not_spread() -> None:
    assert spread_of({}) is None
    assert spread_of({"RANK": "0"}) is None


def test_torchrun_and_srun_say_the_same() -> None:
    slurm = {
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "8",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_NODEID": "1",
        **MASTER,
    }
    assert spread_of(torchrun(5, 8, 4)) == spread_of(slurm) == Spread(5, 8, 1, 4, 1)


def test_one_host_and_uneven_hosts_are_refused() -> None:
    with pytest.raises(HostError, match="all processes are on one host"):
        spread_of(torchrun(0, 4, 4))
    with pytest.raises(HostError, match="every host has to run as many"):
        spread_of(torchrun(0, 7, 4))
    with pytest.raises(HostError, match="MASTER_ADDR"):
        spread_of({**torchrun(0, 8, 4), "MASTER_ADDR": ""})


def test_pairs_double_up_to_the_processes_of_a_host() -> None:
    assert pair_counts(1) == [1]
    assert pair_counts(6) == [1, 2, 4]
    points = spread_transfers(Spread(0, 8, 0, 4, 0), 4096)
    p2p = [point for point in points if point.operation is Operation.P2P]
    assert p2p == [Transfer(Operation.P2P, 2 * n, 4096) for n in (1, 2, 4)]
    assert {point.ranks for point in points if point.operation is not Operation.P2P} == {2}


def test_two_hosts_measure_and_the_first_writes(tmp_path: Path) -> None:
    cpu_devices(2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = tmp_path / "store.db"
    words = [
        *(sys.executable, "-m", "profiler.cli", "links", "--gpu", "cpu", "--max-bytes", "16384"),
        *("--tries", "1", "--json", "--store", str(store)),
    ]
    processes = [
        subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **torchrun(rank, 2, 1), "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], told
    assert told[1][0] == ""
    document = json.loads(told[0][0])
    assert {row["topology"] for row in document["rows"]} == {"inter"}
    assert {(row["operation"], row["ranks"]) for row in document["rows"]} == {
        (operation.value, 2) for operation in Operation
    }
    assert {row["nbytes"] for row in document["rows"]} == {4096, 16384}
    assert all(row["time_ms"] > 0 for row in document["rows"])
