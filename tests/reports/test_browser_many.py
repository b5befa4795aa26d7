"""Pages with one, ten and ten thousand rows in a real browser; test_browser_pages has none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from db.records import NewReconfiguration, StoredLink, StoredReconfiguration
from db.store import Store
from planner.evaluate import evaluate_plan
from reports.compare_page import compare_page
from reports.comparisons import AnswerRow, Comparisons
from reports.layer_times import LayerTime
from reports.links import link_series
from reports.page import Page, Provenance, write_page
from reports.page_set import one_plan
from reports.profile_page import Profiles, profile_page
from reports.reconfigure_page import reconfigure_page
from specs.profile import (
    LayerKey,
    LayerProfile,
    LinkProfile,
    NewRun,
    Operation,
    ProfileRun,
    RunStatus,
    Source,
)
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute
from tests.reports.conftest import Visit
from tests.reports.stores import cluster_of, fill_with_profiles, iterations, straight_plan
from tests.reports.test_browser_pages import draw_all, marks, sideways

pytestmark = pytest.mark.browser

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
MADE = Provenance("store.db", NOON, "0.1.0", "arachne-report index")
MOST_BYTES = 8_000_000
Start = Callable[..., Visit]


def comparisons(count: int) -> Page:
    """Answers of five planners to so many questions, of tables of a hundred."""
    answers = tuple(
        AnswerRow(
            comparison_id=i // 5,
            question=f"llama-3-8b on mixed-{i // 5} (128 GPUs)",
            suite="paper",
            table=f"table {i // 500}",
            model="llama-3-8b",
            cluster=f"mixed-{i // 5}",
            gpus=128,
            created=NOON,
            planner=f"planner-{i % 5}",
            status="ok",
            reason="",
            iteration_ms=100.0 * (1 + i % 5),
            samples_per_s=500.0 / (1 + i % 5),
            relative=1 / (1 + i % 5),
            search_s=0.1 * (1 + i % 9),
            evaluations=i,
            rejected={"memory": i},
            plan_id=i,
            depth=1 + i % 30,
            templates=2,
            mix="32 × a100-40gb + 64 × h100",
            fastest_type="h100",
            fastest_share=(i % 11) / 10,
            layout="2 × (4 stages, tp 1·2, b 4)",
            gpus_used=96,
            gpus_idle=32,
            fits=True,
            stages="a100-40gb 1, a100-40gb 1, h100 2, h100 2",
        )
        for i in range(count)
    )
    questions = {answer.comparison_id: answer.question for answer in answers}
    return compare_page(Comparisons(answers, (), questions), MADE)


def events(count: int, kinds: int) -> Page:
    """So many live events of so many kinds."""
    return reconfigure_page(
        [
            StoredReconfiguration(
                i,
                NewReconfiguration(
                    f"node joined, {i % kinds}",
                    None,
                    None,
                    {"release": 60.0 + i % 7, "transfer": 400.0 + i % 11},
                    (1 << 20,),
                    i // kinds,
                    run="elastic",
                    host="host-a",
                ),
                NOON + timedelta(seconds=i),
            )
            for i in range(count)
        ],
        MADE,
    )


def profiles(count: int) -> Page:
    """So many layer rows, half of them estimated, and so many sizes of links."""
    times = []
    for i in range(count):
        half, source = divmod(i, 2)
        key = LayerKey(
            *(("h100", "a6000", "a100-40gb")[half % 3], f"hash-{half % 17}"),
            *(1 << half % 4, 1 << half // 4 % 6, 128 * (1 + half // 400)),
            *(DType.BF16, Recompute.NONE, Optimizer.ADAMW, Topology.NVLINK),
        )
        row = LayerProfile(
            *(key, 1.0 + half % 7, 2.0, 0.3, 0.1, 10**6, 10**5, 10**7),
            samples=5,
            forward_mad_ms=0.01,
        )
        origin = (Source.MEASURED, Source.ESTIMATED)[source]
        times.append(LayerTime(origin, 1, "", row, f"block of model-{half % 17}", 100.0, 989.0))
    run = ProfileRun(
        *(1, NewRun(Source.MEASURED, "arachne-prof run"), RunStatus.COMPLETE, NOON, NOON),
        layer_rows=count,
    )
    links = [
        LinkProfile(
            "h100",
            Topology.NVLINK,
            list(Operation)[i % 5],
            2 + i // 100,
            2 ** (10 + i // 5 % 20),
            0.01 + i * 1e-5,
        )
        for i in range(count)
    ]
    series = link_series([StoredLink(run, link) for link in links])
    return profile_page(Profiles((run,), tuple(times), tuple(series), (), ()), MADE)


def check(page: Page, folder: Path, visit: Start) -> None:
    path = write_page(page, folder)
    assert path.stat().st_size < MOST_BYTES
    opened = visit().open(path)
    names = draw_all(opened)
    assert set(names) == {figure.name for figure in page.figures}
    for name in names:
        if name not in ("pipeline", "cluster"):
            assert marks(opened, name) > 0, name
    assert sideways(opened) <= 0
    highest = opened.locator(".figure").evaluate_all(
        "all => Math.max(...all.map(f => f.offsetHeight))"
    )
    assert highest < 4000, "nobody scrolls through a figure of that height"
    rows = opened.locator("tbody tr").count()
    assert rows < 6000, "a page of that many table rows is slow to read and to scroll"


@pytest.mark.parametrize("rows", [1, 10, 10_000])
def test_comparisons_draw(rows: int, tmp_path: Path, visit: Start) -> None:
    check(comparisons(rows), tmp_path, visit)


@pytest.mark.parametrize(("rows", "kinds"), [(1, 1), (10, 3), (10_000, 4), (10_000, 10_000)])
def test_live_events_draw(rows: int, kinds: int, tmp_path: Path, visit: Start) -> None:
    check(events(rows, kinds), tmp_path, visit)


@pytest.mark.parametrize("rows", [2, 10, 10_000])
def test_profiles_draw(rows: int, tmp_path: Path, visit: Start) -> None:
    check(profiles(rows), tmp_path, visit)


@pytest.mark.parametrize("rows", [1, 10, 10_000])
def test_a_plan_of_many_micro_batches_and_iterations_draws(
    rows: int, store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_profiles(store, ["h100", "a6000"])
    plan = straight_plan(cluster_of(("h100", 4, 2), ("a6000", 4, 1)), global_batch=rows)
    plan = evaluate_plan(store, plan)
    plan_id = store.add_plan(plan)
    assert plan.prediction is not None
    time_ms = plan.prediction.iteration_ms
    store.add_measurements(plan_id, iterations([time_ms + i % 13 for i in range(rows)]))
    check(one_plan(store, plan_id, MADE), tmp_path, visit)
