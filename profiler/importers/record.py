"""Writes imported runs to a store, once: the same import again changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from db.store import Store
from profiler.importers.imported import ImportedRun
from specs.profile import EntryStatus, LayerRefusal, RunStatus


class Outcome(StrEnum):
    """What became of an imported run."""

    ADDED = "added"
    UNCHANGED = "unchanged"
    COMPLETED = "completed"  # an import that was cut off before is whole now


@dataclass(frozen=True, slots=True)
class Recorded:
    """An imported run, where it is in the store, and what happened to it there."""

    imported: ImportedRun
    run_id: int
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """Counts, notes and every refused row, as `--json` prints them."""
        run = self.imported
        return {
            "run": self.run_id,
            "title": run.title,
            "outcome": self.outcome.value,
            "source": run.new.source.value,
            "origin": run.new.origin,
            "licence": run.new.licence,
            "layer_rows": len(run.layers),
            "link_rows": len(run.links),
            "host_rows": len(run.hosts),
            "refused_rows": len(run.refused),
            "notes": list(run.notes),
            "refused": [{"where": row.where, "reason": row.reason} for row in run.refused],
        }


def record(store: Store, imported: ImportedRun) -> Recorded:
    """Write a run to the store unless one of the same source, origin and rows is there.

    A run of this origin that a kill left unfinished is completed. One with other rows, from an
    older rule of the importer, is left alone, and a new run is added beside it.
    """
    found = store.find_run(imported.new.source, imported.new.origin)
    outcome = Outcome.ADDED
    if found is not None and found.status is RunStatus.COMPLETE:
        if _holds(store, found.id, imported):
            return Recorded(imported, found.id, Outcome.UNCHANGED)
        found = None
    for model in imported.models:
        store.add_model(model)
    store.add_layer_types(imported.layer_types)
    if found is None:
        run_id = store.start_run(imported.new)
    else:
        run_id, outcome = found.id, Outcome.COMPLETED
        store.resume_run(run_id)
    store.add_layer_profiles(run_id, [*imported.layers, *_refusals(imported)])
    store.add_link_profiles(run_id, imported.links)
    for host in imported.hosts:
        store.add_host_profile(run_id, host)
    store.finish_run(run_id, RunStatus.COMPLETE)
    return Recorded(imported, run_id, outcome)


def _refusals(imported: ImportedRun) -> list[LayerRefusal]:
    """Refused rows that have a key: those the store can hold."""
    return [
        LayerRefusal(
            row.key,
            row.status,
            f"{row.where}: {row.reason}" if row.status is EntryStatus.REFUSED else row.reason,
        )
        for row in imported.refused
        if row.key is not None
    ]


def _holds(store: Store, run_id: int, imported: ImportedRun) -> bool:
    return (
        Counter(stored.profile for stored in store.layer_profiles(run_id=run_id))
        == Counter(imported.layers)
        and {stored.refusal for stored in store.layer_refusals(run_id=run_id)}
        == set(_refusals(imported))
        and Counter(stored.profile for stored in store.link_profiles(run_id=run_id))
        == Counter(imported.links)
        and {stored.profile for stored in store.host_profiles(run_id=run_id)} == set(imported.hosts)
    )
