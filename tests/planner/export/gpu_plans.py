"""Plans on GPU nodes, written by hand: stages as (GPU type, TP, blocks) or with EP and ETP."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.export.launch import Launch
from specs.cluster import Cluster, Node
from specs.model import Model, load_model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute, Workload

NODE = 4  # GPUs of every node

StageForm = tuple[str, int, int] | tuple[str, int, int, int, int]


def gpu_plan(
    stages: Sequence[StageForm],
    *,
    model: str | Model = "llama-3-8b",
    replicas: int = 1,
    micro_batch: int = 2,
    counts: Sequence[int] | None = None,
    last: int | None = None,
    hosts: bool = True,
    dtype: DType = DType.BF16,
    optimizer: Optimizer = Optimizer.ADAMW,
    recompute: Recompute = Recompute.NONE,
    seq_len: int = 4096,
) -> Plan:
    """A plan of one template; each stage's replicas stand together on nodes of its type."""
    loaded = load_model(model) if isinstance(model, str) else model
    counts = counts or [8] * replicas
    nodes: list[Node] = []
    free: dict[str, list[tuple[str, int]]] = {}
    made, layer = [], 0
    places: list[list[Place]] = [[] for _ in range(replicas)]
    for s, form in enumerate(stages):
        gpu, tp, blocks = form[:3]
        ep, etp = form[3:] if len(form) == 5 else (1, 1)
        end = layer + blocks + (s == 0) + (s == len(stages) - 1)
        made.append(Stage(gpu, tp, range(layer, end), ep, etp))
        layer = end
        for r in range(replicas):
            left = free.setdefault(gpu, [])
            if len(left) < tp:
                name = f"{gpu}-{sum(node.gpu == gpu for node in nodes)}"
                host = f"host{len(nodes)}.lab.org" if hosts else ""
                topology = Topology.HOST if gpu == "cpu" else Topology.NVLINK
                nodes.append(Node(name, gpu, NODE, topology, 12.5, 10.0, host))
                left += [(name, i) for i in range(NODE)]
            taken = [left.pop(0) for _ in range(tp)]
            places[r].append(Place(taken[0][0], tuple(i for _, i in taken)))
    shares = [
        Replica(count, last or micro_batch, tuple(places[r])) for r, count in enumerate(counts)
    ]
    template = Template(micro_batch, tuple(made), tuple(shares))
    batch = sum(template.samples(share) for share in shares)
    workload = Workload(batch, seq_len, dtype, optimizer, recompute)
    return Plan("test", loaded, workload, Cluster("lab", tuple(nodes)), (template,))


def options(arguments: tuple[str, ...]) -> dict[str, str]:
    """The values of every option, which is said once."""
    found: dict[str, str] = {}
    name = ""
    for word in arguments:
        if word.startswith("--"):
            assert word not in found, f"{word} is said twice"
            name, found[word] = word, ""
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


RECORDER = """import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
record = {name: os.environ[name] for name in names} | {"argv": sys.argv[1:]}
with open(os.path.join(os.environ["RECORDS"], record["RANK"] + ".json"), "w") as file:
    json.dump(record, file)
"""


def run_script(
    launch: Launch, host: str, folder: Path, environment: dict[str, str], *more: str
) -> dict[int, dict[str, Any]]:
    """Run one host's part of a script for real; what each process was started with, by rank."""
    folder.mkdir(exist_ok=True)
    script = folder / f"{host}.sh"
    script.write_text(launch.script)
    for old in folder.glob("*.json"):
        old.unlink()
    done = subprocess.run(
        ["bash", str(script), host, *more],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment | {"RECORDS": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}
