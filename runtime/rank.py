"""One rank of a plan inside its process: device, process group, training."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from runtime.optimizer import import_optimizers
from runtime.training import Options, train
from specs.errors import HostError
from specs.gpu import gpu_type, gpu_type_of_nvml_name
from specs.layout import RankPlace, ranks_of
from specs.plan import Plan


def run_rank(
    plan: Plan,
    rank: int,
    options: Options,
    store: Store,
    tell: Callable[[Any], None],
    *,
    sees_all_gpus: bool = False,
) -> None:
    """Join the process group of all ranks at a store, and train.

    sees_all_gpus: whether this process sees every GPU of its host, not only its own.
    Raises HostError where the device is not what the plan says, RunError for a plan that cannot be
    run, RuntimeError where another rank is lost.
    """
    torch.set_num_threads(1)
    import_optimizers()
    device = device_of(plan, ranks_of(plan)[rank], sees_all_gpus)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=plan.gpus_used,
        timeout=timedelta(seconds=options.timeout_s),
    )
    try:
        train(plan, rank, device, options, tell)
    finally:
        dist.destroy_process_group()


def device_of(plan: Plan, place: RankPlace, sees_all_gpus: bool = False) -> torch.device:
    """The device of a rank. Raises HostError where it is not of the plan's type."""
    wanted = plan.templates[place.template].stages[place.stage].gpu
    if gpu_type(wanted).is_cpu:
        return torch.device("cpu")
    here = f"GPU {place.gpu} of node {place.node}"
    if not torch.cuda.is_available():
        raise HostError(f"{here} should be a {wanted}, this host has no CUDA device")
    # A batch system may show each process its own GPU alone, as number 0.
    number = place.gpu if sees_all_gpus and torch.cuda.device_count() > 1 else 0
    if number >= torch.cuda.device_count():
        raise HostError(f"{here} is not there, this host has {torch.cuda.device_count()} GPUs")
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    name = torch.cuda.get_device_name(device)
    found = gpu_type_of_nvml_name(name)
    if found is None or found.name != wanted:
        raise HostError(f"{here} should be a {wanted}, this host has a {name}")
    return device
