"""Checkpoints of a training: safetensors with everything a resume needs; nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.policy.training.recipe import Recipe
from planner.policy.weights import write_whole
from specs.errors import PlanError

Array = Any
KIND = "arachne-policy-checkpoint"


@dataclass(frozen=True)
class Checkpoint:
    """Where a training stands.

    taught: rounds of the teacher. plans: (composition, templates as kinds) of the memory.
    """

    recipe: Recipe
    seed: int
    step: int
    taught: int
    seconds: float
    evaluations: int
    plans: Sequence[tuple[int, tuple[tuple[int, ...], ...]]]
    parameters: Mapping[str, Array]
    moments: Mapping[str, Array]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file at once and whole."""
    from safetensors.numpy import save

    said = {
        "question": _question(checkpoint.recipe, checkpoint.seed),
        "step": checkpoint.step,
        "taught": checkpoint.taught,
        "seconds": checkpoint.seconds,
        "evaluations": checkpoint.evaluations,
        "plans": checkpoint.plans,
    }
    arrays = {f"p.{name}": v for name, v in checkpoint.parameters.items()}
    arrays |= {f"m.{name}": np.ascontiguousarray(v) for name, v in checkpoint.moments.items()}
    write_whole(path, save(arrays, {"kind": KIND, "training": json.dumps(said)}))


def read_checkpoint(path: Path, recipe: Recipe, seed: int) -> Checkpoint:
    """The checkpoint of this training. Raises PlanError for a file of another or of none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        arrays = load(content)
        if metadata.get("kind") != KIND:
            raise ValueError("another kind of file")
        said = json.loads(metadata["training"])
    except (OSError, ValueError, SafetensorError, KeyError, AttributeError) as error:
        raise PlanError(f"{path}: not a readable checkpoint ({error}): delete it") from None
    if said["question"] != _question(recipe, seed):
        raise PlanError(
            f"{path}: the checkpoint of another training: delete it, or give the options it was "
            "started with"
        )
    return Checkpoint(
        recipe,
        seed,
        said["step"],
        said["taught"],
        said["seconds"],
        said["evaluations"],
        [(n, tuple(tuple(kinds) for kinds in plan)) for n, plan in said["plans"]],
        {name[2:]: v for name, v in arrays.items() if name.startswith("p.")},
        {name[2:]: v for name, v in arrays.items() if name.startswith("m.")},
    )


def _question(recipe: Recipe, seed: int) -> str:
    return f"{recipe!r} parts {sorted(recipe.parts)} seed {seed}".replace(repr(recipe.parts), "...")
