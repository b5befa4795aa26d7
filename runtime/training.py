"""Training on one rank: build, time, report."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from runtime.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from runtime.data import FileSamples, Samples, SyntheticSamples
from runtime.drift import reference_ms
from runtime.executor import Executor
from runtime.memory import PeakMemory
from runtime.optimizer import LEARNING_RATE
from runtime.records import RankStep
from specs.plan import Plan

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a plan.

    iterations: that count; warm_up: before them, marked. data: a file of tokens, None for made-up
    text. clip_norm: largest norm of all gradients together. timeout_s: longest wait for another
    rank. checkpoint: a folder that all hosts see, written at the end and every checkpoint_every
    iterations (0 = only at the end). resume: from the newest checkpoint there.
    """

    iterations: int = 10
    warm_up: int = 2
    seed: int = 0
    data: str | None = None
    learning_rate: float = LEARNING_RATE
    clip_norm: float | None = None
    timeout_s: float = 300.0
    checkpoint: str | None = None
    checkpoint_every: int = 0
    resume: bool = False

    def to_json(self) -> dict[str, Any]:
        """The options as plain values."""
        return asdict(self)


def samples_of(plan: Plan, options: Options) -> Samples:
    """What the plan's model trains on. Raises RunError for a file that does not serve."""
    vocab = plan.model.layers[0].shape("vocab")
    if options.data is not None:
        return FileSamples(options.data, vocab)
    return SyntheticSamples(vocab, options.seed)


def train(
    plan: Plan,
    rank: int,
    device: torch.device,
    options: Options,
    tell: Callable[[Message], None],
) -> None:
    """Run all iterations of a plan on one rank, in a process group that is formed already.

    tell: is given {"step": ...} for each iteration. Every iteration starts behind a barrier of all
    ranks, its samples ready; reporting is not timed. Between iterations all ranks do the reference
    work at the same time, so that each has the machine's speed before and after it.
    """
    executor = Executor(
        plan,
        rank,
        device=device,
        samples=samples_of(plan, options),
        seed=options.seed,
        learning_rate=options.learning_rate,
        clip_norm=options.clip_norm,
    )
    begin = 0
    if options.resume and options.checkpoint is not None:
        progress = load_checkpoint(executor, newest_checkpoint(options.checkpoint))
        begin = progress.iteration
        executor.start_at(begin, progress.samples)
    memory = PeakMemory(device)
    gc.collect()
    gc.freeze()  # what is built now lives to the end: no collection need look at it again
    _meet(device)
    reference = reference_ms(device)
    end = begin + options.warm_up + options.iterations
    for iteration in range(begin, end):
        executor.prepare(iteration)
        memory.reset()
        _meet(device)
        started_s = time.time()
        step = executor.step(iteration)
        peak_bytes = memory.read()
        _meet(device)
        before, reference = reference, reference_ms(device)
        record = RankStep(
            iteration=iteration,
            warm_up=iteration < begin + options.warm_up,
            rank=rank,
            elapsed_ms=step.elapsed_ms,
            loss=step.loss,
            peak_bytes=peak_bytes,
            started_s=started_s,
            reference_ms=(before, reference),
            actions=tuple(
                (a.kind.value, a.micro_batch, a.start_ms, a.end_ms) for a in step.actions
            ),
            comm_ms=step.comm_ms,
        )
        tell({"step": record.to_json()})
        done, every = iteration + 1, options.checkpoint_every
        if options.checkpoint is not None and (
            done == end or (every and (done - begin) % every == 0)
        ):
            save_checkpoint(executor, options.checkpoint, executor.progress(done))
    _meet(device)


def _meet(device: torch.device) -> None:
    if dist.get_world_size() > 1:
        dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
