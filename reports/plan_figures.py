"""Figures of one plan: memory in parts, where the time goes, what its runs took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.explanation import iteration_parts
from reports import words
from reports.accuracy import AccuracyRow
from reports.figures import Cell, Figure, Table, plot_text
from specs.measurement import Measurement
from specs.plan import Plan
from specs.prediction import Prediction, StagePrediction

GIB = 2.0**30
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "transient", "framework")
STAGE_PARTS = ("compute_ms", "comm_ms", "host_ms", "send_ms")
_STAGE_NAMES = {
    "compute_ms": "computation",
    "comm_ms": "collectives",
    "host_ms": "host",
    "send_ms": "transfers",
}


def stage_labels(plan: Plan) -> list[list[str]]:
    """A label for every stage of every template, on two lines: number and GPU type."""
    many = len(plan.templates) > 1
    return [
        [
            (f"{k}.{s}" if many else f"stage {s}") + f"<br>{plot_text(stage.gpu)} tp {stage.tp}"
            for s, stage in enumerate(template.stages)
        ]
        for k, template in enumerate(plan.templates)
    ]


def _stages(plan: Plan, prediction: Prediction) -> list[tuple[int, int, str, StagePrediction]]:
    labels = stage_labels(plan)
    return [
        (k, s, labels[k][s], figure)
        for k, template in enumerate(prediction.stages)
        for s, figure in enumerate(template)
    ]


def _gap(bars: int) -> float:
    """Share of a category that stays empty: a few bars are no wider than many."""
    return max(0.35, 1 - 0.16 * bars)


def memory_figure(plan: Plan, prediction: Prediction) -> Figure:
    """Memory of one GPU of each stage in parts, against its limit; GiB."""
    stages = _stages(plan, prediction)
    names = [label for _, _, label, _ in stages]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": part,
            "x": names,
            "y": [getattr(figure.memory, part) / GIB for *_, figure in stages],
            "marker": {"color": f"var(--c{i + 1})", "line": {"color": "var(--panel)", "width": 1}},
            "hovertemplate": "%{y:.2f} GiB<extra>%{fullData.name}</extra>",
        }
        for i, part in enumerate(MEMORY_PARTS)
    ]
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "limit",
            "x": names,
            "y": [figure.memory.limit / GIB for *_, figure in stages],
            "marker": {
                "symbol": "line-ew-open",
                "size": 34,
                "color": "var(--ink)",
                "line": {"width": 2.5},
            },
            "hovertemplate": "%{y:.2f} GiB<extra>limit</extra>",
        }
    )
    tight = max(stages, key=lambda stage: stage[3].memory.total / stage[3].memory.limit)
    share = 100 * tight[3].memory.total / tight[3].memory.limit
    return Figure(
        "memory",
        "Memory of one GPU, against its limit",
        f"The fullest is stage {tight[1]}"
        + (f" of template {tight[0]}" if len(plan.templates) > 1 else "")
        + f": {words.percent(share)} of {words.memory(tight[3].memory.limit)}. The limit is "
        "usable memory less the head-room that was asked for.",
        Table(
            ("template", "stage", *(f"{part}_bytes" for part in MEMORY_PARTS), "limit_bytes"),
            tuple(
                (k, s, *(getattr(f.memory, part) for part in (*MEMORY_PARTS, "limit")))
                for k, s, _, f in stages
            ),
        ),
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": _gap(len(stages)),
            "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"},
            "xaxis": {"type": "category"},
        },
        height=400,
    )


def stage_time_figure(plan: Plan, prediction: Prediction) -> Figure:
    """Time of one micro-batch on each stage, in parts; the slowest sets the pace."""
    stages = _stages(plan, prediction)
    names = [label for _, _, label, _ in stages]
    slowest = max(stages, key=lambda stage: stage[3].time_ms)
    divisor, unit = words.time_axis(slowest[3].time_ms)
    return Figure(
        "stages",
        "One micro-batch on each stage",
        f"Stage {slowest[1]} is the slowest with {words.ms(slowest[3].time_ms)}; all others wait "
        "for it once every micro-batch.",
        Table(
            ("template", "stage", *STAGE_PARTS, "sync_ms", "update_ms"),
            tuple(
                (k, s, *(getattr(f, part) for part in (*STAGE_PARTS, "sync_ms", "update_ms")))
                for k, s, _, f in stages
            ),
        ),
        traces=[
            {
                "type": "bar",
                "name": _STAGE_NAMES[part],
                "x": names,
                "y": [getattr(figure, part) / divisor for *_, figure in stages],
                "marker": {
                    "color": f"var(--c{i + 1})",
                    "line": {"color": "var(--panel)", "width": 1},
                },
                "hovertemplate": f"%{{y:.4~g}} {unit}<extra>%{{fullData.name}}</extra>",
            }
            for i, part in enumerate(STAGE_PARTS)
        ],
        layout={
            "barmode": "stack",
            "bargap": _gap(len(stages)),
            "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
            "xaxis": {"type": "category"},
        },
        height=400,
    )


def parts_figure(plan: Plan, prediction: Prediction) -> Figure:
    """The iteration in parts along its slowest stage, beside the lower bound; ms."""
    parts = iteration_parts(plan)
    divisor, unit = words.time_axis(prediction.iteration_ms)
    rows: list[tuple[Cell, ...]] = [(name, value) for name, value in parts.items()]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name.replace("_", " "),
            "y": ["this plan"],
            "x": [value / divisor],
            "marker": {
                "color": f"var(--c{i % 8 + 1})",
                "line": {"color": "var(--panel)", "width": 1},
            },
            "text": [words.percent(100 * value / prediction.iteration_ms)],
            "textposition": "inside",
            "textangle": 0,
            "constraintext": "inside",
            "insidetextfont": {"color": "var(--panel)"},
            "hovertemplate": f"{words.ms(value)} (%{{text}})<extra>%{{fullData.name}}</extra>",
        }
        for i, (name, value) in enumerate(parts.items())
        if value > 0
    ]
    bound = prediction.bound_iteration_ms
    caption = "The parts add up to the predicted iteration time. "
    if bound is not None:
        rows.append(("lower_bound", bound))
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": "lower bound",
                "y": ["no plan is faster"],
                "x": [bound / divisor],
                "marker": {
                    "color": "rgba(0,0,0,0)",
                    "line": {"color": "var(--axis)", "width": 2},
                },
                "hovertemplate": f"{words.ms(bound)}<extra>lower bound</extra>",
            }
        )
        caption += (
            f"No plan on this cluster can take less than {words.ms(bound)} "
            f"({words.percent(100 * bound / prediction.iteration_ms)} of this one)."
        )
    else:
        caption += "No lower bound was computed for this plan."
    return Figure(
        "parts",
        "Where the iteration goes",
        caption,
        Table(("part", "ms"), tuple(rows)),
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": 0.4,
            "uniformtext": {"mode": "hide", "minsize": 9},
            "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
            "yaxis": {"type": "category", "ticks": "", "autorange": "reversed"},
        },
        wide=True,
        height=250,
    )


def runs_figure(rows: Sequence[AccuracyRow], iterations: Sequence[Measurement]) -> Figure:
    """Every measured iteration of the plan's runs, with the predicted time as a line."""
    predicted = rows[0].predicted_ms
    # Warm-ups may take tens of times as long: they are drawn, but do not set the scale.
    top = max([predicted, *(m.iteration_ms for m in iterations if not m.warm_up)])
    divisor, unit = words.time_axis(top)
    runs = list(dict.fromkeys((m.run, m.host) for m in iterations))
    traces = []
    for i, (run, host) in enumerate(runs):
        mine = [m for m in iterations if (m.run, m.host) == (run, host)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(mine) < 200 else "lines",
                "name": plot_text(f"{run} on {host}" if host else run, 44),
                "x": [m.iteration for m in mine],
                "y": [m.iteration_ms / divisor for m in mine],
                "marker": {
                    "color": f"var(--c{i % 8 + 1})",
                    "size": 7,
                    "symbol": [
                        "circle-open" if m.warm_up else "square" if m.samples > 1 else "circle"
                        for m in mine
                    ],
                },
                "line": {"color": f"var(--c{i % 8 + 1})", "width": 1.4},
                "hovertemplate": f"iteration %{{x}}: %{{y:.4~g}} {unit}"
                "<extra>%{fullData.name}</extra>",
            }
        )
    return Figure(
        "runs",
        "What its runs took",
        "Measured iterations, warm-ups hollow (above the frame where they took longer), published "
        f"means square; the line is the prediction, {words.ms(predicted)}.",
        Table(
            ("run", "host", "iteration", "iteration_ms", "samples", "warm_up", "loss"),
            tuple(
                (m.run, m.host, m.iteration, m.iteration_ms, m.samples, m.warm_up, m.loss)
                for m in iterations
            ),
        ),
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "iteration"}, "zeroline": False},
            "yaxis": {"title": {"text": unit}, "range": [0, 1.15 * top / divisor]},
            "shapes": [
                {
                    "type": "line",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "y0": predicted / divisor,
                    "y1": predicted / divisor,
                    "line": {"color": "var(--ink)", "width": 1.5, "dash": "dash"},
                }
            ],
        },
        wide=True,
        height=360,
    )
