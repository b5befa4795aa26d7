"""How long a command waits for its measuring processes, and how often it tries again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait and how often to try again.

    answer_s: for any one answer, on top of answer_factor times what it should take. windows: how
    many an entry may have until one is free of drift. extra_time: entries of bad windows
    are measured again at the end, for at most this share of the time the others took.
    """

    answer_s: float = 90.0
    answer_factor: float = 20.0
    windows: int = 3
    extra_time: float = 1.0

    @classmethod
    def of_tries(cls, tries: int) -> Patience:
        """Up to `tries` windows an entry; with one, nothing is measured a second time."""
        return cls(windows=tries, extra_time=1.0 if tries > 1 else 0.0)

    def for_work(self, expected_s: float) -> float:
        """Seconds to wait for work that should take expected_s."""
        return self.answer_s + self.answer_factor * expected_s
