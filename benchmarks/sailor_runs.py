"""Planned against measured on the public Sailor runs (examples/sailor): prints a report.

    python benchmarks/sailor_runs.py > benchmarks/results/$(date +%F)-sailor-runs.md

Each of the 19 plans in examples/sailor/plans is priced by the cost model from imported profiles
only and held against the time that Sailor's authors measured. Nothing is fitted to these runs. Both
copies of the published profiles are used: the planner's (OPT-350M; GPT-Neo-2.7B on GH200 exists in
the simulator's copy only) and the simulator's. Two readings of doubtful data are priced beside the
one that is used.
"""

from __future__ import annotations

import csv
import platform
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median

from db.store import Store, open_store
from planner.evaluate import evaluate_plan
from profiler.importers import sailor
from profiler.importers.imported import ImportOptions
from profiler.importers.record import record
from specs.cluster import Cluster
from specs.host import cpu_model
from specs.plan import Place, Plan
from specs.plan_file import load_plan
from specs.prediction import Prediction

SEED = Path(__file__).resolve().parents[1] / "examples" / "sailor"
GIB = 2**30

# Error of Sailor's own Python simulator on each run, in percent: upstream's program at the commit
# of the data, run unmodified by us with its simulator profiles.
SAILOR_SIMULATOR = {
    "gh200-opt-350m-n1-d1-m4-g1": +12.7,
    "gh200-opt-350m-n1-d1-m4-g32": +15.8,
    "gh200-opt-350m-n2-d1": -4.9,
    "gh200-opt-350m-n2-d2": -9.7,
    "gh200-opt-350m-n4-d1": -1.9,
    "gh200-opt-350m-n4-d2": +5.4,
    "gh200-opt-350m-n4-d4": -16.1,
    "gh200-opt-350m-n8-d2": -14.8,
    "gh200-opt-350m-n8-d4": -4.1,
    "gh200-gpt-neo-2.7b-n2-d1": -39.5,
    "gh200-gpt-neo-2.7b-n4-d1": -7.1,
    "gh200-gpt-neo-2.7b-n4-d2": -1.5,
    "gh200-gpt-neo-2.7b-n8-d2": -9.3,
    "gh200-gpt-neo-2.7b-n8-d4": -6.7,
    "rtx-opt-350m-n2-d1": +0.9,
    "rtx-opt-350m-n2-d2": -11.4,
    "rtx-opt-350m-n4-d1": -2.8,
    "rtx-opt-350m-n4-d2": +2.4,
    "rtx-opt-350m-n4-d4": -20.9,
}
GROUPS = {
    "GH200, OPT-350M": "gh200-opt-350m",
    "GH200, GPT-Neo-2.7B": "gh200-gpt-neo",
    "mixed RTX, OPT-350M": "rtx-opt-350m",
}


@dataclass(frozen=True)
class Measured:
    """What a run took: ms of an iteration, and the highest memory of its ranks where usable."""

    name: str
    plan: Plan
    iteration_ms: float
    peak_bytes: int | None


def measured_runs() -> list[Measured]:
    found = []
    for path in sorted((SEED / "plans").glob("*.json")):
        with (SEED / "times" / f"{path.stem}.csv").open() as file:
            [row] = csv.DictReader(file)
        peak = int(row["peak_bytes"]) if row["peak_bytes"] else None
        found.append(Measured(path.stem, load_plan(path), float(row["iteration_ms"]), peak))
    return found


def store_of(folder: Path, copies: tuple[str, ...]) -> Store:
    """A new store with these copies; where both hold a key the planner's is the newer."""
    store = open_store(folder / f"{'-'.join(copies)}.db")
    for run in sailor.read(SEED, ImportOptions(copies=copies)):
        record(store, run)
    return store


def predict(store: Store, runs: Iterable[Measured]) -> dict[str, Prediction]:
    predictions = {}
    for run in runs:
        prediction = evaluate_plan(store, run.plan).prediction
        assert prediction is not None
        predictions[run.name] = prediction
    return predictions


def error(prediction: Prediction, run: Measured) -> float:
    """Predicted over measured iteration time, less 1."""
    return prediction.iteration_ms / run.iteration_ms - 1


def peak(prediction: Prediction) -> float:
    """Memory of the fullest GPU, in bytes."""
    return max(stage.memory.total for template in prediction.stages for stage in template)


def memory_error(prediction: Prediction, run: Measured) -> float | None:
    """Predicted over measured peak, less 1; None where the measured one is not usable."""
    return None if run.peak_bytes is None else peak(prediction) / run.peak_bytes - 1


def with_tp(plan: Plan, tp: int) -> Plan:
    """The plan with this TP degree in every stage."""
    return replace(
        plan,
        templates=tuple(
            replace(
                template,
                stages=tuple(replace(stage, tp=tp) for stage in template.stages),
                replicas=tuple(
                    replace(
                        replica,
                        places=tuple(Place(p.node, tuple(range(tp))) for p in replica.places),
                    )
                    for replica in template.replicas
                ),
            )
            for template in plan.templates
        ),
    )


