"""What was measured, imported or estimated about one layer, one link, one host."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute


class Source(StrEnum):
    """Where numbers come from; the order is the order of trust (DESIGN section 4)."""

    MEASURED = "measured"
    IMPORTED = "imported"
    ESTIMATED = "estimated"


class RunStatus(StrEnum):
    """Where a profile run stands."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


class EntryStatus(StrEnum):
    """What became of one key of a profile run."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_DIVISIBLE = "not_divisible"
    TIMED_OUT = "timed_out"
    NOT_ENOUGH_DEVICES = "not_enough_devices"
    WORKER_DIED = "worker_died"
    REFUSED = "refused"  # an import found the row incomplete or beyond what the card can do


class Operation(StrEnum):
    """A transfer whose time over message size makes a link profile."""

    P2P = "p2p"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


@dataclass(frozen=True, slots=True)
class LayerKey:
    """What a layer profile is looked up by: exact match in every field.

    `layer_type` is `LayerType.hash`. `topology` is that of the profiled host; with tp = 1 no
    collective runs and lookups ignore it. Dense rows have ep = etp = 1.
    """

    gpu: str
    layer_type: str
    tp: int
    micro_batch: int
    seq_len: int
    dtype: DType
    recompute: Recompute
    optimizer: Optimizer
    topology: Topology
    ep: int = 1
    etp: int = 1


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One layer on one rank of a TP group: times in ms of one micro-batch, memory in bytes.

    forward_ms, backward_ms: computation only. comm_ms: TP and ETP collectives of one forward and
    one backward (0 and `comm_included` where a source timed them inside forward and backward).
    update_ms: optimizer step of this layer's shard, once per iteration. activation_bytes: kept
    from forward until backward, per micro-batch. transient_bytes: peak above that.
    parameter_bytes, expert_parameter_bytes: weights of one rank in the run's precision, without
    and of the routed experts. The `_mad_ms` are median absolute deviations; None where the source
    gives no spread.
    """

    key: LayerKey
    forward_ms: float
    backward_ms: float
    comm_ms: float
    update_ms: float
    activation_bytes: int
    transient_bytes: int
    parameter_bytes: int
    expert_parameter_bytes: int = 0
    samples: int = 1
    forward_mad_ms: float | None = None
    backward_mad_ms: float | None = None
    comm_mad_ms: float | None = None
    update_mad_ms: float | None = None
    comm_included: bool = False


@dataclass(frozen=True, slots=True)
class LayerRefusal:
    """A key that could not be profiled, and why."""

    key: LayerKey
    status: EntryStatus
    reason: str


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """Time of one transfer in ms.

    nbytes: the full buffer (all_gather, reduce_scatter: the concatenated size), except
    all_to_all: what one rank sends in all. gpu and peer_gpu are the types at both ends, equal
    but for p2p between types. ranks: size of the group; p2p: 2, or 2n where n pairs send at the
    same time, nbytes together.
    """

    gpu: str
    topology: Topology
    operation: Operation
    ranks: int
    nbytes: int
    time_ms: float
    peer_gpu: str = ""
    samples: int = 1
    mad_ms: float | None = None

    @property
    def peer(self) -> str:
        """The GPU type at the other end."""
        return self.peer_gpu or self.gpu


@dataclass(frozen=True, slots=True)
class HostProfile:
    """What a process costs before any layer runs, on one GPU type.

    host_ms: overhead of one micro-batch on one stage. framework_bytes: context and communicators.
    usable_bytes: memory a process may fill, before any head-room.
    """

    gpu: str
    host_ms: float
    framework_bytes: int
    usable_bytes: int
    host_mad_ms: float | None = None


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is known of a profile run when it starts."""

    source: Source
    origin: str  # command line, or data set with commit
    host: str = ""  # fingerprint of the host that measured; empty for estimates and imports
    licence: str = ""
    driver: str = ""
    torch_version: str = ""
    nccl_version: str = ""
    seed: int = 0
    reference_ms: float | None = None  # a fixed piece of work timed with the run: shows drift


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """A profile run as stored; started and ended in UTC."""

    id: int
    run: NewRun
    status: RunStatus
    started: datetime
    ended: datetime | None
    layer_rows: int = 0
    refused_rows: int = 0
    link_rows: int = 0
    host_rows: int = 0
