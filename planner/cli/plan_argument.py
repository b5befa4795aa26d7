"""The PLAN argument of commands: a file, or the id of a stored plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from db.store import Store
    from specs.plan import Plan


def read_plan(store: Store, reference: str) -> Plan:
    """The plan of a file, or of a whole number the stored plan of that id.

    Raises SpecError for a file that is not right, StoreError for an id that is not there.
    """
    from specs.plan_file import load_plan

    if reference.isdecimal() and not Path(reference).exists():
        return store.plan(int(reference)).plan
    return load_plan(reference)
