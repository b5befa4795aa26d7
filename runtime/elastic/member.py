"""One worker of an elastic run: it outlives plans, and keeps its state between them."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from runtime.checkpoint import load_checkpoint, save_checkpoint
from runtime.elastic.handover import Holding, Seat, hand_over, holding_of, put_in_place
from runtime.executor import Executor, Step
from runtime.groups import form_groups
from runtime.meeting import meeting_store
from runtime.memory import PeakMemory
from runtime.rank import device_of
from runtime.training import Options, samples_of
from specs.errors import RunError
from specs.layout import ranks_of
from specs.plan import Plan

Message = Mapping[str, Any]


class Member:
    """The state of a worker and what it does with it when told; one call at a time.

    tell: gives a message to the controller. stop_wanted: whether training is to pause at the next
    border between iterations. No wait for another member is longer than options.timeout_s.
    """

    def __init__(
        self,
        options: Options,
        tell: Callable[[Message], None],
        stop_wanted: Callable[[], bool],
        address: str,
    ) -> None:
        self.options = options
        self.tell = tell
        self.stop_wanted = stop_wanted
        self.address = address
        self._timeout = timedelta(seconds=options.timeout_s)
        self.generation = 0
        self.held: Holding | None = None
        self.key = ""
        self._coming: Holding | None = None
        self._executor: Executor | None = None
        self._ready = False
        self._times: dict[str, float] = {}
        self._server = self._serve()
        self._excepthook = sys.excepthook

    def _serve(self) -> TCPStore:
        return meeting_store(self.address)

    @property
    def port(self) -> int:
        """Of the store at which the next group may meet, if this worker is its first rank."""
        return int(self._server.port)

    def standing(self) -> dict[str, Any]:
        """What this worker holds: the plan's key, the rank, the iteration that comes next.

        agreed: the optimizer step of that iteration is all that is left of it.
        """
        held = self.held
        return {
            "generation": self.generation,
            "port": self.port,
            "holds": None
            if held is None
            else {
                "plan": self.key,
                "rank": held.rank,
                "iteration": held.iteration,
                "agreed": held.update is not None,
            },
        }

    def release(self) -> None:
        """Leave all process groups and keep the state alone; ready to meet at another store."""
        begun = time.perf_counter()
        self._leave()
        self._server = self._serve()
        self._times["release"] = (time.perf_counter() - begun) * 1e3

    def _leave(self) -> None:
        if not dist.is_initialized():
            # A group that failed to form has been counted, and groups meet by their number: one of
            # this process alone, formed and left, starts the count anew.
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
        sys.excepthook = self._excepthook  # each group wraps it once more
        gc.collect()  # what still refers to a group keeps its connections open

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        took = (time.perf_counter() - begun) * 1e3
        self._times[name] = self._times.get(name, 0.0) + took

    def _join(self, name: str, at: tuple[str, int], rank: int, world: int, device: str) -> None:
        store = TCPStore(*at, is_master=False, timeout=self._timeout)
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            store=PrefixStore(f"{self.generation}/{name}", store),
            rank=rank,
            world_size=world,
            timeout=self._timeout,
        )

    def _device(self, plan: Plan, rank: int) -> torch.device:
        return device_of(plan, ranks_of(plan)[rank])

    def move(self, command: Message, plans: Mapping[str, Plan]) -> None:
        """Give and take state among all members of a change; the old state is kept meanwhile.

        Tells `moved`. Raises RuntimeError where another member is lost.
        """
        self._coming = None
        seats = [
            Seat(
                (plans[seat["source"][0]], seat["source"][1]) if seat["source"] else None,
                (plans[command["plan"]], seat["target"]) if seat["target"] is not None else None,
            )
            for seat in command["members"]
        ]
        me = command["index"]
        own = seats[me].target or seats[me].source
        assert own is not None
        device = self._device(*own)
        if self.held is not None and seats[me].source is not None:
            self.held.advance_to(command["iteration"])
        with self._phase("rebuild"):
            at = (command["address"], command["port"])
            self._join("move", at, me, len(seats), device.type)
        with self._phase("transfer"):
            held = self.held if seats[me].source is not None else None
            self._coming, received = hand_over(seats, me, held, command["iteration"], device)
            dist.barrier()  # no connection is closed while another still reads from it
        with self._phase("rebuild"):
            self._leave()
        self.tell({"type": "moved", "generation": self.generation, "received_bytes": received})

    def go(self, command: Message, plan: Plan) -> None:
        """Build this worker's rank of the plan, from what was moved, a checkpoint or the seed.

        Tells `started`. Raises RuntimeError where another rank is lost.
        """
        rank, origin = command["rank"], command["origin"]
        if origin == "memory":
            if self._coming is None:
                raise RunError("told to go on from memory, and no state has come")
            self.held, self._coming = self._coming, None
        else:
            self.held = None
        self.key = command["plan"]
        device = self._device(plan, rank)
        with self._phase("rebuild"):
            at = (command["address"], command["port"])
            self._join("train", at, rank, plan.gpus_used, device.type)
            formed = form_groups(plan, rank)
        with self._phase("build"):
            executor = Executor(
                plan,
                rank,
                device=device,
                samples=samples_of(plan, self.options),
                # Random weights that are overwritten at once would be half of the pause.
                seed=self.options.seed if origin == "seed" else None,
                learning_rate=self.options.learning_rate,
                clip_norm=self.options.clip_norm,
                formed=formed,
            )
            iteration, samples = command["iteration"], command["samples"]
            if origin == "checkpoint":
                progress = load_checkpoint(executor, Path(command["checkpoint"]))
                iteration, samples = progress.iteration, progress.samples
            elif self.held is not None:
                # From here on the executor has it, and what was held is given up part by part.
                coming, self.held = self.held, None
                put_in_place(executor, coming)
            executor.start_at(iteration, samples)
            self.held = holding_of(executor, iteration)
            dist.barrier()
        self._executor = executor
        times, self._times = self._times, {}
        self.tell({"type": "started", "generation": self.generation, "times_ms": times})

    def train(self, end: int) -> bool:
        """Train from where the state is to iteration `end`, or until a stop; whether the end.

        The state is held in any case; release what else there is when this has returned. Raises
        RuntimeError where another rank is lost.
        """
        assert self._executor is not None
        assert self.held is not None
        executor, iteration = self._executor, self.held.iteration
        memory = PeakMemory(executor.device)
        stop = iteration >= end
        try:
            while not stop:
                executor.prepare(iteration)
                memory.reset()
                agreed = _Agreement(self, executor)
                started_s = time.time()
                step = executor.step(iteration, agreed.meet)
                iteration += 1
                self._ready = False
                stop = agreed.stop or iteration >= end
                self._report(iteration - 1, step, agreed.loss, memory.read(), started_s)
                self._checkpoint(executor, iteration, iteration >= end)
        finally:
            self.held = holding_of(executor, iteration, agreed=self._ready)
            self._executor, self._ready = None, False
        return iteration >= end

    def mark_ready(self) -> None:
        """This rank's gradients are summed: only its optimizer step is left."""
        self._ready = True

    def _report(
        self, iteration: int, step: Step, loss: float, peak_bytes: int, started_s: float
    ) -> None:
        assert self._executor is not None
        self.tell(
            {
                "type": "step",
                "generation": self.generation,
                "rank": self._executor.place.rank,
                "iteration": iteration,
                "elapsed_ms": step.elapsed_ms,
                "loss": loss,
                "peak_bytes": peak_bytes,
                "started_s": started_s,
                "actions": [
                    [a.kind.value, a.micro_batch, a.start_ms, a.end_ms] for a in step.actions
                ],
                "comm_ms": list(step.comm_ms),
            }
        )

    def _checkpoint(self, executor: Executor, done: int, at_end: bool) -> None:
        folder, every = self.options.checkpoint, self.options.checkpoint_every
        if folder is None or not (at_end or (every and done % every == 0)):
            return
        path = save_checkpoint(executor, folder, executor.progress(done))
        if executor.place.rank == 0:
            self.tell({"type": "saved", "iteration": done, "path": str(path)})


class _Agreement:
    """One word of all ranks before each optimizer step: their losses, and whether to stop after it.

    Where it comes back on one rank, all ranks have summed their gradients, so every survivor can
    take the step; where it comes back on none, none has taken it. States never differ by more.
    """

    def __init__(self, member: Member, executor: Executor) -> None:
        self.member = member
        self.device = executor.device
        self.loss = 0.0
        self.stop = False

    def meet(self, loss: float) -> None:
        """Sum the losses and the wishes to stop over all ranks."""
        words = [loss, float(self.member.stop_wanted())]
        self.member.mark_ready()
        if dist.get_world_size() > 1:
            sums = torch.tensor(words, dtype=torch.float32, device=self.device)
            dist.all_reduce(sums)
            words = sums.tolist()
        self.loss, self.stop = words[0], words[1] > 0
