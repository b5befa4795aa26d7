"""What a profile run holds, in a line: GPU types, models, rows, plans that used it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from db.store import Store
from specs.layer import LayerType
from specs.model import Model, catalogue_models, load_model
from specs.profile import ProfileRun


@dataclass(frozen=True)
class RunSummary:
    """A run with what its rows are of.

    models: names of models all of whose layer types it has; of a run that has only some of a
    model's layers, their kinds are in layers alone. plans: ids of plans predicted from it.
    """

    run: ProfileRun
    gpus: tuple[str, ...]
    models: tuple[str, ...]
    layers: tuple[LayerType, ...]
    plans: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The summary as `list --json` prints it."""
        run, new = self.run, self.run.run
        return {
            "run": run.id,
            "source": new.source.value,
            "status": run.status.value,
            "gpus": list(self.gpus),
            "models": list(self.models),
            "layer_rows": run.layer_rows,
            "refused_rows": run.refused_rows,
            "link_rows": run.link_rows,
            "host_rows": run.host_rows,
            "plans": list(self.plans),
            "started": run.started.isoformat(),
            "ended": run.ended.isoformat() if run.ended else None,
            "host": new.host,
            "origin": new.origin,
            "licence": new.licence,
        }


def summarise(store: Store, run_id: int | None = None) -> list[RunSummary]:
    """Summaries of all runs, oldest first, or of one. Raises StoreError for a run not there."""
    runs = store.profile_runs() if run_id is None else [store.profile_run(run_id)]
    gpus: dict[int, dict[str, None]] = defaultdict(dict)
    hashes: dict[int, dict[str, None]] = defaultdict(dict)
    for layer in store.layer_profiles(run_id=run_id):
        gpus[layer.run.id][layer.profile.key.gpu] = None
        hashes[layer.run.id][layer.profile.key.layer_type] = None
    for refused in store.layer_refusals(run_id=run_id):
        gpus[refused.run.id][refused.refusal.key.gpu] = None
        hashes[refused.run.id][refused.refusal.key.layer_type] = None
    for link in store.link_profiles(run_id=run_id):
        gpus[link.run.id][link.profile.gpu] = None
    for host in store.host_profiles(run_id=run_id):
        gpus[host.run.id][host.profile.gpu] = None
    types = {layer.hash: layer for layer in store.layer_types()}
    models = known_models(store)
    plans: dict[int, list[int]] = defaultdict(list)
    for plan in store.plans():
        for used in plan.profile_runs:
            plans[used].append(plan.id)
    return [
        RunSummary(
            run,
            tuple(gpus[run.id]),
            tuple(model.name for model in models if _covers(hashes[run.id], model)),
            tuple(types[key] for key in hashes[run.id]),
            tuple(plans[run.id]),
        )
        for run in runs
    ]


def known_models(store: Store) -> Sequence[Model]:
    """Models of the store and of the catalogue, each config once."""
    known = [*store.models(), *(load_model(name) for name in catalogue_models())]
    return list({model.config_hash: model for model in reversed(known)}.values())


def _covers(hashes: dict[str, None], model: Model) -> bool:
    return bool(hashes) and all(layer.hash in hashes for layer in model.layer_types)
