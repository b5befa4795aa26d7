"""The errors that reach a user as one line: what is wrong, and what to do next."""

from __future__ import annotations

from pathlib import Path


class ArachneError(Exception):
    """Base of every error that a command prints as one line and turns into exit code 1."""


class SpecError(ArachneError):
    """A file or option that a person wrote does not say what it must."""

    @classmethod
    def in_file(
        cls, path: str | Path, field: str, value: object, expected: str, next_step: str = ""
    ) -> SpecError:
        """The one form of every complaint about a file: file, field, value, what was expected."""
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        end = f"; {next_step}" if next_step else ""
        return cls(f"{path}: {field} is {shown}, expected {expected}{end}")


class PlanError(ArachneError):
    """A plan that breaks a rule every plan obeys."""


class ProfileMissing(ArachneError):
    """The profiles hold no row for a key that a plan needs."""


class StoreError(ArachneError):
    """The store cannot be opened, upgraded or written."""


class HostError(ArachneError):
    """This host does not have the GPU, the devices or the memory that was asked for."""


class RunError(ArachneError):
    """A run of a plan or of the profiler failed while it was going."""
