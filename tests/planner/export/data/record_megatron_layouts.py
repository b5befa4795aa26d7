"""Records what megatron-core's own parser makes of layout strings: megatron_layouts.json.

Needs megatron-core beside torch (a throw-away environment; Arachne does not):
    python tests/planner/export/data/record_megatron_layouts.py
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

# (layout, pipeline stages, blocks of the model)
ACCEPTED = [
    ("Et*3|t*5L", 2, 8),
    ("Et|t*2|t*5L", 3, 8),
    ("E|t*8|L", 3, 8),
    ("E|t*8L", 2, 8),
    ("Et*10|t*22L", 2, 32),
    ("Et*16|t*15|tL", 3, 32),
    ("Et|t*30|tL", 3, 32),
    ("Et*64|t*64L", 2, 128),
    ("|".join(["Et*5", *["t*4"] * 5, "t*7L"]), 7, 32),
    ("|".join(["Et", *["t"] * 30, "tL"]), 32, 32),
]
REFUSED = [
    ("Et*3|t*4L", 2, 8),  # a block is missing
    ("t*4|t*4L", 2, 8),  # no embedding
    ("Et*4|t*4", 2, 8),  # no loss
    ("Et*4|x*4L", 2, 8),  # no such layer
    ("Et*2|t*2|t*4L", 2, 8),  # three stages for two
    ("t*4|Et*4L", 2, 8),  # the embedding is not first
]


def stages(layout: str, pipeline: int, blocks: int) -> list[list[str]]:
    """The layers of every stage, as the parser names them."""
    found = PipelineParallelLayerLayout.from_str(layout, pipeline)
    found.validate_layer_layout(num_layers=blocks, mtp_num_layers=None)
    return [[kind.name for kind in parts[0]] for parts in found.layout]


def main() -> None:
    """Run the parser on every string and write the file."""
    record = {
        "origin": f"megatron-core {version('megatron-core')}, PipelineParallelLayerLayout",
        "licence": "Apache-2.0, Copyright (c) NVIDIA CORPORATION & AFFILIATES",
        "accepted": [
            {"layout": layout, "pp": pp, "blocks": n, "stages": stages(layout, pp, n)}
            for layout, pp, n in ACCEPTED
        ],
        "refused": [],
    }
    for layout, pp, blocks in REFUSED:
        try:
            stages(layout, pp, blocks)
        except AssertionError as error:
            said = {"layout": layout, "pp": pp, "blocks": blocks, "error": str(error)}
            record["refused"].append(said)
        else:
            raise SystemExit(f"{layout} was not refused")
    path = Path(__file__).parent / "megatron_layouts.json"
    path.write_text(written(record))


def written(record: dict[str, Any]) -> str:
    """The record as JSON, a line for each string."""
    lines = [f'"origin": {json.dumps(record["origin"])}']
    lines += [f'"licence": {json.dumps(record["licence"])}']
    for key in ("accepted", "refused"):
        cases = ",\n  ".join(json.dumps(case) for case in record[key])
        lines += [f'"{key}": [\n  {cases}\n ]']
    return "{\n " + ",\n ".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
