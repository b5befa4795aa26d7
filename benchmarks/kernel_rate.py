"""How many whole plans the compiled kernel prices a second, against the plain-Python reference.

    python -m benchmarks.kernel_rate > benchmarks/results/$(date +%F)-kernel-rate.md

Random structures of 1 to 12 stages of llama-3-8b are filled as a first and a second template; one
evaluation is fill, placement, memory, share, synchronisation and score of the whole plan (DESIGN
section 13, 27). The ratio is of the same structures by both codes, all of which make a plan, and
both must agree. Seconds are the processor's, of one core; the kernel's machine code is there before
the clock starts.
"""

from __future__ import annotations

import os
import platform
import random
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import numpy as np

from planner.fill.template import fill_template
from planner.filled import FilledTemplate
from planner.kernel.engine import Engine
from planner.packing import Demand
from planner.problem import Problem
from specs.cluster import Cluster, Node
from specs.gpu import gpu_type
from specs.host import cpu_model
from specs.model import load_model
from tests.planner.reference import reference_profiles

Array = Any

MODEL = "llama-3-8b"
TYPES = ("a100-40gb", "a6000", "h100", "h100")  # 1 : 1 : 2, nodes of four
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
DEEPEST = 12
STRUCTURES = 4000
BY_REFERENCE = 12  # structures that plain Python fills too
REPEATS = 5


def problem_of(gpus: int) -> Problem:
    nodes = tuple(
        Node(f"{gpu}-{k}-{i}", gpu, 4, gpu_type(gpu).default_topology, 12.5, 10.0)
        for k, gpu in enumerate(TYPES)
        for i in range(gpus // 16)
    )
    model = load_model(MODEL)
    cluster = Cluster(f"mixed-{gpus}", nodes)
    return Problem(model, model.default_workload, cluster, reference_profiles(MODEL))


def structures(problem: Problem, count: int) -> list[tuple[Demand, ...]]:
    draw = random.Random(0)
    kinds = [Demand(gpu, tp) for gpu in problem.cluster.gpus_by_type for tp in (1, 2, 4)]
    return [
        tuple(draw.choice(kinds) for _ in range(draw.randint(1, DEEPEST))) for _ in range(count)
    ]


@dataclass(frozen=True)
class Rate:
    """Evaluations a second.

    mixed: of every repeat, the kernel over all structures. kernel, reference: both codes over the
    same structures that make a plan.
    """

    gpus: int
    mixed: tuple[float, ...]
    kernel: float
    reference: float

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.mixed)

    @property
    def spread(self) -> float:
        """From the slowest to the fastest repeat, as a share of the median."""
        return (max(self.mixed) - min(self.mixed)) / self.median


def kernel_rate(
    engine: Engine, fills: Sequence[tuple[list[FilledTemplate], Sequence[Array]]]
) -> float:
    """Evaluations a second of filling structures, each list behind its earlier templates."""
    matrices = [(earlier, *as_matrix(rows)) for earlier, rows in fills]
    before, began = engine.evaluations, time.process_time()
    for earlier, matrix, depths in matrices:
        engine.lay(earlier)
        engine.fill_many(len(earlier), matrix, depths, np.zeros(len(depths), np.int64))
    return (engine.evaluations - before) / (time.process_time() - began)


def as_matrix(rows: Sequence[Array]) -> tuple[Array, Array]:
    """Structures as the kernel takes many of them: padded rows, and their depths."""
    depths = np.array([len(row) for row in rows], np.int64)
    matrix = np.zeros((len(rows), depths.max()), np.int64)
    for row, target in zip(rows, matrix, strict=True):
        target[: len(row)] = row
    return matrix, depths


def measure(gpus: int) -> Rate:
    problem = problem_of(gpus)
    engine = Engine(problem)
    engine.compile()
    drawn = structures(problem, STRUCTURES)
    laid = [one_template(problem, drawn)]
    rows = [engine.row(structure) for structure in drawn]
    mixed = tuple(kernel_rate(engine, [([], rows), (laid, rows)]) for _ in range(REPEATS))
    done, took = 0, 0.0
    shared: list[tuple[list[FilledTemplate], list[Array]]] = []
    for earlier in ([], laid):
        chosen = list(fitting(engine, earlier, drawn))
        shared.append((earlier, [engine.row(structure) for structure in chosen]))
        for structure in chosen:
            began = time.process_time()
            fill = fill_template(problem, structure, earlier)
            took += time.process_time() - began
            done += fill.evaluations
            assert fill.best is not None
            engine.lay(earlier)
            got = engine.fill(len(earlier), engine.row(structure))
            assert abs(got / fill.best[1].iteration_ms - 1) < 1e-9, structure
    return Rate(
        gpus, mixed, kernel_rate(engine, [(e, rows * 200) for e, rows in shared]), done / took
    )


def one_template(problem: Problem, drawn: Sequence[tuple[Demand, ...]]) -> FilledTemplate:
    """The first of these structures that makes a plan with one replica given up."""
    for structure in drawn:
        best = fill_template(problem, structure, fewer=1).best
        if best is not None:
            return best[0]
    raise SystemExit("no structure makes a plan")


def fitting(
    engine: Engine, earlier: Sequence[FilledTemplate], drawn: Sequence[tuple[Demand, ...]]
) -> Iterator[tuple[Demand, ...]]:
    """The first structures that make a plan: refusals are cheap and would flatter either code."""
    engine.lay(earlier)
    plans = (s for s in drawn if engine.fill(len(earlier), engine.row(s)) > 0)
    return islice(plans, BY_REFERENCE)


def report() -> Iterator[str]:
    rates = [measure(gpus) for gpus in SIZES]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    load = os.getloadavg()[0]
    yield "# Plans priced a second"
    yield ""
    yield f"- Date: {datetime.now(UTC):%Y-%m-%d}. Host: {cpu_model()}, {os.cpu_count()} cores,"
    yield f"  Python {platform.python_version()}; one core used, load {load:.1f} at the end."
    yield "- Command: `python -m benchmarks.kernel_rate`."
    yield f"- {MODEL}, nodes of four (1 : 1 : 2 of A100-40GB, A6000, H100). Mixed: {STRUCTURES:,}"
    yield f"  random structures of 1 to {DEEPEST} stages as first and second template, median and"
    yield f"  spread of {REPEATS} repeats. Ratio: {2 * BY_REFERENCE} of those that make a plan."
    yield "- Seconds of processor time, so that a busy host counts less."
    yield f"- Peak memory of the whole benchmark: {peak_mb:.0f} MB."
    yield ""
    yield "| GPUs | mixed, /s | spread | growth of one | same plans, /s | Python, /s | ratio |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for rate in rates:
        yield (
            f"| {rate.gpus:,} | {rate.median:,.0f} | {rate.spread:.0%} | "
            f"{rates[0].median / rate.median:.1f} | {rate.kernel:,.0f} | {rate.reference:,.1f} | "
            f"{rate.kernel / rate.reference:,.0f} |"
        )
    yield ""
    yield f"Growth of one: time of an evaluation over that at {SIZES[0]} GPUs; linear would be "
    yield f"{SIZES[-1] // SIZES[0]} at {SIZES[-1]:,} GPUs."


if __name__ == "__main__":
    print("\n".join(report()))
