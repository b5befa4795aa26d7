"""What the executor adds to a micro-batch beyond its layers: the host row of a profile."""

from __future__ import annotations

import torch

from runtime.data import SyntheticSamples
from runtime.executor import Executor, Step
from runtime.timeline import Kind
from specs.cluster import Cluster, Node
from specs.gpu import gpu_type
from specs.model import Model, load_model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.workload import DType, Optimizer, Workload

MICRO_BATCHES = 16
WARM_STEPS = 2
STEPS = 12
SEQ_LEN = 16


def overhead_plan(gpu: str, devices: int) -> Plan:
    """The least work that is still a training run: one small block, a replica on each device."""
    small = load_model("tiny-llama-test")
    model = Model.from_config("overhead", {**small.config, "num_hidden_layers": 1})
    stage = Stage(gpu, 1, range(len(model.layers)))
    node = Node("here", gpu, devices, gpu_type(gpu).default_topology, 1.0, 0.0)
    replicas = tuple(
        Replica(MICRO_BATCHES, 1, (Place("here", (device,)),)) for device in range(devices)
    )
    return Plan(
        planner="",
        model=model,
        workload=Workload(MICRO_BATCHES * devices, SEQ_LEN, DType.FP32, Optimizer.ADAMW),
        cluster=Cluster("here", (node,)),
        templates=(Template(1, (stage,), replicas),),
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


def measure_overhead(gpu: str, devices: int, rank: int, device: torch.device) -> list[float]:
    """Run the executor on every device at once; this rank's samples in ms, one an iteration."""
    plan = overhead_plan(gpu, devices)
    samples = SyntheticSamples(plan.model.layers[0].shape("vocab"), seed=0)
    executor = Executor(plan, rank, device=device, samples=samples, learning_rate=0.0)
    found = []
    for iteration in range(WARM_STEPS + STEPS):
        executor.prepare(iteration)
        found.append(overhead_ms(executor.step(iteration), MICRO_BATCHES))
    return found[WARM_STEPS:]
