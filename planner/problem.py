"""A planning problem: what is trained, on what, by which numbers."""

from __future__ import annotations

from dataclasses import dataclass

from planner.profiles import ProfileSet
from specs.cluster import Cluster
from specs.errors import PlanError
from specs.model import Model
from specs.workload import Workload


@dataclass(frozen=True)
class Problem:
    """Model, workload, cluster and the profiles the cost model reads.

    headroom: share of usable memory that a plan leaves free (DESIGN section 13, 15).
    expert_tiling: whether experts may be tiled freely; False shards them by TP alone (section 8).
    """

    model: Model
    workload: Workload
    cluster: Cluster
    profiles: ProfileSet
    headroom: float = 0.05
    expert_tiling: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.headroom < 1:
            raise PlanError(f"the head-room is a share from 0 to below 1, got {self.headroom}")
