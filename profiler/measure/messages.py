"""Layer keys as plain values, for the messages between a command and its measuring processes."""

from __future__ import annotations

from typing import Any

from specs.profile import LayerKey
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute


def key_document(key: LayerKey) -> dict[str, Any]:
    """A layer key as plain values."""
    return {
        "gpu": key.gpu,
        "layer_type": key.layer_type,
        "tp": key.tp,
        "micro_batch": key.micro_batch,
        "seq_len": key.seq_len,
        "dtype": key.dtype.value,
        "recompute": key.recompute.value,
        "optimizer": key.optimizer.value,
        "topology": key.topology.value,
        "ep": key.ep,
        "etp": key.etp,
    }


def key_of(document: dict[str, Any]) -> LayerKey:
    """The layer key of plain values. Raises ValueError for a word that is no value of its enum."""
    return LayerKey(
        **document
        | {
            "dtype": DType(document["dtype"]),
            "recompute": Recompute(document["recompute"]),
            "optimizer": Optimizer(document["optimizer"]),
            "topology": Topology(document["topology"]),
        }
    )
