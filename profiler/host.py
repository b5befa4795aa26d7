"""Facts of this host, and whether it has the devices that a measurement asks for."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from profiler.gpus import Gpu, GpuReport, read_gpus, topology_of
from specs.errors import HostError
from specs.gpu import gpu_type
from specs.host import allowed_cores, cpu_model, host_fingerprint, total_memory_bytes
from specs.topology import Topology
from specs.units import MIB

CUDA_RESERVED_BYTES = 600 * MIB  # driver and fragmentation, off what NVML calls total (DESIGN 5)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """This host; memory in bytes.

    cores: those this process may use. memory_limit_bytes: what a control group leaves of the
    memory, equal to memory_bytes without one.
    """

    name: str
    fingerprint: str
    cpu: str
    cores: tuple[int, ...]
    machine_cores: int
    memory_bytes: int
    memory_limit_bytes: int
    gpu_report: GpuReport = field(default_factory=lambda: GpuReport(()))

    def to_json(self) -> dict[str, Any]:
        """The facts as one document."""
        report = self.gpu_report
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "cpu": self.cpu,
            "cores_allowed": list(self.cores),
            "machine_cores": self.machine_cores,
            "memory_bytes": self.memory_bytes,
            "memory_limit_bytes": self.memory_limit_bytes,
            "driver": report.driver,
            "nvml_problem": report.problem,
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "name": gpu.nvml_name,
                    "gpu": gpu.type or None,
                    "memory_bytes": gpu.memory_bytes,
                    "used_bytes": gpu.used_bytes,
                    "sm_clock_mhz": gpu.sm_clock_mhz,
                    "max_sm_clock_mhz": gpu.max_sm_clock_mhz,
                    "mig": gpu.mig,
                    "busy": gpu.busy,
                    "nvlink_peers": sorted(gpu.peers),
                    "troubles": list(gpu.troubles),
                }
                for gpu in report.gpus
            ],
            "topologies": {
                name: topology_of(report.of_type(name)).value
                for name in sorted({gpu.type for gpu in report.gpus if gpu.type})
            },
        }


def read_host() -> HostFacts:
    """Read the facts of this host, GPUs included. Never raises for a host without GPUs."""
    memory = total_memory_bytes()
    return HostFacts(
        name=socket.gethostname(),
        fingerprint=host_fingerprint(),
        cpu=cpu_model(),
        cores=tuple(allowed_cores()),
        machine_cores=os.cpu_count() or 1,
        memory_bytes=memory,
        memory_limit_bytes=min(memory, group_memory_limit_bytes() or memory),
        gpu_report=read_gpus(),
    )


def group_memory_limit_bytes(root: str | Path = "/sys/fs/cgroup") -> int | None:
    """The memory limit of this process's control group in bytes, None where there is none."""
    limits = []
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path(root) / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of one type that a measurement runs on.

    cores: one per process, for pinning; gpus: empty on cpu. usable_bytes: memory that all
    processes (cpu) or one process (GPU) may fill.
    """

    gpu: str
    topology: Topology
    cores: tuple[int, ...]
    gpus: tuple[Gpu, ...]
    usable_bytes: int

    @property
    def count(self) -> int:
        """How many processes can measure at the same time, a device each."""
        return len(self.gpus) or len(self.cores)

    @property
    def is_cpu(self) -> bool:
        """Whether the host's processor is what is measured."""
        return not self.gpus

    def first(self, count: int) -> Devices:
        """The first `count` of them: the others stay idle, as they do in a plan of so few."""
        return replace(
            self, cores=self.cores[:count] if self.is_cpu else self.cores, gpus=self.gpus[:count]
        )

    def for_degrees(self, wanted: int | None, degrees: Sequence[int]) -> Devices:
        """Those that measure at the same time.

        wanted: how many, None for the default: all of them; on a CPU, where degrees are asked for,
        as many as the largest of these needs, because that many cores and no more are
        busy in a run of that size. Raises HostError where the host has fewer than wanted.
        """
        if wanted is not None and wanted > self.count:
            raise HostError(f"--devices {wanted}, but this host has {self.count} of {self.gpu}")
        if wanted is None:
            wanted = max(degrees) if self.is_cpu and degrees else self.count
        return self.first(min(wanted, self.count))


def describe_gpus(report: GpuReport) -> str:
    """The GPUs of a host in a few words: "2 x NVIDIA A40 (a40)", or why there are none."""
    if not report.gpus:
        return f"no GPU ({report.problem})" if report.problem else "no GPU"
    counts: dict[tuple[str, str], int] = {}
    for gpu in report.gpus:
        counts[gpu.nvml_name, gpu.type] = counts.get((gpu.nvml_name, gpu.type), 0) + 1
    return ", ".join(
        f"{count} x {name} ({kind or 'not in the catalogue'})"
        for (name, kind), count in counts.items()
    )


def find_devices(
    host: HostFacts, gpu: str, *, instead: str, allow_busy: bool = False
) -> tuple[Devices, tuple[str, ...]]:
    """The devices of that type on this host, and remarks on what may disturb a measurement.

    instead: the command that gives numbers without the device, put into the error.
    Raises HostError where the host has no such device, or where one is split by MIG, busy or
    throttled and allow_busy is not set; SpecError for a type that the catalogue lacks.
    """
    kind = gpu_type(gpu)
    if kind.is_cpu:
        cores = host.cores
        return Devices(gpu, Topology.HOST, cores, (), host.memory_limit_bytes), _cpu_remarks(host)
    found = host.gpu_report.of_type(gpu)
    if not found:
        raise HostError(
            f"this host has {describe_gpus(host.gpu_report)}, so {gpu} cannot be measured here; "
            f"for estimates run: {instead}"
        )
    remarks = tuple(
        f"GPU {device.index} ({device.nvml_name}) {trouble}"
        for device in found
        for trouble in device.troubles
    )
    if any(device.mig for device in found):
        raise HostError(
            f"{remarks[0]}: a slice is not the {gpu} of the catalogue; switch MIG off, or for "
            f"estimates run: {instead}"
        )
    if remarks and not allow_busy:
        raise HostError(
            f"{remarks[0]}: times taken now would be too long; wait until it is free, or add "
            "--allow-busy to measure all the same"
        )
    usable = min(device.memory_bytes for device in found) - CUDA_RESERVED_BYTES
    return Devices(gpu, topology_of(found), host.cores, found, usable), remarks


def _cpu_remarks(host: HostFacts) -> tuple[str, ...]:
    load = os.getloadavg()[0]
    if load > 0.3 * len(host.cores) + 0.2:
        return (
            f"this host is busy (load {load:.1f} on {len(host.cores)} cores): "
            "times may be too long and uneven",
        )
    return ()
