"""Predicted against measured iteration times on this host's CPU, through the commands a user has.

    python -m benchmarks.live_cpu [ROUNDS] [--chosen] [--only WORD] [-o FILE]

A round is an empty store and fourteen plans (benchmarks/live_plans.py), each by `arachne-run run
PLAN --profile`: its layers are profiled on the same cores right before and right after.
With --chosen a round is what `make demo` does: arachne-prof run and links, arachne-plan plan, and
arachne-run of the chosen plan, so the prediction is from before the run alone.
Prints one table row a run, and medians at the end; -o keeps every run as it ends, one JSON a line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.live_plans import all_plans
from specs.cluster import load_cluster
from specs.model import load_model
from specs.plan_file import plan_to_document

ROOT = Path(__file__).resolve().parent.parent
MODEL = "tiny-llama-test"
CLUSTER = ROOT / "examples" / "clusters" / "two-cpu.yaml"
BIN = Path(sys.executable).parent

Row = dict[str, Any]


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


def bracketed_round(number: int, folder: Path, iterations: int, only: str) -> Iterator[Row]:
    """Every plan between two profiles of its own."""
    store = folder / f"round{number}.db"
    for name, plan in all_plans(load_model(MODEL), load_cluster(CLUSTER)).items():
        if only in name:
            path = folder / "plan.json"
            path.write_text(json.dumps(plan_to_document(plan)))
            words = ("arachne-run", "run", str(path), "--profile", "--json")
            load = os.getloadavg()[0]
            done = command(*words, "--iterations", str(iterations), store=store)
            yield {"round": number, "plan": name, "load": load, **json.loads(done)}


def chosen_round(number: int, folder: Path, iterations: int) -> Iterator[Row]:
    """Profile, plan, run, as `make demo` does."""
    store, plan = folder / f"round{number}.db", folder / f"chosen{number}.json"
    keys = ("--tp", "1,2", "--micro-batch", "1,2,4")
    load = os.getloadavg()[0]
    command("arachne-prof", "run", "--gpu", "cpu", "--model", MODEL, *keys, store=store)
    command("arachne-prof", "links", "--gpu", "cpu", store=store)
    words = ("arachne-plan", "plan", "--model", MODEL, "--cluster", str(CLUSTER))
    command(*words, "-o", str(plan), store=store)
    words = ("arachne-run", "run", str(plan), "--iterations", str(iterations), "--json")
    done = json.loads(command(*words, store=store))
    yield {"round": number, "plan": "chosen", "load": load, **done}


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def line(row: Row) -> str:
    bracket = row["bracket"] or {}
    cells = (
        str(row["round"]),
        row["plan"],
        f"{row['load']:.1f}",
        f"{row['predicted_ms']:.0f}",
        f"{row['measured_ms']:.0f} ± {row['mad_ms']:.0f}",
        percent(row["error"]),
        percent(bracket.get("drift")),
        percent(bracket.get("before_error")),
        percent(row["slowdown_since_profile"]),
        percent(row["drift"]),
    )
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| round | plan | load | predicted ms | measured ms ± MAD | error | profile after / before | "
    "error of the one before | machine in run / in profile | drift in run |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def summary(rows: list[Row]) -> list[str]:
    """Medians by plan; `steady`: of runs whose two profiles predict within 5 % of each other."""
    groups = {name: [r for r in rows if r["plan"] == name] for name in [r["plan"] for r in rows]}
    groups["all"] = rows
    groups["all, steady"] = [r for r in rows if r["bracket"] and r["bracket"]["steady"]]
    lines = ["| plan | runs | median error | median abs error | worst | profiles apart |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, some in groups.items():
        if some:
            errors = [row["error"] for row in some]
            drifts = [abs(row["bracket"]["drift"]) for row in some if row["bracket"]]
            apart = f"{statistics.median(drifts):.1%}" if drifts else "-"
            lines.append(
                f"| {name} | {len(some)} | {statistics.median(errors):+.1%} | "
                f"{statistics.median(map(abs, errors)):.1%} | {max(errors, key=abs):+.1%} | "
                f"{apart} |"
            )
    medians = [
        abs(statistics.median(row["error"] for row in some))
        for name, some in groups.items()
        if not name.startswith("all")
    ]
    lines.append(
        f"\nMedian over {len(medians)} plans of |median error of the plan|: "
        f"{statistics.median(medians):.1%}"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--chosen", action="store_true", help="as make demo: the plan it chooses")
    parser.add_argument("--only", default="", metavar="WORD", help="plans with this in their name")
    parser.add_argument("-o", "--output", type=Path, help="add every run to this file as it ends")
    options = parser.parse_args()
    print(HEAD, flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(1, options.rounds + 1):
            if options.chosen:
                found = chosen_round(number, folder, options.iterations)
            else:
                found = bracketed_round(number, folder, options.iterations, options.only)
            for row in found:
                rows.append(row)
                print(line(row), flush=True)
                if options.output:
                    with options.output.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    print("\n" + "\n".join(summary(rows)))


if __name__ == "__main__":
    main()
