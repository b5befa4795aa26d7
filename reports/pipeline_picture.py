"""A plan as a picture: which layers each stage has, and where every replica runs."""

from __future__ import annotations

from collections import defaultdict

from reports import words
from reports.figures import Cell, Figure, Table, category_colour
from reports.svg import Drawing, fitted
from specs.plan import Plan, Replica, Stage, Template

WIDTH = 1200.0
LEFT = 150.0  # where the replicas' names stand
REPLICAS_DRAWN = 6  # of a template; further ones run the same stages elsewhere
NODES_DRAWN = 160


def gpu_colours(plan: Plan) -> dict[str, str]:
    """A colour for each GPU type of the cluster, in the order of the cluster file."""
    return {gpu: category_colour(i) for i, gpu in enumerate(plan.cluster.gpus_by_type)}


def layers_in_words(plan: Plan, stage: Stage) -> str:
    """The layers of a stage: `embedding, blocks 0-7`, `blocks 8-31, head`."""
    parts: list[str] = []
    blocks = [i - 1 for i in stage.layers if plan.model.layers[i].kind.is_block]
    if stage.layers.start == 0:
        parts.append("embedding")
    if blocks:
        run = f"{blocks[0]}-{blocks[-1]}" if len(blocks) > 1 else f"{blocks[0]}"
        parts.append(f"block{'s' if len(blocks) > 1 else ''} {run}")
    if stage.layers.stop == len(plan.model.layers):
        parts.append("head")
    return ", ".join(parts)


def _words_that_fit(plan: Plan, stage: Stage, room: float) -> str:
    """The layers of a stage in words, or by number where the words are too long."""
    words_of_it = layers_in_words(plan, stage)
    if fitted(words_of_it, 11.5, room) == words_of_it or len(stage.layers) == 1:
        return words_of_it
    return f"{stage.layers.start}-{stage.layers.stop - 1}"


def placements(plan: Plan) -> Table:
    """Where every TP group runs: one row per template, replica and stage."""
    rows: list[tuple[Cell, ...]] = []
    for k, r, s, place in plan.places():
        template = plan.templates[k]
        stage, replica = template.stages[s], template.replicas[r]
        gpus = " ".join(map(str, place.gpus))
        first, last = stage.layers.start, stage.layers.stop - 1
        share = (replica.micro_batches, template.samples(replica))
        rows.append((k, r, s, stage.gpu, stage.tp, first, last, place.node, gpus, *share))
    return Table(
        (
            *("template", "replica", "stage", "gpu", "tp", "first_layer", "last_layer"),
            *("node", "gpus", "micro_batches", "samples"),
        ),
        tuple(rows),
    )


def pipeline_figure(plan: Plan) -> Figure:
    """The pipeline of each template: layers over stages, then replicas over nodes."""
    depth = sum(template.depth for template in plan.templates)
    replicas = sum(len(template.replicas) for template in plan.templates)
    drawing = Drawing(
        "The pipeline",
        f"{words.plural(depth, 'stage')} and {words.plural(replicas, 'replica')} of "
        f"{plan.model.name} on {plan.gpus_used} GPUs.",
    )
    y = 8.0
    for k, template in enumerate(plan.templates):
        if len(plan.templates) > 1:
            drawing.text(0, y + 14, f"Template {k}", size=15, weight=650)
            y += 30
        y = _layer_ribbon(drawing, plan, template, y)
        y = _replicas(drawing, plan, template, y + 16) + 34
    drawing.rect(0, 0, WIDTH, max(1.0, y - 30))
    return Figure(
        "pipeline",
        "The pipeline",
        "Layers of the model dealt to the stages, then every replica's path over GPUs and nodes. "
        "A dashed arrow crosses the network.",
        placements(plan),
        svg=drawing.to_svg(),
        wide=True,
    )


