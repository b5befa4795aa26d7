"""Plans for other launchers: one file a format, one function `export` in each."""

from __future__ import annotations

from collections.abc import Callable

from planner.export import deepspeed, flagscale, megatron, torchtitan
from planner.export.launch import Launch
from specs.plan import Plan

FORMATS: dict[str, Callable[[Plan], Launch]] = {
    "megatron": megatron.export,
    "torchtitan": torchtitan.export,
    "deepspeed": deepspeed.export,
    "flagscale": flagscale.export,
}
