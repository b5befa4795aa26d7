"""How far training has come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """What a new start must know: the next iteration's number and its first sample.

    iteration is also the number of optimizer steps taken.
    """

    iteration: int
    samples: int
