"""A store as CSV files, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from db import exchange, revisions
from db.exchange import export_store, import_store
from db.records import (
    ComparisonRow,
    CurvePoint,
    NewComparison,
    NewPolicy,
    NewReconfiguration,
    SearchCurve,
)
from db.store import Store, open_store
from db.tables import Base
from specs.errors import StoreError
from specs.measurement import RunTrace, StageTimes, StageTrack
from specs.profile import RunStatus
from tests.db.samples import (
    CLUSTER,
    MODEL,
    REFUSAL,
    RUN,
    WORKLOAD,
    key,
    measured_run,
    measurement,
    plan,
    profile,
)
from tests.db.test_revisions import migrations_with

NASTY = [
    "",
    "NULL",
    "NA",
    "nan",
    "1,5",
    'quote " inside',
    "line\nbreak",
    "line\r\nbreak",
    "bare\rreturn",
    " spaces ",
    "\ttab",
    "\u00e9\U0001f577",
    "\\N",
    "=1+1",
    "x" * 5000,
    "\ufeffbom",
    "\u2028\x85\x0b",
]


def fill(store: Store) -> int:
    """Something in every table; the id of a plan."""
    run = measured_run(store)
    refusals = [replace(REFUSAL, key=key(100 + i), reason=reason) for i, reason in enumerate(NASTY)]
    store.add_layer_profiles(run, refusals)
    plan_id = store.add_plan(plan(run), options={"seed": 0, "note": NASTY}, rejected={"memory": 3})
    unpriced = store.add_plan(plan())
    stages = (
        StageTimes(0, 0, 0.1, 1 / 3, 0.0, 2.5, 1e-9, 0.7),
        StageTimes(0, 1, 0.1, 1 / 3, 0.0, 2.5, 1e-9, 0.7, comm_ms=1 / 7),
    )
    store.add_measurements(plan_id, [measurement(i, stages=stages[:i]) for i in range(4)])
    track = StageTrack(0, 1, (("forward", 0, 0.1, 1 / 3), ("sync", -1, 1 / 3, 0.5)))
    store.add_trace(plan_id, RunTrace("run-1", 2, 14.0, (track,)))
    store.add_measurements(plan_id, [measurement(0, "other", loss=None, drift=None, peak_bytes=())])
    comparison = store.add_comparison(NewComparison("tiny", MODEL, WORKLOAD, CLUSTER))
    store.add_comparison_row(comparison, ComparisonRow("random", plan_id, "ok", "", 12.5, 0.1, 7))
    store.add_comparison_row(comparison, ComparisonRow("metis", None, "no plan", "why"))
    points = (CurvePoint(1, None), CurvePoint(2**40, 0.1, 1e-3))
    store.add_search_curve(comparison, SearchCurve("random", points, seed=2**40))
    store.add_reconfiguration(NewReconfiguration("join", plan_id, unpriced, {"plan": 2.16}, (1,)))
    store.add_policy(NewPolicy("run", "paper", ("llama-3-8b",), {"best": 0.5}, "ab" * 32))
    return plan_id


def content(store: Store) -> list[object]:
    """All that the store hands out, without its ids and moments."""
    runs = store.profile_runs()
    position = {run.id: i for i, run in enumerate(runs)}
    plans = store.plans()
    layout = {stored.id: (stored.plan_hash, dict(stored.options)) for stored in plans}
    return [
        store.models(),
        store.layer_types(),
        [(r.run, r.status, r.started, r.ended, r.layer_rows, r.refused_rows) for r in runs],
        [(position[s.run.id], s.profile) for s in store.layer_profiles()],
        [(position[s.run.id], s.refusal) for s in store.layer_refusals()],
        [(position[s.run.id], s.profile) for s in store.link_profiles()],
        [(position[s.run.id], s.profile) for s in store.host_profiles()],
        [
            (s.plan_hash, s.iteration_ms, [position[run] for run in s.profile_runs], s.rejected)
            for s in plans
        ],
        [(layout[s.plan_id], s.measurement) for s in store.measurements()],
        [(layout[s.id], t.trace) for s in plans for t in store.traces(s.id)],
        [
            (c.comparison, [(layout.get(r.plan_id or 0), replace(r, plan_id=None)) for r in c.rows])
            for c in store.comparisons()
        ],
        [s.curve for s in store.search_curves()],
        [
            (layout[e.old_plan_id or 0], layout[e.new_plan_id or 0], e.phases_ms, e.bytes_per_rank)
            for e in (s.reconfiguration for s in store.reconfigurations())
        ],
        [s.policy for s in store.policies()],
    ]


def test_a_store_comes_back_whole_into_an_empty_one(
    store: Store, tmp_path: Path, backend: str
) -> None:
    fill(store)
    export = export_store(store, tmp_path / "out")
    with open_store(tmp_path / "other.db") as other:
        counts = import_store(other, tmp_path / "out")
        assert content(other) == content(store)
        assert {name: count.added for name, count in counts.items()} == export.rows
        assert all(export.rows.values()), "a table without a row shows nothing"
        assert all(count.present == 0 for count in counts.values())


def test_an_export_goes_from_one_backend_to_the_other(url: str, tmp_path: Path) -> None:
    """From a file into whichever store the parameter says."""
    with open_store(tmp_path / "source.db") as source:
        fill(source)
        export_store(source, tmp_path / "out")
        with open_store(url) as store:
            import_store(store, tmp_path / "out")
            assert content(store) == content(source)


def test_importing_again_doubles_nothing(store: Store, tmp_path: Path) -> None:
    fill(store)
    before = content(store)
    export = export_store(store, tmp_path / "out")
    counts = import_store(store, tmp_path / "out")
    assert {name: count.present for name, count in counts.items()} == export.rows
    assert all(count.added == 0 for count in counts.values())
    assert content(store) == before


def test_two_stores_join_although_their_ids_clash(store: Store, tmp_path: Path) -> None:
    """Run 1 of one store is another run than run 1 of the other, and each plan keeps its own."""
    fill(store)
    with open_store(tmp_path / "other.db") as other:
        theirs = measured_run(other, rows=1, new=replace(RUN, origin="another lab"))
        plan_id = other.add_plan(plan(theirs, iteration_ms=77.0))
        other.add_measurements(plan_id, [measurement(0, "theirs")])
        export_store(other, tmp_path / "out")
    import_store(store, tmp_path / "out")
    assert [run.run.origin for run in store.profile_runs()] == [RUN.origin, "another lab"]
    (found,) = [stored for stored in store.plans() if stored.iteration_ms == 77.0]
    ours = store.profile_runs()[1].id
    assert found.profile_runs == (ours,)
    assert found.plan.prediction is not None
    assert found.plan.prediction.profile_runs == (ours,)
    assert [s.measurement.run for s in store.measurements(found.id)] == ["theirs"]
    assert len(store.models()) == 1
    assert store.add_plan(plan(ours, iteration_ms=77.0)) == found.id  # the same plan here too


def test_a_run_that_was_running_takes_its_end_and_its_later_rows(
    store: Store, tmp_path: Path
) -> None:
    store.add_model(MODEL)
    run = store.start_run(RUN)
    store.add_layer_profiles(run, [profile(1)])
    with open_store(tmp_path / "other.db") as other:
        import_store(other, export_store(store, tmp_path / "first").folder)
        store.add_layer_profiles(run, [profile(2)])
        store.finish_run(run, RunStatus.COMPLETE)
        import_store(other, export_store(store, tmp_path / "second").folder)
        (found,) = other.profile_runs()
        assert (found.status, found.layer_rows) == (RunStatus.COMPLETE, 2)
        assert found.ended == store.profile_run(run).ended
        import_store(other, tmp_path / "first")  # an older export takes nothing back
        assert other.profile_runs() == [found]


def test_a_run_deleted_here_does_not_come_back(store: Store, tmp_path: Path) -> None:
    run = measured_run(store)
    store.add_plan(plan(run))
    export_store(store, tmp_path / "out")
    store.delete_run(run, force=True)
    counts = import_store(store, tmp_path / "out")
    assert counts["layer_profiles"].added == 0
    assert store.profile_runs() == []
    assert store.layer_profiles() == []
    assert len(store.plans()) == 1


def test_a_store_with_a_deleted_run_can_be_exported(store: Store, tmp_path: Path) -> None:
    run = measured_run(store)
    plan_id = store.add_plan(plan(run))
    store.delete_run(run, force=True)
    export_store(store, tmp_path / "out")
    with open_store(tmp_path / "other.db") as other:
        import_store(other, tmp_path / "out")
        assert other.profile_runs() == []
        assert other.plans()[0].plan == store.plan(plan_id).plan


def test_the_files_are_what_pandas_reads(store: Store, tmp_path: Path) -> None:
    fill(store)
    folder = export_store(store, tmp_path / "out").folder
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        *(f"{name}.csv" for name in Base.metadata.tables if name != "store_revisions"),
    }
    layers = pd.read_csv(folder / "layer_profiles.csv")
    ok = layers[layers.status == "ok"]
    assert ok.forward_ms.tolist() == [0.1, 0.1, 0.1]
    assert ok.activation_bytes.tolist() == [3 * 2**40 + 1] * 3
    assert ok.comm_included.tolist() == [True] * 3
    assert layers.forward_ms.isna().sum() == len(NASTY) + 1
    moments = pd.to_datetime(pd.read_csv(folder / "profile_runs.csv").started)
    assert moments[0].to_pydatetime() == store.profile_runs()[0].started
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["revision"] == revisions.known_revisions()[-1]
    assert manifest["tables"]["layer_profiles"]["rows"] == len(NASTY) + 4


def test_an_empty_store_goes_out_and_in(store: Store, tmp_path: Path) -> None:
    export = export_store(store, tmp_path / "out")
    assert set(export.rows.values()) == {0}
    with open_store(tmp_path / "other.db") as other:
        import_store(other, tmp_path / "out")
        assert other.profile_runs() == []


def test_a_folder_with_something_in_it_is_not_written_over(tmp_path: Path) -> None:
    with open_store(tmp_path / "lab.db") as store:
        (tmp_path / "empty").mkdir()
        export_store(store, tmp_path / "empty")
        for place in ("empty", "lab.db", "."):
            with pytest.raises(StoreError, match="exists and is not an empty folder"):
                export_store(store, tmp_path / place)
        with pytest.raises(StoreError, match="cannot be made"):
            export_store(store, tmp_path / "lab.db" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "lab.db"]


def test_an_export_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "lab.db") as store:
        monkeypatch.setattr(exchange, "_sha256", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export_store(store, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lab.db"]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    with open_store(tmp_path / "source.db") as source:
        fill(source)
        return export_store(source, tmp_path / "out").folder


def change(folder: Path, name: str, old: str, new: str) -> None:
    """Change a file of an export, and the manifest with it, as somebody might by hand."""
    path = folder / name
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1), newline="")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tables"][path.stem]["sha256"] = exchange._sha256(path)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("host_profiles.csv", "0.25", "often", "host_ms of row 1 is 'often', expected FLOAT"),
        ("host_profiles.csv", "0.25", "", "host_ms of row 1 is '', expected FLOAT"),
        ("host_profiles.csv", "0.25", "-0.25", "times_not_negative"),
        ("host_profiles.csv", '"host_ms"', '"host_us"', "column host_ms is missing or unknown"),
        ("measurements.csv", '"true"', '"yes"', "warm_up of row 1 is 'yes'"),
        ("plans.csv", '"identity"', '"name"', "column identity is missing or unknown"),
        (
            "model_layers.csv",
            "\n1,1,",
            "\n1,99,",
            "row 1 of model_layers points at no row of models",
        ),
        ("profile_runs.csv", "+00:00", " at noon", "started of row 1"),
        ("clusters.csv", '"{', '"{{', "document of row 1"),
    ],
)
def test_changed_files_are_refused_and_the_store_stays_as_it_was(
    store: Store, exported: Path, name: str, old: str, new: str, said: str
) -> None:
    change(exported, name, old, new)
    with pytest.raises(StoreError) as raised:
        import_store(store, exported)
    assert said in str(raised.value)
    assert content(store) == [[]] * 14


def test_folders_that_are_no_export_are_refused(store: Store, exported: Path) -> None:
    def refused(said: str) -> None:
        with pytest.raises(StoreError, match=said):
            import_store(store, exported)

    with pytest.raises(StoreError, match="no such folder"):
        import_store(store, exported / "nowhere")
    plans = exported / "plans.csv"
    kept = plans.read_bytes()
    plans.write_bytes(kept + b"\n")
    refused(r"plans.csv: was changed after the export \(its sha256 differs\)")
    plans.unlink()
    refused("plans.csv: is missing")
    plans.write_bytes(kept)
    manifest = exported / "manifest.json"
    good = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(good | {"revision": "0099", "arachne_version": "9.9"}))
    refused("revision 0099 was written by Arachne 9.9")
    manifest.write_text(json.dumps(good | {"format": 2}))
    refused("format 2")
    manifest.write_text("[]")
    refused("is not a manifest")
    tables = dict(good["tables"])
    del tables["plans"]
    manifest.write_text(json.dumps(good | {"tables": tables}))
    refused("table plans is missing or unknown")
    tables = dict(good["tables"])
    tables["../plans"] = tables.pop("plans")
    manifest.write_text(json.dumps(good | {"tables": tables}))
    refused("expected rows and sha256")
    tables = json.loads(json.dumps(good["tables"]))
    tables["plans"]["rows"] += 1
    manifest.write_text(json.dumps(good | {"tables": tables}))
    refused("not as listed")
    manifest.unlink()
    refused("has no manifest.json")
    assert content(store) == [[]] * 14


def test_an_export_of_an_older_arachne_is_upgraded_on_the_way(
    url: str, tmp_path: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = migrations_with(tmp_path / "next" / "migrations", "pass")
    monkeypatch.setattr(revisions, "MIGRATIONS", newer)
    with open_store(url) as store:
        counts = import_store(store, exported)
        assert counts["profile_runs"].added == 1
        assert len(store.layer_profiles()) == 3


def test_an_import_that_fails_in_the_middle_keeps_nothing(
    store: Store, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from db import merge

    def fail(*arguments: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(merge, "_end_runs", fail)  # after models, layer types and runs
    with pytest.raises(RuntimeError):
        import_store(store, exported)
    assert content(store) == [[]] * 14
