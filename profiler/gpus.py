"""The GPUs of this host as NVML tells them: type, memory, links, clocks, who uses them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from specs.gpu import gpu_type, gpu_type_of_nvml_name
from specs.topology import Topology
from specs.units import MIB

BUSY_BYTES = 512 * MIB  # less than any CUDA context with work in it, more than a desktop's cursor
BUSY_PERCENT = 10

# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean "slower than it could be" (nvml.h).
# Clocks that an administrator has set (0x02) are how fast this device trains as well.
_SLOW_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device; memory in bytes, clocks in MHz.

    type: catalogue name, empty for a card the catalogue lacks. peers: indices of the GPUs that it
    has an active NVLink to; switched: its NVLinks end in a switch. processes: compute processes
    on it now.
    """

    index: int
    uuid: str
    nvml_name: str
    type: str
    memory_bytes: int
    used_bytes: int
    mig: bool = False
    processes: int = 0
    busy_percent: int = 0
    sm_clock_mhz: int = 0
    max_sm_clock_mhz: int = 0
    slow_because: tuple[str, ...] = ()
    peers: frozenset[int] = frozenset()
    switched: bool = False

    @property
    def busy(self) -> bool:
        """Whether somebody else computes on it or holds its memory."""
        return (
            self.processes > 0 or self.used_bytes > BUSY_BYTES or self.busy_percent > BUSY_PERCENT
        )

    @property
    def troubles(self) -> tuple[str, ...]:
        """What would make a measurement on this device untrue, in words."""
        found = []
        if self.mig:
            found.append("is split by MIG")
        if self.busy:
            found.append(
                f"is busy ({self.processes} processes, {self.used_bytes // MIB} MiB in use, "
                f"{self.busy_percent} % of the time)"
            )
        if self.slow_because:
            found.append(
                f"runs at {self.sm_clock_mhz} of {self.max_sm_clock_mhz} MHz "
                f"({', '.join(self.slow_because)})"
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class GpuReport:
    """All GPUs of this host. problem: why NVML said nothing, empty where it answered."""

    gpus: tuple[Gpu, ...]
    driver: str = ""
    problem: str = ""

    def of_type(self, name: str) -> tuple[Gpu, ...]:
        """The devices of one catalogue type, in order of index."""
        return tuple(gpu for gpu in self.gpus if gpu.type == name)


def topology_of(gpus: Sequence[Gpu]) -> Topology:
    """The weakest link among these devices: what a group over any of them can count on.

    `nvswitch` where every device's NVLinks end in a switch, `nvlink` where each has a direct link
    to each other one, else `pcie`. A single device has no link: the default of its type.
    Raises ValueError for no device.
    """
    if not gpus:
        raise ValueError("topology_of needs at least one device")
    if len(gpus) == 1:
        return gpu_type(gpus[0].type).default_topology if gpus[0].type else Topology.PCIE
    if all(gpu.switched for gpu in gpus):
        return Topology.NVSWITCH
    everyone = {gpu.index for gpu in gpus}
    if all(everyone - {gpu.index} <= gpu.peers for gpu in gpus):
        return Topology.NVLINK
    return Topology.PCIE


def read_gpus() -> GpuReport:
    """Ask NVML for every GPU of the host; those that $CUDA_VISIBLE_DEVICES hides are left out.

    Never raises: without a driver the report is empty and says why.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpuReport((), problem=str(error))
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        by_bus = {_bus_id(pynvml.nvmlDeviceGetPciInfo(h)): i for i, h in enumerate(handles)}
        gpus = [_read_gpu(pynvml, i, handle, by_bus) for i, handle in enumerate(handles)]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return GpuReport((), problem=str(error))
    finally:
        pynvml.nvmlShutdown()
    return GpuReport(visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES")), driver)


def visible(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """The devices that a value of $CUDA_VISIBLE_DEVICES leaves: indices or starts of UUIDs.

    As in CUDA, the list ends at the first entry that names no device.
    """
    if variable is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for entry in filter(None, (part.strip() for part in variable.split(","))):
        found = [
            gpu
            for gpu in gpus
            if (entry.isdigit() and gpu.index == int(entry))
            or (not entry.isdigit() and gpu.uuid.startswith(entry))
        ]
        if len(found) != 1:
            break
        chosen.append(found[0])
    return tuple(chosen)


def slow_reasons(bits: int) -> tuple[str, ...]:
    """The words for the bits of NVML's clock event reasons that mean lost speed."""
    return tuple(words for bit, words in _SLOW_REASONS.items() if bits & bit)


ValueT = TypeVar("ValueT")


def _read_gpu(nvml: Any, index: int, handle: Any, by_bus: dict[str, int]) -> Gpu:
    def ask(question: Callable[[], ValueT], otherwise: ValueT) -> ValueT:
        # Older and smaller cards answer "not supported" to many questions: that is no trouble.
        try:
            return question()
        except nvml.NVMLError:
            return otherwise

    name = _text(nvml.nvmlDeviceGetName(handle))
    kind = gpu_type_of_nvml_name(name)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    # Version 2 tells apart what the driver reserves for itself, which no process uses.
    reserved = ask(
        lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).reserved), 0
    )
    peers, switched = _nvlinks(nvml, handle, by_bus)
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        nvml_name=name,
        type=kind.name if kind else "",
        memory_bytes=int(memory.total),
        used_bytes=max(0, int(memory.used) - reserved),
        mig=ask(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]), False),
        processes=ask(lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)), 0),
        busy_percent=ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu), 0),
        sm_clock_mhz=ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)), 0),
        max_sm_clock_mhz=ask(
            lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)), 0
        ),
        slow_because=slow_reasons(
            ask(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)), 0)
        ),
        peers=peers,
        switched=switched,
    )


def _nvlinks(nvml: Any, handle: Any, by_bus: dict[str, int]) -> tuple[frozenset[int], bool]:
    """Indices of directly linked GPUs, and whether the active links end in a switch."""
    peers: set[int] = set()
    switched = False
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched = True
            elif kind == nvml.NVML_NVLINK_DEVICE_TYPE_GPU:
                peer = by_bus.get(_bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)))
                if peer is not None:
                    peers.add(peer)
        except nvml.NVMLError:
            continue  # this card has fewer links
    return frozenset(peers), switched


def _bus_id(pci: Any) -> str:
    return _text(pci.busId).lower()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
