"""Boxes of tensors: the one description of sharding, free of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import prod


class Tag(StrEnum):
    """What the gradient of a tensor on one rank of a tensor-parallel group is."""

    SHARDED = "sharded"  # the whole gradient of this rank's box
    REPLICATED = "replicated"  # the whole gradient, the same on every rank that holds the box
    PARTIAL = "partial"  # a summand: the gradient is the sum over the ranks that hold the box


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of a tensor: first index and length along each axis."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """The box that is all of a tensor."""
        return cls((0,) * len(shape), shape)

    def cut(self, axis: int, first: int, length: int) -> Box:
        """The part of the box with the tensor's indices first .. first + length - 1 on an axis."""
        offset, size = list(self.offset), list(self.size)
        offset[axis], size[axis] = first, length
        return Box(tuple(offset), tuple(size))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.size)

    def overlap(self, other: Box) -> Box | None:
        """The common part of two boxes of one tensor, None where there is none."""
        offset = tuple(max(a, b) for a, b in zip(self.offset, other.offset, strict=True))
        end = tuple(
            min(a + n, b + m)
            for a, n, b, m in zip(self.offset, self.size, other.offset, other.size, strict=True)
        )
        size = tuple(e - o for o, e in zip(offset, end, strict=True))
        return Box(offset, size) if all(n > 0 for n in size) else None

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Where this box stands in a tensor that holds `outer`, one slice an axis."""
        return tuple(
            slice(o - p, o - p + n)
            for o, p, n in zip(self.offset, outer.offset, self.size, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """The part of one global tensor that one rank holds.

    name: the tensor's name in the Hugging Face model. shape: of the whole tensor, in the view in
    which every part is a box (packed gate and up projections have an axis of their own).
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    tag: Tag


def even_slice(length: int, parts: int, part: int) -> tuple[int, int]:
    """First index and length of one of `parts` consecutive slices, as equal as can be.

    Slice i is [length*i // parts, length*(i+1) // parts): the convention for every shard.
    """
    first = length * part // parts
    return first, length * (part + 1) // parts - first


def atoms(boxes: Iterator[Box] | list[Box]) -> list[Box]:
    """The finest common cut of boxes of one tensor: parts that each box holds whole or not at all.

    Every axis is cut at every border of every box; parts that no box holds are left out.
    """
    boxes = list(boxes)
    if not boxes:
        return []
    parts = [Box((), ())]
    for axis in range(len(boxes[0].size)):
        borders = sorted(
            {box.offset[axis] for box in boxes}
            | {box.offset[axis] + box.size[axis] for box in boxes}
        )
        parts = [
            Box((*part.offset, low), (*part.size, high - low))
            for part in parts
            for low, high in pairwise(borders)
        ]
    return [part for part in parts if any(box.overlap(part) == part for box in boxes)]
