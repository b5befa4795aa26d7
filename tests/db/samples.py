"""Small true-to-life content for stores: a model, a cluster, profiles, a plan."""

from __future__ import annotations

from dataclasses import replace

from db.store import Store
from specs.cluster import Cluster, Node
from specs.measurement import Measurement
from specs.model import Model, load_model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.prediction import Prediction, StageMemory, StagePrediction
from specs.profile import (
    EntryStatus,
    HostProfile,
    LayerKey,
    LayerProfile,
    LayerRefusal,
    LinkProfile,
    NewRun,
    Operation,
    RunStatus,
    Source,
)
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute, Workload

MODEL: Model = load_model("tiny-llama-test")
EMBEDDING, BLOCK, HEAD = MODEL.layer_types
CLUSTER = Cluster(
    "two hosts",
    tuple(Node(f"cpu-{i}", "cpu", 1, Topology.HOST, 12.5, 10.0) for i in range(2)),
)
WORKLOAD = Workload(32, 128, DType.FP32)
RUN = NewRun(
    Source.MEASURED,
    "arachne-prof run --gpu cpu",
    host="host-1",
    driver="570.1",
    torch_version="2.13.0",
    nccl_version="2.28",
    seed=7,
    reference_ms=1.25,
)


def key(
    micro_batch: int = 1, *, tp: int = 1, gpu: str = "cpu", layer: str = BLOCK.hash
) -> LayerKey:
    return LayerKey(
        gpu,
        layer,
        tp,
        micro_batch,
        128,
        DType.FP32,
        Recompute.NONE,
        Optimizer.ADAMW,
        Topology.HOST if gpu == "cpu" else Topology.NVLINK,
    )


def profile(micro_batch: int = 1, forward_ms: float = 0.1, **fields: object) -> LayerProfile:
    """A row whose numbers have no short binary form, so that any loss of digits shows."""
    made = LayerProfile(
        key=key(micro_batch),
        forward_ms=forward_ms,
        backward_ms=2 / 3,
        comm_ms=0.0,
        update_ms=1e-9,
        activation_bytes=3 * 2**40 + 1,  # beyond 32 bits
        transient_bytes=0,
        parameter_bytes=12345,
        expert_parameter_bytes=7,
        samples=30,
        forward_mad_ms=0.001,
        backward_mad_ms=None,
        comm_mad_ms=None,
        update_mad_ms=0.0,
        comm_included=True,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


REFUSAL = LayerRefusal(key(64), EntryStatus.OUT_OF_MEMORY, "needs 3 GiB, 2 GiB are free")
LINK = LinkProfile("h100", Topology.NVLINK, Operation.ALL_REDUCE, 4, 2**33, 1.75, "", 20, 0.01)
HOST = HostProfile("cpu", 0.25, 10**9, 5 * 10**10, 0.02)


def measured_run(store: Store, rows: int = 3, new: NewRun = RUN) -> int:
    """A complete run with that many rows, a refusal, a link and a host row; its id."""
    store.add_model(MODEL)
    run = store.start_run(new)
    store.add_layer_profiles(run, [*(profile(i + 1) for i in range(rows)), REFUSAL])
    store.add_link_profiles(run, [LINK])
    store.add_host_profile(run, HOST)
    store.finish_run(run, RunStatus.COMPLETE)
    return run


def prediction(*runs: int, iteration_ms: float = 12.5, limit: float = 1e9) -> Prediction:
    memory = StageMemory(1e8, 1e8, 2e8, 5e7, 1e7, 4e7, limit)  # 5e8 in all
    stage = StagePrediction(1.1, 0.0, 0.2, 0.3, 0.4, 0.5, memory)
    return Prediction(
        iteration_ms, (10.0,), (8,), ((stage, stage),), tuple(runs), ("measured",), 9.75
    )


def plan(*runs: int, planner: str = "exhaustive", split: int = 2, **figures: float) -> Plan:
    """Two stages on two hosts, the first with `split` layers; priced where runs are given."""
    layers = len(MODEL.layers)
    template = Template(
        4,
        (Stage("cpu", 1, range(split)), Stage("cpu", 1, range(split, layers))),
        (Replica(8, 4, (Place("cpu-0", (0,)), Place("cpu-1", (0,)))),),
    )
    made = Plan(planner, MODEL, WORKLOAD, CLUSTER, (template,))
    return made.with_prediction(prediction(*runs, **figures)) if runs else made


def measurement(iteration: int, run: str = "run-1", **fields: object) -> Measurement:
    made = Measurement(
        run, "host-1", "arachne-run plan.json", iteration, 12.0 + iteration, 1, iteration == 0,
        10.5 - iteration, (2**33, 2**33 + 1), 0.03,
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]