def _layer_ribbon(drawing: Drawing, plan: Plan, template: Template, y: float) -> float:
    """One cell per layer, coloured by the GPU type that holds it; the y below it."""
    colours = gpu_colours(plan)
    layers = len(plan.model.layers)
    step = (WIDTH - LEFT) / layers
    drawing.text(0, y + 20, "layers", size=13, fill="var(--quiet)")
    for s, stage in enumerate(template.stages):
        colour = colours[stage.gpu]
        for i in stage.layers:
            layer = plan.model.layers[i]
            drawing.rect(
                LEFT + i * step + (1 if step > 4 else 0),
                y,
                max(1.0, step - (2 if step > 4 else 0.4)),
                28,
                fill=colour,
                tint=0.92 if s % 2 == 0 else 0.6,
                radius=2 if step > 6 else 0,
                hover=f"layer {i}: {layer.kind.value}, stage {s} on {stage.gpu}",
            )
        x, width = LEFT + stage.layers.start * step, len(stage.layers) * step
        drawing.line(x + 1, y + 34, x + width - 1, y + 34, stroke=colour, width=2)
        drawing.text(x + 1, y + 52, f"stage {s}", size=13, weight=650, room=max(width, 24))
        drawing.text(
            x + 1,
            y + 68,
            _words_that_fit(plan, stage, width - 4),
            size=11.5,
            fill="var(--quiet)",
            room=max(width - 4, 20),
        )
    return y + 76


def _replicas(drawing: Drawing, plan: Plan, template: Template, y: float) -> float:
    """The first replicas of a template, stage by stage; the y below them."""
    column = (WIDTH - LEFT) / template.depth
    gap = min(44.0, column * 0.22)
    _stage_heads(drawing, plan, template, y, column)
    y += 40
    for r, replica in enumerate(template.replicas[:REPLICAS_DRAWN]):
        drawing.text(0, y + 22, f"replica {r}", size=13, weight=600)
        drawing.text(
            0,
            y + 39,
            f"{replica.micro_batches} × {template.micro_batch} "
            + ("sample" if template.micro_batch == 1 else "samples"),
            size=11.5,
            fill="var(--quiet)",
        )
        _replica_row(drawing, plan, template, replica, y, column, gap)
        y += 62
    left = len(template.replicas) - REPLICAS_DRAWN
    if left > 0:
        more = "1 more replica runs" if left == 1 else f"{left} more replicas run"
        drawing.text(LEFT, y + 14, f"… {more} the same stages on other GPUs", fill="var(--quiet)")
        y += 26
    return y


def _stage_heads(drawing: Drawing, plan: Plan, template: Template, y: float, column: float) -> None:
    colours = gpu_colours(plan)
    for s, stage in enumerate(template.stages):
        x = LEFT + s * column
        tiling = f", ep {stage.ep} etp {stage.etp}" if stage.ep * stage.etp > 1 else ""
        drawing.rect(x, y, 11, 11, fill=colours[stage.gpu], radius=3)
        drawing.text(x + 17, y + 10, stage.gpu, size=13, weight=600, room=column - 24)
        drawing.text(
            x, y + 27, f"tp {stage.tp}{tiling}", size=11.5, fill="var(--quiet)", room=column - 8
        )


def _replica_row(
    drawing: Drawing,
    plan: Plan,
    template: Template,
    replica: Replica,
    y: float,
    column: float,
    gap: float,
) -> None:
    colours = gpu_colours(plan)
    for s, (stage, place) in enumerate(zip(template.stages, replica.places, strict=True)):
        x, width = LEFT + s * column, column - gap
        colour = colours[stage.gpu]
        drawing.rect(x, y, width, 48, fill=colour, tint=0.13, stroke=colour, radius=7)
        side = min(15.0, (width - 12) / max(1, stage.tp) - 3)
        for j, gpu in enumerate(place.gpus):
            drawing.rect(
                x + 8 + j * (side + 3),
                y + 8,
                max(1.5, side),
                15,
                fill=colour,
                radius=3,
                hover=f"GPU {gpu} of {place.node}",
            )
        drawing.text(x + 8, y + 40, place.node, size=11.5, room=width - 14)
        if s + 1 < template.depth:
            crosses = replica.places[s + 1].node != place.node
            drawing.arrow(x + width + 3, y + 24, x + column - 3, dashed=crosses)


