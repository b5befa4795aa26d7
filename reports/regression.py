"""Whether predictions got worse since an earlier report: the same runs, then and now."""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reports.accuracy import AccuracyRow
from reports.summary import trust
from specs.errors import SpecError

SCHEMA_VERSION = 1
THRESHOLD_POINTS = 1.0  # below this a median over a handful of runs moves by itself
ROWS_SHOWN = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Median absolute error of the runs that both reports have, in percent, then and now.

    then_percent and now_percent: over shared_runs. all_now_percent: over all runs of the group
    today. worse: now is more than THRESHOLD_POINTS above then.
    """

    source: str
    hardware: str
    shared_runs: int
    new_runs: int
    then_percent: float | None
    now_percent: float | None
    all_now_percent: float
    worse: bool


@dataclass(frozen=True, slots=True)
class RunChange:
    """A run whose absolute error grew by more than THRESHOLD_POINTS; errors are signed."""

    plan_id: int
    model: str
    run: str
    then_percent: float
    now_percent: float


@dataclass(frozen=True)
class Regression:
    """The comparison with the earlier report that was made at `earlier`."""

    earlier: str
    groups: tuple[GroupChange, ...]
    runs: tuple[RunChange, ...]

    @property
    def worse(self) -> bool:
        """Whether any group got worse."""
        return any(group.worse for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """The comparison as it stands in accuracy.json."""
        return {
            "earlier": self.earlier,
            "worse": self.worse,
            "threshold_points": THRESHOLD_POINTS,
            "groups": [asdict(group) for group in self.groups],
            "runs": [asdict(run) for run in self.runs],
        }


def fingerprint(rows: Sequence[AccuracyRow]) -> str:
    """A hash of what was predicted and measured: equal where nothing changed between reports."""
    facts = sorted([*row.key, row.source, row.predicted_ms, row.measured_ms] for row in rows)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def read_earlier(path: Path, *, must_exist: bool) -> Mapping[str, Any] | None:
    """An earlier accuracy.json, or None where there is none.

    Raises SpecError where the file is asked for by name and is missing or of another form; the
    one that merely lies beside the page is then passed over with a warning.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA_VERSION:
            raise ValueError(f"schema is {document.get('schema') if document else None!r}")
        for row in document["rows"]:
            _key_of(row), float(row["error_percent"])
        str(document["made"]), str(document["fingerprint"])
        return document
    except FileNotFoundError:
        if must_exist:
            raise SpecError(f"{path}: no such file, expected an earlier accuracy.json") from None
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        complaint = f"{path}: is not an earlier accuracy.json ({type(error).__name__}: {error})"
        if must_exist:
            raise SpecError(complaint) from None
        log.warning("%s: nothing to compare with", complaint)
        return None


def _key_of(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return (str(row["plan_hash"]), str(row["planner"]), str(row["run"]), str(row["host"]))


def compare(earlier: Mapping[str, Any], rows: Sequence[AccuracyRow]) -> Regression:
    """The runs of an earlier report and of today, matched by plan, planner, run and host.

    Groups that got worse come first, the most trusted source first among equals.
    """
    before = {_key_of(row): float(row["error_percent"]) for row in earlier["rows"]}
    groups: dict[tuple[str, str], list[AccuracyRow]] = defaultdict(list)
    for row in rows:
        groups[(row.source, row.hardware)].append(row)
    changes = []
    for (source, hardware), group in sorted(groups.items(), key=_trusted_first):
        shared = [row for row in group if row.key in before]
        then = _median_absolute([before[row.key] for row in shared])
        now = _median_absolute([100 * row.error for row in shared])
        changes.append(
            GroupChange(
                source=source,
                hardware=hardware,
                shared_runs=len(shared),
                new_runs=len(group) - len(shared),
                then_percent=then,
                now_percent=now,
                all_now_percent=statistics.median(100 * abs(row.error) for row in group),
                worse=then is not None and now is not None and now - then > THRESHOLD_POINTS,
            )
        )
    changes.sort(key=lambda change: not change.worse)
    worse_runs = [
        RunChange(row.plan_id, row.model, row.run, before[row.key], 100 * row.error)
        for row in rows
        if row.key in before and 100 * abs(row.error) - abs(before[row.key]) > THRESHOLD_POINTS
    ]
    worse_runs.sort(key=lambda run: abs(run.then_percent) - abs(run.now_percent))
    return Regression(str(earlier["made"]), tuple(changes), tuple(worse_runs[:ROWS_SHOWN]))


def _trusted_first(item: tuple[tuple[str, str], object]) -> tuple[tuple[int, str], str]:
    (source, hardware), _ = item
    return trust(source), hardware


def against(earlier: Mapping[str, Any] | None, rows: Sequence[AccuracyRow]) -> Regression | None:
    """The comparison to show today.

    Where nothing changed since the earlier report, it is the one that report made: making a page
    twice must not wash a flag away.
    """
    if earlier is None:
        return None
    if earlier["fingerprint"] == fingerprint(rows):
        carried = earlier.get("regression")
        if not carried:
            return None
        try:
            return Regression(
                str(carried["earlier"]),
                tuple(GroupChange(**group) for group in carried["groups"]),
                tuple(RunChange(**run) for run in carried["runs"]),
            )
        except (KeyError, TypeError) as error:
            log.warning("the earlier report's own comparison cannot be read (%s)", error)
            return None
    return compare(earlier, rows)


def _median_absolute(errors: Sequence[float]) -> float | None:
    return statistics.median(abs(error) for error in errors) if errors else None
