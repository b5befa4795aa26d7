"""Which profile runs stand under a prediction, so that any figure can be traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.filled import FilledTemplate, layer_counts
from planner.problem import Problem
from planner.profiles import HostKey, Key, LayerRowKey, LinkKey
from specs.profile import Operation, Source


def runs_and_sources(
    problem: Problem, templates: Sequence[FilledTemplate]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ids of the runs whose rows price these templates, rising, and their sources."""
    origins = problem.profiles.origins
    found = {origins[key] for key in set(rows_read(problem, templates)) if key in origins}
    runs = tuple(sorted({origin.run_id for origin in found}))
    present = {origin.source for origin in found}
    return runs, tuple(source.value for source in Source if source in present)


def rows_read(problem: Problem, templates: Sequence[FilledTemplate]) -> Iterator[Key]:
    """Keys of the rows that the cost model reads for these templates; some may not exist."""
    nodes, profiles = problem.cluster.nodes, problem.profiles
    for template in templates:
        for s, stage in enumerate(template.stages):
            yield HostKey(stage.gpu)
            for node in (nodes[i] for i in template.stage_nodes(s)):
                for layer in layer_counts(problem.model, stage):
                    ep, etp = (stage.ep, stage.etp) if layer.expert_parameters else (1, 1)
                    topology = None if stage.tp == 1 and etp == 1 else node.intra_node
                    yield LayerRowKey(
                        stage.gpu,
                        layer.hash,
                        stage.tp,
                        template.micro_batch,
                        topology,
                        ep,
                        etp,
                    )
                for operation, ranks in (
                    (Operation.P2P, 2),
                    (Operation.ALL_GATHER, stage.tp),
                    (Operation.ALL_TO_ALL, stage.ep),
                ):
                    if ranks > 1 and node.gpus > 1:
                        yield LinkKey(node.gpu, node.gpu, node.intra_node, operation, ranks)
                bus = profiles.bus_key(node.gpu, node.intra_node)
                if bus is not None and node.gpus > 1:
                    yield bus
                inter = profiles.inter_key(node.gpu, node.gpus)
                if inter is not None and node.nic_bytes_per_ms is None:
                    yield inter
