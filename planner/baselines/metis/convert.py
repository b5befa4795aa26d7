"""From a plan of Metis to pipelines that our templates can hold."""

from __future__ import annotations

from itertools import pairwise

from planner.baselines.metis.inputs import Costed, Inputs
from planner.baselines.metis.stages import share_samples
from planner.baselines.pipelines import Pipeline, even_samples, stage_of
from planner.problem import Problem
from specs.errors import PlanError


class NoForm(PlanError):
    """A plan of Metis that has no form as templates of equal replicas."""


def pipelines(problem: Problem, inputs: Inputs, costed: Costed) -> list[Pipeline]:
    """One pipeline per replica of the stage with fewest. Raises NoForm.

    Pipeline r takes the r-th part of the ranks of each stage as one TP group, and the samples of
    its share of mixed stages, else an even one. Nodes are those of the ranks, or left to packing
    where a group would cross nodes.
    """
    layout = costed.layout
    copies = min(dp for dp, _ in layout.degrees)
    bounds = list(pairwise(costed.bounds))
    shares = _shares(inputs, costed, copies)
    found = []
    for r in range(copies):
        if shares[r] == 0:
            continue
        stages, nodes = [], []
        for k, (first, end) in enumerate(bounds):
            tp = layout.groups[k] // copies
            ranks = layout.span(k)[r * tp : (r + 1) * tp]
            types = {inputs.nodes[node].gpu for node in ranks}
            if len(types) > 1:
                raise NoForm("a TP group of two GPU types")
            stages.append(stage_of(problem, types.pop(), tp, range(first, end)))
            nodes.append(ranks[0] if len(set(ranks)) == 1 else -1)
        micro_batch = _micro_batch(inputs, [(s.gpu, s.tp) for s in stages], shares[r], costed)
        whole = () if -1 in nodes else tuple(nodes)
        found.append(Pipeline(micro_batch, tuple(stages), shares[r], whole))
    if not all(pipeline.nodes for pipeline in found):
        found = [Pipeline(p.micro_batch, p.stages, p.samples) for p in found]
    return found


def _shares(inputs: Inputs, costed: Costed, copies: int) -> list[int]:
    """Samples of the batch for each pipeline: the mean of what the mixed stages deal it."""
    layout = costed.layout
    weights = [0.0] * copies
    for k, (dp, tp) in enumerate(layout.degrees):
        types = [inputs.nodes[node].gpu for node in layout.span(k)]
        if len(set(types)) == 1:
            continue
        owners = types[:: len(types) // dp]
        dealt = share_samples(inputs, owners, tp, inputs.global_batch // layout.micro_batches)
        for i, samples in enumerate(dealt):
            weights[i * copies // dp] += samples
    if not any(weights):
        return even_samples(inputs.global_batch, copies)
    exact = [inputs.global_batch * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    behind = sorted(range(copies), key=lambda r: shares[r] - exact[r])
    for r in behind[: inputs.global_batch - sum(shares)]:
        shares[r] += 1
    return shares


def _micro_batch(
    inputs: Inputs, groups: list[tuple[str, int]], samples: int, costed: Costed
) -> int:
    """The largest profiled size up to what the pipeline runs in one of Metis's micro-batches."""
    wanted = max(1, samples // costed.layout.micro_batches)
    sizes = {b for _, _, b in inputs.rows if b <= wanted}
    for b in sorted(sizes, reverse=True):
        if all((gpu, tp, b) in inputs.rows for gpu, tp in groups):
            return b
    raise NoForm("replicas of one stage that another's node or profiles cannot hold as a TP group")
