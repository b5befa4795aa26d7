"""The form of the CSV files that `import csv` reads and `export csv` writes.

A folder with any of `layers.csv`, `links.csv`, `hosts.csv`; beside them, written by an export,
`layer_types.csv` (what the hashes in `layers.csv` stand for) and `run.json` (where the figures
come from). First line: column names, in any order. Times in ms, sizes in bytes; an empty cell is
a value that is not known or has its default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LAYERS_FILE, LINKS_FILE, HOSTS_FILE = "layers.csv", "links.csv", "hosts.csv"
LAYER_TYPES_FILE, RUN_FILE = "layer_types.csv", "run.json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: how a cell is read, whether every row must have it, and what it means."""

    name: str
    parse: Callable[[str], Any]
    required: bool
    meaning: str


def whole(text: str) -> int:
    """A whole number; 1.5e9 is one, 1.5 is not."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not math.isfinite(value) or value != int(value):
            raise ValueError("expected a whole number") from None
        return int(value)


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("expected a number") from None
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def truth(text: str) -> bool:
    """true or false, 1 or 0."""
    found = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if found is None:
        raise ValueError("expected true or false")
    return found


LAYER_COLUMNS = (
    Column("model", str, False, "catalogue name or config.json; default: --model"),
    Column("layer", str, False, "embedding, block, dense-block, moe-block or head"),
    Column("layer_type", str, False, "hash of the layer type, instead of model and layer"),
    Column("gpu", str, True, "GPU type of the catalogue"),
    Column("tp", whole, True, "tensor-parallel degree"),
    Column("micro_batch", whole, True, "samples"),
    Column("seq_len", whole, False, "tokens; default: the model's"),
    Column("dtype", str, False, "bf16, fp16 or fp32; default: the model's"),
    Column("recompute", str, False, "none or full; default: none"),
    Column("optimizer", str, False, "adamw, adamw-no-master or sgd; default: adamw"),
    Column("topology", str, False, "link of the TP group; default: that of the GPU type"),
    Column("ep", whole, False, "expert-parallel degree; default: 1"),
    Column("etp", whole, False, "expert tensor-parallel degree; default: 1"),
    Column("forward_ms", number, True, "computation of one micro-batch"),
    Column("backward_ms", number, True, "computation of one micro-batch"),
    Column("comm_ms", number, True, "TP and ETP collectives of one forward and one backward"),
    Column("update_ms", number, True, "optimizer step of this layer's shard"),
    Column("activation_bytes", whole, True, "kept until backward, of one micro-batch"),
    Column("transient_bytes", whole, False, "peak above that; default: 0"),
    Column("parameter_bytes", whole, True, "weights of one rank, without routed experts"),
    Column("expert_parameter_bytes", whole, False, "routed experts of one rank; default: 0"),
    Column("samples", whole, False, "timed repetitions; default: 1"),
    Column("forward_mad_ms", number, False, "median absolute deviation"),
    Column("backward_mad_ms", number, False, "median absolute deviation"),
    Column("comm_mad_ms", number, False, "median absolute deviation"),
    Column("update_mad_ms", number, False, "median absolute deviation"),
    Column("comm_included", truth, False, "true: comm is inside forward and backward"),
    Column("status", str, False, "ok, or why there are no figures; default: ok"),
    Column("reason", str, False, "in words, where the status is not ok"),
)
LINK_COLUMNS = (
    Column("gpu", str, True, "GPU type of the catalogue"),
    Column("peer_gpu", str, False, "type at the other end; default: the same"),
    Column("topology", str, True, "nvswitch, nvlink, pcie, host or inter"),
    Column("operation", str, True, "p2p, all_reduce, all_gather, reduce_scatter or all_to_all"),
    Column("ranks", whole, True, "size of the group, 2 for one pair"),
    Column("nbytes", whole, True, "the full buffer; all_to_all: what one rank sends"),
    Column("time_ms", number, True, "of one transfer"),
    Column("samples", whole, False, "timed repetitions; default: 1"),
    Column("mad_ms", number, False, "median absolute deviation"),
)
HOST_COLUMNS = (
    Column("gpu", str, True, "GPU type of the catalogue"),
    Column("host_ms", number, True, "overhead of one micro-batch on one stage"),
    Column("framework_bytes", whole, True, "context and communicators"),
    Column("usable_bytes", whole, True, "memory a process may fill, before head-room"),
    Column("host_mad_ms", number, False, "median absolute deviation"),
)
LAYER_TYPE_COLUMNS = (
    Column("layer_type", str, True, "hash, as in layers.csv"),
    Column("kind", str, True, "embedding, block, dense-block, moe-block or head"),
    Column("parameters", whole, True, "weights, without routed experts"),
    Column("expert_parameters", whole, True, "weights of all routed experts"),
    Column("shapes", str, True, "JSON: [[name, value], ...]"),
)
COLUMNS = {
    LAYERS_FILE: LAYER_COLUMNS,
    LINKS_FILE: LINK_COLUMNS,
    HOSTS_FILE: HOST_COLUMNS,
    LAYER_TYPES_FILE: LAYER_TYPE_COLUMNS,
}
