"""The catalogue of GPU types: datasheet figures and the names NVML gives them."""

from __future__ import annotations

from dataclasses import dataclass

from specs.errors import SpecError
from specs.topology import Topology


@dataclass(frozen=True, slots=True)
class Datasheet:
    """Peak figures of a GPU type.

    tflops: dense 16-bit with fp32 accumulate. memory_gb_per_s: device memory. nvlink_gb_per_s and
    pcie_gb_per_s: per direction, decimal; 0 where the card has no such link. sms: streaming
    multiprocessors. Source: vendor datasheets (A100, H100, H200, GH200, L40S, V100, RTX PRO 6000,
    RTX A6000/A5000, GeForce and Titan white papers).
    """

    tflops: float
    memory_gb_per_s: float
    nvlink_gb_per_s: float
    pcie_gb_per_s: float
    sms: int


@dataclass(frozen=True, slots=True)
class GpuType:
    """One kind of device; `cpu` is this host's processor, without datasheet or own memory.

    memory_mib: total memory as NVML reports it. price_per_hour: USD, an on-demand list price that
    the user overrides.
    """

    name: str
    nvml_names: tuple[str, ...]
    memory_mib: int | None
    datasheet: Datasheet | None
    default_topology: Topology
    price_per_hour: float

    @property
    def is_cpu(self) -> bool:
        """Whether this is the host's own processor."""
        return self.datasheet is None


_PCIE3, _PCIE4, _PCIE5 = 15.75, 31.5, 63.0  # GB/s per direction of a x16 slot
_BRIDGE = 56.25  # GB/s per direction of a two-card NVLink bridge

_TYPES = (
    GpuType(
        "a100-40gb",
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-SXM4-40GB", "A100-PCIE-40GB"),
        40960,
        Datasheet(312, 1555, 300, _PCIE4, 108),
        Topology.NVLINK,
        3.67,
    ),
    GpuType(
        "a100-80gb",
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "A100-SXM4-80GB"),
        81920,
        Datasheet(312, 2039, 300, _PCIE4, 108),
        Topology.NVLINK,
        5.07,
    ),
    GpuType(
        "a40",
        ("NVIDIA A40", "A40"),
        46068,
        Datasheet(149.7, 696, _BRIDGE, _PCIE4, 84),
        Topology.PCIE,
        1.28,
    ),
    GpuType(
        "a5000",
        ("NVIDIA RTX A5000", "RTX A5000"),
        24564,
        Datasheet(111.1, 768, _BRIDGE, _PCIE4, 64),
        Topology.PCIE,
        0.77,
    ),
    GpuType(
        "a6000",
        ("NVIDIA RTX A6000", "RTX A6000"),
        49140,
        Datasheet(154.8, 768, _BRIDGE, _PCIE4, 84),
        Topology.PCIE,
        1.28,
    ),
    GpuType(
        "h100",
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100"),
        81559,
        Datasheet(989.4, 3350, 450, _PCIE5, 132),
        Topology.NVLINK,
        11.06,
    ),
    GpuType(
        "h200",
        ("NVIDIA H200",),
        143771,
        Datasheet(989.4, 4800, 450, _PCIE5, 132),
        Topology.NVLINK,
        12.29,
    ),
    GpuType(
        "gh200",
        ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "GH200 480GB"),
        97871,
        Datasheet(989.4, 4000, 450, _PCIE5, 132),
        Topology.NVLINK,
        11.06,
    ),
    GpuType(
        "l40s",
        ("NVIDIA L40S", "L40S"),
        46068,
        Datasheet(362, 864, 0, _PCIE4, 142),
        Topology.PCIE,
        1.86,
    ),
    GpuType(
        "rtx-pro-6000",
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        97887,
        Datasheet(503.8, 1792, 0, _PCIE5, 188),
        Topology.PCIE,
        2.20,
    ),
    GpuType(
        "v100-16gb",
        ("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB", "NVIDIA V100-SXM2-16GB"),
        16384,
        Datasheet(125, 900, 150, _PCIE3, 80),
        Topology.NVLINK,
        2.86,
    ),
    GpuType(
        "v100-32gb",
        ("Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB", "NVIDIA V100-SXM2-32GB"),
        32768,
        Datasheet(125, 900, 150, _PCIE3, 80),
        Topology.NVLINK,
        3.06,
    ),
    GpuType(
        "rtx-3090",
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        24576,
        Datasheet(71, 936, _BRIDGE, _PCIE4, 82),
        Topology.PCIE,
        0.44,
    ),
    GpuType(
        "titan-rtx",
        ("NVIDIA TITAN RTX", "TITAN RTX"),
        24220,
        Datasheet(130.5, 672, 50, _PCIE3, 72),
        Topology.PCIE,
        0.40,
    ),
    GpuType(
        "rtx-2080-ti",
        ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
        11264,
        Datasheet(53.8, 616, 50, _PCIE3, 68),
        Topology.PCIE,
        0.25,
    ),
    GpuType("cpu", (), None, None, Topology.HOST, 0.0),
)

GPU_TYPES: dict[str, GpuType] = {gpu.name: gpu for gpu in _TYPES}


def gpu_type(name: str) -> GpuType:
    """The GPU type of a catalogue name. Raises SpecError that lists the names for any other."""
    found = GPU_TYPES.get(name)
    if found is None:
        raise SpecError(
            f"no GPU type {name!r} in the catalogue, expected one of: {', '.join(GPU_TYPES)}"
        )
    return found


def gpu_type_of_nvml_name(nvml_name: str) -> GpuType | None:
    """The GPU type that NVML reports under this name, or None for a card the catalogue lacks."""
    for gpu in _TYPES:
        if nvml_name in gpu.nvml_names:
            return gpu
    return None
