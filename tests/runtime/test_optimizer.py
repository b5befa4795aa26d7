from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from runtime.optimizer import build_optimizer
from specs.workload import STATE_BYTES_PER_PARAMETER, DType, Optimizer

TORCH = {DType.BF16: torch.bfloat16, DType.FP32: torch.float32}


def _parameter(values: list[float], dtype: torch.dtype) -> Parameter:
    parameter = Parameter(torch.tensor(values, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    return parameter


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
@pytest.mark.parametrize("kind", list(Optimizer))
def test_state_has_the_bytes_per_parameter_that_the_memory_formula_counts(
    dtype: DType, kind: Optimizer
) -> None:
    weights = _parameter([0.5] * 1000, TORCH[dtype])
    update = build_optimizer([weights], kind, dtype)
    update.step()
    counted = 2 * weights.numel() * weights.element_size() + update.state_bytes()
    assert counted == 1000 * STATE_BYTES_PER_PARAMETER[(dtype, kind)]


def test_sgd_subtracts_rate_times_gradient() -> None:
    weights = _parameter([1.0, 2.0], torch.float32)
    build_optimizer([weights], Optimizer.SGD, DType.FP32, learning_rate=0.25).step()
    assert weights.tolist() == [0.75, 1.75]


def test_the_first_adamw_step_moves_by_the_rate_and_decays_the_weight() -> None:
    # m = g, v = g^2 after bias correction, so the step is rate * sign(g); decay rate * 0.1 * w.
    weights = _parameter([1.0, -2.0], torch.float32)
    build_optimizer([weights], Optimizer.ADAMW, DType.FP32, learning_rate=0.01).step()
    expected = [1.0 - 0.01 * 0.1 * 1.0 - 0.01, -2.0 + 0.01 * 0.1 * 2.0 - 0.01]
    assert weights.tolist() == pytest.approx(expected, abs=1e-6)


def test_small_steps_survive_in_the_fp32_master_and_are_lost_without_it() -> None:
    # bf16 near 1 has steps of 1/128 upwards and 1/256 downwards; 20 steps of 1e-4 are below that.
    kept = _parameter([1.0], torch.bfloat16)
    lost = _parameter([1.0], torch.bfloat16)
    with_master = build_optimizer([kept], Optimizer.ADAMW, DType.BF16, learning_rate=1e-4)
    without = build_optimizer([lost], Optimizer.ADAMW_NO_MASTER, DType.BF16, learning_rate=1e-4)
    for _ in range(60):
        with_master.step()
        without.step()
    assert float(kept.detach()) < 1.0
    assert float(lost.detach()) == 1.0


def test_many_parameters_are_stepped_chunk_by_chunk_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(n, generator=generator).bfloat16() for n in (3, 5, 7, 2)]
    whole = [Parameter(v.clone()) for v in values]
    cut = [Parameter(v.clone()) for v in values]
    for parameter in (*whole, *cut):
        parameter.grad = torch.full_like(parameter, 0.1)
    one = build_optimizer(whole, Optimizer.ADAMW, DType.BF16)
    monkeypatch.setattr("runtime.optimizer._CHUNK", 6)
    many = build_optimizer(cut, Optimizer.ADAMW, DType.BF16)
    one.step()
    many.step()
    for a, b in zip(whole, cut, strict=True):
        assert torch.equal(a, b)


def test_parameters_of_another_precision_are_refused() -> None:
    with pytest.raises(ValueError, match="bf16"):
        build_optimizer([_parameter([1.0], torch.float32)], Optimizer.ADAMW, DType.BF16)