def cluster_figure(plan: Plan) -> Figure:
    """The cluster as a map: each node with its GPUs, coloured by type, marked with their stage."""
    colours = gpu_colours(plan)
    held: dict[str, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    for k, r, s, place in plan.places():
        for gpu in place.gpus:
            held[place.node][gpu] = (k, r, s)
    drawing = Drawing(
        "The cluster",
        f"{len(plan.cluster.nodes)} nodes with {plan.cluster.gpus} GPUs, "
        f"{plan.gpus_used} of them in use.",
    )
    many = len(plan.templates) > 1
    cell, pad, x, y = 26.0, 7.0, 0.0, 0.0
    y = _legend(drawing, plan, colours) + 14
    for node in plan.cluster.nodes[:NODES_DRAWN]:
        columns = min(node.gpus, 8)
        lines = -(-node.gpus // 8)
        width = max(columns * (cell + 3) - 3 + 2 * pad, 96.0)
        height = lines * (cell + 3) - 3 + 2 * pad + 18
        if x + width > WIDTH:
            x, y = 0.0, y + _row_height(plan) + 10
        colour = colours[node.gpu]
        drawing.rect(x, y, width, height, fill=colour, tint=0.07, stroke="var(--line)", radius=8)
        drawing.text(x + pad, y + 16, node.name, size=11.5, room=width - 2 * pad, weight=500)
        for gpu in range(node.gpus):
            gx = x + pad + (gpu % 8) * (cell + 3)
            gy = y + 22 + (gpu // 8) * (cell + 3)
            work = held[node.name].get(gpu)
            if work is None:
                drawing.rect(
                    gx,
                    gy,
                    cell,
                    cell,
                    stroke="var(--axis)",
                    radius=5,
                    dashed=True,
                    hover=f"GPU {gpu} of {node.name}: idle",
                )
                continue
            k, r, s = work
            label = f"{k}.{s}" if many else f"{s}"
            drawing.rect(
                gx,
                gy,
                cell,
                cell,
                fill=colour,
                tint=0.22,
                stroke=colour,
                radius=5,
                hover=f"GPU {gpu} of {node.name}: template {k}, replica {r}, stage {s}",
            )
            drawing.text(gx + cell / 2, gy + 17, label, size=11.5, anchor="middle", weight=600)
        x += width + 10
    y += _row_height(plan)
    hidden = len(plan.cluster.nodes) - NODES_DRAWN
    if hidden > 0:
        drawing.text(0, y + 22, f"… and {words.plural(hidden, 'more node', 'more nodes')}")
        y += 30
    drawing.rect(0, 0, WIDTH, y + 2)
    idle = sum(plan.idle_gpus.values())
    return Figure(
        "cluster",
        "The cluster",
        ("Each square is a GPU with the " + ("template and stage" if many else "stage"))
        + " it works on; dashed ones are idle"
        + (f" ({words.plural(idle, 'GPU')})." if idle else " (none here)."),
        placements(plan),
        svg=drawing.to_svg(),
        wide=True,
    )


def _row_height(plan: Plan) -> float:
    lines = max(-(-node.gpus // 8) for node in plan.cluster.nodes)
    return lines * 29 - 3 + 14 + 18


def _legend(drawing: Drawing, plan: Plan, colours: dict[str, str]) -> float:
    x = 0.0
    for gpu, count in plan.cluster.gpus_by_type.items():
        label = f"{gpu} ({count})"
        drawing.rect(x, 2, 12, 12, fill=colours[gpu], radius=3)
        drawing.text(x + 18, 12.5, label, size=12.5)
        x += 40 + 7.2 * len(label)
    return 18.0
