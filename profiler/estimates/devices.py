"""Which constants each GPU type is estimated with, and on which GPU type they were fitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import median

from profiler.calibration import AttentionConstants, GemmConstants, calibration
from specs.errors import SpecError
from specs.gpu import GpuType, gpu_type
from specs.units import bytes_per_ms
from specs.workload import DType

FLOP_PER_MS_OF_TFLOPS = 1e9  # 1 TFLOP/s = 1e12 FLOP / 1e3 ms


class Grade(StrEnum):
    """How near a set of constants is to the GPU type it is used for."""

    FITTED = "fitted"  # to measurements of this GPU type
    CARRIED = "carried over"  # fitted on another type, with this one's datasheet
    DEFAULT = "default"  # set by hand, fitted on none


@dataclass(frozen=True, slots=True)
class Component:
    """Where one part of a GPU type's estimates comes from. donor: the type it was fitted on."""

    name: str
    grade: Grade
    donor: str = ""
    note: str = ""

    def to_json(self) -> dict[str, str]:
        """The fields as text."""
        return {
            "component": self.name,
            "grade": self.grade.value,
            "fitted_on": self.donor,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Donors:
    """The GPU types whose constants a type takes; "" = none was fitted.

    gemm "": efficiencies 0.80 and 0.82. attention "": no flash kernel was measured on such a card,
    so attention is the unfused model.
    """

    gemm: str
    attention: str


_DONORS = {
    "a100-40gb": Donors("a100-80gb", "a100-80gb"),  # same die, SMs and clock; other bandwidth
    "a100-80gb": Donors("a100-80gb", "a100-80gb"),
    "a40": Donors("a40", "l40s"),  # sm_86 by sm_89's fraction of peak
    "a5000": Donors("a40", "l40s"),  # GA102 with 64 SMs
    "a6000": Donors("a40", "l40s"),  # GA102, all but the clock of the A40
    "h100": Donors("h100", "h100"),
    "h200": Donors("h200", "h200"),
    "gh200": Donors("", "h100"),  # the H100's die; nobody fitted its matrix products
    "l40s": Donors("l40s", "l40s"),
    "rtx-pro-6000": Donors("rtx-pro-6000", "rtx-pro-6000"),
    "v100-16gb": Donors("v100-32gb", ""),  # the same card with less memory
    "v100-32gb": Donors("v100-32gb", ""),
    "rtx-3090": Donors("", "l40s"),  # GA102
    "titan-rtx": Donors("", ""),  # Turing: no flash kernel in mainline
    "rtx-2080-ti": Donors("", ""),
}
_HOPPER = ("h100", "h200", "gh200")
_WITHOUT_BF16 = ("v100-16gb", "v100-32gb", "titan-rtx", "rtx-2080-ti")  # tensor cores fp16 only

# TFLOP/s in fp32 outside the tensor cores (torch's default for fp32), of the vendors' datasheets.
_FP32_TFLOPS = {
    "a100-40gb": 19.5,
    "a100-80gb": 19.5,
    "a40": 37.4,
    "a5000": 27.8,
    "a6000": 38.7,
    "h100": 66.9,
    "h200": 66.9,
    "gh200": 66.9,
    "l40s": 91.6,
    "rtx-pro-6000": 125.0,
    "v100-16gb": 15.7,
    "v100-32gb": 15.7,
    "rtx-3090": 35.6,
    "titan-rtx": 16.3,
    "rtx-2080-ti": 13.4,
}


@dataclass(frozen=True)
class Device:
    """A GPU type as the formulas see it.

    memory_bytes_per_ms: datasheet. attention: None = unfused. attention_backward: efficiency of
    its backward over that of its forward. derate: sustained computation time over that of short
    benchmarks.
    """

    gpu: GpuType
    memory_bytes_per_ms: float
    sms: int
    gemm: GemmConstants
    attention: AttentionConstants | None
    attention_backward: float
    derate: float

    def peak_flop_per_ms(self, dtype: DType) -> float:
        """Datasheet peak of matrix products in a precision.

        fp32 runs outside the tensor cores, and so does bf16 on cards that know only fp16.
        """
        assert self.gpu.datasheet is not None
        if dtype is DType.FP32 or (dtype is DType.BF16 and not self.has_bf16):
            return _FP32_TFLOPS[self.gpu.name] * FLOP_PER_MS_OF_TFLOPS
        return self.gpu.datasheet.tflops * FLOP_PER_MS_OF_TFLOPS

    @property
    def has_bf16(self) -> bool:
        """Whether its tensor cores take bf16."""
        return self.gpu.name not in _WITHOUT_BF16


def _default_gemm() -> GemmConstants:
    """0.80 and 0.82 of the datasheet; the rest is the median of all fitted GPU types."""
    known = calibration()
    fits = list(known.gemm.values())
    return GemmConstants(
        launch_ms=median(fit.launch_ms for fit in fits),
        eff_compute=known.default_eff_compute,
        eff_mem=known.default_eff_mem,
        wave_exp=median(fit.wave_exp for fit in fits),
        k_half=median(fit.k_half for fit in fits),
        norm_p=median(fit.norm_p for fit in fits),
    )


@lru_cache(maxsize=64)
def device(name: str) -> Device:
    """The device of a catalogue name. Raises SpecError for `cpu`, which has no datasheet."""
    gpu = gpu_type(name)
    if gpu.datasheet is None:
        raise SpecError(
            f"{name} has no datasheet to estimate from: run arachne-prof run --gpu {name}"
        )
    known, donors = calibration(), _DONORS[name]
    return Device(
        gpu=gpu,
        memory_bytes_per_ms=bytes_per_ms(gpu.datasheet.memory_gb_per_s),
        sms=gpu.datasheet.sms,
        gemm=known.gemm[donors.gemm] if donors.gemm else _default_gemm(),
        attention=known.attention[donors.attention] if donors.attention else None,
        attention_backward=known.backward_efficiency["h100" if name in _HOPPER else "a100-80gb"],
        derate=known.derate[_derate_key(name)],
    )


def _derate_key(name: str) -> str:
    if name.startswith("a100"):
        return "a100"
    return "h100" if name == "h100" else "others"


def _from(name: str, gpu: str, donor: str, note: str) -> Component:
    if not donor:
        return Component(name, Grade.DEFAULT, "", note)
    grade = Grade.FITTED if donor == gpu else Grade.CARRIED
    return Component(name, grade, donor, note)


def computation_components(name: str) -> list[Component]:
    """Where the computation times of a GPU type come from, part by part."""
    donors, key = _DONORS[device(name).gpu.name], _derate_key(name)
    gemm = "efficiencies 0.80 and 0.82, the rest the median of all fits" if not donors.gemm else ""
    if name.startswith("v100"):
        gemm = "fp16"
    attention = (
        "no flash kernel measured: unfused, 13 and 20 bytes per score"
        if not donors.attention
        else ""
    )
    backward = "h100" if name in _HOPPER else "a100-80gb"
    sustained = {
        "a100": "1.0: end-to-end iterations need none",
        "h100": "1.25 (1.1 to 1.42): fitted to end-to-end iterations of H100",
        "others": "1.1: no end-to-end iterations of this type",
    }[key]
    return [
        _from("matrix products", name, donors.gemm, gemm),
        _from("attention forward", name, donors.attention, attention),
        Component(
            "attention backward",
            Grade.DEFAULT,
            "",
            "unfused"
            if not donors.attention
            else "2.5 times the operations at "
            f"{calibration().backward_efficiency[backward]:g} of the forward's efficiency",
        ),
        Component("memory-bound operators", Grade.DEFAULT, "", "0.80 of datasheet bandwidth"),
        _from("host floor and overhead", name, "a100-80gb", "eager Megatron-DeepSpeed hosts"),
        _from("sustained derate", name, "" if key == "others" else _derate_donor(key), sustained),
    ]


def _derate_donor(key: str) -> str:
    return "h100" if key == "h100" else "a100-80gb"
