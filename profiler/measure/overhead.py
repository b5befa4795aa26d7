"""What the executor adds to a micro-batch beyond its layers: the host row of a profile."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.data import SyntheticSamples
from runtime.executor import Executor, Step
from runtime.memory import PeakMemory
from runtime.timeline import Kind
from specs.cluster import Cluster, Node
from specs.gpu import gpu_type
from specs.model import Model, load_model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.workload import DType, Optimizer, Workload

MICRO_BATCHES = 8
MICRO_BATCH = 2
WARM_STEPS = 2
STEPS = 6
BLOCKS = 1
SEQ_LEN = 128


def overhead_plan(gpu: str, devices: int) -> Plan:
    """Little work that is still a training run: one small block, a replica on each device."""
    small = load_model("tiny-llama-test")
    model = Model.from_config("overhead", {**small.config, "num_hidden_layers": BLOCKS})
    stage = Stage(gpu, 1, range(len(model.layers)))
    node = Node("here", gpu, devices, gpu_type(gpu).default_topology, 1.0, 0.0)
    replicas = tuple(
        Replica(MICRO_BATCHES, MICRO_BATCH, (Place("here", (device,)),))
        for device in range(devices)
    )
    return Plan(
        planner="",
        model=model,
        workload=Workload(
            MICRO_BATCHES * MICRO_BATCH * devices, SEQ_LEN, DType.FP32, Optimizer.ADAMW
        ),
        cluster=Cluster("here", (node,)),
        templates=(Template(MICRO_BATCH, (stage,), replicas),),
    )


def overhead_ms(step: Step, micro_batches: int) -> float:
    """Time per micro-batch, in ms, that a one-stage iteration spends outside its layers.

    From the start of the iteration to the start of the gradient sum, less all forwards and
    backwards. Transfers are none with one stage: the cost model prices those by themselves.
    """
    pipe_ms = next(action.start_ms for action in step.actions if action.kind is Kind.SYNC)
    layers_ms = sum(
        action.ms for action in step.actions if action.kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    return (pipe_ms - layers_ms) / micro_batches


@dataclass(frozen=True, slots=True)
class Overhead:
    """Samples in ms per micro-batch, one an iteration, and memory in bytes besides the tensors."""

    samples_ms: list[float]
    framework_bytes: int


def measure_overhead(gpu: str, devices: int, rank: int, device: torch.device) -> Overhead:
    """Run the executor on every device at once.

    Memory of the framework: on a CPU the highest resident memory of the process, less weights,
    gradients and optimizer state (what the allocator cannot give back is part of it); on a GPU
    what is in use besides the tensors of the allocator: context, libraries, communicators.
    """
    plan = overhead_plan(gpu, devices)
    samples = SyntheticSamples(plan.model.layers[0].shape("vocab"), seed=0)
    executor = Executor(plan, rank, device=device, samples=samples, learning_rate=0.0)
    memory = PeakMemory(device)
    memory.reset()
    found = []
    for iteration in range(WARM_STEPS + STEPS):
        executor.prepare(iteration)
        found.append(overhead_ms(executor.step(iteration), MICRO_BATCHES))
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        framework = total - free - torch.cuda.memory_reserved(device)
    else:
        weights = sum(p.numel() * p.element_size() for p in executor.model.parameters())
        state = weights + executor.gradients.nbytes + executor.optimizer.state_bytes()
        framework = memory.read() - state
    return Overhead(found[WARM_STEPS:], framework)
