"""All pages of a store at once: read together, linked with one another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from reports import regression
from reports.accuracy import read_accuracy
from reports.accuracy_page import accuracy_document, accuracy_page
from reports.compare_page import compare_page
from reports.comparisons import read_comparisons, with_backdrop
from reports.index_page import index_page, page_links, read_contents
from reports.page import Page, Provenance, write_page
from reports.plan_page import plan_page, read_plan_facts
from reports.profile_page import profile_page, read_profiles
from reports.reconfigure_page import reconfigure_page
from specs.errors import ProfileMissing

if TYPE_CHECKING:
    from db.records import StoredPlan
    from db.store import Store

MakePage = Callable[["Store", Provenance, Collection[int]], Page]


def _index(store: Store, provenance: Provenance, plans: Collection[int]) -> Page:
    contents = read_contents(store)
    return index_page(contents, provenance, plan_pages=sorted(plans), links=page_links())


def _accuracy(store: Store, provenance: Provenance, plans: Collection[int]) -> Page:
    found = read_accuracy(store)
    return accuracy_page(
        found,
        store.profile_runs(),
        provenance,
        document=accuracy_document(found, provenance, None),
        plan_pages=sorted(plans),
        links=page_links(),
    )


def _compare(
    store: Store, provenance: Provenance, plans: Collection[int], backdrop: int = 0
) -> Page:
    found = read_comparisons(store)
    if backdrop:
        found = with_backdrop(store, found, backdrop)
    return compare_page(found, provenance, plan_pages=sorted(plans), links=page_links())


def _profile(store: Store, provenance: Provenance, plans: Collection[int]) -> Page:
    return profile_page(read_profiles(store), provenance, page_links())


def _reconfigure(store: Store, provenance: Provenance, plans: Collection[int]) -> Page:
    rows = store.reconfigurations()
    return reconfigure_page(rows, provenance, page_links(), plan_pages=plans)


PAGES: dict[str, MakePage] = {
    "index": _index,
    "accuracy": _accuracy,
    "compare": _compare,
    "profile": _profile,
    "reconfigure": _reconfigure,
}


def one_plan(store: Store, plan_id: int, provenance: Provenance) -> Page:
    """The page of a stored plan. Raises StoreError where there is none."""
    stored = store.plan(plan_id)
    return plan_page(read_plan_facts(store, stored.plan, stored), provenance, page_links())


def chosen_plans(store: Store, count: int) -> list[int]:
    """The plans that get a page of their own: those with runs before others, newest first.

    A plan without a prediction comes last: the store's profiles may not price it.
    """
    measured = {stored.plan_id for stored in store.measurements()}

    def order(stored: StoredPlan) -> tuple[bool, bool, int]:
        return (stored.plan.prediction is None, stored.id not in measured, -stored.id)

    return [stored.id for stored in sorted(store.plans(), key=order)][:count]


def write_set(
    store: Store,
    directory: Path,
    provenance: Provenance,
    plans: Iterable[int],
    said: Callable[[str], None],
    backdrop: int = 0,
) -> Path:
    """Write every page and the pages of these plans; the path of the first page.

    backdrop: so many priced random plans behind the plans of every comparison.
    said: told of each page that was written, and of plans that cannot be drawn. Plans whose pages
    already lie in the folder are linked too.
    """
    drawn = {int(p.stem[5:]) for p in directory.glob("plan-*.html") if p.stem[5:].isdecimal()}
    for plan_id in plans:
        try:
            page = one_plan(store, plan_id, provenance)
        except ProfileMissing as error:
            said(f"plan {plan_id} has no page: {error}")
            continue
        said(str(write_page(page, directory)))
        drawn.add(plan_id)
    for name, make in PAGES.items():
        if name not in ("index", "accuracy", "compare"):
            said(str(write_page(make(store, provenance, drawn), directory)))
    said(str(write_page(_compare(store, provenance, drawn, backdrop), directory)))
    said(str(_write_accuracy(store, directory, provenance, drawn)))
    return write_page(_index(store, provenance, drawn), directory)


def _write_accuracy(
    store: Store, directory: Path, provenance: Provenance, plans: Collection[int]
) -> Path:
    """The accuracy page, compared with the report that lay in the folder before."""
    earlier = regression.read_earlier(directory / "accuracy.json", must_exist=False)
    found = read_accuracy(store)
    change = regression.against(earlier, found.rows)
    document = accuracy_document(found, provenance, change, earlier)
    page = accuracy_page(
        found,
        store.profile_runs(),
        provenance,
        regression=change,
        document=document,
        plan_pages=sorted(plans),
        links=page_links(),
    )
    return write_page(page, directory)
