"""The tables that `arachne-run` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specs.door import console
from specs.units import human_bytes, human_ms

if TYPE_CHECKING:
    from runtime.comparison import Comparison, StageRow
    from specs.plan import Plan

FILE_WIDTH = 130  # columns where stdout is no terminal: nobody wants a cut table in a file


def print_comparison(plan: Plan, plan_id: int, run: str, result: Comparison) -> None:
    """Planned against measured: the iteration, then every stage, on stdout."""
    from rich.table import Table

    out = console()
    if not out.is_terminal:
        out.width = max(out.width, FILE_WIDTH)
    out.print(
        f"plan {plan_id} of {plan.model.name} on {plan.gpus_used} devices, run {run}",
        highlight=False,
    )
    table = Table(title="Iteration: planned against measured", pad_edge=False)
    for column in ("iterations", "predicted", "measured", "MAD", "predicted / measured - 1"):
        table.add_column(column, justify="left" if column == "iterations" else "right")
    spreads = [("all after warm-up", result.measured, result.error)]
    if result.steady is not None:
        spreads.append(("with a steady machine", result.steady, result.steady_error))
    for name, spread, error in spreads:
        table.add_row(
            f"{name} ({spread.count})",
            _ms(result.predicted_ms),
            human_ms(spread.ms),
            human_ms(spread.mad_ms),
            _percent(error),
        )
    out.print(table)
    stages = Table(title="Stages: one micro-batch, and once per iteration", pad_edge=False)
    for column in ("stage", "layers", "GPU", "TP"):
        stages.add_column(column, no_wrap=True)
    for figure in ("fwd+bwd", "sync", "update", "memory"):
        stages.add_column(f"{figure} predicted", justify="right")
        stages.add_column("measured", justify="right", no_wrap=True)
        if figure == "fwd+bwd":
            stages.add_column("error", justify="right")
    for row in result.stages:
        stages.add_row(*_stage_cells(plan, row))
    out.print(stages)
    for line in _remarks(result):
        out.print(line, highlight=False, soft_wrap=True)


def _stage_cells(plan: Plan, row: StageRow) -> list[str]:
    measured, predicted = row.measured, row.predicted
    stage = plan.templates[measured.template].stages[measured.stage]
    many = len(plan.templates) > 1
    return [
        f"{measured.template}.{measured.stage}" if many else str(measured.stage),
        f"{stage.layers.start}-{stage.layers.stop - 1}",
        stage.gpu,
        str(stage.tp),
        _ms(row.predicted_ms),
        human_ms(measured.compute_ms),
        _percent(row.error),
        _ms(predicted.sync_ms if predicted else None),
        human_ms(measured.sync_ms),
        _ms(predicted.update_ms if predicted else None),
        human_ms(measured.update_ms),
        human_bytes(predicted.memory.total) if predicted else "-",
        human_bytes(row.peak_bytes),
    ]


def _remarks(result: Comparison) -> list[str]:
    lines = [f"loss {result.loss_first:.4f} -> {result.loss_last:.4f}"]
    if result.bracket is not None:
        before, after = result.bracket.alone_ms
        lines.append(
            f"profiles before and after the run predict {_ms(before)} and {_ms(after)}: the "
            f"machine moved by {result.bracket.drift:+.1%} between them"
            + ("" if result.bracket.steady else ", too far for a window to be judged by")
        )
    lines.append(
        f"machine: {result.drift:+.1%} from start to end of the run (time of a fixed piece of work)"
    )
    if result.slowdown is not None:
        lines.append(
            f"machine: {result.slowdown:+.1%} against the profile that the prediction comes from; "
            f"at that speed predicted {_ms(result.scaled_ms)} ({_percent(result.scaled_error)})"
        )
        if result.steady is None:
            lines.append(
                "no iteration had a machine as fast as the profiled one: the error is the "
                "machine's as much as the plan's; profile again, or wait until the host is idle"
            )
    return lines


def _ms(value: float | None) -> str:
    return "-" if value is None else human_ms(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"
