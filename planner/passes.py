"""Forward and backward of every stage apart, and the timeline of a plan that comes of them."""

from __future__ import annotations

from collections.abc import Sequence

from planner.answer import prediction_of
from planner.cost import stage_work
from planner.filled import FilledPlan, FilledTemplate, layer_counts
from planner.lookup import layer_row
from planner.problem import Problem
from planner.simulate import StageTimes, simulate_1f1b
from planner.trace import Once, Track
from planner.transfers import send_ms
from specs.plan import Plan


def stage_passes(problem: Problem, templates: Sequence[FilledTemplate]) -> list[list[StageTimes]]:
    """Per template and stage, the two passes of one micro-batch, each with what is sent in it.

    Profiles give collectives and host overhead for both passes together: each pass takes half of
    both. forward + backward is t_s of the cost model. Raises ProfileMissing.
    """
    sends = send_ms(problem, templates)
    answer = []
    for template, sent in zip(templates, sends, strict=True):
        stages = []
        for s in range(template.depth):
            compute, comm, host, _ = stage_work(problem, template, s)
            forward = _forward_share(problem, template, s)
            shared = (comm + host) / 2
            stages.append(
                StageTimes(
                    forward * compute + shared + sent[s][0],
                    (1 - forward) * compute + shared + sent[s][1],
                )
            )
        answer.append(stages)
    return answer


def _forward_share(problem: Problem, template: FilledTemplate, s: int) -> float:
    """Forward's part of the computation of a stage, on its first node."""
    stage = template.stages[s]
    node = problem.cluster.nodes[template.nodes[0][s]]
    forward = backward = 0.0
    for layer, count in layer_counts(problem.model, stage).items():
        row = layer_row(problem, stage, layer, template.micro_batch, node)
        forward += count * row.forward_ms
        backward += count * row.backward_ms
    return forward / (forward + backward)


def plan_tracks(problem: Problem, plan: Plan) -> list[Track]:
    """The simulated timeline of one replica of every template of a priced plan.

    After the pipeline each stage synchronises gradients and updates. Raises ProfileMissing.
    """
    prediction = prediction_of(plan)
    passes = stage_passes(problem, FilledPlan.of(plan).templates)
    tracks = []
    for k, template in enumerate(plan.templates):
        timeline = simulate_1f1b(passes[k], prediction.micro_batches[k])
        end = timeline.makespan_ms
        once = tuple(
            (
                Once("gradient sync", end, figure.sync_ms),
                Once("update", end + figure.sync_ms, figure.update_ms),
            )
            for figure in prediction.stages[k]
        )
        labels = tuple(
            f"stage {s}: {stage.gpu} tp={stage.tp}, layers {stage.layers.start} to "
            f"{stage.layers.stop - 1}"
            for s, stage in enumerate(template.stages)
        )
        name = f"template {k}, one of {len(template.replicas)} replicas"
        tracks.append(Track(name, labels, timeline, once))
    return tracks
