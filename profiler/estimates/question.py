"""What is estimated: every combination of GPU types, layers, degrees and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from profiler.calibration import constants_version
from profiler.estimates.collectives import fabric
from profiler.estimates.devices import Component, computation_components, device
from profiler.estimates.layers import Style, estimate_layer
from profiler.estimates.links import default_topologies, estimate_host, estimate_links
from specs.layer import LayerKind, LayerType
from specs.model import Model
from specs.profile import HostProfile, LayerKey, LayerProfile, LayerRefusal, LinkProfile
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute

LARGEST_NODE = 8  # GPUs of a node where no cluster says it


def divisors(number: int, largest: int) -> tuple[int, ...]:
    """Divisors of a number up to a limit, rising."""
    return tuple(n for n in range(1, min(number, largest) + 1) if number % n == 0)


def powers_of_two(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to a limit."""
    return tuple(1 << k for k in range(largest.bit_length()) if 1 << k <= largest)


@dataclass(frozen=True)
class Question:
    """What `arachne-prof estimate` is asked.

    topologies: per GPU type; default: default_topologies. eps, etps: degrees of expert tilings,
    of which those that a layer does not divide into are left out; None = powers of two, ETP up to
    8. links, hosts: GPU types whose link and host rows are estimated, default all.
    """

    gpus: tuple[str, ...]
    model: Model
    tps: tuple[int, ...]
    micro_batches: tuple[int, ...]
    seq_len: int
    dtype: DType
    optimizer: Optimizer
    recomputes: tuple[Recompute, ...] = (Recompute.NONE,)
    topologies: Mapping[str, tuple[Topology, ...]] = field(default_factory=dict)
    eps: tuple[int, ...] | None = None
    etps: tuple[int, ...] | None = None
    style: Style = field(default_factory=Style)

    def topologies_of(self, gpu: str) -> tuple[Topology, ...]:
        """The topologies that a GPU type is estimated for."""
        return self.topologies.get(gpu) or default_topologies(gpu)

    @property
    def origin(self) -> str:
        """The question in one spelling, with the model's config and the constants' version."""
        words = [
            f"arachne-prof estimate --gpu {','.join(self.gpus)} --model {self.model.name}",
            f"--tp {_list(self.tps)} --micro-batch {_list(self.micro_batches)}",
            f"--seq-len {self.seq_len} --dtype {self.dtype.value}",
            f"--recompute {','.join(word.value for word in self.recomputes)}",
            f"--optimizer {self.optimizer.value}",
        ]
        named = dict.fromkeys(t.value for gpu in self.gpus for t in self.topologies.get(gpu, ()))
        if named:
            words.append(f"--topology {','.join(named)}")
        if self.eps is not None:
            words.append(f"--ep {_list(self.eps)}")
        if self.etps is not None:
            words.append(f"--etp {_list(self.etps)}")
        if self.style.kernels is not Style().kernels:
            words.append(f"--kernels {self.style.kernels.value}")
        if self.style.attention is not None:
            words.append(f"--attention {self.style.attention.value}")
        words.append(f"(config {self.model.config_hash}, constants {constants_version()})")
        return " ".join(words)


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


@dataclass(frozen=True)
class Estimates:
    """All rows of a question, and what a reader of them has to know."""

    question: Question
    layers: list[LayerProfile]
    refusals: list[LayerRefusal]
    links: list[LinkProfile]
    hosts: list[HostProfile]
    notes: list[str]


def answer(question: Question) -> Estimates:
    """Estimate every key of a question.

    Raises SpecError for a GPU type or model that cannot be estimated, or a topology that a type
    does not come in.
    """
    layers: list[LayerProfile] = []
    refusals: list[LayerRefusal] = []
    links: list[LinkProfile] = []
    for gpu in question.gpus:
        device(gpu)  # a type without a datasheet is refused for that, not for its links
        for topology in question.topologies_of(gpu):
            links += estimate_links(gpu, topology)
        for layer, key in _keys(question, gpu):
            row = estimate_layer(layer, key, question.style)
            if isinstance(row, LayerProfile):
                layers.append(row)
            else:
                refusals.append(row)
    hosts = [estimate_host(gpu) for gpu in question.gpus]
    return Estimates(question, layers, refusals, links, hosts, _notes(question))


def _keys(question: Question, gpu: str) -> Iterator[tuple[LayerType, LayerKey]]:
    topologies = question.topologies_of(gpu)
    for layer in question.model.layer_types:
        for tp in question.tps:
            for ep, etp in tilings(layer, tp, question.eps, question.etps):
                # Without a collective the topology does not matter: one row.
                for topology in topologies[:1] if tp == etp == 1 else topologies:
                    for micro_batch in question.micro_batches:
                        for recompute in question.recomputes:
                            key = LayerKey(
                                gpu=gpu,
                                layer_type=layer.hash,
                                tp=tp,
                                micro_batch=micro_batch,
                                seq_len=question.seq_len,
                                dtype=question.dtype,
                                recompute=recompute,
                                optimizer=question.optimizer,
                                topology=topology,
                                ep=ep,
                                etp=etp,
                            )
                            yield layer, key


def tilings(
    layer: LayerType, tp: int, eps: tuple[int, ...] | None, etps: tuple[int, ...] | None
) -> list[tuple[int, int]]:
    """(EP, ETP) degrees that exist for a layer; (1, 1) alone without experts.

    EP divides the number of experts, ETP their width (DESIGN section 13, 21). The untiled form,
    EP 1 and ETP = TP, is always among them.
    """
    if layer.kind is not LayerKind.MOE_BLOCK:
        return [(1, 1)]
    experts, width = layer.shape("experts"), layer.shape("expert_ffn")
    wanted_eps = powers_of_two(experts) if eps is None else eps
    wanted_etps = powers_of_two(LARGEST_NODE) if etps is None else etps
    found = [
        (ep, etp)
        for ep in wanted_eps
        for etp in wanted_etps
        if experts % ep == 0 and width % etp == 0
    ]
    return list(dict.fromkeys([(1, tp), *found]))


def _notes(question: Question) -> list[str]:
    notes = []
    for gpu in question.gpus:
        card = device(gpu)
        if question.dtype is DType.BF16 and not card.has_bf16:
            slower = card.peak_flop_per_ms(DType.FP16) / card.peak_flop_per_ms(DType.BF16)
            notes.append(
                f"{gpu} has no bf16 tensor cores: bf16 is estimated outside them, 1/{slower:.0f} "
                "of the fp16 rate; --dtype fp16 uses them"
            )
    return notes


def constants_version_of(origin: str) -> str:
    """The version of the constants in the origin of an estimated run; "" where it has none."""
    _, _, rest = origin.rpartition("constants ")
    version = rest.removesuffix(")")
    return version if rest.endswith(")") else ""


def provenance(gpu: str, topologies: tuple[Topology, ...]) -> list[Component]:
    """Where the parts of a GPU type's estimates come from: fitted, carried over, set by hand."""
    return [
        *computation_components(gpu),
        *(fabric(gpu, topology).component for topology in topologies),
    ]
