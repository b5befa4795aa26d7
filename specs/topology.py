"""How GPUs of one node, or of two nodes, are linked."""

from __future__ import annotations

from enum import StrEnum


class Topology(StrEnum):
    """The link a collective runs over; part of the key of every profile (DESIGN section 3)."""

    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"
    PCIE = "pcie"
    HOST = "host"  # gloo over the memory of one CPU host
    INTER = "inter"  # between nodes


INTRA_NODE = (Topology.NVSWITCH, Topology.NVLINK, Topology.PCIE, Topology.HOST)
