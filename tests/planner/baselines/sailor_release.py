"""The inputs of Sailor's recorded runs, read from its own files, and what the runs answered."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.baselines.sailor.inputs import Figures, FiguresKey, Inputs, Zone
from planner.baselines.sailor.search import Candidate, Rules

ROOT = Path(__file__).parents[3]
RUNS = ROOT / "tests/planner/data/peer_runs/sailor"
FILES = ROOT / "examples/sailor"
CAPACITY_GIB = {"A100-40": 40, "V100-16": 16, "GH-96": 96}
USD_PER_HOUR = {"A100-40": 3.74, "V100-16": 2.8, "GH-96": 11.06}
STATE_BYTES = 24  # optimizer 8, weights 4, gradients 4, communication 4, more copies 4


@cache
def read(path: Path) -> Any:
    return json.loads(path.read_text())


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = read(RUNS / f"{name}.json")
    return found


def rules_of(run: Mapping[str, Any]) -> Rules:
    least = run.get("min_throughput_iter_s", 0.0)
    return Rules(
        release=True,
        by_cost=run.get("objective") == "iteration_cost",
        largest_ms=1000 / least if least else 0.0,
        budget_usd=run.get("max_budget_usd_iter", 0.0),
    )


def inputs_of(run: Mapping[str, Any]) -> Inputs:
    """Zones in reverse: the order in which the release's hash map hands them out."""
    training = run["training_config"]
    model = training["model"]
    types = tuple(sorted(run["quotas"]))
    names = list(reversed(run["resources"]))
    zones = tuple(
        Zone(
            name,
            "-".join(name.split("-")[:2]),
            tuple(run["resources"][name].get(gpu, 0) for gpu in types),
        )
        for name in names
    )
    links = read(FILES / "network/multizone_bandwidths_het.json")
    sizes = read(FILES / "model_memory/llm_info.json")[model]
    egress = read(RUNS / "egress_usd_per_gb.json")

    def link(t: int, tp: int, a: int, u: int, other_tp: int, b: int) -> Any:
        return links[names[a]][types[t]][str(tp)][names[b]][types[u]][str(other_tp)]

    def send_ms(b: int, t: int, tp: int, a: int, u: int, other_tp: int, z: int) -> float:
        nbytes = sizes["1"]["0"]["act_output_floats"] * 4.0 * b
        time = transfer_ms(np.array([nbytes]), link(t, tp, a, u, other_tp, z)[0])
        return float(time[0])

    def step_ms(nbytes: NDArray[np.float64], t: int, tp: int, z: int) -> NDArray[np.float64]:
        return transfer_ms(np.floor(nbytes), link(t, tp, z, t, tp, z)[0])

    def bandwidth(t: int, tp: int, a: int, b: int) -> float:
        return float(link(t, tp, a, t, tp, b)[1])

    return Inputs(
        types=types,
        global_batch=training["global_batch_size"],
        zones=zones,
        tps=tuple(tuple(sorted(int(n) for n in links[names[0]][gpu])) for gpu in types),
        figures=figures_of(model, types, sizes),
        capacity_bytes=tuple(CAPACITY_GIB[gpu] * 1024.0**3 for gpu in types),
        gradient_bytes=layers_of(sizes["1"], "params_floats") * 4,
        send_ms=send_ms,
        step_ms=step_ms,
        bandwidth=bandwidth,
        sent_bytes=sizes["1"]["0"]["act_output_floats"] * 4.0,
        largest_peers=sum(sum(zones.values()) for zones in run["quotas"].values()),
        usd_per_ms=tuple(USD_PER_HOUR[gpu] / 3600 / 1000 for gpu in types),
        egress_usd_per_byte=np.array([[egress[a][b] / 1e9 for b in names] for a in names]),
    )


def layers_of(sizes: Mapping[str, Any], field: str) -> NDArray[np.float64]:
    return np.array([sizes[str(i)][field] for i in range(len(sizes))], float)


def transfer_ms(nbytes: NDArray[np.float64], fit: list[float]) -> NDArray[np.float64]:
    """Bandwidth in GB/s is a polynomial of log2 of the size in MB."""
    size = np.log2(nbytes) - math.log2(1e6)
    return np.asarray(1000 * (nbytes / 1e9) / np.polyval(fit, size))


def figures_of(
    model: str, types: tuple[str, ...], sizes: Mapping[str, Any]
) -> dict[FiguresKey, Figures]:
    found = {}
    for t, gpu in enumerate(types):
        profile = read(FILES / "planner_profiles" / model / gpu / "profile.json")
        for b in profile:
            for tp in ("1", "2", "4"):
                rows = profile[b].get(tp)
                count = len(sizes[tp])
                times = np.full(count, np.inf)
                update = 0.0
                if rows is not None:
                    times = np.array([rows[str(i)][0] + rows[str(i)][1] for i in range(count)])
                    update = max(row[2] for row in rows.values())
                found[FiguresKey(t, int(b), int(tp))] = Figures(
                    layer_ms=1000 * times,
                    update_ms=np.full(count, 1000 * update),
                    state_bytes=STATE_BYTES * layers_of(sizes[tp], "params_floats"),
                    kept_bytes=4 * int(b) * layers_of(sizes[tp], "act_mem_floats"),
                    constant_bytes=2e9 if tp == "1" else 3e9,
                )
    return found


def shown(inputs: Inputs, candidate: Candidate) -> list[list[tuple[str, int, str, int]]]:
    """Stages as the recorded plans write them: (type, TP, zone, replicas) in order."""
    stages = []
    for i in range(len(candidate.starts)):
        groups: list[list[Any]] = []
        for t, tp, z in candidate.stage_of(i):
            one = [inputs.types[t], tp, inputs.zones[z].name]
            if groups and groups[-1][:3] == one:
                groups[-1][3] += 1
            else:
                groups.append([*one, 1])
        stages.append([tuple(group) for group in groups])
    return stages


def written(plan: Mapping[str, Any]) -> list[list[tuple[str, int, str, int]]]:
    return [
        [(r["gpu"], r["tp"], r["zone"], r["replicas"]) for r in stage] for stage in plan["stages"]
    ]
