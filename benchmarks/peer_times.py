"""Search time of the originals on their recorded cases, against ours on the same inputs.

    python -m benchmarks.peer_times

The recorded times are in tests/planner/data/peer_runs (two cores, see the README files there);
ours run with the faults of the releases on, so that both search the same space, and the second of
two runs counts: machine code is loaded by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from planner.baselines.sailor.search import SailorSearch
from tests.planner.baselines import amp_release, metis_release, sailor_release
from tests.planner.baselines.test_metis import COMPLETED_RUNS
from tests.planner.baselines.test_sailor import RUNS

AMP_RUNS = ("amp12_2x4_homog", "amp12_4x4_mixed", "amp12_4x4_slowlink_last")


def second_of_two(search: Callable[[], Any]) -> float:
    search()
    began = time.perf_counter()
    search()
    return time.perf_counter() - began


def sailor(name: str) -> float:
    run = sailor_release.recorded(name)
    inputs, rules = sailor_release.inputs_of(run), sailor_release.rules_of(run)
    return second_of_two(lambda: SailorSearch(inputs, rules).run())


def times() -> Iterator[tuple[str, str, float, float]]:
    """planner, case, the original's seconds, ours."""
    for name in RUNS:
        yield "sailor", name, float(sailor_release.recorded(name)["search_s"]), sailor(name)
    for name in COMPLETED_RUNS:
        recorded = metis_release.recorded(name)["outcome"]["wall_s"]
        yield "metis", name, recorded, second_of_two(partial(metis_release.run, name))
    for name in AMP_RUNS:
        recorded = amp_release.recorded(name)["outcome"]["wall_s"]
        yield "amp", name, recorded, second_of_two(partial(amp_release.run, name))


def main() -> None:
    print("| planner | recorded case | its original, s | ours, s |")
    print("| --- | --- | ---: | ---: |")
    for planner, case, original, ours in times():
        print(f"| {planner} | {case} | {original:.3f} | {ours:.3f} |", flush=True)


if __name__ == "__main__":
    main()
