"""Stores filled through the Store API, with real plans and predictions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from db.records import (
    ComparisonRow,
    CurvePoint,
    NewComparison,
    NewReconfiguration,
    SearchCurve,
)
from db.store import Store
from specs.cluster import Cluster, cluster_from_document
from specs.gpu import gpu_type
from specs.measurement import Measurement, RunTrace, StageTimes, StageTrack
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
from specs.workload import Workload

GIB = 2.0**30
NASTY = "</script><script>document.title='owned'</script>"
NASTY_NAMES = (
    NASTY,
    """"><img src=x onerror="document.title='owned'">' or 1=1 --""",
    "🕷️ Ärächne 网 \u202etxt.exe",
    "x" * 300,
    "<b>bold</b> & <a href='javascript:alert(1)'>link</a>",
    '=HYPERLINK("x")',
)


def cluster_of(*nodes: tuple[str, int, int], name: str = "test") -> Cluster:
    """A cluster of (gpu, gpus per node, count)."""
    return cluster_from_document(
        {
            "name": name,
            "inter_node": {"bandwidth_gb_per_s": 12.5},
            "nodes": [{"gpu": g, "gpus": n, "count": c} for g, n, c in nodes],
        },
        "test cluster",
    )


def named(model: Model, name: str) -> Model:
    """The same model under another name."""
    return Model(name, model.config, model.layers)


