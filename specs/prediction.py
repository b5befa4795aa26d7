"""What a planner says a plan will do: times per stage, memory in parts, the bound."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Memory of one GPU of a stage, in bytes and in parts, against its limit.

    limit: usable memory less the head-room that was asked for (DESIGN section 13, 15).
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    transient: float
    framework: float
    limit: float

    @property
    def total(self) -> float:
        """What the GPU needs in all."""
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.transient
            + self.framework
        )

    @property
    def fits(self) -> bool:
        """Whether the need is within the limit."""
        return self.total <= self.limit

    def to_json(self) -> dict[str, float]:
        """The parts by name, in bytes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """One stage of one template: ms of one micro-batch in parts, ms once per iteration, memory.

    compute_ms: forward + backward. comm_ms: collectives inside layers. host_ms: overhead of the
    process. send_ms: activation out and gradient back. sync_ms: gradient synchronisation.
    update_ms: optimizer step.
    """

    compute_ms: float
    comm_ms: float
    host_ms: float
    send_ms: float
    sync_ms: float
    update_ms: float
    memory: StageMemory

    @property
    def time_ms(self) -> float:
        """t_s: one micro-batch on this stage (DESIGN section 13, 1)."""
        return self.compute_ms + self.comm_ms + self.host_ms + self.send_ms

    @property
    def once_ms(self) -> float:
        """g_s: what the stage adds once per iteration (DESIGN section 13, 12)."""
        return self.sync_ms + self.update_ms


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one iteration of a plan takes.

    stages: per template and stage. pipe_ms: per template, its pipeline alone. micro_batches: per
    template, M_k of the pipeline formula. bound_iteration_ms: no plan can be faster; None where
    no bound was computed. profile_runs: ids of the profile runs the numbers come from. sources:
    the origins of those rows (`measured`, `imported`, `estimated`).
    """

    iteration_ms: float
    pipe_ms: tuple[float, ...]
    micro_batches: tuple[int, ...]
    stages: tuple[tuple[StagePrediction, ...], ...]
    profile_runs: tuple[int, ...]
    sources: tuple[str, ...]
    bound_iteration_ms: float | None = None

    @property
    def fits(self) -> bool:
        """Whether every stage of every template fits its memory."""
        return all(stage.memory.fits for template in self.stages for stage in template)
