"""Layer types: the repeated structures a model is made of, keyed by a hash of kind and shapes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class LayerKind(StrEnum):
    """What part of a model a layer is."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    DENSE_BLOCK = "dense-block"  # a block without experts in a model that also has blocks with
    MOE_BLOCK = "moe-block"
    HEAD = "head"  # final norm, output projection, loss

    @property
    def is_block(self) -> bool:
        """Whether this is one of the repeated blocks between embedding and head."""
        return self in (LayerKind.BLOCK, LayerKind.DENSE_BLOCK, LayerKind.MOE_BLOCK)


Shape = int | bool | str


@dataclass(frozen=True)
class LayerType:
    """One repeated structure.

    shapes: everything that decides what the layer computes (widths, head counts, kind of
    attention...), sorted by name. parameters: all weights but the routed experts' (a tied head
    counts the shared matrix: it holds it). expert_parameters: weights of all routed experts.
    """

    kind: LayerKind
    shapes: tuple[tuple[str, Shape], ...]
    parameters: int
    expert_parameters: int = 0

    @classmethod
    def of(
        cls,
        kind: LayerKind,
        shapes: Mapping[str, Shape],
        parameters: int,
        expert_parameters: int = 0,
    ) -> LayerType:
        """The layer type of a mapping of shapes; the order of the mapping does not matter."""
        return cls(kind, tuple(sorted(shapes.items())), parameters, expert_parameters)

    @cached_property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of kind and shapes: the key in the store."""
        text = json.dumps([self.kind.value, self.shapes], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def shape(self, name: str) -> int:
        """A whole-number shape by name. Raises KeyError where the layer has no such shape."""
        for key, value in self.shapes:
            if key == name:
                return int(value)
        raise KeyError(name)

    def flag(self, name: str) -> Shape | None:
        """A shape of any type by name, None where the layer has no such shape."""
        return dict(self.shapes).get(name)

    @property
    def label(self) -> str:
        """The kind in words, with what tells a discovered block from the model's other blocks."""
        own = self.flag("kind")
        return f"{self.kind.value} ({own})" if own else self.kind.value

    @property
    def tied(self) -> bool:
        """Whether a head shares its matrix with the embedding."""
        return bool(self.flag("tied"))