def with_slow_titan(plan: Plan) -> Plan:
    """The plan with Titan nodes on 0.115 GB/s, upstream's fit to RTX 2080 nodes at 8 GPUs.

    Titan nodes talk to RTX 2080 and RTX 3090 nodes only, and those are on 0.115 GB/s anyway.
    """
    nodes = tuple(
        replace(node, bandwidth_gb_per_s=0.1148) if node.gpu == "titan-rtx" else node
        for node in plan.cluster.nodes
    )
    return replace(plan, cluster=Cluster(plan.cluster.name, nodes))


def summary(errors: list[float]) -> str:
    absolute = [abs(value) for value in errors]
    return f"{fmean(absolute):.1%} | {median(absolute):.1%} | {max(errors, key=abs):+.1%}"


def of_group(runs: list[Measured], prefix: str) -> list[Measured]:
    return [run for run in runs if run.name.startswith(prefix)]


def report(runs: list[Measured], predictions: dict[str, dict[str, Prediction]]) -> None:
    planner, simulator = predictions["planner"], predictions["simulator"]
    print("| runs | n | profiles | mean abs. error | median | worst |")
    print("| --- | --- | --- | --- | --- | --- |")
    for title, prefix in GROUPS.items():
        group = of_group(runs, prefix)
        for copy, found in predictions.items():
            errors = [error(found[run.name], run) for run in group]
            print(f"| {title} | {len(group)} | {copy} copy | {summary(errors)} |")
        own = [SAILOR_SIMULATOR[run.name] / 100 for run in group]
        print(f"| {title} | {len(group)} | Sailor's own simulator | {summary(own)} |")
    for copy, found in predictions.items():
        errors = [error(found[run.name], run) for run in runs]
        print(f"| all | {len(runs)} | {copy} copy | {summary(errors)} |")
    own = [SAILOR_SIMULATOR[run.name] / 100 for run in runs]
    print(f"| all | {len(runs)} | Sailor's own simulator | {summary(own)} |")

    print("\n## Every run\n")
    print(
        "| run | measured s | planner copy s | error | simulator copy s | error | Sailor's own | "
        "pipeline s | once s | peak GiB measured | predicted | error |"
    )
    print("| --- |" + " ---: |" * 11)
    for run in runs:
        ours, other = planner[run.name], simulator[run.name]
        once_ms = other.iteration_ms - max(other.pipe_ms)
        memory = memory_error(ours, run)
        print(
            f"| {run.name} | {run.iteration_ms / 1e3:.3f} "
            f"| {ours.iteration_ms / 1e3:.3f} | {error(ours, run):+.1%} "
            f"| {other.iteration_ms / 1e3:.3f} | {error(other, run):+.1%} "
            f"| {SAILOR_SIMULATOR[run.name]:+.1f}% "
            f"| {max(other.pipe_ms) / 1e3:.3f} | {once_ms / 1e3:.3f} "
            f"| {f'{run.peak_bytes / GIB:.2f}' if run.peak_bytes else '-'} "
            f"| {peak(ours) / GIB:.2f} | {'-' if memory is None else f'{memory:+.1%}'} |"
        )
    print("\n## Memory\n")
    print("| runs | n | mean abs. error | median | worst |")
    print("| --- | --- | --- | --- | --- |")
    for title, prefix in GROUPS.items():
        errors = [
            value
            for run in of_group(runs, prefix)
            if (value := memory_error(planner[run.name], run)) is not None
        ]
        print(f"| {title} | {len(errors)} | {summary(errors)} |")


def report_readings(store: Store, runs: list[Measured]) -> None:
    """The doubtful data of the RTX runs, read another way."""
    readings: tuple[tuple[str, Callable[[Plan], Plan], str], ...] = (
        ("TP 8 instead of TP 2", lambda plan: with_tp(plan, 8), "rtx-opt-350m-n2"),
        ("Titan nodes on 0.115 GB/s", with_slow_titan, "rtx-opt-350m-n4"),
    )
    print("\n## Other readings of doubtful data (not used above)\n")
    print("| run | reading | error as used | error so read |")
    print("| --- | --- | ---: | ---: |")
    for reading, change, prefix in readings:
        for run in of_group(runs, prefix):
            used, read = (
                evaluate_plan(store, plan).prediction for plan in (run.plan, change(run.plan))
            )
            assert used is not None
            assert read is not None
            print(f"| {run.name} | {reading} | {error(used, run):+.1%} | {error(read, run):+.1%} |")


def main() -> None:
    runs = measured_runs()
    print("# Planned against measured on the public Sailor runs\n")
    host = f"{cpu_model()}, Python {platform.python_version()}"
    print(f"- Date: {datetime.now(UTC):%Y-%m-%d}. Host: {host}.")
    known = sailor.release()
    print(f"- Data: {known.repository}@{known.commit[:12]}, {known.licence}; {len(runs)} runs.")
    print("- Command: `python benchmarks/sailor_runs.py`. Nothing was fitted to these runs.\n")
    with tempfile.TemporaryDirectory() as folder:
        stores = {
            "planner": store_of(Path(folder), ("simulator", "planner")),
            "simulator": store_of(Path(folder), ("simulator",)),
        }
        predictions = {copy: predict(store, runs) for copy, store in stores.items()}
        report(runs, predictions)
        report_readings(stores["planner"], runs)
        for store in stores.values():
            store.close()


if __name__ == "__main__":
    main()
