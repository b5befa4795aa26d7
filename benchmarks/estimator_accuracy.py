"""Estimated against published iteration times: error, rank correlation, plan-choice regret.

    python benchmarks/estimator_accuracy.py > benchmarks/results/$(date +%F)-estimator-accuracy.md

Each row of benchmarks/data/iteration_times.csv whose plan the cost model can express (DP, TP, PP;
no FSDP, no virtual stages) is built as a Plan and priced by planner.cost from estimated profiles
alone. The report says which rows any constant was tuned on.
"""

from __future__ import annotations

import csv
import platform
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from planner.cost import price
from planner.problem import Problem
from planner.profiles import Origin, ProfileSet
from profiler.calibration import calibration, constants_version
from profiler.estimates.blocks import AttentionKernel
from profiler.estimates.devices import device
from profiler.estimates.layers import Style, estimate_layer
from profiler.estimates.links import estimate_host, estimate_links
from specs.cluster import Cluster, Node
from specs.host import cpu_model
from specs.model import Model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.prediction import Prediction
from specs.profile import LayerKey, LayerProfile, Source
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute, Workload

DATA = Path(__file__).parent / "data" / "iteration_times.csv"
GPUS = {"A100-80GB": "a100-80gb", "A100-40GB": "a100-40gb", "H100-80GB": "h100"}
DTYPES = {"fp16": DType.FP16, "bf16": DType.BF16, "amp_bf16": DType.BF16}
NODE = 8
A100_NIC = 8 * 23.0  # GB/s of a node: the calibration's 23 per GPU on eight adapters


@dataclass(frozen=True, slots=True)
class Run:
    """One published row; measured_ms of one iteration."""

    source: str
    model: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    gpu: str
    gpus: int
    tp: int
    pp: int
    dp: int
    micro_batch: int
    global_batch: int
    seq_len: int
    recompute: Recompute
    dtype: DType
    attention: AttentionKernel
    measured_ms: float

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each replica."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def group(self) -> tuple[str, int, int]:
        """What a planner is given: runs of one group differ in their plan alone."""
        return self.model, self.gpus, self.global_batch


def read_runs(source: str) -> list[Run]:
    """Rows of one source, without those in FP8. Where the micro-batch is not given it is 1."""
    found = []
    with DATA.open() as file:
        for row in csv.DictReader(file):
            if row["source"] != source or row["dtype"] not in DTYPES:
                continue
            number = {
                name: int(float(row[name]))
                for name in ("hidden", "layers", "heads", "ffn", "vocab", "gpus", "tp", "pp", "dp")
            }
            found.append(
                Run(
                    source=source,
                    model=row["model"],
                    gpu=GPUS[row["gpu"]],
                    micro_batch=int(float(row["mbs"] or 1)),
                    global_batch=int(float(row["gbs"])),
                    seq_len=int(row["seq_len"]),
                    recompute=Recompute(row["recompute"]),
                    dtype=DTYPES[row["dtype"]],
                    attention=AttentionKernel(row["attn_impl"]),
                    measured_ms=1000 * float(row["iter_s"]),
                    **number,
                )
            )
    return found


@cache
def model_of(hidden: int, layers: int, heads: int, ffn: int, vocab: int, length: int) -> Model:
    """A GPT of these sizes: learned positions, plain MLP, tied embedding."""
    config = {
        "model_type": "gpt_neo",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_heads": heads,
        "num_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": length,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
    }
    return Model.from_config(f"gpt-h{hidden}-l{layers}", config)


