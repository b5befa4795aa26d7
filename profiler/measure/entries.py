"""What to measure, and in which order: one entry for every key of a question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from profiler.estimates.question import tilings
from specs.gpu import gpu_type
from specs.layer import LayerKind, LayerType
from specs.layout import not_divisible
from specs.model import Model
from specs.profile import EntryStatus, LayerKey, LayerRefusal
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute

PASSES = 30  # forwards and backwards per entry, warm-up and repeated windows included
SETUP_S = 1.8  # building the layers, memory, reference work, optimizer steps with cold caches
CORE_TFLOPS = 0.06  # fp32 of one busy core: only for the time estimate of a dry run
GPU_SHARE = 0.4  # of datasheet peak, likewise


@dataclass(frozen=True)
class Question:
    """What a profile run is asked: every combination of the lists is a key.

    devices: how many processes this host can run at once, a device each. eps, etps: degrees of the
    expert tilings that are measured beside the untiled form (EP 1, ETP = TP).
    """

    gpu: str
    topology: Topology
    devices: int
    model: Model
    tps: tuple[int, ...]
    micro_batches: tuple[int, ...]
    seq_len: int
    dtype: DType
    optimizer: Optimizer
    recomputes: tuple[Recompute, ...] = (Recompute.NONE,)
    eps: tuple[int, ...] = ()
    etps: tuple[int, ...] = ()

    @property
    def origin(self) -> str:
        """The question as one command line in one spelling: equal questions are equal texts."""
        tiled = f" --ep {_list(self.eps)}" if self.eps else ""
        tiled += f" --etp {_list(self.etps)}" if self.etps else ""
        return (
            f"arachne-prof run --gpu {self.gpu} --model {self.model.name} --tp {_list(self.tps)} "
            f"--micro-batch {_list(self.micro_batches)} --seq-len {self.seq_len} "
            f"--dtype {self.dtype.value} --recompute {_list(self.recomputes)} "
            f"--optimizer {self.optimizer.value}{tiled} --devices {self.devices} "
            f"(config {self.model.config_hash})"
        )


@dataclass(frozen=True)
class Entry:
    """One key to measure, with the layer type that its hash stands for.

    expected_s: rough seconds it takes, for ordering and the time estimate.
    """

    key: LayerKey
    layer_type: LayerType
    expected_s: float


def entries_of(question: Question) -> tuple[list[Entry], list[LayerRefusal]]:
    """All entries of a question, cheapest first, and the keys that arithmetic alone refuses.

    Cheapest first, so that a run that is interrupted has answered as many keys as it could.
    """
    entries: list[Entry] = []
    refusals: list[LayerRefusal] = []
    for key, layer in _keys(question):
        problem = refusal_of(layer, key, question.devices)
        if problem is None:
            entries.append(Entry(key, layer, expected_s(layer, key)))
        else:
            refusals.append(LayerRefusal(key, *problem))
    entries.sort(key=lambda entry: (entry.expected_s, entry.key.tp, entry.key.micro_batch))
    return entries, refusals


def _keys(question: Question) -> Iterator[tuple[LayerKey, LayerType]]:
    some = LayerKey(
        gpu=question.gpu,
        layer_type="",
        tp=1,
        micro_batch=1,
        seq_len=question.seq_len,
        dtype=question.dtype,
        recompute=Recompute.NONE,
        optimizer=question.optimizer,
        topology=question.topology,
    )
    etps = question.etps or ((1,) if question.eps else ())
    eps = question.eps or ((1,) if question.etps else ())
    for layer in question.model.layer_types:
        for tp, micro_batch, recompute in product(
            question.tps, question.micro_batches, question.recomputes
        ):
            key = replace(
                some, layer_type=layer.hash, tp=tp, micro_batch=micro_batch, recompute=recompute
            )
            for ep, etp in tilings(layer, tp, eps, etps):
                yield replace(key, ep=ep, etp=etp), layer


def refusal_of(layer: LayerType, key: LayerKey, devices: int) -> tuple[EntryStatus, str] | None:
    """Why a key cannot be measured on so many devices of this host, None where it can.

    The ranks of the tensor-parallel group and of the group that shares an expert's width must be
    there; the other expert-parallel ranks need not: their share of the tokens is stood in for.
    """
    wanted = {"tp": key.tp, "etp": key.etp}
    for name, degree in wanted.items():
        if degree > devices:
            have = f"{devices} {'core' if key.gpu == 'cpu' else 'device'}"
            return (
                EntryStatus.NOT_ENOUGH_DEVICES,
                f"{name}={degree} needs {degree} devices, this host has {have}"
                f"{'' if devices == 1 else 's'}",
            )
    reason = not_divisible(layer, key.tp, key.ep, key.etp)
    if reason is None and key.tp % key.etp and key.etp % key.tp:
        reason = f"tp={key.tp} and etp={key.etp} make no whole groups: one must divide the other"
    return None if reason is None else (EntryStatus.NOT_DIVISIBLE, reason)


def expected_s(layer: LayerType, key: LayerKey) -> float:
    """Rough seconds that measuring a key takes.

    6 * parameters * tokens FLOPs of one forward and backward (an embedding does almost none),
    over what the device may reach; plus a constant for building. Only orders entries and feeds
    the time estimate: never a figure of a profile.
    """
    tokens = key.micro_batch * key.seq_len
    weights = layer.parameters
    if layer.expert_parameters:
        weights += layer.expert_parameters * layer.shape("top_k") // layer.shape("experts")
    if layer.kind is LayerKind.EMBEDDING:
        weights = layer.shape("hidden")  # a look-up touches one row a token
    flops = 6.0 * weights * tokens / key.tp
    if key.recompute is Recompute.FULL:
        flops *= 4 / 3
    sheet = gpu_type(key.gpu).datasheet
    tflops = CORE_TFLOPS if sheet is None else sheet.tflops * GPU_SHARE
    return SETUP_S + PASSES * flops / (tflops * 1e12)


def _list(values: Sequence[object]) -> str:
    return ",".join(str(value) for value in values)
