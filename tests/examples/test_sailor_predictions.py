"""From the published files through import and store to the prediction of a measured run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from db.store import Store, open_store
from planner.evaluate import evaluate_plan
from profiler.importers import sailor
from profiler.importers.imported import ImportOptions
from profiler.importers.record import record
from specs.plan_file import load_plan
from specs.prediction import Prediction

SEED = Path(__file__).resolve().parents[2] / "examples" / "sailor"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = open_store(str(tmp_path_factory.mktemp("sailor") / "arachne.db"))
    for run in sailor.read(SEED, ImportOptions(models=("OPT-350", "GPT-Neo-2.7"))):
        record(store, run)
    return store


def predict(store: Store, name: str) -> Prediction:
    prediction = evaluate_plan(store, load_plan(SEED / "plans" / f"{name}.json")).prediction
    assert prediction is not None
    return prediction


@pytest.mark.parametrize("name", sorted(path.stem for path in (SEED / "plans").glob("*.json")))
def test_every_measured_run_has_a_prediction_from_imported_rows_alone(
    store: Store, name: str
) -> None:
    prediction = predict(store, name)
    assert prediction.sources == ("imported",)
    assert math.isfinite(prediction.iteration_ms)
    assert prediction.fits


@pytest.mark.parametrize(("run", "micro_batches"), [("m4-g1", 1), ("m4-g32", 32)])
def test_one_stage_takes_the_files_layers_once_a_micro_batch_and_its_update_once(
    store: Store, run: str, micro_batches: int
) -> None:
    file = SEED / "planner_profiles/OPT-350/GH-96/profile.json"
    layers = json.loads(file.read_text())["1"]["4"].values()
    passes = math.fsum(forward + backward for forward, backward, _ in layers)
    update = next(iter(layers))[2]
    expected_ms = 1e3 * (micro_batches * passes + update)
    assert predict(store, f"gh200-opt-350m-n1-d1-{run}").iteration_ms == pytest.approx(expected_ms)


def test_the_slowest_card_of_the_replicas_sets_the_gradient_time(store: Store) -> None:
    """Four replicas on four nodes: 2 * 3/4 of all gradients over RTX 3090's 0.115 GB/s."""
    prediction = predict(store, "rtx-opt-350m-n4-d4")
    gradients = 407_431_168 * 4
    sync_ms = max(stage.sync_ms for template in prediction.stages for stage in template)
    assert gradients * 1.5 / sync_ms / 1e6 == pytest.approx(0.114, abs=0.002)


def test_a_gh200_node_sends_on_all_four_cards(store: Store) -> None:
    """Two replicas: 2 * 1/2 of all gradients over the 92.6 GB/s of four pairs (one pair: 23)."""
    prediction = predict(store, "gh200-opt-350m-n2-d2")
    sync_ms = prediction.stages[0][0].sync_ms
    assert 407_431_168 * 4 / sync_ms / 1e6 == pytest.approx(92.6, abs=0.1)
