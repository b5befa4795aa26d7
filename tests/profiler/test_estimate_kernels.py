"""Formulas of single kernels against the calibration's worked examples and numbers by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from profiler.calibration import GemmConstants, calibration
from profiler.estimates.devices import Device, device
from profiler.estimates.kernels import (
    Attention,
    Gemm,
    flash_attention_ms,
    gemm_backward_ms,
    gemm_ms,
    gemms_ms,
    memory_op_ms,
    unfused_attention_ms,
    wave_factor,
)
from profiler.estimates.optimizer import bytes_per_parameter, update_ms
from specs.workload import DType, Optimizer

EXAMPLES = json.loads((Path(__file__).parent / "data" / "worked_examples.json").read_text())[
    "examples"
]
A100 = device("a100-80gb")


def plain(gemm: GemmConstants) -> Device:
    return replace(A100, gemm=gemm)


def examples(kind: str) -> list[tuple[str, str, float]]:
    return [
        (gpu, shape, expected)
        for gpu, by_kind in EXAMPLES.items()
        for shape, expected in by_kind[kind].items()
    ]


def dtype_of(gpu: str) -> DType:
    return DType.BF16 if device(gpu).has_bf16 else DType.FP16


@pytest.mark.parametrize(("gpu", "shape", "expected"), examples("gemm_ms"))
def test_worked_examples_of_matrix_products_come_out_to_the_digits_given(
    gpu: str, shape: str, expected: float
) -> None:
    m, n, k = map(int, shape.split("x"))
    found = gemm_ms(device(gpu), Gemm(m, n, k), dtype_of(gpu))
    assert float(f"{found:.4g}") == expected


@pytest.mark.parametrize(("gpu", "shape", "expected"), examples("attention_fwd_causal_ms"))
def test_worked_examples_of_attention_come_out_to_the_digits_given(
    gpu: str, shape: str, expected: float
) -> None:
    b, s, h, kv, d = map(int, re.findall(r"\d+", shape))
    found, _ = flash_attention_ms(device(gpu), Attention(b, s, h, kv, d, d), DType.BF16)
    assert float(f"{found:.4g}") == expected


def test_there_are_examples_of_ten_gpu_types_and_v100_has_no_attention() -> None:
    assert len(EXAMPLES) == 10
    assert EXAMPLES["v100-32gb"]["attention_fwd_causal_ms"] == {}
    assert len(examples("gemm_ms")) == 40


def test_a_full_last_wave_costs_nothing_and_one_block_a_whole_wave() -> None:
    assert wave_factor(216, 108) == 1.0
    assert wave_factor(109, 108) == pytest.approx(216 / 109)
    assert wave_factor(1, 108) == 108.0


def test_with_exponent_one_compute_and_memory_time_add_up() -> None:
    # 2e9 FLOP at 312e9 FLOP/ms and 6e6 bytes at 2039e6 bytes/ms, plus a launch of 0.001 ms.
    card = plain(GemmConstants(0.001, 1.0, 1.0, 0.0, 0.0, 1.0))
    expected = 0.001 + 2e9 / 312e9 + 6e6 / 2039e6
    assert gemm_ms(card, Gemm(1000, 1000, 1000), DType.BF16) == pytest.approx(expected)


def test_a_large_exponent_leaves_the_larger_of_both() -> None:
    card = plain(GemmConstants(0.0, 1.0, 1.0, 0.0, 0.0, 500.0))
    assert gemm_ms(card, Gemm(4096, 4096, 4096), DType.BF16) == pytest.approx(
        2 * 4096**3 / 312e9, rel=1e-3
    )
    assert gemm_ms(card, Gemm(1, 4096, 1), DType.BF16) == pytest.approx(
        2 * (1 + 4096 + 4096) / 2039e6, rel=1e-3
    )


def test_a_short_inner_length_halves_the_speed_at_k_half() -> None:
    card = plain(GemmConstants(0.0, 1.0, 1e9, 0.0, 128.0, 1.0))
    assert gemm_ms(card, Gemm(1024, 1024, 128), DType.BF16) == pytest.approx(
        2 * 2 * 1024 * 1024 * 128 / 312e9, rel=1e-6
    )


def test_backward_is_two_products_of_the_same_work() -> None:
    shape = Gemm(4096, 6144, 4096)
    expected = gemm_ms(A100, Gemm(4096, 4096, 6144), DType.BF16)
    expected += gemm_ms(A100, Gemm(6144, 4096, 4096), DType.BF16)
    assert gemm_backward_ms(A100, shape, DType.BF16) == pytest.approx(expected)
    assert gemms_ms(A100, [shape, shape], DType.BF16)[1] == pytest.approx(2 * expected)


def test_attention_backward_is_two_and_a_half_times_the_work_at_lower_efficiency() -> None:
    shape = Attention(1, 8192, 32, 8, 128, 128)
    for gpu, efficiency in (("a100-80gb", 0.87), ("h100", 0.75), ("h200", 0.75), ("a6000", 0.87)):
        card = device(gpu)
        assert card.attention is not None
        launch = card.attention.launch_ms
        forward, backward = flash_attention_ms(card, shape, DType.BF16)
        assert backward - launch == pytest.approx(2.5 * (forward - launch) / efficiency)


def test_head_sizes_between_64_and_128_are_between_their_efficiencies() -> None:
    fit = calibration().attention["h100"]
    times = [
        flash_attention_ms(device("h100"), Attention(4, 4096, 32, 32, d, d), DType.BF16)[0] / d
        for d in (32, 64, 96, 128, 256)
    ]
    assert times[0] > times[1] > times[2] > times[3] > times[4]
    per_flop = [(t * d - fit.launch_ms) / d for t, d in zip(times, (32, 64, 96, 128, 256))]
    assert per_flop[1] / per_flop[3] == pytest.approx(fit.eff_d128 / fit.eff_d64)
    assert per_flop[1] / per_flop[2] == pytest.approx(
        (fit.eff_d64 + fit.eff_d128) / 2 / fit.eff_d64
    )
    assert per_flop[0] == pytest.approx(per_flop[1])


def test_unfused_attention_moves_13_and_20_bytes_a_score() -> None:
    # One head of 1000 tokens: 1e6 scores; 4 * 1e6 * 128 FLOP at half of 125e9 FLOP/ms.
    card = device("v100-32gb")
    forward, backward = unfused_attention_ms(card, Attention(1, 1000, 1, 1, 128, 128), DType.FP16)
    flops = 4e6 * 128
    assert forward == pytest.approx(0.004 + 13e6 / (900e6 * 0.8) + flops / 62.5e9)
    assert backward == pytest.approx(0.004 + 20e6 / (900e6 * 0.8) + 2 * flops / 62.5e9)


def test_flash_attention_is_refused_where_none_was_fitted() -> None:
    with pytest.raises(ValueError, match="v100-16gb"):
        flash_attention_ms(device("v100-16gb"), Attention(1, 1, 1, 1, 64, 64), DType.FP16)


def test_a_memory_bound_operator_reaches_eight_tenths_of_bandwidth() -> None:
    # 2039 GB/s * 0.8 = 1631.2e6 bytes per ms.
    assert memory_op_ms(A100, 1631.2e6) == pytest.approx(1.004)


def test_an_optimizer_step_moves_28_bytes_a_parameter() -> None:
    assert bytes_per_parameter(DType.BF16, Optimizer.ADAMW) == 28
    assert bytes_per_parameter(DType.FP32, Optimizer.ADAMW) == 28
    assert bytes_per_parameter(DType.BF16, Optimizer.ADAMW_NO_MASTER) == 22
    assert bytes_per_parameter(DType.FP16, Optimizer.SGD) == 6
    assert bytes_per_parameter(DType.FP32, Optimizer.SGD) == 12
    assert update_ms(A100, 1_000_000, DType.BF16, Optimizer.ADAMW) == pytest.approx(
        0.004 + 28e6 / 1631.2e6
    )
