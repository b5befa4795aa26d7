"""How functions of the kernel are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

import planner.compiled  # noqa: F401  (says where compiled code is kept, before any is made)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def compiled(function: FunctionT) -> FunctionT:
    """Compile a function, kept on disk; division by zero gives inf or NaN as in numpy."""
    made: FunctionT = njit(cache=True, error_model="numpy")(function)
    return made


def inlined(function: FunctionT) -> FunctionT:
    """Compile a function into those that call it.

    Tables, Laid and Room are tuples of arrays, some hundred words that a call would copy: inlined,
    the few callers of a function pass nothing (a quarter more plans priced a second).
    """
    made: FunctionT = njit(cache=True, error_model="numpy", forceinline=True)(function)
    return made
