from __future__ import annotations

import pytest

from specs.errors import SpecError
from specs.gpu import GPU_TYPES, gpu_type, gpu_type_of_nvml_name
from specs.topology import INTRA_NODE


def test_every_name_of_the_design_is_there() -> None:
    names = (
        "a100-40gb a100-80gb a40 a5000 a6000 h100 h200 l40s rtx-pro-6000 v100-16gb v100-32gb "
        "gh200 rtx-3090 titan-rtx rtx-2080-ti cpu"
    )
    assert set(names.split()) <= set(GPU_TYPES)


def test_nvml_names_lead_to_one_type_each() -> None:
    seen = [name for gpu in GPU_TYPES.values() for name in gpu.nvml_names]
    assert len(seen) == len(set(seen))
    found = gpu_type_of_nvml_name("NVIDIA H200")
    assert found is not None
    assert found.name == "h200"
    assert gpu_type_of_nvml_name("Voodoo 2") is None


def test_figures_are_plausible() -> None:
    for gpu in GPU_TYPES.values():
        assert gpu.default_topology in INTRA_NODE
        if gpu.datasheet is None:
            assert gpu.is_cpu
            continue
        # GDDR and HBM cards of 2017 to 2024: 30 to 600 FLOP per byte, 10 to 150 GB.
        balance = gpu.datasheet.tflops * 1e12 / (gpu.datasheet.memory_gb_per_s * 1e9)
        assert 30 < balance < 600
        assert gpu.memory_mib is not None
        assert 10_000 < gpu.memory_mib < 150_000


def test_an_unknown_type_lists_the_catalogue() -> None:
    with pytest.raises(SpecError, match="expected one of: a100-40gb"):
        gpu_type("tpu")
