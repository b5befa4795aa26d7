"""The fitted constants that estimates are made from, as they ship with the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from typing import Any

from specs.profile import Operation

# Raised whenever a formula of profiler/estimates gives other figures for the same constants.
FORMULAS = 1


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Matrix product of one GPU type; README.md of this folder has the formula.

    launch_ms: per kernel. eff_compute, eff_mem: of datasheet peaks. wave_exp: how much an
    incomplete last wave of tiles costs. k_half: inner length at which a tile runs at half speed.
    norm_p: of the smooth maximum of compute and memory time.
    """

    launch_ms: float
    eff_compute: float
    eff_mem: float
    wave_exp: float
    k_half: float
    norm_p: float


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Causal flash attention, forward, of one GPU type; efficiencies at head sizes 64 and 128."""

    launch_ms: float
    eff_d64: float
    eff_d128: float
    s_half: float
    eff_mem: float
    wave_exp: float


@dataclass(frozen=True, slots=True)
class Line:
    """A transfer as a straight line: latency in ms and bus bandwidth in GB/s (decimal)."""

    latency_ms: float
    bus_gb_per_s: float

    def scaled(self, latency: float, bandwidth: float) -> Line:
        """The line with its latency and bandwidth multiplied."""
        return Line(self.latency_ms * latency, self.bus_gb_per_s * bandwidth)


@dataclass(frozen=True, slots=True)
class CollectiveFit:
    """One collective at one group size.

    one_line: over all message sizes. two_lines: low-latency and high-bandwidth protocol, of which
    the faster one runs; empty where only one line was fitted.
    """

    one_line: Line
    two_lines: tuple[Line, ...] = ()


# group size -> fit, by operation
LinkFits = Mapping[Operation, Mapping[int, CollectiveFit]]


@dataclass(frozen=True)
class Calibration:
    """All constants, each under the GPU type that it was fitted on (catalogue names).

    collectives: by GPU type and kind of link (`nvlink`, `pcie`). The rest is in the words of
    README.md.
    """

    gemm: Mapping[str, GemmConstants]
    attention: Mapping[str, AttentionConstants]
    collectives: Mapping[str, Mapping[str, LinkFits]]
    backward_flop_ratio: float
    backward_efficiency: Mapping[str, float]
    score_forward_bytes: float
    score_backward_bytes: float
    score_matmul_peak: float
    memory_launch_ms: float
    memory_efficiency: float
    norm_bytes: float
    gated_bytes: float
    plain_bytes: float
    p2p_latency_ms: float
    bridge_latency_ms: float
    bridge_share: float
    block_forward_ms: float
    per_collective_ms: float
    per_micro_batch_ms: float
    derate: Mapping[str, float]
    default_eff_compute: float
    default_eff_mem: float
    version: str


def _text() -> str:
    return resources.files("profiler.calibration").joinpath("constants.json").read_text()


def _typed(kind: Any, values: Mapping[str, Any]) -> Any:
    return kind(**{field.name: float(values[field.name]) for field in fields(kind)})


def _fit(values: Mapping[str, Any]) -> CollectiveFit:
    lines = tuple(_typed(Line, line) for line in values.get("two_lines", ()))
    return CollectiveFit(_typed(Line, values["one_line"]), lines)


def _links(values: Mapping[str, Any]) -> dict[str, LinkFits]:
    return {
        link: {
            Operation(operation): {int(ranks): _fit(fit) for ranks, fit in by_ranks.items()}
            for operation, by_ranks in by_operation.items()
        }
        for link, by_operation in values.items()
    }


@lru_cache(maxsize=1)
def calibration() -> Calibration:
    """The constants of this version of the package."""
    text = _text()
    read = json.loads(text)
    memory, host, unfused = read["memory_op"], read["host"], read["unfused_attention"]
    version = hashlib.sha256(f"{FORMULAS}\n{text}".encode()).hexdigest()[:12]
    return Calibration(
        gemm={gpu: _typed(GemmConstants, values) for gpu, values in read["gemm"].items()},
        attention={
            gpu: _typed(AttentionConstants, values)
            for gpu, values in read["attention_forward"].items()
        },
        collectives={gpu: _links(values) for gpu, values in read["collectives"].items()},
        backward_flop_ratio=read["attention_backward"]["flop_ratio"],
        backward_efficiency=read["attention_backward"]["efficiency_over_forward"],
        score_forward_bytes=unfused["forward_bytes_per_score"],
        score_backward_bytes=unfused["backward_bytes_per_score"],
        score_matmul_peak=unfused["matmul_fraction_of_peak"],
        memory_launch_ms=memory["launch_ms"],
        memory_efficiency=memory["efficiency"],
        norm_bytes=memory["norms_residuals_bytes_per_token_hidden"],
        gated_bytes=memory["gated_activation_bytes_per_element"],
        plain_bytes=memory["plain_activation_bytes_per_element"],
        p2p_latency_ms=read["point_to_point"]["latency_ms"],
        bridge_latency_ms=read["bridge"]["latency_ms"],
        bridge_share=read["bridge"]["fraction_of_link"],
        block_forward_ms=host["block_forward_ms"],
        per_collective_ms=host["per_collective_ms"],
        per_micro_batch_ms=host["per_micro_batch_ms"],
        derate=read["sustained_derate"],
        default_eff_compute=read["defaults"]["eff_compute"],
        default_eff_mem=read["defaults"]["eff_mem"],
        version=version,
    )


def constants_version() -> str:
    """Twelve hex digits that change with any constant and any formula."""
    return calibration().version
