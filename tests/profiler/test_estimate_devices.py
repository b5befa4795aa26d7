"""Which constants a GPU type takes, and what is said of them."""

from __future__ import annotations

from statistics import median

import pytest

from profiler.calibration import calibration, constants_version
from profiler.estimates.devices import Grade, computation_components, device
from profiler.estimates.links import default_topologies
from profiler.estimates.question import provenance
from specs.errors import SpecError
from specs.gpu import GPU_TYPES
from specs.workload import DType

REAL = [name for name in GPU_TYPES if name != "cpu"]


@pytest.mark.parametrize("gpu", REAL)
def test_every_gpu_type_of_the_catalogue_has_a_device(gpu: str) -> None:
    card = device(gpu)
    assert card.peak_flop_per_ms(DType.FP16) > card.peak_flop_per_ms(DType.FP32) > 0
    assert card.derate >= 1.0


def test_the_processor_of_this_host_is_refused_with_what_to_do() -> None:
    with pytest.raises(SpecError, match="cpu has no datasheet"):
        device("cpu")


def test_a_type_without_a_fit_gets_080_and_082_and_medians() -> None:
    for gpu in ("gh200", "rtx-3090", "titan-rtx", "rtx-2080-ti"):
        gemm = device(gpu).gemm
        assert (gemm.eff_compute, gemm.eff_mem) == (0.80, 0.82)
        assert gemm.k_half == median(fit.k_half for fit in calibration().gemm.values())


def test_cards_of_one_die_share_constants_and_keep_their_own_datasheet() -> None:
    a40, a6000 = device("a40"), device("a6000")
    assert a40.gemm == a6000.gemm
    assert a40.memory_bytes_per_ms == 696e6
    assert a6000.memory_bytes_per_ms == 768e6
    assert device("v100-16gb").gemm == device("v100-32gb").gemm


def test_the_derate_is_1_on_a100_125_on_h100_and_11_elsewhere() -> None:
    assert {gpu: device(gpu).derate for gpu in REAL} == {
        gpu: {"a100-40gb": 1.0, "a100-80gb": 1.0, "h100": 1.25}.get(gpu, 1.1) for gpu in REAL
    }


def test_cards_without_bf16_tensor_cores_run_bf16_outside_them() -> None:
    v100 = device("v100-32gb")
    assert v100.peak_flop_per_ms(DType.BF16) == 15.7e9
    assert v100.peak_flop_per_ms(DType.FP16) == 125e9
    assert device("h100").peak_flop_per_ms(DType.BF16) == 989.4e9


def test_provenance_tells_fitted_from_carried_over_from_set_by_hand() -> None:
    def grades(gpu: str) -> dict[str, tuple[Grade, str]]:
        parts = provenance(gpu, default_topologies(gpu))
        return {part.name: (part.grade, part.donor) for part in parts}

    h100, a6000, titan = grades("h100"), grades("a6000"), grades("titan-rtx")
    assert h100["matrix products"] == (Grade.FITTED, "h100")
    assert h100["attention forward"] == (Grade.FITTED, "h100")
    assert h100["sustained derate"] == (Grade.FITTED, "h100")
    assert h100["links nvlink"] == (Grade.FITTED, "h100")
    assert h100["memory-bound operators"] == (Grade.DEFAULT, "")
    assert h100["host floor and overhead"] == (Grade.CARRIED, "a100-80gb")
    assert a6000["matrix products"] == (Grade.CARRIED, "a40")
    assert a6000["attention forward"] == (Grade.CARRIED, "l40s")
    assert a6000["sustained derate"] == (Grade.DEFAULT, "")
    assert titan["matrix products"] == (Grade.DEFAULT, "")
    assert titan["attention forward"] == (Grade.DEFAULT, "")


@pytest.mark.parametrize("gpu", REAL)
def test_every_part_of_every_type_has_a_grade_and_fitted_parts_name_their_type(gpu: str) -> None:
    parts = computation_components(gpu)
    assert [part.name for part in parts] == [
        "matrix products",
        "attention forward",
        "attention backward",
        "memory-bound operators",
        "host floor and overhead",
        "sustained derate",
    ]
    for part in parts:
        assert (part.grade is Grade.DEFAULT) == (part.donor == "")
        assert (part.grade is Grade.FITTED) == (part.donor == gpu)
        assert part.to_json()["grade"] == part.grade.value


def test_the_constants_have_a_version_of_twelve_digits() -> None:
    assert len(constants_version()) == 12
    assert int(constants_version(), 16) >= 0
