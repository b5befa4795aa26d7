"""Errors by source and hardware: never one figure over sources without saying so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from reports.accuracy import AccuracyRow

if TYPE_CHECKING:
    import pandas as pd

ALL_HARDWARE = "all hardware"
MIXED = "all sources, mixed"


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of a group of runs in percent of the measured time.

    mean_percent, median_percent: of the absolute error. bias_percent: median of the signed error.
    within_10_percent, within_25_percent: share of the runs. worst_percent: signed error of the run
    that is furthest off, which is that of plan worst_plan_id. noise_percent: median run-to-run
    spread, None where no plan was run twice.
    """

    source: str
    hardware: str
    runs: int
    plans: int
    mean_percent: float
    median_percent: float
    bias_percent: float
    within_10_percent: float
    within_25_percent: float
    worst_percent: float
    worst_plan_id: int
    worst_run: str
    noise_percent: float | None
    memory_runs: int
    memory_median_percent: float | None

    def to_json(self) -> dict[str, Any]:
        """The summary by field name."""
        return asdict(self)


def error_frame(rows: Sequence[AccuracyRow]) -> pd.DataFrame:
    """One line a run, errors in percent."""
    import pandas as pd

    return pd.DataFrame(
        {
            "source": [row.source for row in rows],
            "hardware": [row.hardware for row in rows],
            "plan_id": [row.plan_id for row in rows],
            "run": [row.run for row in rows],
            "error": [100 * row.error for row in rows],
            "noise": [None if row.run_to_run is None else 100 * row.run_to_run for row in rows],
            "memory": [
                None if row.memory_error is None else 100 * row.memory_error for row in rows
            ],
        }
    ).astype({"error": float, "noise": float, "memory": float})


def _summarise(source: str, hardware: str, group: pd.DataFrame) -> ErrorSummary:
    error = group["error"]
    absolute = error.abs()
    worst = group.iloc[int(absolute.to_numpy().argmax())]
    noise, memory = group["noise"].dropna(), group["memory"].dropna()
    return ErrorSummary(
        source=source,
        hardware=hardware,
        runs=len(group),
        plans=int(group["plan_id"].nunique()),
        mean_percent=float(absolute.mean()),
        median_percent=float(absolute.median()),
        bias_percent=float(error.median()),
        within_10_percent=float(100 * (absolute <= 10).mean()),
        within_25_percent=float(100 * (absolute <= 25).mean()),
        worst_percent=float(worst["error"]),
        worst_plan_id=int(worst["plan_id"]),
        worst_run=str(worst["run"]),
        noise_percent=float(noise.median()) if len(noise) else None,
        memory_runs=len(memory),
        memory_median_percent=float(memory.abs().median()) if len(memory) else None,
    )


def by_source_and_hardware(rows: Sequence[AccuracyRow]) -> list[ErrorSummary]:
    """A summary for each source on each hardware, most trusted source first."""
    if not rows:
        return []
    groups = error_frame(rows).groupby(["source", "hardware"], sort=False)
    found = [_summarise(str(source), str(hw), group) for (source, hw), group in groups]
    return sorted(found, key=lambda summary: (trust(summary.source), summary.hardware))


def by_source(rows: Sequence[AccuracyRow]) -> list[ErrorSummary]:
    """A summary for each source over all hardware, most trusted source first."""
    if not rows:
        return []
    groups = error_frame(rows).groupby("source", sort=False)
    found = [_summarise(str(source), ALL_HARDWARE, group) for source, group in groups]
    return sorted(found, key=lambda summary: trust(summary.source))


def overall(rows: Sequence[AccuracyRow]) -> ErrorSummary | None:
    """All runs together, labelled as the mixture it is; None without runs."""
    if not rows:
        return None
    sources = {row.source for row in rows}
    label = MIXED if len(sources) > 1 else sources.pop()
    return _summarise(label, ALL_HARDWARE, error_frame(rows))


def trust(label: str) -> tuple[int, str]:
    """Sort key of a source label: `measured` first, mixtures after the pure ones."""
    order = ["measured", "imported", "estimated"]
    return (order.index(label) if label in order else len(order), label)
