"""What one measuring process holds and does: its process groups, the layer at hand, its answers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from profiler.measure.bench import LayerBench
from profiler.measure.messages import key_of
from profiler.measure.overhead import measure_overhead
from profiler.measure.transfers import Link
from runtime.collectives import group_rank
from runtime.drift import reference_ms
from runtime.experts import ExpertTiling
from runtime.families import family_of
from runtime.meeting import meeting_store
from runtime.optimizer import import_optimizers
from specs.errors import RunError
from specs.gpu import gpu_type
from specs.layer import LayerType
from specs.layout import ExpertSlice
from specs.model import Model
from specs.profile import LayerKey, Operation

Message = dict[str, Any]

_WARM_PASSES = 3
_WARM_UPDATES = 2


class Station:
    """One rank of the crew. Every rank gets every message; those without a group only wait.

    groups: by degree, the group of this rank (None: it alone), missing where it is in none. With
    4 ranks and degree 2 there are two groups, and both measure at the same time.
    """

    def __init__(self, setup: Message, device: torch.device) -> None:
        self.setup = setup
        self.device = device
        self.rank: int = setup["rank"]
        model = setup["model"]
        self._model = Model.from_config(model["name"], model["config"]) if model else None
        self.groups: dict[int, dist.ProcessGroup | None] = {1: None}
        self.control: dist.ProcessGroup | None = None
        self.bench: LayerBench | None = None
        self.link: Link | None = None

    @classmethod
    def open(cls, setup: Message, exchange_port: Callable[[int | None], int]) -> Station:
        """Join the process group of the crew. exchange_port: tells ours, gives the one of all."""
        torch.set_num_threads(1)
        cuda = not gpu_type(setup["gpu"]).is_cpu
        device = torch.device("cuda", 0) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)
        station = cls(setup, device)
        ranks, rank = setup["ranks"], setup["rank"]
        if rank == 0:
            # Made before its port is told: nobody can take it in between.
            store = meeting_store("127.0.0.1")
            exchange_port(store.port)
        else:
            store = TCPStore("127.0.0.1", exchange_port(None), ranks, is_master=False)
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
        station.control = dist.new_group(backend="gloo") if cuda else None
        for degree in setup["degrees"]:
            station.groups |= _own_group(degree, ranks, rank)
        station._warm_up_groups()
        return station

    def _warm_up_groups(self) -> None:
        """The first collective of a group connects its ranks: seconds that no timing may hold."""
        for group in self.groups.values():
            if group is not None:
                dist.all_reduce(torch.ones(1, device=self.device), group=group)
        self._meet()

    def _meet(self) -> None:
        dist.barrier(group=self.control)

    def first_words(self) -> Message:
        """Facts of this process before any layer is built, and why the model cannot run, if so."""
        problem = ""
        if self._model is not None:
            try:
                family_of(self._model)
            except RunError as error:
                problem = str(error)
            import_optimizers()
        nccl = torch.cuda.nccl.version() if self._cuda else ()  # type: ignore[no-untyped-call]
        return {
            "problem": problem,
            "torch": torch.__version__,
            "nccl": ".".join(map(str, nccl)),
        }

    @property
    def _cuda(self) -> bool:
        return self.device.type == "cuda"

    def answer(self, message: Message) -> Message:
        """Do what a message asks."""
        answers: dict[str, Callable[[Message], Message]] = {
            "prepare": self._prepare,
            "window": self._window,
            "reference": self._reference,
            "open_link": self._open_link,
            "time_link": self._time_link,
            "overhead": self._overhead,
        }
        return answers[message["do"]](message)

    def _reference(self, _: Message) -> Message:
        self._meet()
        return {"reference_ms": reference_ms(self.device)}

    def _prepare(self, message: Message) -> Message:
        """Build the layer of a key, measure its memory, warm it up; the times of a warm pass."""
        self.bench = None
        gc.unfreeze()
        gc.collect()
        key = key_of(message["key"])
        if not {key.tp, key.etp} <= self.groups.keys():
            self._meet()
            return {"idle": True}
        self.bench = LayerBench(
            self._layer_type(key.layer_type),
            self.model,
            key,
            group=self.groups[key.tp],
            tiling=self._tiling(key),
            device=self.device,
            copies=message["copies"],
            seed=self.setup["seed"],
        )
        self.bench.timed_passes(1)
        memory = self.bench.memory()
        gc.collect()
        gc.freeze()  # as the runtime does: collections then look at new objects only
        self._meet()
        passes = self.bench.timed_passes(_WARM_PASSES)[1:]
        updates = self.bench.timed_updates(_WARM_UPDATES)[1:]
        per_pass = [t.forward_ms + t.backward_ms + t.comm_ms for t in passes]
        return {
            "idle": False,
            "pass_ms": max(per_pass) * message["copies"],
            "update_ms": max(updates) * message["copies"],
            "activation_bytes": memory.activation_bytes,
            "transient_bytes": memory.transient_bytes,
            "parameter_bytes": memory.parameter_bytes,
            "expert_parameter_bytes": memory.expert_parameter_bytes,
        }

    def _tiling(self, key: LayerKey) -> ExpertTiling | None:
        """The share of the experts of this rank; None where they are cut as all else is."""
        if ExpertSlice(key.ep, key.etp).follows_tp(key.tp):
            return None
        group = self.groups[key.etp]
        # The first expert-parallel rank of each copy; the others' tokens are stood in for.
        return ExpertTiling(
            ExpertSlice(key.ep, key.etp, device=group_rank(group)), etp_group=group, stand_in=True
        )

    @property
    def model(self) -> Model:
        """The model whose layers are measured. Raises RunError where there is none."""
        if self._model is None:
            raise RunError("these processes were started to measure links: they have no model")
        return self._model

    def _layer_type(self, layer_hash: str) -> LayerType:
        return next(layer for layer in self.model.layer_types if layer.hash == layer_hash)

    def _window(self, message: Message) -> Message:
        """A fixed count of passes and updates between two timings of the reference work."""
        self._meet()
        before = reference_ms(self.device)
        if self.bench is None:
            self._meet()
            return {"idle": True, "before_ms": before, "after_ms": reference_ms(self.device)}
        self.bench.zero_gradients()
        self._meet()
        self.bench.timed_passes(1)
        passes = self.bench.timed_passes(message["passes"])
        updates = self.bench.timed_updates(message["updates"])
        return {
            "idle": False,
            "before_ms": before,
            "forward_ms": [t.forward_ms for t in passes],
            "backward_ms": [t.backward_ms for t in passes],
            "comm_ms": [t.comm_ms for t in passes],
            "update_ms": updates,
            "after_ms": reference_ms(self.device),
        }

    def _open_link(self, message: Message) -> Message:
        """Make a transfer ready and warm it up; the time of a warm one."""
        self.link = None
        if message["ranks"] not in self.groups:
            self._meet()
            return {"idle": True}
        group = self.groups[message["ranks"]]
        operation = Operation(message["operation"])
        self.link = Link(operation, group, message["nbytes"], self.device)
        self.link.timed(1)
        self._meet()
        return {"idle": False, "pass_ms": max(self.link.timed(3))}

    def _time_link(self, message: Message) -> Message:
        """A fixed count of transfers between two timings of the reference work."""
        self._meet()
        before = reference_ms(self.device)
        self._meet()
        times: list[float] = []
        if self.link is not None:
            self.link.timed(2)
            times = self.link.timed(message["passes"])
        return {
            "idle": self.link is None,
            "before_ms": before,
            "times_ms": times,
            "after_ms": reference_ms(self.device),
        }

    def _overhead(self, _: Message) -> Message:
        """Run the executor on next to no work, between two timings of the reference work."""
        self.bench = None
        self._meet()
        before = reference_ms(self.device)
        setup = self.setup
        overhead = measure_overhead(setup["gpu"], setup["ranks"], self.rank, self.device)
        return {
            "before_ms": before,
            "overhead_ms": overhead.samples_ms,
            "framework_bytes": overhead.framework_bytes,
            "after_ms": reference_ms(self.device),
        }


def _own_group(degree: int, ranks: int, rank: int) -> dict[int, dist.ProcessGroup | None]:
    """Cut the ranks into groups of a degree, on every rank alike; the one this rank is in."""
    own: dict[int, dist.ProcessGroup | None] = {}
    if degree == 1:
        return own
    for first in range(0, ranks - degree + 1, degree):
        members = list(range(first, first + degree))
        group = dist.new_group(members)
        if rank in members:
            own[degree] = group
    return own
