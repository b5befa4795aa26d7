"""Layers from the document that discovery leaves in a model's config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from specs.errors import SpecError
from specs.layer import LayerKind, LayerType, Shape

FIELD = "arachne_layers"  # of a config


def layers_of_document(document: Any, where: str) -> list[LayerType]:
    """Embedding, blocks and head of a discovered model, in order.

    document: what `specs.discovery.discover` wrote: per kind of block its shapes and tensors, and
    which kind each block is. Raises SpecError for one that was not written by it.
    """
    try:
        embedding, head = document["embedding"], document["head"]
        kinds = [_block(kind) for kind in document["kinds"]]
        blocks = [kinds[index] for index in document["blocks"]]
        first, last = _embedding(embedding), _head(head)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise SpecError.in_file(
            where, FIELD, error, "what arachne wrote there; leave the field out to have it anew"
        ) from None
    if not blocks:
        raise SpecError.in_file(where, "num_hidden_layers", 0, "at least 1 block")
    return [first, *blocks, last]


def _embedding(found: Mapping[str, Any]) -> LayerType:
    shapes: dict[str, Shape] = {"hidden": int(found["hidden"]), "vocab": int(found["vocab"])}
    if found["scale"] != 1.0:
        shapes["scale"] = repr(float(found["scale"]))
    return LayerType.of(LayerKind.EMBEDDING, shapes, int(found["vocab"]) * int(found["hidden"]))


def _block(found: Mapping[str, Any]) -> LayerType:
    shapes: dict[str, Shape] = dict(found["shapes"])
    return LayerType.of(
        LayerKind.BLOCK, shapes | {"tensors": _text(found["tensors"])}, _count(found["tensors"])
    )


def _head(found: Mapping[str, Any]) -> LayerType:
    hidden, vocab = int(found["hidden"]), int(found["vocab"])
    shapes: dict[str, Shape] = {
        "hidden": hidden,
        "vocab": vocab,
        "tied": bool(found["tied"]),
        "norm": str(found["norm"]),
        "family": str(found["family"]),
        "tensors": _text(found["tensors"]),
    }
    for name in ("scale", "logit_scale"):
        if found[name] != 1.0:
            shapes[name] = repr(float(found[name]))
    if found["cap"] is not None:
        shapes["cap"] = repr(float(found["cap"]))
    return LayerType.of(LayerKind.HEAD, shapes, vocab * hidden + _count(found["tensors"]))


def _text(tensors: list[Any]) -> str:
    return json.dumps(tensors, separators=(",", ":"))


def _count(tensors: list[Any]) -> int:
    return sum(prod(int(n) for n in tensor[1]) for tensor in tensors)
