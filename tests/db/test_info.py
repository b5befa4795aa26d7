"""What `arachne-db info` tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from db import revisions
from db.info import describe
from db.revisions import State, known_revisions
from db.store import Store, open_store
from specs.errors import StoreError
from tests.db.samples import measured_run
from tests.db.test_revisions import NEXT, migrations_with


def test_a_store_is_told_of_with_its_rows(store: Store, url: str, backend: str) -> None:
    measured_run(store)
    told = describe(url)
    assert (told.backend, told.state) == (backend, State.CURRENT)
    assert told.revision == told.program_revision == known_revisions()[-1]
    assert told.rows["layer_profiles"] == 4
    assert told.rows["plans"] == 0
    assert "store_revisions" not in told.rows
    assert told.size_bytes > 10_000
    assert [step.revision for step in told.history] == known_revisions()
    assert told.to_json()["rows"] == told.rows


def test_older_and_newer_stores_are_told_of_and_left_as_they_are(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_migrations = migrations_with(tmp_path / "next", "pass")
    with monkeypatch.context() as patched:
        patched.setattr(revisions, "MIGRATIONS", next_migrations)
        for _ in range(2):
            assert (describe(url).state, describe(url).program_revision) == (State.OLDER, NEXT)
        open_store(url).close()
        assert describe(url).state is State.CURRENT
    assert (describe(url).state, describe(url).revision) == (State.NEWER, NEXT)
    assert len(describe(url).history) == len(known_revisions()) + 1


def test_nothing_is_told_of_nothing(empty_url: str) -> None:
    with pytest.raises(StoreError, match="no store there; arachne-db init makes one"):
        describe(empty_url)
