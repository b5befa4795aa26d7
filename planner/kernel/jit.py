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


def in_place(function: FunctionT) -> FunctionT:
    """Compile a function that works on the arrays it was given: it makes and returns none.

    Without making any it need not count references, which costs an atomic increment and decrement
    of each array of Tables, Laid and Room in a call: more than many of these functions compute.
    """
    made: FunctionT = njit(cache=True, error_model="numpy", _nrt=False)(function)
    return made


def inlined(function: FunctionT) -> FunctionT:
    """Compile a function that works in place into those that call it.

    Tables, Laid and Room are tuples of arrays, some hundred words that a call would copy: inlined,
    the few callers of a function pass nothing (a quarter more plans priced a second).
    """
    made: FunctionT = njit(cache=True, error_model="numpy", forceinline=True, _nrt=False)(function)
    return made
