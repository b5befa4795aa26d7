"""What two plans for training do differently, in words and figures."""

from __future__ import annotations

from typing import Any

from planner.answer import figures
from specs.plan import Plan, Template
from specs.transfer import BYTES_PER_MS, bytes_to_move, pause_ms


def template_shape(template: Template) -> str:
    """A template in one line: replicas, micro-batch, and per stage type, degree and layers."""
    stages = " ".join(
        f"{stage.gpu}/{stage.tp}"
        + (f"(ep{stage.ep} etp{stage.etp})" if stage.ep * stage.etp > 1 else "")
        + f"[{stage.layers.start}-{stage.layers.stop - 1}]"
        for stage in template.stages
    )
    return f"{len(template.replicas)} x b{template.micro_batch}: {stages}"


def plan_difference(first: Plan, second: Plan) -> dict[str, Any]:
    """Figures of both plans, their templates, and which GPUs change hands.

    iteration_ratio: the second's iteration time over the first's, None where one is not priced.
    gpus_moved: GPUs that hold another (stage, template) in the second than in the first;
    gpus_only_in_*: GPUs that only one of them uses. bytes_to_move: weights and optimizer state that
    GPUs of the second get from others when training goes from the first to it, in all and of the
    one that gets most; predicted_pause_s: how long it stands meanwhile, by the slowest network
    card of the second's cluster. None for plans of different models or workloads.
    """
    places = [_holders(plan) for plan in (first, second)]
    both = places[0].keys() & places[1].keys()
    sides = []
    for plan in (first, second):
        side: dict[str, Any] = {
            "planner": plan.planner,
            "model": plan.model.name,
            "cluster": plan.cluster.name,
            "global_batch": plan.workload.global_batch,
            "templates": [template_shape(template) for template in plan.templates],
            "gpus_used": plan.gpus_used,
        }
        if plan.prediction is not None:
            side |= {k: figures(plan)[k] for k in ("iteration_s", "samples_per_s", "fits")}
        sides.append(side)
    ratio = None
    if first.prediction is not None and second.prediction is not None:
        ratio = second.prediction.iteration_ms / first.prediction.iteration_ms
    return {
        "first": sides[0],
        "second": sides[1],
        "same": first.templates == second.templates,
        "iteration_ratio": ratio,
        "gpus_moved": sum(places[0][gpu] != places[1][gpu] for gpu in both),
        "gpus_only_in_first": len(places[0].keys() - both),
        "gpus_only_in_second": len(places[1].keys() - both),
        **_moving(first, second),
    }


def _moving(first: Plan, second: Plan) -> dict[str, Any]:
    if first.model.config_hash != second.model.config_hash or first.workload != second.workload:
        return {"bytes_to_move": None, "most_bytes_of_a_gpu": None, "predicted_pause_s": None}
    received = bytes_to_move(first, second)
    cards = [node.nic_bytes_per_ms for node in second.cluster.nodes]
    rate = min((card for card in cards if card is not None), default=BYTES_PER_MS)
    return {
        "bytes_to_move": sum(received),
        "most_bytes_of_a_gpu": max(received),
        "predicted_pause_s": pause_ms(received, bytes_per_ms=rate) / 1000,
    }


def _holders(plan: Plan) -> dict[tuple[str, int], tuple[range, int]]:
    """For every GPU in use, the layers and the TP degree of the stage it holds."""
    found = {}
    for k, _, s, place in plan.places():
        stage = plan.templates[k].stages[s]
        for gpu in place.gpus:
            found[place.node, gpu] = (stage.layers, stage.tp)
    return found
