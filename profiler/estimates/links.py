"""Estimated link and host rows of a GPU type."""

from __future__ import annotations

from collections.abc import Iterable

from profiler.calibration import calibration
from profiler.estimates.collectives import collective_ms, topologies_of_type
from profiler.estimates.devices import device
from specs.gpu import gpu_type
from specs.profile import HostProfile, LinkProfile, Operation
from specs.topology import Topology
from specs.units import GIB, KIB, MIB

SMALLEST, LARGEST = 4 * KIB, GIB
GROUPS = (2, 3, 4, 5, 6, 7, 8)
RESERVED_MIB = 600  # NVML's total less this is usable (DESIGN section 5)
FRAMEWORK_BYTES = 1_500_000_000  # context and communicators


def message_sizes() -> tuple[int, ...]:
    """Powers of two from 4 KiB to 1 GiB."""
    sizes, size = [], SMALLEST
    while size <= LARGEST:
        sizes.append(size)
        size *= 2
    return tuple(sizes)


def estimate_links(
    gpu: str, topology: Topology, groups: Iterable[int] = GROUPS
) -> list[LinkProfile]:
    """Time of every operation over message sizes and group sizes inside a node, in ms.

    Point to point once, of two ranks. Raises SpecError for a topology that the type does not
    come in.
    """
    counts = tuple(groups)
    found = []
    for operation in Operation:
        for ranks in (2,) if operation is Operation.P2P else counts:
            for nbytes in message_sizes():
                time = collective_ms(gpu, topology, operation, ranks, nbytes)
                found.append(LinkProfile(gpu, topology, operation, ranks, nbytes, time))
    return found


def estimate_host(gpu: str) -> HostProfile:
    """What a process costs on a GPU type: 3.027 ms a micro-batch, 1.5e9 bytes, total less 600 MiB.

    Raises SpecError for `cpu`.
    """
    memory_mib = device(gpu).gpu.memory_mib
    assert memory_mib is not None
    return HostProfile(
        gpu, calibration().per_micro_batch_ms, FRAMEWORK_BYTES, (memory_mib - RESERVED_MIB) * MIB
    )


def default_topologies(gpu: str) -> tuple[Topology, ...]:
    """The topologies estimated where none is asked for.

    The type's default; with an NVLink fabric also the one behind a switch, which is what was
    measured: both have the same times.
    """
    kind = gpu_type(gpu)
    possible = topologies_of_type(kind)
    if kind.default_topology is Topology.NVLINK and Topology.NVSWITCH in possible:
        return (Topology.NVLINK, Topology.NVSWITCH)
    return (kind.default_topology,)