def plan_of(run: Run) -> Plan:
    """The published plan: equal splits of the blocks, replicas packed into nodes one by one."""
    model = model_of(run.hidden, run.layers, run.heads, run.ffn, run.vocab, run.seq_len)
    per_node = min(NODE, run.gpus)
    cluster = Cluster(
        "published",
        tuple(
            Node(f"n{i}", run.gpu, per_node, Topology.NVLINK, A100_NIC, 10.0)
            for i in range(-(-run.gpus // per_node))
        ),
    )
    per_stage = run.layers // run.pp
    borders = [0, *(1 + per_stage * s for s in range(1, run.pp)), run.layers + 2]
    stages = tuple(Stage(run.gpu, run.tp, range(first, last)) for first, last in pairwise(borders))
    gpu = iter(range(run.gpus))
    replicas = []
    for _ in range(run.dp):
        places = []
        for _ in range(run.pp):
            ranks = [next(gpu) for _ in range(run.tp)]
            places.append(
                Place(f"n{ranks[0] // per_node}", tuple(rank % per_node for rank in ranks))
            )
        replicas.append(Replica(run.micro_batches, run.micro_batch, tuple(places)))
    workload = Workload(run.global_batch, run.seq_len, run.dtype, Optimizer.ADAMW, run.recompute)
    template = Template(run.micro_batch, stages, tuple(replicas))
    return Plan("published", model, workload, cluster, (template,))


@cache
def links_and_host(gpu: str) -> ProfileSet:
    return ProfileSet.of_rows([], estimate_links(gpu, Topology.NVLINK), [estimate_host(gpu)])


def predict(run: Run) -> Prediction:
    """The cost model's price of a published plan, from estimates alone."""
    plan = plan_of(run)
    rows = []
    for layer in plan.model.layer_types:
        key = LayerKey(
            run.gpu,
            layer.hash,
            run.tp,
            run.micro_batch,
            run.seq_len,
            run.dtype,
            run.recompute,
            Optimizer.ADAMW,
            Topology.NVLINK,
        )
        row = estimate_layer(layer, key, Style(attention=run.attention))
        assert isinstance(row, LayerProfile)
        rows.append(row)
    rest = links_and_host(run.gpu)
    layers = ProfileSet.of_rows(rows, [], [], Origin(1, Source.ESTIMATED))
    profiles = ProfileSet(layers.layers, rest.links, rest.hosts, layers.origins)
    return price(Problem(plan.model, plan.workload, plan.cluster, profiles), plan)


@dataclass(frozen=True, slots=True)
class Scored:
    """A run with its estimate in ms."""

    run: Run
    estimated_ms: float

    @property
    def error(self) -> float:
        """Estimated over measured, less 1."""
        return self.estimated_ms / self.run.measured_ms - 1


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0, equal values sharing their mean rank."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for i in order[start:end]:
            found[i] = (start + end - 1) / 2
        start = end
    return found


def rank_correlation(scored: Sequence[Scored]) -> float:
    """Spearman's: the correlation of the ranks."""
    a = ranks([s.estimated_ms for s in scored])
    b = ranks([s.run.measured_ms for s in scored])
    ma, mb = fmean(a), fmean(b)
    top = sum((x - ma) * (y - mb) for x, y in zip(a, b, strict=True))
    bottom = sum((x - ma) ** 2 for x in a) * sum((y - mb) ** 2 for y in b)
    return float(top / bottom**0.5)


def quantile(values: Iterable[float], share: float) -> float:
    """Value below which a share of the values lies, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def error_line(name: str, scored: Sequence[Scored], tuned: str) -> str:
    errors = [s.error for s in scored]
    absolute = [abs(e) for e in errors]
    return (
        f"| {name} | {len(scored)} | {100 * median(absolute):.1f}% | "
        f"{100 * quantile(absolute, 0.9):.0f}% | {100 * median(errors):+.1f}% | "
        f"{rank_correlation(scored):.3f} | {tuned} |"
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A group of plans for one question: how much slower the one with the least estimate is."""

    plans: int
    regret: float
    spread: float


def choices(scored: Iterable[Scored], least: int = 4) -> list[Choice]:
    groups: dict[tuple[str, int, int], list[Scored]] = defaultdict(list)
    for s in scored:
        groups[s.run.group].append(s)
    found = []
    for group in groups.values():
        if len(group) >= least:
            times = [s.run.measured_ms for s in group]
            chosen = min(group, key=lambda s: s.estimated_ms)
            best = min(times)
            found.append(
                Choice(len(group), chosen.run.measured_ms / best - 1, median(times) / best - 1)
            )
    return found


def regret_line(name: str, scored: Iterable[Scored]) -> str:
    found = choices(scored)
    regrets = [c.regret for c in found]
    return (
        f"| {name} | {len(found)} | {100 * median(regrets):.1f}% | {100 * fmean(regrets):.1f}% | "
        f"{100 * quantile(regrets, 0.9):.0f}% | {100 * max(regrets):.0f}% | "
        f"{100 * sum(r == 0 for r in regrets) / len(regrets):.0f}% | "
        f"{100 * median(c.spread for c in found):.0f}% |"
    )


def host_once(run: Run, prediction: Prediction) -> float:
    """The estimate with the host's overhead once a micro-batch, as its constant was fitted.

    The cost model has every stage pay it, so that filling the pipeline counts it for each stage.
    """
    return prediction.iteration_ms - (run.pp - 1) * calibration().per_micro_batch_ms


def report() -> Iterator[str]:
    single = [(run, predict(run)) for run in read_runs("vtrain-single")]
    product = [Scored(run, p.iteration_ms) for run, p in single]
    once = [Scored(run, host_once(run, p)) for run, p in single]
    sc21 = [Scored(run, predict(run).iteration_ms) for run in read_runs("sc21-megatron-table1")]
    yield "# Estimated against published iteration times"
    yield ""
    yield f"- Date: {datetime.now(UTC):%Y-%m-%d}. Host: {cpu_model()}, Python "
    yield f"  {platform.python_version()}; nothing is timed here. Constants {constants_version()}."
    yield "- Data: `benchmarks/data/iteration_times.csv` (origins and licences beside it)."
    yield "- Command: `python benchmarks/estimator_accuracy.py`."
    yield "- Each plan is priced by `planner.cost` from estimated profiles alone."
    yield ""
    yield "| rows | n | median abs. error | p90 | bias | rank correlation | tuned on these rows? |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    some = "host floor: on 30 % (which ones is not recorded)"
    yield error_line("vTrain single node, A100-80GB", product, some)
    yield error_line("the same, host overhead once a micro-batch", once, some)
    for gpus in (2, 4, 8):
        yield error_line(f"of it, {gpus} GPUs", [s for s in product if s.run.gpus == gpus], some)
    for pp in (1, 2, 4):
        for name, scored in (("", product), (", host overhead once", once)):
            if pp > 1 or not name:
                mine = [s for s in scored if s.run.pp == pp]
                yield error_line(f"of it, PP {pp}{name}", mine, some)
    yield error_line("SC '21 table 1, A100-80GB, 32 to 3072 GPUs (weak)", sc21, "no")
    yield ""
    yield "Choosing a plan: vTrain single-node groups of one model, GPU count and global batch with"
    yield "at least 4 plans. Regret: how much slower the plan of least estimate ran than the best."
    yield ""
    yield "| estimate | groups | median regret | mean | p90 | worst | best chosen | median plan |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    yield regret_line("cost model", product)
    yield regret_line("host overhead once a micro-batch", once)
    yield ""
    yield from beyond()
    yield NOTES
    yield "## vTrain single node by plan"
    yield ""
    yield "| TP | PP | micro-batch | n | median abs. error | bias |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: |"
    by_plan: dict[tuple[int, int, int], list[Scored]] = defaultdict(list)
    for s in product:
        by_plan[s.run.tp, s.run.pp, s.run.micro_batch].append(s)
    for (tp, pp, batch), group in sorted(by_plan.items()):
        errors = [s.error for s in group]
        yield (
            f"| {tp} | {pp} | {batch} | {len(group)} | "
            f"{100 * median(map(abs, errors)):.1f}% | {100 * median(errors):+.1f}% |"
        )


def beyond() -> Iterator[str]:
    """FSDP rows, which the cost model cannot express: only their computation."""
    runs = read_runs("llm-foundry")
    yield "## Rows that the cost model cannot express"
    yield ""
    yield "FSDP (llm-foundry), not counted above: data parallelism without any communication, with"
    yield "the optimizer state sharded: low by construction; it shows what the derate does on H100."
    yield ""
    yield "| rows | n | median abs. error | p90 | bias | rank correlation | tuned on these rows? |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for gpu in ("a100-40gb", "a100-80gb", "h100"):
        mine = [run for run in runs if run.gpu == gpu]
        scored = [Scored(run, computation_ms(run)) for run in mine]
        tuned = "**yes: the derate of 1.25 was fitted on them**" if gpu == "h100" else "no"
        yield error_line(f"llm-foundry FSDP, {gpu}", scored, tuned)
        if gpu == "h100":
            bare = [Scored(run, computation_ms(run) / device(gpu).derate) for run in mine]
            yield error_line("the same without the derate", bare, "no")
    yield ""


def computation_ms(run: Run) -> float:
    """Layers of all micro-batches of one replica, and its share of the optimizer step."""
    alone = Run(
        **{
            name: getattr(run, name)
            for name in Run.__slots__
            if name not in ("gpus", "dp", "global_batch")
        },
        gpus=1,
        dp=1,
        global_batch=run.global_batch // run.dp,
    )
    found = predict(alone)
    return found.pipe_ms[0] + found.stages[0][0].update_ms / run.dp


NOTES = """\
## What any constant was tuned on

- Matrix products, attention, collectives: kernel micro-benchmarks only.
- Host floor (1.57 ms, 0.04175 ms, 3.027 ms): by the authors of the calibration on 30 % of vTrain's
  1,440 single-node rows, of which 999 are here. Which 30 % is not recorded, so about that share of
  the first lines is not held out.
- How the floor enters a recomputed backward (docs/decisions/0005-host-floor.md) was chosen among
  five forms after looking at their errors on all 999 rows. No number was fitted.
- Derate of H100 (1.25): on FSDP and torchtitan rows. No published H100 row here has a plan that the
  cost model can express; without the derate such rows come out 14 to 30 % low.
- SC '21: weak evidence. Plans are recalled; micro-batch and interleaving are unknown and set to 1;
  nodes have 8 adapters of 23 GB/s.

## What stays open

- The calibration's own score is a median of 4.0 % over 1,008 of its 1,440 rows, and a mean regret
  of 4.4 % over 120 groups. Of the 1,440 rows 999 are published here, in 85 groups: no figure above
  is of the same rows. Scored as the constant was fitted, host overhead once a micro-batch, these
  rows give 3.9 %; the cost model gives 4.5 %, because every stage pays the 3.027 ms for every
  micro-batch and a pipeline's fill so counts it once a stage (DESIGN 13.1 and 13.8). The regret is
  2.9 % either way. docs/decisions/0041-host-overhead-in-the-fill.md says why it stays.
- The vTrain rows are labelled `full` recomputation, and so they are priced. Between micro-batches
  of 2 and 4 at TP 1 their layers take 2.0 ms more per sequence at width 2048, and 0.89 at 1024:
  what our formulas give without recomputation (2.0, 0.86), not with it (2.7, 1.2). And their heads
  cost more than estimated at TP 1, where the vocabulary of 50,257 is odd: 4.5 and 8.6 ms per
  sequence instead of 1.8 and 3.1. Both errors cancel at 12 to 24 layers. Neither was corrected:
  the labels are the data's.
- TP 8 at small sizes is up to 30 % low: its layers took 3.6 to 5.0 ms where TP 4 took 3.3 to 3.9.
"""


if __name__ == "__main__":
    for line in report():
        print(line)
