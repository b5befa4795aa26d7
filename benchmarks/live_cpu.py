"""Predicted against measured iteration times on this host's CPU, through the commands a user has.

Each round starts from an empty store: arachne-prof run and links, arachne-plan plan, then
arachne-run of the chosen plan and of a few fixed layouts priced by arachne-plan evaluate. Prints
one table row a run, and medians at the end.
Usage: python benchmarks/live_cpu.py [ROUNDS] [--chosen] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from specs.cluster import Cluster, load_cluster
from specs.model import Model, load_model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.plan_file import plan_to_document

ROOT = Path(__file__).resolve().parent.parent
MODEL = "tiny-llama-test"
CLUSTER = ROOT / "examples" / "clusters" / "two-cpu.yaml"
BIN = Path(sys.executable).parent


def command(*words: str, store: Path) -> str:
    done = subprocess.run(
        [str(BIN / words[0]), *words[1:], "--store", str(store)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def fixed_plans(model: Model, cluster: Cluster) -> dict[str, Plan]:
    """Layouts that between them use every term: pipeline even and uneven, TP, DP."""
    workload = model.default_workload
    node = cluster.nodes[0].name
    layers = len(model.layers)

    def plan(micro_batch: int, stages: list[tuple[int, int, int]], replicas: int) -> Plan:
        share = workload.global_batch // replicas
        used = sum(tp for tp, _, _ in stages)
        copies = []
        for r in range(replicas):
            first = r * used
            places = []
            for tp, _, _ in stages:
                places.append(Place(node, tuple(range(first, first + tp))))
                first += tp
            copies.append(Replica(share // micro_batch, micro_batch, tuple(places)))
        return Plan(
            planner="fixed",
            model=model,
            workload=workload,
            cluster=cluster,
            templates=(
                Template(
                    micro_batch,
                    tuple(Stage("cpu", tp, range(a, b)) for tp, a, b in stages),
                    tuple(copies),
                ),
            ),
        )

    return {
        "pp2 4+4 mb2": plan(2, [(1, 0, 5), (1, 5, layers)], 1),
        "pp2 5+3 mb2": plan(2, [(1, 0, 6), (1, 6, layers)], 1),
        "tp2 mb4": plan(4, [(2, 0, layers)], 1),
        "dp2 mb2": plan(2, [(1, 0, layers)], 2),
        "dp2 mb1": plan(1, [(1, 0, layers)], 2),
    }


def one_round(number: int, folder: Path, iterations: int, with_fixed: bool) -> list[dict[str, Any]]:
    store = folder / f"round{number}.db"
    profile = ("arachne-prof", "run", "--gpu", "cpu", "--model", MODEL)
    begun = time.monotonic()
    options = ("--tp", "1,2", "--micro-batch", "1,2,4", "--json")
    profiled = json.loads(command(*profile, *options, store=store))
    profile_s = time.monotonic() - begun
    command("arachne-prof", "links", "--gpu", "cpu", store=store)
    model, cluster = load_model(MODEL), load_cluster(CLUSTER)
    chosen = folder / f"chosen{number}.json"
    plan = ("arachne-plan", "plan", "--model", MODEL, "--cluster", str(CLUSTER))
    command(*plan, "-o", str(chosen), store=store)
    paths = {"chosen": chosen}
    for name, fixed in fixed_plans(model, cluster).items() if with_fixed else ():
        path = folder / f"{name.replace(' ', '-')}{number}.json"
        path.write_text(json.dumps(plan_to_document(fixed)))
        command("arachne-plan", "evaluate", str(path), store=store)
        paths[name] = path
    rows = []
    for name, path in paths.items():
        words = ("arachne-run", "run", str(path), "--iterations", str(iterations), "--json")
        result = json.loads(command(*words, store=store))
        rows.append({"round": number, "plan": name, "profile_s": profile_s, **result})
        rows[-1]["unsteady_rows"] = sum(row["unsteady"] for row in profiled["rows"])
        print(line(rows[-1]), flush=True)
    return rows


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def line(row: dict[str, Any]) -> str:
    cells = (
        str(row["round"]),
        row["plan"],
        f"{row['predicted_ms']:.0f}",
        f"{row['measured_ms']:.0f} ± {row['mad_ms']:.0f}",
        percent(row["error"]),
        percent(row["slowdown_since_profile"]),
        percent(row["scaled_error"]),
        percent(row["drift"]),
        str(row["unsteady_rows"]),
    )
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| round | plan | predicted ms | measured ms ± MAD | error | machine slower than in profile | "
    "error at that speed | drift in run | unsteady rows |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| plan | runs | median error | median abs error | worst | median abs slowdown |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name in [*dict.fromkeys(row["plan"] for row in rows), "all"]:
        some = [row for row in rows if name in (row["plan"], "all")]
        errors = [row["error"] for row in some]
        slow = [abs(row["slowdown_since_profile"] or 0.0) for row in some]
        lines.append(
            f"| {name} | {len(some)} | {statistics.median(errors):+.1%} | "
            f"{statistics.median(map(abs, errors)):.1%} | {max(errors, key=abs):+.1%} | "
            f"{statistics.median(slow):.1%} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--chosen", action="store_true", help="no fixed layouts: as make demo")
    parser.add_argument("-o", "--output", type=Path, help="also write all figures here, as JSON")
    options = parser.parse_args()
    print(HEAD)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, options.rounds + 1):
            rows += one_round(number, Path(folder), options.iterations, not options.chosen)
    print("\n" + "\n".join(summary(rows)))
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