def straight_plan(
    cluster: Cluster,
    *,
    model: Model | None = None,
    planner: str = "exhaustive",
    micro_batch: int = 1,
    global_batch: int = 32,
    replicas: int = 1,
) -> Plan:
    """One stage of TP degree 1 per node (up to the blocks of the model), layers dealt evenly."""
    model = model or load_model("tiny-llama-test")
    nodes = cluster.nodes
    per = min(len(nodes) // replicas, model.blocks)
    layers = len(model.layers)
    cuts = [round(i * layers / per) for i in range(per + 1)]
    stages = tuple(Stage(nodes[s].gpu, 1, range(cuts[s], cuts[s + 1])) for s in range(per))
    share = global_batch // replicas
    return Plan(
        planner,
        model,
        replace(model.default_workload, global_batch=global_batch),
        cluster,
        (
            Template(
                micro_batch,
                stages,
                tuple(
                    Replica(
                        share // micro_batch,
                        micro_batch,
                        tuple(Place(nodes[r * per + s].name, (0,)) for s in range(per)),
                    )
                    for r in range(replicas)
                ),
            ),
        ),
    )


def predicted(
    plan: Plan,
    iteration_ms: float,
    *,
    runs: Sequence[int] = (),
    sources: Sequence[str] = ("measured",),
    memory_gib: float = 4.0,
    bound_ms: float | None = None,
) -> Plan:
    """The plan with a prediction whose fullest GPU needs `memory_gib`."""
    stage = StagePrediction(
        compute_ms=2.0,
        comm_ms=0.4,
        host_ms=0.1,
        send_ms=0.2,
        sync_ms=3.0,
        update_ms=1.0,
        memory=StageMemory(
            weights=0.1 * memory_gib * GIB,
            gradients=0.1 * memory_gib * GIB,
            optimizer=0.4 * memory_gib * GIB,
            activations=0.2 * memory_gib * GIB,
            transient=0.1 * memory_gib * GIB,
            framework=0.1 * memory_gib * GIB,
            limit=1.25 * memory_gib * GIB,
        ),
    )
    return plan.with_prediction(
        Prediction(
            iteration_ms=iteration_ms,
            pipe_ms=tuple(iteration_ms - 4.0 for _ in plan.templates),
            micro_batches=tuple(t.replicas[0].micro_batches for t in plan.templates),
            stages=tuple(tuple(stage for _ in t.stages) for t in plan.templates),
            profile_runs=tuple(runs),
            sources=tuple(sources),
            bound_iteration_ms=bound_ms,
        )
    )


def profile_run(store: Store, source: Source, origin: str = "a test", **facts: str) -> int:
    """A complete profile run without rows."""
    run = store.start_run(NewRun(source, origin, **facts))
    store.finish_run(run, RunStatus.COMPLETE)
    return run


def fill_with_profiles(
    store: Store,
    gpus: Sequence[str],
    *,
    source: Source = Source.MEASURED,
    factor: float = 1.0,
    origin: str = "arachne-prof run",
) -> int:
    """Layers, links and host of tiny-llama-test on these GPU types, at TP 1 and 2; the run's id.

    A block takes factor * micro-batch / TP ms forward on the first type, twice that backward;
    each further type is half as fast again.
    """
    model = load_model("tiny-llama-test")
    workload = model.default_workload
    store.add_model(model)
    run = store.start_run(NewRun(source, origin, licence="none", torch_version="2.13.0"))
    rows: list[LayerProfile | LayerRefusal] = []
    links: list[LinkProfile] = []
    for i, gpu in enumerate(gpus):
        topology = gpu_type(gpu).default_topology
        for layer in model.layer_types:
            for tp in (1, 2):
                for micro_batch in (1, 2, 4):
                    key = LayerKey(
                        *(gpu, layer.hash, tp, micro_batch, workload.seq_len, workload.dtype),
                        *(workload.recompute, workload.optimizer, topology),
                    )
                    if tp == 2 and micro_batch == 4 and layer.kind.value == "head":
                        rows.append(LayerRefusal(key, EntryStatus.OUT_OF_MEMORY, "no room"))
                        continue
                    forward = factor * micro_batch / tp * 1.5**i
                    rows.append(
                        LayerProfile(
                            key,
                            forward_ms=forward,
                            backward_ms=2 * forward,
                            comm_ms=0.1 * (tp - 1),
                            update_ms=0.3,
                            activation_bytes=1_000_000 * micro_batch,
                            transient_bytes=500_000,
                            parameter_bytes=4 * layer.parameters // tp,
                            samples=20,
                            forward_mad_ms=0.01 * forward,
                            backward_mad_ms=0.02 * forward,
                        )
                    )
        for operation in Operation:
            for nbytes in (2**12, 2**16, 2**20, 2**24):
                # 20 us and 10 GB/s
                time = 0.02 + nbytes / 1e7
                links.append(LinkProfile(gpu, topology, operation, 2, nbytes, time, samples=9))
        store.add_host_profile(run, HostProfile(gpu, 0.05, 10**9, 30 * 10**9))
    store.add_layer_profiles(run, rows)
    store.add_link_profiles(run, links)
    store.finish_run(run, RunStatus.COMPLETE)
    return run


def iterations(
    times: Sequence[float],
    *,
    run: str = "run-1",
    host: str = "host-a",
    origin: str = "arachne-run plan.json",
    warm_ups: int = 1,
    peak: int | None = None,
    drift: float | None = None,
) -> list[Measurement]:
    """A run of these iteration times in ms, after warm-ups of twice the first time."""
    peaks = () if peak is None else (peak // 2, peak)
    rows = [
        Measurement(run, host, origin, i, 2 * times[0], 1, True, 7.0, peaks, drift)
        for i in range(warm_ups)
    ]
    return rows + [
        Measurement(run, host, origin, warm_ups + i, time, 1, False, 6.5, peaks, drift)
        for i, time in enumerate(times)
    ]


def fill_with_runs(store: Store, runs: int, *, per_plan: int = 20, seed: int = 1) -> None:
    """So many runs of one iteration each, over plans of three sources and several GPU types."""
    rng = random.Random(seed)
    clusters = [
        cluster_of(("cpu", 2, 1)),
        cluster_of(("gh200", 4, 2)),
        cluster_of(("rtx-3090", 8, 1), ("titan-rtx", 8, 1)),
        cluster_of(("a100-40gb", 4, 2), ("h100", 4, 1)),
    ]
    sources = (Source.MEASURED, Source.IMPORTED, Source.ESTIMATED)
    ids = {source: profile_run(store, source, f"{source} rows") for source in sources}
    written = 0
    number = 0
    while written < runs:
        source = sources[number % 3]
        cluster = clusters[number % len(clusters)]
        time = 10 ** rng.uniform(1.2, 4.2)
        plan = straight_plan(cluster, planner=f"planner-{number % 5}", global_batch=32 + number)
        plan = predicted(
            plan,
            time * (1 + rng.gauss(0, 0.03 + 0.05 * (number % 3))),
            runs=[ids[source]],
            sources=[source],
            memory_gib=rng.uniform(2, 30),
        )
        plan_id = store.add_plan(plan)
        count = min(per_plan, runs - written)
        store.add_measurements(
            plan_id,
            [
                Measurement(
                    f"run-{number}-{i}",
                    f"host-{number % 4}",
                    "arachne-run plan.json --iterations 1",
                    0,
                    time * (1 + rng.gauss(0, 0.01)),
                    peak_bytes=(int(GIB * rng.uniform(2, 30)),),
                    drift=rng.gauss(0, 0.01),
                )
                for i in range(count)
            ],
        )
        written += count
        number += 1


def fill_with_comparisons(store: Store, questions: int, *, seed: int = 1) -> None:
    """So many comparisons of three planners, one of which finds nothing every fourth time."""
    rng = random.Random(seed)
    model = load_model("tiny-llama-test")
    for number in range(questions):
        cluster = cluster_of(
            ("a100-40gb", 4, 1 + number), ("h100", 4, 1 + number % 3), name=f"mixed-{number}"
        )
        question = NewComparison(f"question {number}", model, Workload(64, 128), cluster, "paper")
        comparison = store.add_comparison(question)
        for i, planner in enumerate(("exhaustive", "random", "metis")):
            if planner == "metis" and number % 4 == 3:
                row = ComparisonRow(planner, None, "no plan", "every candidate ran out of memory")
                store.add_comparison_row(comparison, row)
                continue
            plan = straight_plan(cluster, planner=planner, global_batch=64 + number)
            time = 100.0 * (1 + number) * (1 + 0.1 * i * rng.random())
            plan_id = store.add_plan(predicted(plan, time))
            store.add_comparison_row(
                comparison,
                ComparisonRow(
                    planner=planner,
                    plan_id=plan_id,
                    status="ok",
                    iteration_ms=time,
                    search_s=10 ** rng.uniform(-2, 2),
                    evaluations=1000 * (i + 1),
                    rejected={"memory at stage 0": 17 + i},
                ),
            )
            for curve_seed in range(3 if planner == "random" else 1):
                points = tuple(
                    CurvePoint(4**step, time * (1 + 2.0 ** -(step + 1 + curve_seed)))
                    for step in range(6)
                )
                store.add_search_curve(comparison, SearchCurve(planner, points, curve_seed))


def fill_with_reconfigurations(store: Store, repeats: int) -> None:
    """Two kinds of live change, each so many times; the last one of the second kind failed."""
    for event, scale in (("node joins", 1.0), ("node leaves", 0.5)):
        for repeat in range(repeats):
            failed = event == "node leaves" and repeat == repeats - 1
            store.add_reconfiguration(
                NewReconfiguration(
                    event=event,
                    old_plan_id=None,
                    new_plan_id=None,
                    phases_ms={
                        "plan": 40.0 * scale,
                        "release": 100.0 * scale,
                        "rebuild": 300.0 * scale + repeat,
                        "transfer": 200.0 * scale + 2 * repeat,
                        "build": 400.0 * scale,
                    },
                    bytes_per_rank=(1 << 20, 3 << 20),
                    repeat=repeat,
                    run="elastic-1",
                    host="host-a",
                    origin="arachne-run elastic",
                    status="failed" if failed else "ok",
                    reason="a worker did not answer" if failed else "",
                )
            )


def stage_times_of(plan: Plan, factor: float = 1.0) -> tuple[StageTimes, ...]:
    """Times that are `factor` times those of `predicted`: 2.4 ms computing, 0.2 sending a time."""
    return tuple(
        StageTimes(
            *(k, s, 0.8 * factor, 1.6 * factor),
            *(0.2 * factor * template.replicas[0].micro_batches, 5.0, 3.0 * factor, factor),
            0.4 * factor,
        )
        for k, template in enumerate(plan.templates)
        for s in range(template.depth)
    )


def trace_of(plan: Plan, run: str = "run-1", iteration: int = 3) -> RunTrace:
    """Every stage of every template: two forwards, two backwards, what lies between and after."""
    tracks = []
    for k, template in enumerate(plan.templates):
        for s in range(template.depth):
            late = 2.0 * s
            actions = [("receive", 0, 0.0, late)] if s else []
            for m in range(2):
                begin = late + 6.0 * m
                actions += [("forward", m, begin, begin + 2.0), ("send", m, begin + 2, begin + 2.5)]
                actions += [("backward", m, begin + 2.5, begin + 6.0)]
            end = late + 12.0
            actions += [("sync", -1, end, end + 3.0), ("update", -1, end + 3.0, end + 4.0)]
            tracks.append(StageTrack(k, s, tuple(actions)))
    last = max(end for track in tracks for *_, end in track.actions)
    return RunTrace(run, iteration, last, tuple(tracks))


def fill_with_suite(store: Store) -> None:
    """Two tables of the suite `paper`: a cluster that grows by nodes, and one by GPU types.

    A GPU gives arachne 80 samples/s and metis 40; metis's plan on six GPUs is too fast to fit.
    """
    model = load_model("tiny-llama-test")
    tables = {
        "growing": [[("h100", 2, 1)], [("h100", 2, 2)], [("h100", 2, 3)]],
        "types": [[("h100", 4, 1)], [("h100", 4, 1), ("a6000", 4, 1)]],
    }
    for table, clusters in tables.items():
        for step, nodes in enumerate(clusters):
            cluster = cluster_of(*nodes, name=f"{table}-{step}")
            workload = replace(model.default_workload, global_batch=48)
            comparison = store.add_comparison(
                NewComparison(
                    f"{table} {step}",
                    model,
                    workload,
                    cluster,
                    suite="paper",
                    options={"table": table},
                )
            )
            for planner, speed in (("arachne", 80), ("metis", 40)):
                time = 48_000 / (speed * cluster.gpus)
                plan = straight_plan(cluster, planner=planner, global_batch=48)
                plan = predicted(plan, time)
                if planner == "metis" and cluster.gpus == 6:
                    time /= 10
                    assert plan.prediction is not None
                    stage = plan.prediction.stages[0][0]
                    full = replace(stage, memory=replace(stage.memory, limit=1.0))
                    plan = predicted(plan, time)
                    assert plan.prediction is not None
                    stages = ((full, *plan.prediction.stages[0][1:]),)
                    plan = plan.with_prediction(replace(plan.prediction, stages=stages))
                store.add_comparison_row(
                    comparison,
                    ComparisonRow(
                        planner,
                        store.add_plan(plan),
                        "ok",
                        iteration_ms=time,
                        search_s=1.0 + step,
                        evaluations=9,
                        rejected={"no packing": 2},
                    ),
                )
