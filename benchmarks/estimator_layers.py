"""Estimated against measured times of single layers: prints a report.

    python benchmarks/estimator_layers.py > benchmarks/results/$(date +%F)-estimator-layers.md

Dense blocks: the fp32 profiles of the public Sailor data set (examples/sailor), whose OPT-350M and
GPT-Neo-2.7B blocks have exactly the parameters of those models' blocks. MoE layers: Megatron-LM's
performance test on H100 (benchmarks/data/moe_layers.csv). No constant was tuned on either.
"""

from __future__ import annotations

import csv
import platform
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from profiler.calibration import constants_version
from profiler.estimates.blocks import expert_times
from profiler.estimates.collectives import collective_ms
from profiler.estimates.devices import device
from profiler.estimates.kernels import gemms_ms
from profiler.estimates.layers import estimate_layer
from profiler.estimates.shard import Shard
from profiler.importers import sailor
from profiler.importers.imported import ImportOptions
from specs.host import cpu_model
from specs.layer import LayerKind
from specs.model import load_model
from specs.profile import LayerProfile, Operation
from specs.topology import Topology
from specs.workload import DType

ROOT = Path(__file__).resolve().parents[1]
MODELS = {"sailor-opt-350m": "opt-350m", "sailor-gpt-neo-2.7b": "gpt-neo-2.7b"}
# Catalogue models with the sizes of those in Megatron's test; the rows do not state them.
MOE = {"mixtral": "mixtral-8x7b", "deepseek": "deepseek-v3-like"}

Pair = tuple[LayerProfile, LayerProfile]  # measured, estimated


def sailor_blocks() -> dict[tuple[str, str], list[Pair]]:
    """Measured and estimated rows of blocks at TP 1, by model and GPU type."""
    found: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for run in sailor.read(ROOT / "examples" / "sailor", ImportOptions(copies=("simulator",))):
        for model in run.models:
            if model.name not in MODELS:
                continue
            kinds = {layer.hash: layer.kind for layer in model.layer_types}
            [ours] = [x for x in load_model(MODELS[model.name]).layer_types if x.kind.is_block]
            for row in run.layers:
                kind = kinds.get(row.key.layer_type)
                if kind is None or not kind.is_block or row.key.tp > 1:
                    continue
                estimated = estimate_layer(ours, replace(row.key, layer_type=ours.hash))
                assert isinstance(estimated, LayerProfile)
                found[MODELS[model.name], row.key.gpu].append((row, estimated))
    return found


def block_lines() -> Iterator[str]:
    yield "| model | GPU type | rows | forward | backward | both |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for (model, gpu), pairs in sorted(sailor_blocks().items()):
        forward = median(e.forward_ms / m.forward_ms - 1 for m, e in pairs)
        backward = median(e.backward_ms / m.backward_ms - 1 for m, e in pairs)
        both = median(
            (e.forward_ms + e.backward_ms) / (m.forward_ms + m.backward_ms) - 1 for m, e in pairs
        )
        yield f"| {model} | {gpu} | {len(pairs)} | {forward:+.0%} | {backward:+.0%} | {both:+.0%} |"


def moe_ms(name: str) -> tuple[float, float]:
    """Forward and backward of one MoE layer of a model at EP 8 on one node of H100, underated.

    Experts, shared experts and two all-to-alls each way.
    """
    card = device("h100")
    layer = next(x for x in load_model(name).layer_types if x.kind is LayerKind.MOE_BLOCK)
    shard = Shard(layer, 1, 4096, DType.BF16, ep=8)
    experts = expert_times(card, shard, Topology.NVLINK)
    shared = gemms_ms(card, shard.mlp_gemms(), DType.BF16)
    payload = shard.own_rows * shard.hidden * DType.BF16.bytes
    moving = 2 * collective_ms("h100", Topology.NVLINK, Operation.ALL_TO_ALL, 8, payload)
    return (
        experts.forward_ms + shared[0] + moving,
        experts.backward_ms + shared[1] + moving,
    )


def moe_lines() -> Iterator[str]:
    measured: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    with (ROOT / "benchmarks" / "data" / "moe_layers.csv").open() as file:
        for row in csv.DictReader(file):
            facts = dict(pair.split("=") for pair in row["shapes"].split(";"))
            measured[facts["model"], facts["dispatcher"]][row["direction"]] = float(row["time_ms"])
    yield "| model | dispatcher | forward ms | estimate | error | backward ms | estimate | error |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for (model, dispatcher), times in sorted(measured.items()):
        forward, backward = moe_ms(MOE[model])
        yield (
            f"| {model} | {dispatcher} | {times['fwd']:.2f} | {forward:.2f} | "
            f"{forward / times['fwd'] - 1:+.0%} | {times['bwd']:.2f} | {backward:.2f} | "
            f"{backward / times['bwd'] - 1:+.0%} |"
        )


BLOCK_NOTES = """\
On Volta and Turing, which have no TF32, a block comes out 13 to 25 % slow, forward more than
backward: attention is the unfused model there. On A100 and GH200 the published times need more
than the 19.5 and 67 TFLOP/s that these cards have in fp32 (GPT-Neo's block: 365 GFLOP in 4.9 and
2.1 ms), so those runs used TF32, which torch leaves off by default, and so do we. The RTX 3090
comes out fast: its datasheet counts two fp32 units, and products seldom fill the second.
"""
MOE_NOTES = """\
The estimate is of an NCCL all-to-all (`a2a`); `deepep` and `hybridep` are other kernels. Sizes of
the DeepSeek rows are assumed: those of DeepSeek-V3 with its shared expert."""


def report() -> Iterator[str]:
    yield "# Estimated against measured layers"
    yield ""
    yield f"- Date: {datetime.now(UTC):%Y-%m-%d}. Host: {cpu_model()}, Python"
    yield f"  {platform.python_version()}; nothing is timed here. Constants {constants_version()}."
    yield "- Command: `python benchmarks/estimator_layers.py`. No constant was tuned on these rows."
    yield ""
    yield "## Dense blocks in fp32 (Sailor's profiles, MIT), TP 1: median error over micro-batches"
    yield ""
    yield from block_lines()
    yield ""
    yield BLOCK_NOTES
    yield "## MoE layers in bf16 on H100, EP 8 in one node (Megatron-LM), without the derate"
    yield ""
    yield from moe_lines()
    yield ""
    yield MOE_NOTES


if __name__ == "__main__":
    for line in report():
        print(line)
