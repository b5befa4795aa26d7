from __future__ import annotations

import pytest

from db.store import Store
from reports.events import phase_order, summarise_events
from tests.reports.stores import fill_with_reconfigurations


def test_an_event_is_summed_up_by_medians_over_what_went_well(store: Store) -> None:
    fill_with_reconfigurations(store, 4)
    joins, leaves = summarise_events(store.reconfigurations())
    assert (joins.event, joins.repeats, joins.failed) == ("node joins", 4, 0)
    assert (leaves.event, leaves.repeats, leaves.failed) == ("node leaves", 3, 1)
    # 1040 + 3 * repeat over repeats 0 to 3: median 1044.5, distances 1.5 and 4.5
    assert joins.total is not None
    assert joins.total.median_ms == pytest.approx(1044.5)
    assert joins.total.mad_ms == pytest.approx(3.0)
    assert (joins.total.lowest_ms, joins.total.highest_ms) == pytest.approx((1040.0, 1049.0))
    # 300 + repeat over repeats 0 to 3
    assert joins.phases["rebuild"].median_ms == pytest.approx(301.5)
    assert joins.phases["rebuild"].mad_ms == pytest.approx(1.0)
    assert joins.most_bytes == 3 << 20


def test_phases_stand_in_the_order_of_time() -> None:
    assert sorted(["zz", "build", "plan", "transfer", "aa"], key=phase_order) == [
        "plan",
        "transfer",
        "build",
        "aa",
        "zz",
    ]
