"""How long training stands when processes join and leave: 2 -> 3 -> 4 -> 2, again and again.

A model of 27 M parameters (fp32 AdamW: 328 MB of state) trains under the real controller on this
host; the plan for each number of processes is given, so that every event is a move. Prints each
event's phases, medians over the rounds, and how far the losses are from those of a run of one
process. Rows go to a store's `reconfigurations`.
Usage: python benchmarks/elastic_pause.py [--rounds 4] [--store FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from db.store import open_store
from runtime.cli.elastic_journal import StoreJournal
from runtime.elastic.controller import Controller, Settings
from runtime.elastic.endpoint import RemoveNode
from runtime.elastic.journal import Reshaped, TrainedIteration
from runtime.elastic.messages import NodeOffer
from runtime.training import Options
from specs.cluster import Cluster, Node
from specs.model import Model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.topology import Topology
from specs.workload import DType, Workload

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 8,
    "vocab_size": 2000,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
MODEL = Model.from_config("llama-27m", CONFIG)
WORKLOAD = Workload(4, 32, DType.FP32)
SETTLE = 3  # iterations between events
# Per number of processes: templates as stages of so many layers, and how many samples each gets.
LAYOUTS: dict[int, list[tuple[list[int], int]]] = {
    1: [([10], 4)],
    2: [([5, 5], 4)],
    3: [([3, 3, 4], 4)],
    4: [([4, 6], 2), ([6, 4], 2)],
}


def node(number: int) -> Node:
    return Node(f"cpu-{number}", "cpu", 1, Topology.HOST, 1.0, 100.0)


def plan_for(cluster: Cluster, _: Plan | None = None) -> Plan:
    names = [n.name for n in cluster.nodes]
    templates = []
    for sizes, share in LAYOUTS[len(names)]:
        borders = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        stages = tuple(Stage("cpu", 1, range(a, b)) for a, b in pairwise(borders))
        places = tuple(Place(names.pop(0), (0,)) for _ in sizes)
        templates.append(Template(1, stages, (Replica(share, 1, places),)))
    return Plan("by hand", MODEL, WORKLOAD, cluster, tuple(templates))


class Journal(StoreJournal):
    """Keeps what is measured, and lets the driver wait for it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen = threading.Condition()

    def trained(self, plan: Plan, iteration: TrainedIteration) -> None:
        with self.seen:
            super().trained(plan, iteration)
            self.seen.notify_all()

    def reshaped(self, change: Reshaped) -> None:
        with self.seen:
            super().reshaped(change)
            self.seen.notify_all()

    def until(self, so: Callable[[], bool]) -> None:
        with self.seen:
            assert self.seen.wait_for(so, timeout=300)

    def iterations_more(self, count: int) -> None:
        goal = len(self.iterations) + count
        self.until(lambda: len(self.iterations) >= goal)


def drive(controller: Controller, journal: Journal, rounds: int) -> None:
    journal.iterations_more(SETTLE)
    for _ in range(rounds):
        for number in (2, 3):
            before = len(journal.changes)
            controller.start_agent(NodeOffer(name=f"cpu-{number}"))
            journal.until(lambda before=before: len(journal.changes) > before)  # type: ignore[misc]
            journal.iterations_more(SETTLE)
        before = len(journal.changes)
        for number in (2, 3):
            controller.events.put(RemoveNode(f"cpu-{number}"))
        journal.until(lambda before=before: len(journal.changes) > before)  # type: ignore[misc]
        journal.iterations_more(SETTLE)
    controller.halt()


def run(folder: Path, store: Any, cluster: Cluster, work: Callable[..., None]) -> Journal:
    journal = Journal(store, "elastic-pause", 0)
    options = Options(iterations=100_000, warm_up=0, timeout_s=120)
    settings = Settings(folder / "session.json", straggler_factor=0.0)

    class Always(Controller):
        """Takes every plan: what a move costs is the question."""

        def _decide(self, event: str, slow: Any, plan_ms: float, future: Any) -> None:
            self._leaving_now = set(self._leaving)
            found = future.result()
            self._reshape(found, event, "asked for", plan_ms)
            for name in sorted(self._leaving_now):
                self.fleet.quit(name)

    controller = Always(plan_for(cluster), options, plan_for, journal, settings)
    driver = threading.Thread(target=work, args=(controller, journal), daemon=True)
    driver.start()
    with journal:
        try:
            controller.run()
        except KeyboardInterrupt:
            driver.join()
    return journal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--store", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_store(asked.store or str(folder / "store.db")) as store:
            two = Cluster("home", (node(0), node(1)))
            moved = run(folder, store, two, lambda c, j: drive(c, j, asked.rounds))
            count = len(moved.iterations)

            def alone(controller: Controller, journal: Journal) -> None:
                journal.iterations_more(count)
                controller.halt()

            still = run(folder, store, Cluster("home", (node(0),)), alone)
    phases = ("release", "rebuild", "transfer", "build")
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for change in moved.changes:
        groups[change["event"]].append(change)
    print(f"{'event':34} {'pause':>8} " + " ".join(f"{p:>9}" for p in phases) + "   moved")
    for event, changes in groups.items():
        for change in [*changes, None]:
            rows = [change] if change else changes
            values = [median(row["pause_ms"] for row in rows)]
            values += [median(row["phases_ms"].get(p, 0.0) for row in rows) for p in phases]
            megabytes = median(sum(row["bytes_per_rank"]) for row in rows) / 1e6
            label = event if change else f"  median of {len(rows)}"
            cells = " ".join(f"{v:6.0f} ms" for v in values)
            print(f"{label:34} {cells} {megabytes:6.0f} MB")
    expected = {row["iteration"]: row["loss"] for row in still.iterations}
    for first in (10, 20, 50, count):
        worst = max(
            abs(r["loss"] / expected[r["iteration"]] - 1)
            for r in moved.iterations
            if r["iteration"] < first
        )
        print(f"largest relative difference of a loss in {first} iterations: {worst:.1e}")


if __name__ == "__main__":
    main()
