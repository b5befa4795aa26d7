"""What a plan costs: the closed form of one iteration (DESIGN section 13, 1 to 14)."""

from __future__ import annotations

from collections.abc import Sequence

from planner.experts import dispatch_ms
from planner.filled import FilledPlan, FilledTemplate, layer_counts
from planner.lookup import host_row, layer_row
from planner.memory import counted_share, in_flight, stage_memory, tightest
from planner.problem import Problem
from planner.provenance import runs_and_sources
from planner.shares import Rate, deal, micro_batches
from planner.sync import sync_ms
from planner.transfers import send_ms
from specs.errors import PlanError
from specs.plan import Plan
from specs.prediction import Prediction, StagePrediction


def pipeline_ms(stage_ms: Sequence[float], micro_batches: int) -> float:
    """Time of a 1F1B pipeline of M micro-batches, without what comes once per iteration.

    stage_ms: t_s of one micro-batch, in ms, shape (d,). (M - 1) * max t + sum t: fill once, then
    the slowest stage sets the pace (DESIGN section 13, 8; an upper bound of 1F1B, equal to it
    where the last stage is the slowest). Raises PlanError for a pipeline without a stage.
    """
    if not stage_ms or micro_batches < 1:
        raise PlanError("a pipeline has at least one stage and one micro-batch")
    return (micro_batches - 1) * max(stage_ms) + sum(stage_ms)


def stage_work(
    problem: Problem, template: FilledTemplate, s: int
) -> tuple[float, float, float, float]:
    """compute, comm, host and update ms of stage s, on the slowest of its nodes.

    compute: forward + backward of its layers. comm: collectives inside layers, with dispatch and
    combine of routed experts. Raises ProfileMissing.
    """
    stage = template.stages[s]
    counts = layer_counts(problem.model, stage)
    held = [row[s] for row in template.nodes]
    slowest = (0.0, 0.0)
    update = 0.0
    for index in dict.fromkeys(held):
        node = problem.cluster.nodes[index]
        compute = comm = node_update = 0.0
        for layer, count in counts.items():
            row = layer_row(problem, stage, layer, template.micro_batch, node)
            compute += count * (row.forward_ms + row.backward_ms)
            comm += count * row.comm_ms
            node_update += count * row.update_ms * counted_share(problem, stage, layer, row)
        slowest = max(slowest, (compute, comm), key=sum)
        update = max(update, node_update)
    compute, comm = slowest
    for layer, count in counts.items():
        if layer.expert_parameters:
            comm += count * dispatch_ms(problem, stage, layer, template.micro_batch, held)
    return compute, comm, host_row(problem, stage.gpu).host_ms, update


def price_filled(
    problem: Problem,
    templates: Sequence[FilledTemplate],
    counts: Sequence[int] | None = None,
) -> Prediction:
    """The prediction for filled templates, before or without a deal of the batch.

    iteration = max over templates of pipe_k + max over all stages of g_s (DESIGN section 6).
    counts: micro-batches M_k of each template; None = M_k(T*) of section 13.9.
    Raises ProfileMissing, and PlanError where a template gets no micro-batch.
    """
    sends = send_ms(problem, templates)
    on_node = sync_ms(problem, templates)
    work = [
        [stage_work(problem, template, s) for s in range(template.depth)] for template in templates
    ]
    times = [
        [
            compute + comm + host + forward + back
            for (compute, comm, host, _), (forward, back) in zip(stages, sent, strict=True)
        ]
        for stages, sent in zip(work, sends, strict=True)
    ]
    if counts is None:
        counts = micro_batches(rates(templates, times), problem.workload.global_batch)[1]
        if 0 in counts:
            raise PlanError(
                f"template {counts.index(0)} finishes no micro-batch in time: leave it out"
            )
    stages = []
    for k, template in enumerate(templates):
        predictions = []
        for s, stage in enumerate(template.stages):
            compute, comm, host, update = work[k][s]
            kept = in_flight(counts[k], template.depth, s)
            memory = tightest(
                [
                    stage_memory(
                        problem, stage, template.micro_batch, kept, problem.cluster.nodes[node]
                    )
                    for node in template.stage_nodes(s)
                ]
            )
            sync = max(on_node[node] for node in template.stage_nodes(s))
            predictions.append(
                StagePrediction(compute, comm, host, sum(sends[k][s]), sync, update, memory)
            )
        stages.append(tuple(predictions))
    pipes = tuple(pipeline_ms(times[k], counts[k]) for k in range(len(templates)))
    once = max(stage.once_ms for predictions in stages for stage in predictions)
    runs, sources = runs_and_sources(problem, templates)
    return Prediction(
        iteration_ms=max(pipes) + once,
        pipe_ms=pipes,
        micro_batches=tuple(counts),
        stages=tuple(stages),
        profile_runs=runs,
        sources=sources,
    )


def rates(templates: Sequence[FilledTemplate], times: Sequence[Sequence[float]]) -> list[Rate]:
    """What the shares depend on, of templates with these stage times."""
    return [
        Rate(template.replicas, template.micro_batch, sum(stage_ms), max(stage_ms))
        for template, stage_ms in zip(templates, times, strict=True)
    ]


def price(problem: Problem, plan: Plan) -> Prediction:
    """The prediction for a plan.

    Where the plan's shares of the batch are those that section 13.9 deals, M_k = M_k(T*); any
    other deal is an author's own, and M_k is the largest count of the template's replicas
    (docs/decisions/0002-shares-of-authored-plans.md). Raises ProfileMissing.
    """
    templates = FilledPlan.of(plan).templates
    authored = [max(r.micro_batches for r in template.replicas) for template in plan.templates]
    try:
        prediction = price_filled(problem, templates)
    except PlanError:
        return price_filled(problem, templates, authored)
    times = [[stage.time_ms for stage in stages] for stages in prediction.stages]
    try:
        shares = deal(rates(templates, times), prediction.micro_batches, plan.workload.global_batch)
    except PlanError:
        return price_filled(problem, templates, authored)
    dealt = [sorted((s.micro_batches, s.last_micro_batch) for s in row) for row in shares]
    written = [
        sorted((r.micro_batches, r.last_micro_batch) for r in template.replicas)
        for template in plan.templates
    ]
    return prediction if dealt == written else price_filled(problem, templates, authored)
