"""Gradients in flat buffers, one per owner set, and their summation between replicas."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from runtime.collectives import Group
from runtime.owners import Bucket
from specs.boxes import Placement

_ALIGN = 64  # elements: every segment starts where vector units like it


class GradientBuffers:
    """The gradients of a rank's parameters, ready to be summed without gathering them first.

    A parameter that is one segment has its `.grad` inside the bucket's flat buffer, where
    autograd adds to it and the optimizer reads it. A parameter of which other replicas hold finer
    parts (a coarser TP degree) has a gradient of its own, copied in and out around the sum.
    """

    def __init__(
        self,
        parameters: Mapping[str, tuple[Parameter, Placement]],
        buckets: tuple[Bucket, ...],
    ) -> None:
        self.buckets = buckets
        self.flats: list[Tensor] = []
        self._scaled: list[list[tuple[Tensor, float]]] = []
        self._copied: list[list[tuple[Tensor, Tensor]]] = []
        self._squares: list[tuple[Tensor, int]] = []
        own: list[Tensor] = []
        for bucket in buckets:
            starts, length = _starts(bucket)
            like = parameters[bucket.segments[0].tensor][0]
            flat = torch.zeros(length, dtype=like.dtype, device=like.device)
            scaled, copied = [], []
            for segment, start in zip(bucket.segments, starts, strict=True):
                parameter, placement = parameters[segment.tensor]
                view = flat[start : start + segment.box.elements].view(segment.box.size)
                if segment.box == placement.box:
                    parameter.grad = view.view(parameter.shape)
                else:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                        own.append(parameter.grad)
                    part = parameter.grad.view(placement.box.size)
                    copied.append((part[segment.box.within(placement.box)], view))
                if segment.scale != 1.0:
                    scaled.append((view, segment.scale))
                self._squares.append((view, segment.copies))
            self.flats.append(flat)
            self._scaled.append(scaled)
            self._copied.append(copied)
        self._own = own

    @property
    def nbytes(self) -> int:
        """Memory of all buffers, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.flats, *self._own))

    def zero(self) -> None:
        """Forget the gradients of the last iteration."""
        for tensor in (*self.flats, *self._own):
            tensor.zero_()

    def synchronise(self, groups: Mapping[tuple[int, ...], Group]) -> None:
        """Sum every segment over its owners. groups: one for each set of two or more ranks."""
        for i, bucket in enumerate(self.buckets):
            for part, view in self._copied[i]:
                view.copy_(part)
            for view, scale in self._scaled[i]:
                view.mul_(scale)
            if len(bucket.owners) > 1:
                dist.all_reduce(self.flats[i], group=groups[bucket.owners])
            for part, view in self._copied[i]:
                part.copy_(view)

    def clip(self, largest_norm: float, world: Group) -> float:
        """Scale all gradients down to a norm of at most `largest_norm`; gives the norm before.

        Call after synchronise, on every rank. An element that n ranks hold counts 1/n on each.
        """
        total = torch.zeros((), dtype=torch.float64)
        for view, copies in self._squares:
            total += view.float().square().sum().double().cpu() / copies
        reduced = total.to(torch.float32).to(self.flats[0].device)
        if world is not None:
            dist.all_reduce(reduced, group=world)
        norm = float(reduced.sqrt())
        if norm > largest_norm:
            for tensor in (*self.flats, *self._own):
                tensor.mul_(largest_norm / norm)
        return norm


def _starts(bucket: Bucket) -> tuple[list[int], int]:
    starts, end = [], 0
    for segment in bucket.segments:
        starts.append(end)
        end += -(-segment.box.elements // _ALIGN) * _ALIGN
    return starts, end
