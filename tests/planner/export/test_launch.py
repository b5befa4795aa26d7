"""Ranks as a grid, and the script that starts them, run by a real shell."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.export.launch import grid_ranks
from planner.export.megatron import export
from specs.cluster import Cluster
from specs.errors import PlanError
from tests.planner.export.gpu_plans import RECORDER, gpu_plan, run_script


@pytest.fixture
def megatron(tmp_path: Path) -> dict[str, str]:
    """A `pretrain_gpt.py` that records how it was started, and a `python` to run it."""
    (tmp_path / "pretrain_gpt.py").write_text(RECORDER)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"MEGATRON_LM": str(tmp_path), "PATH": path}


def test_tensor_parallel_ranks_are_fastest_then_replicas_then_stages() -> None:
    """Two stages of TP 2 and two replicas: rank = stage * 4 + replica * 2 + TP rank."""
    plan = gpu_plan([("a6000", 2, 10), ("h100", 2, 22)], replicas=2)
    ranks = grid_ranks(plan, plan.templates[0])
    assert [(r.rank, r.stage, r.replica, r.tp_rank) for r in ranks] == [
        (s * 4 + d * 2 + t, s, d, t) for s in range(2) for d in range(2) for t in range(2)
    ]
    assert [(r.host, r.gpu) for r in ranks[:4]] == [("host0.lab.org", g) for g in range(4)]
    assert [(r.host, r.gpu) for r in ranks[4:]] == [("host1.lab.org", g) for g in range(4)]


def test_every_host_starts_its_own_ranks_on_its_own_gpus(
    tmp_path: Path, megatron: dict[str, str]
) -> None:
    launch = export(gpu_plan([("a6000", 2, 10), ("h100", 2, 22)], replicas=2))
    first = run_script(launch, "host0.lab.org", tmp_path / "a", megatron)
    second = run_script(launch, "host1", tmp_path / "b", megatron, "--data-path", "my text")
    assert sorted(first) == [0, 1, 2, 3]
    assert sorted(second) == [4, 5, 6, 7]
    for rank, started in (first | second).items():
        assert started["LOCAL_RANK"] == str(rank % 4)
        assert started["WORLD_SIZE"] == "8"
        assert started["MASTER_ADDR"] == "host0.lab.org"
        assert started["MASTER_PORT"] == "29500"
    assert first[0]["argv"] == list(launch.arguments)
    assert second[4]["argv"] == [*launch.arguments, "--data-path", "my text"]


def test_a_node_that_holds_two_stages_starts_ranks_that_are_no_neighbours(
    tmp_path: Path, megatron: dict[str, str]
) -> None:
    """Stages of TP 1 on one node of 4, two replicas: stage 0 is ranks 0 and 1, stage 2 4 and 5."""
    plan = gpu_plan([("h100", 1, 10), ("a6000", 1, 10), ("h100", 1, 12)], replicas=2)
    launch = export(plan)
    started = run_script(launch, "host0", tmp_path / "a", megatron)
    assert {rank: int(one["LOCAL_RANK"]) for rank, one in started.items()} == {
        0: 0,
        1: 1,
        4: 2,
        5: 3,
    }


def test_a_process_that_fails_ends_the_others_of_its_host(
    tmp_path: Path, megatron: dict[str, str]
) -> None:
    program = 'import os, sys, time\nsys.exit(3) if os.environ["RANK"] == "1" else time.sleep(60)\n'
    (tmp_path / "pretrain_gpt.py").write_text(program)
    launch = export(gpu_plan([("h100", 2, 32)]))
    script = tmp_path / "train.sh"
    script.write_text(launch.script)
    done = subprocess.run(
        ["bash", str(script), "host0"], timeout=30, env=os.environ | megatron, capture_output=True
    )
    assert done.returncode == 1


def test_a_stranger_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(export(gpu_plan([("h100", 2, 32)])).script)
    done = subprocess.run(["bash", str(script), "elsewhere"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "this host is not in the plan\n"


def test_nodes_stand_for_hosts_that_are_not_named_and_that_is_said(
    tmp_path: Path, megatron: dict[str, str]
) -> None:
    launch = export(gpu_plan([("a6000", 1, 10), ("h100", 1, 22)], hosts=False))
    assert "node names stand for them" in launch.remarks[0]
    environment = megatron | {"MASTER_ADDR": "10.0.0.7"}
    started = run_script(launch, "h100-0", tmp_path / "a", environment)
    assert {rank: one["MASTER_ADDR"] for rank, one in started.items()} == {1: "10.0.0.7"}


def test_two_nodes_of_one_host_are_refused() -> None:
    plan = gpu_plan([("a6000", 1, 10), ("h100", 1, 22)])
    nodes = tuple(replace(node, host="same") for node in plan.cluster.nodes)
    plan = replace(plan, cluster=Cluster("lab", nodes))
    with pytest.raises(PlanError, match="a6000-0 and h100-0 are both on host same"):
        grid_ranks(plan, plan.templates[0])
