"""One rank of a plan inside its process: device, process group, training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime.optimizer import import_optimizers
from runtime.training import Options, train
from specs.errors import HostError
from specs.gpu import gpu_type, gpu_type_of_nvml_name
from specs.layout import RankPlace, ranks_of
from specs.plan import Plan
from specs.plan_file import plan_from_document


def run_rank(setup: Mapping[str, Any], store: tuple[str, int], tell: Callable[[Any], None]) -> None:
    """Join the group of all ranks at a TCPStore and train.

    setup: {"rank", "plan": document, "options"}. Raises HostError where the device is not what
    the plan says, RunError for a plan that cannot be run, RuntimeError where another rank is lost.
    """
    plan = plan_from_document(setup["plan"], "the plan")
    options = Options(**setup["options"])
    rank = int(setup["rank"])
    torch.set_num_threads(1)
    import_optimizers()
    device = device_of(plan, ranks_of(plan)[rank])
    timeout = timedelta(seconds=options.timeout_s)
    host, port = store
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=TCPStore(host, port, is_master=False, timeout=timeout),
        rank=rank,
        world_size=plan.gpus_used,
        timeout=timeout,
    )
    try:
        train(plan, rank, device, options, tell)
    finally:
        dist.destroy_process_group()


def device_of(plan: Plan, place: RankPlace) -> torch.device:
    """The device of a rank; the process sees no other GPU. Raises HostError for a wrong one."""
    wanted = plan.templates[place.template].stages[place.stage].gpu
    if gpu_type(wanted).is_cpu:
        return torch.device("cpu")
    here = f"GPU {place.gpu} of node {place.node}"
    if not torch.cuda.is_available():
        raise HostError(f"{here} should be a {wanted}, this host has no CUDA device")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    name = torch.cuda.get_device_name(device)
    found = gpu_type_of_nvml_name(name)
    if found is None or found.name != wanted:
        raise HostError(f"{here} should be a {wanted}, this host has a {name}")
    return device
