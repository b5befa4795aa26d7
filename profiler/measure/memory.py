"""Memory of a layer: what it keeps from forward until backward, and the peak above that."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


def saved_bytes(modules: Iterable[nn.Module], forward: Callable[[], tuple[Any, Tensor]]) -> int:
    """Bytes that one more micro-batch keeps from forward until backward, without the weights.

    forward: runs one fresh micro-batch; gives its result and its input. Counts the storages that
    autograd saves (each once, and whole: a view keeps all of its base) and still holds when the
    forward is over, and the input, which whoever runs the backward keeps. Two micro-batches run and
    the second is counted, so that what all of them share (rotary positions, masks) is not.
    """
    # A weak reference keeps an address from coming back as another storage's, as happens where a
    # branch of the graph leads nowhere (a router's) and is freed at once.
    weak: Any = StorageWeakRef  # torch gives it no types
    seen: dict[int, tuple[Any, int]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen.setdefault(storage._cdata, (weak(storage), storage.nbytes()))
        return tensor

    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            note(tensor)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        first = forward()
        note(first[1])
        shared = len(seen)
        second = forward()
        note(second[1])
    gc.collect()  # cycles of Python objects hold tensors that nothing needs
    kept = list(seen.values())[shared:]
    total = sum(nbytes for reference, nbytes in kept if not reference.expired())
    del first, second
    return total


@dataclass(frozen=True, slots=True)
class Trace:
    """Allocations of a piece of work in bytes: the highest level above its start, and its end."""

    peak_bytes: int
    end_bytes: int


def trace_cpu(work: Callable[[], None]) -> Trace:
    """Run work on the CPU and follow every allocation of its tensors, kernel scratch included.

    torch has no peak counter for CPU memory; its profiler reports each allocation and release.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        work()
    level = peak = 0
    for size in _allocations(record):
        level += size
        peak = max(peak, level)
    return Trace(peak, level)


def _allocations(record: Any) -> Iterator[int]:
    """Sizes of allocations (releases are negative), in order of time."""
    results = record.profiler.kineto_results
    waiting = list(results.experimental_event_tree())
    found: list[tuple[int, int]] = []
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    # Two events of one nanosecond keep their order by size: a release after its allocation.
    found.sort(key=lambda pair: (pair[0], -pair[1]))
    return (size for _, size in found)


def trace_cuda(work: Callable[[], None], device: torch.device) -> Trace:
    """Run work on a GPU and read the peak and the end from the allocator's own counters."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - start
    return Trace(peak, torch.cuda.memory_allocated(device) - start)


def trace(work: Callable[[], None], device: torch.device) -> Trace:
    """Follow the allocations of work on its device."""
    return trace_cuda(work, device) if device.type == "cuda" else trace_cpu(work)
