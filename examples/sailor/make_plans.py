"""Makes plan documents and iteration times of the measured runs in `validation/`.

Run it from the project's environment after the validation files or the plan form changed:

    python examples/sailor/make_plans.py

Each validation file is one measured run: stages, replicas of each stage as (GPU type, TP degree),
one micro-batch size, one global batch. It becomes `plans/<run>.json` and `times/<run>.csv`:

- Replica r of every stage forms pipeline r, as upstream pairs them. Pipelines with the same GPU
  types and TP degrees are the replicas of one template; each runs
  global batch / (micro-batch * DP degree) micro-batches.
- Every replica of a stage has a node of its own, as in the measured clusters: 4 GPUs in a GH200
  node, 8 in an RTX node. Links between nodes are those measured (`bandwidth: measured`); their
  latency is inside the measured times, so the cluster's own is 0.
- `iteration_ms` is the mean of 7 iterations (10, the first 3 dropped). `peak_bytes` is the highest
  of all ranks, by nvidia-smi: context, communicators and allocator cache are in it. It is left
  out where README.md says why it cannot be right.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from specs.cluster import Cluster, cluster_from_document
from specs.files import write_atomically
from specs.model import load_model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.plan_file import plan_to_document
from specs.workload import DType, Workload

HERE = Path(__file__).resolve().parent
ITERATIONS = 7  # behind each mean

MODELS = {
    "clariden/OPT-350": "sailor-opt-350m",
    "clariden/GPT-NEO": "sailor-gpt-neo-2.7b",
    "mit": "sailor-opt-350m",
}
GPUS = {
    "GH-96": "gh200",
    "RTX-3090": "rtx-3090",
    "RTX-2080": "rtx-2080-ti",
    "Titan-RTX": "titan-rtx",
}
GPUS_PER_NODE = {"gh200": 4, "rtx-3090": 8, "rtx-2080-ti": 8, "titan-rtx": 8}

# Problems of the data, by file below validation/ (README.md).
CORRUPT = {
    "clariden/GPT-NEO/N4/plan_config_N4_D4.json": "the layer split of OPT-350, and its iteration "
    "time equals its gradient time",
}
MEMORY_NOT_USABLE = {
    "clariden/GPT-NEO/N8/plan_config_N8_D2.json": "26.6 GiB where the same stages measure 34.7",
    "mit/N2/plan_config_N2_D1.json": "fits TP 8, the file says TP 2",
    "mit/N2/plan_config_N2_D2.json": "fits TP 8, the file says TP 2",
}


@dataclass(frozen=True)
class Run:
    """One measured run: its name, its plan, and the CSV of its iteration time."""

    name: str
    plan: Plan
    times: str


def runs() -> list[Run]:
    """The usable runs in `validation/`, by path."""
    found = []
    for path in sorted((HERE / "validation").rglob("plan_config_*.json")):
        place = path.relative_to(HERE / "validation").as_posix()
        if place not in CORRUPT:
            found.append(_run(place, json.loads(path.read_text())))
    return found


def _run(place: str, content: dict[str, Any]) -> Run:
    group = next(group for group in MODELS if place.startswith(f"{group}/"))
    model = load_model(MODELS[group])
    [pipelines] = content["pipeline_list"]
    stages = [
        [(GPUS[hosts[0][0]], int(tp)) for hosts, tp in replicas]
        for replicas in pipelines["tmp_per_stage"]
    ]
    ends = list(accumulate(len(layers) for layers in pipelines["layers_per_stage"]))
    layers = [range(*bounds) for bounds in zip([0, *ends], ends, strict=False)]
    [dp] = set(pipelines["dp"])
    micro_batch, global_batch = int(content["mbs"]), int(content["gbs"])
    micro_batches, rest = divmod(global_batch, micro_batch * dp)
    assert rest == 0, f"{place}: {global_batch} samples are no whole micro-batches"

    nodes: Counter[str] = Counter()
    pipes: dict[tuple[tuple[str, int], ...], list[Replica]] = {}
    for r in range(dp):
        kinds = tuple(stage[r] for stage in stages)
        places = []
        for gpu, tp in kinds:
            places.append(Place(f"{gpu}-{nodes[gpu]}", tuple(range(tp))))
            nodes[gpu] += 1
        pipes.setdefault(kinds, []).append(Replica(micro_batches, micro_batch, tuple(places)))
    plan = Plan(
        planner="sailor-validation",
        model=model,
        workload=Workload(global_batch, int(model.config["seq_len"]), DType.FP32),
        cluster=_cluster(place, nodes),
        templates=tuple(
            Template(
                micro_batch,
                tuple(Stage(gpu, tp, part) for (gpu, tp), part in zip(kinds, layers, strict=True)),
                tuple(replicas),
            )
            for kinds, replicas in pipes.items()
        ),
    )
    peak = "" if place in MEMORY_NOT_USABLE else str(int(content["max_mem"]))
    times = "iteration,iteration_ms,samples,peak_bytes\n"
    iteration_ms = round(content["real"] * 1e3, 6)  # of seconds with 5 decimals
    times += f"0,{iteration_ms},{ITERATIONS},{peak}\n"
    return Run(_name(place, model.name), plan, times)


def _name(place: str, model: str) -> str:
    """clariden/OPT-350/N8/plan_config_N8_D2.json -> gh200-opt-350m-n8-d2."""
    hardware = "rtx" if place.startswith("mit/") else "gh200"
    run = Path(place).stem.removeprefix("plan_config_").lower().replace("_", "-")
    return f"{hardware}-{model.removeprefix('sailor-')}-{run}"


def _cluster(place: str, nodes: Counter[str]) -> Cluster:
    site = "MIT" if place.startswith("mit/") else "Clariden"
    document = {
        "name": f"Sailor validation, {site}, {nodes.total()} nodes",
        "inter_node": {"bandwidth": "measured", "latency_us": 0.0},
        "nodes": [
            {"gpu": gpu, "gpus": GPUS_PER_NODE[gpu], "count": count} for gpu, count in nodes.items()
        ],
    }
    return cluster_from_document(document, place)


def files() -> dict[str, str]:
    """Text of every file to write, by path below this folder."""
    texts = {}
    for run in runs():
        texts[f"plans/{run.name}.json"] = json.dumps(plan_to_document(run.plan), indent=1) + "\n"
        texts[f"times/{run.name}.csv"] = run.times
    return texts


if __name__ == "__main__":
    for name, text in files().items():
        write_atomically(HERE / name, text)
        print(name)
