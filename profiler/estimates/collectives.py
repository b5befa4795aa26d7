"""Time of a collective or a point-to-point transfer inside a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.calibration import CollectiveFit, Line, LinkFits, calibration
from profiler.estimates.devices import Component, Grade
from specs.errors import SpecError
from specs.gpu import GpuType, gpu_type
from specs.profile import Operation
from specs.topology import Topology
from specs.units import bytes_per_ms

# Which fit an NVLink fabric is estimated with; other types with NVLink have a two-card bridge.
_FABRIC = {
    "a100-40gb": "a100-80gb",
    "a100-80gb": "a100-80gb",
    "h100": "h100",
    "h200": "h200",
    "gh200": "h100",
    "v100-16gb": "v100-32gb",
    "v100-32gb": "v100-32gb",
}
_PCIE_OWN = {"rtx-pro-6000": "rtx-pro-6000", "l40s": "l40s"}
_PCIE_GEN5 = "rtx-pro-6000"  # the PCIe host that others are scaled from
_PCIE_GEN4 = "a40"  # the same, scaled to gen 4 by the calibration itself
_SLOWER_PCIE_LATENCY = 1.5


@dataclass(frozen=True)
class Fabric:
    """The link inside a node of one GPU type: fits by operation and group size.

    component: says so to a reader.
    """

    fits: LinkFits
    component: Component


def topologies_of_type(gpu: GpuType) -> tuple[Topology, ...]:
    """The intra-node topologies a GPU type can have, its default first."""
    sheet = gpu.datasheet
    if sheet is None:
        return (gpu.default_topology,)
    found = [gpu.default_topology, Topology.PCIE]
    if sheet.nvlink_gb_per_s > 0:
        found.append(Topology.NVLINK)
    if gpu.name in _FABRIC and not gpu.name.startswith("v100"):
        found.append(Topology.NVSWITCH)  # the V100's cube mesh has no switch
    return tuple(dict.fromkeys(found))


def fabric(name: str, topology: Topology) -> Fabric:
    """The link of a GPU type. Raises SpecError for a topology that the type does not come in."""
    gpu = gpu_type(name)
    possible = topologies_of_type(gpu)
    if gpu.datasheet is None or topology not in possible:
        listed = ", ".join(t.value for t in possible)
        raise SpecError(
            f"{name} does not come with {topology.value} links, expected one of: {listed}"
        )
    known = calibration().collectives
    if topology is Topology.PCIE:
        return _pcie(gpu)
    if name in _FABRIC:
        donor = _FABRIC[name]
        grade = Grade.FITTED if donor == name else Grade.CARRIED
        note = "" if donor != "v100-32gb" else "all-reduce only; the others by its lines"
        return Fabric(
            known[donor]["nvlink"], Component(f"links {topology.value}", grade, donor, note)
        )
    return _bridge(gpu)


def _pcie(gpu: GpuType) -> Fabric:
    """A PCIe host: its own fit, or the gen 5 host's at the card's share of its link."""
    known = calibration().collectives
    assert gpu.datasheet is not None
    own = _PCIE_OWN.get(gpu.name)
    if own:
        return Fabric(known[own]["pcie"], Component("links pcie", Grade.FITTED, own))
    source = gpu_type(_PCIE_GEN5).datasheet
    assert source is not None
    share = gpu.datasheet.pcie_gb_per_s / source.pcie_gb_per_s
    if share >= 1:
        return Fabric(known[_PCIE_GEN5]["pcie"], Component("links pcie", Grade.CARRIED, _PCIE_GEN5))
    scaled: dict[Operation, Mapping[int, CollectiveFit]] = {
        operation: {
            ranks: CollectiveFit(fit.one_line.scaled(_SLOWER_PCIE_LATENCY, share))
            for ranks, fit in by_ranks.items()
        }
        for operation, by_ranks in known[_PCIE_GEN5]["pcie"].items()
    }
    if share == 0.5:
        scaled |= known[_PCIE_GEN4]["pcie"]  # the calibration's own rounding of the same scaling
    note = f"{share:g} of the bandwidth, {_SLOWER_PCIE_LATENCY:g} of the latency; topology decides"
    return Fabric(scaled, Component("links pcie", Grade.CARRIED, _PCIE_GEN5, note))


def _bridge(gpu: GpuType) -> Fabric:
    """Pairs of cards under an NVLink bridge; larger groups go over PCIe."""
    known = calibration()
    assert gpu.datasheet is not None
    line = Line(known.bridge_latency_ms, known.bridge_share * gpu.datasheet.nvlink_gb_per_s)
    beyond = _pcie(gpu)
    fits = {
        operation: {**by_ranks, 2: CollectiveFit(line)}
        for operation, by_ranks in beyond.fits.items()
    }
    note = "pairs at 0.8 of the bridge, larger groups over PCIe"
    return Fabric(fits, Component("links nvlink", Grade.DEFAULT, "", note))


def wire_share(operation: Operation, ranks: int) -> float:
    """Bytes on the slowest link over the buffer's bytes, for a ring of that many ranks."""
    if operation is Operation.P2P:
        return 1.0
    if operation is Operation.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks


def nearest_ranks(fitted: tuple[int, ...], ranks: int) -> int:
    """The fitted group size that stands for a size: the nearest, of two equally near the larger."""
    return min(fitted, key=lambda known: (abs(known - ranks), -known))


def collective_ms(
    name: str, topology: Topology, operation: Operation, ranks: int, nbytes: float
) -> float:
    """Time of a transfer among ranks of one node, in ms.

    nbytes: as in a LinkProfile. The faster of two lines latency + nbytes * wire_share / bandwidth
    where two were fitted, else the one; a size of group that was not fitted takes the nearest
    (nearest_ranks) with its own wire share. An operation that was not fitted on this link takes
    the all-reduce's lines. Point to point: 0.02 ms and the two-rank all-reduce's one line. 0 for
    a group of one. Source: profiler/calibration/README.md.
    Raises SpecError for a topology that the type does not come in.
    """
    if ranks == 1:
        return 0.0
    return _collective_ms(fabric(name, topology).fits, operation, ranks, nbytes)


def _collective_ms(fits: LinkFits, operation: Operation, ranks: int, nbytes: float) -> float:
    if operation is Operation.P2P:
        line = _fit(fits, Operation.ALL_REDUCE, 2).one_line
        return calibration().p2p_latency_ms + nbytes / bytes_per_ms(line.bus_gb_per_s)
    fit = _fit(fits, operation if operation in fits else Operation.ALL_REDUCE, ranks)
    wire = nbytes * wire_share(operation, ranks)
    return min(
        line.latency_ms + wire / bytes_per_ms(line.bus_gb_per_s)
        for line in (fit.two_lines or (fit.one_line,))
    )


def _fit(fits: LinkFits, operation: Operation, ranks: int) -> CollectiveFit:
    by_ranks = fits[operation]
    return by_ranks[nearest_ranks(tuple(by_ranks), ranks)]
