"""What a search says where there is no plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.refusal import Refusal
from planner.result import Budget
from planner.search import Search
from specs.workload import Recompute
from tests.planner.reference import reference_problem

GIB = 1024**3


@pytest.mark.parametrize(
    ("recompute", "lacks_gib", "ways"),
    [
        (Recompute.NONE, 1, "more GPUs or larger ones or --recompute full or a smaller --headroom"),
        (Recompute.NONE, 30, "more GPUs or larger ones or --recompute full"),
        (Recompute.FULL, 30, "more GPUs or larger ones"),
    ],
)
def test_only_what_can_help_is_named(recompute: Recompute, lacks_gib: int, ways: str) -> None:
    problem = reference_problem("llama-3-8b", "mixed-64")
    problem = replace(problem, workload=replace(problem.workload, recompute=recompute))
    search = Search(problem, "a planner", Budget())
    search.count(5, [Refusal.memory(2, lacks_gib * GIB), Refusal.memory(2, 40 * GIB)])
    said = search.why_none()
    assert said.startswith("no plan: 2 of 5 candidates refused for memory at stage 2; the closest")
    assert said.endswith(f"lacks {lacks_gib}.0 GiB (memory at stage 2) at least: try {ways}")
