"""Weights of the policy in a file: safetensors with a training record; nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from planner.policy.network import FLAT_HEADS, HEADS, shapes
from specs.errors import PlanError

FORMAT = 2  # of features and parameters: raised when either changes
KIND = "arachne-policy"
FLAT_KIND = "arachne-flat-rl"
HEADS_OF_KIND = {KIND: HEADS, FLAT_KIND: FLAT_HEADS}
SHIPPED = {KIND: "arachne.safetensors", FLAT_KIND: "flat-rl.safetensors"}

Array = Any


@dataclass(frozen=True)
class Weights:
    """Parameters by name, how they were trained, the SHA-256 of the file, and whose they are."""

    parameters: Mapping[str, Array]
    record: Mapping[str, Any]
    file_hash: str = ""
    kind: str = KIND


def save_weights(path: str | Path, weights: Weights) -> str:
    """Write the file at once and whole; its SHA-256."""
    from safetensors.numpy import save

    metadata = {
        "kind": weights.kind,
        "format": str(FORMAT),
        "record": json.dumps(weights.record, sort_keys=True),
    }
    arrays = {name: np.ascontiguousarray(v) for name, v in weights.parameters.items()}
    content = save(arrays, metadata)
    write_whole(path, content)
    return hashlib.sha256(content).hexdigest()


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file so that a kill leaves the old one or the new one. Raises PlanError."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written ({error.strerror})") from None


def load_weights(path: str | Path, kind: str = KIND) -> Weights:
    """Read and check a file. Raises PlanError in one line for one that is not right."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise PlanError(f"{path}: cannot be read as policy weights ({error.strerror})") from None
    return weights_of_bytes(content, str(path), kind)


def weights_of_bytes(content: bytes, where: str, kind: str = KIND) -> Weights:
    """The weights of a file's content. Raises PlanError where it is not of this format."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    again = "train with arachne-plan train -o FILE"
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        metadata = header.get("__metadata__", {})
        parameters = load(content)
    except (SafetensorError, ValueError, AttributeError, RecursionError):
        raise PlanError(f"{where}: not a readable safetensors file: {again}") from None
    if metadata.get("kind") != kind:
        raise PlanError(
            f"{where}: kind {metadata.get('kind')!r}, expected {kind!r}: these are no weights of "
            f"this planner; {again}"
        )
    if metadata.get("format") != str(FORMAT):
        raise PlanError(
            f"{where}: format {metadata.get('format')!r}, this Arachne reads {FORMAT}: use the "
            f"Arachne that wrote it, or {again}"
        )
    wanted = shapes(HEADS_OF_KIND[kind])
    for name in sorted(wanted.keys() | parameters.keys()):
        found = parameters[name].shape if name in parameters else None
        if found != wanted.get(name):
            raise PlanError(
                f"{where}: parameter {name} has shape {found}, expected {wanted.get(name)}: {again}"
            )
        if parameters[name].dtype != np.float32 or not np.isfinite(parameters[name]).all():
            raise PlanError(f"{where}: parameter {name} is not all finite float32: {again}")
    try:
        record = json.loads(metadata.get("record", "{}"))
    except ValueError:
        raise PlanError(f"{where}: the training record is not JSON: {again}") from None
    return Weights(parameters, record, hashlib.sha256(content).hexdigest(), kind)


def chosen_weights() -> Weights:
    """The weights of the file that ARACHNE_POLICY names, else those that come with Arachne."""
    file = os.environ.get("ARACHNE_POLICY")
    return load_weights(file) if file else shipped_weights()


@cache
def shipped_weights(kind: str = KIND) -> Weights:
    """The weights that come with Arachne."""
    file = resources.files("planner.policy").joinpath("weights", SHIPPED[kind])
    return weights_of_bytes(file.read_bytes(), SHIPPED[kind], kind)
