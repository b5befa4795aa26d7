"""Why a candidate is no plan, in words that can be counted."""

from __future__ import annotations

from dataclasses import dataclass

from specs.units import human_bytes

NO_PACKING = "no packing"
NO_TURN = "a template finishes no micro-batch in time"
TOO_FEW_SAMPLES = "fewer samples than replicas"
TOO_FEW_BLOCKS = "fewer blocks than stages"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one candidate was refused.

    reason: the same words for the same cause, to be counted. over_bytes: by how much memory is
    exceeded, 0 for other causes. detail: what makes this candidate's case special.
    """

    reason: str
    over_bytes: float = 0.0
    detail: str = ""

    @classmethod
    def memory(cls, stage: int, over_bytes: float, detail: str = "") -> Refusal:
        """Memory exceeded at a stage."""
        return cls(f"memory at stage {stage}", over_bytes, detail)

    def __str__(self) -> str:
        by = f" by {human_bytes(self.over_bytes)}" if self.over_bytes else ""
        return f"{self.reason}{by}{': ' + self.detail if self.detail else ''}"
