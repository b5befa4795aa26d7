"""Rich tables of plans: stages with a memory bar, lists, rejections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.answer import figures, stage_rows
from specs.units import human_bytes, human_ms

if TYPE_CHECKING:
    from rich.table import Table

    from specs.plan import Plan

BAR = 12  # characters of a memory bar


def memory_bar(need: float, limit: float) -> str:
    """How full a GPU is, as text: filled and empty cells, the share, and the limit."""
    share = need / limit if limit > 0 else float("inf")
    filled = min(BAR, round(share * BAR))
    colour = "red" if need > limit else "yellow" if share > 0.95 else "green"
    bar = f"[{colour}]{'█' * filled}[/][dim]{'░' * (BAR - filled)}[/]"
    return f"{bar} {share:.0%} of {human_bytes(limit)}"


def stage_table(plan: Plan, *, details: bool = False) -> Table:
    """Every stage of every template: place, layers, times of a micro-batch, memory."""
    from rich.table import Table

    table = Table(title=None, pad_edge=False)
    columns = ["stage", "GPU", "TP", "layers", "time"]
    columns += ["compute", "comm", "host"] if details else []
    columns += ["transfer", "bubble", "sync", "update", "memory"]
    tiled = any(s.ep * s.etp > 1 for t in plan.templates for s in t.stages)
    if tiled:
        columns.insert(3, "EPxETP")
    for column in columns:
        text = column in ("stage", "GPU", "layers", "memory")
        table.add_column(column, justify="left" if text else "right", no_wrap=True)
    many = len(plan.templates) > 1
    for row in stage_rows(plan):
        cells = {
            "stage": f"{row['template']}.{row['stage']}" if many else str(row["stage"]),
            "GPU": row["gpu"],
            "TP": str(row["tp"]),
            "EPxETP": f"{row['ep']}x{row['etp']}",
            "layers": f"{row['layers'][0]}-{row['layers'][1] - 1}",
            "time": human_ms(row["time_ms"]),
            "compute": human_ms(row["compute_ms"]),
            "comm": human_ms(row["comm_ms"]),
            "host": human_ms(row["host_ms"]),
            "transfer": human_ms(row["send_ms"]),
            "bubble": f"{row['bubble_share']:.0%}",
            "sync": human_ms(row["sync_ms"]),
            "update": human_ms(row["update_ms"]),
            "memory": memory_bar(row["memory_bytes"]["total"], row["limit_bytes"]),
        }
        last = row["stage"] == plan.templates[row["template"]].depth - 1
        table.add_row(*(cells[column] for column in columns), end_section=many and last)
    return table


def counted(count: int, thing: str) -> str:
    """ "1 stage", "2 stages"."""
    ending = "" if count == 1 else "es" if thing.endswith("ch") else "s"
    return f"{count} {thing}{ending}"


def template_lines(plan: Plan) -> list[str]:
    """One line per template: replicas, micro-batch, how many of them."""
    prediction = plan.prediction
    lines = []
    for k, template in enumerate(plan.templates):
        least = min(replica.micro_batches for replica in template.replicas)
        most = max(replica.micro_batches for replica in template.replicas)
        batches = counted(most, "micro-batch")
        batches = batches if least == most else f"{least} to {batches}"
        pipe = f", pipeline {human_ms(prediction.pipe_ms[k])}" if prediction else ""
        lines.append(
            f"template {k}: {counted(len(template.replicas), 'replica')} x "
            f"{counted(template.gpus_per_replica, 'GPU')} in {counted(template.depth, 'stage')}, "
            f"micro-batch {template.micro_batch}, {batches} each{pipe}"
        )
    return lines


def summary_lines(plan: Plan) -> list[str]:
    """What a reader wants to know first."""
    figure = figures(plan)
    lines = [
        f"{plan.model.name} on {plan.cluster.name}: {human_ms(figure['iteration_s'] * 1000)} per "
        f"iteration of {plan.workload.global_batch} x {plan.workload.seq_len} tokens, "
        f"{figure['samples_per_s']:.2f} samples/s, {figure['tokens_per_s']:,.0f} tokens/s",
        f"{figure['gpus_used']} of {figure['gpus']} GPUs, planner {plan.planner}, "
        f"profiles {', '.join(figure['sources']) or 'unknown'}",
    ]
    bound = figure["bound_iteration_s"]
    if bound is not None:
        gap = figure["iteration_s"] / bound - 1
        lines.append(
            f"certificate: no plan is faster than {human_ms(bound * 1000)}; this one is "
            f"{gap:.1%} above that bound"
        )
    if not figure["fits"]:
        lines.append("[red]this plan does not fit its memory[/]")
    return lines


def tally_line(rejected: Mapping[str, int]) -> str:
    """Rejections by reason in one line: `10,494 rejected: memory at stage 0; ...`."""
    ranked = sorted(rejected.items(), key=lambda item: -item[1])
    shown = [f"{count:,} rejected: {reason}" for reason, count in ranked[:5]]
    if len(ranked) > 5:
        rest = sum(count for _, count in ranked[5:])
        shown.append(f"{rest:,} rejected for {len(ranked) - 5} other reasons")
    return "; ".join(shown)


def plain_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of these columns of these rows; numbers to the right."""
    from rich.table import Table

    table = Table(pad_edge=False)
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return str(value)
