"""Metis as released: the recorded runs of its public code, and its faults as rules of our search.

Facts of SamsungLabs/Metis (commit 4b24046), written anew from a description of what it does;
nothing is copied. The profiles of the runs are our own, so no foreign data is in them either.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.baselines.metis.groups import device_groups
from planner.baselines.metis.inputs import Costed, Inputs, Layout, MetisNode, Rows, prefix_sums
from planner.baselines.metis.rules import Partition, StageCount
from planner.baselines.metis.search import MetisSearch
from planner.baselines.metis.stages import (
    NoRow,
    binary_digits,
    rows_of,
    share_samples,
    stage_work,
)

RUNS = Path(__file__).parents[1] / "data" / "peer_runs" / "metis"
SLICES = 7  # of a layer, in its layer balancer
SAFETY = 5.0  # times the profiled memory
BANDWIDTH_UNIT = 2**20  # bytes/ms that it takes 1 GB/s for


@cache
def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RUNS / f"{name}.json").read_text())
    return found


@cache
def recorded_plans(name: str) -> list[Any]:
    found: list[Any] = json.loads((RUNS / f"{name}.all_plans.json").read_text())
    return found


def inputs_of(run: dict[str, Any]) -> Inputs:
    """A recorded question in Metis's units: ms, MB, and elements where bytes are meant."""
    asked = run["inputs"]
    model = asked["model"]
    hosts = [(asked["clusterfile"][host["ip"]], host["slots"]) for host in asked["hostfile"]]
    rows = {}
    for file, profile in asked["profiles"].items():
        gpu, tp, batch = file.removeprefix("DeviceType.").removesuffix(".json").split("_")
        time = profile["execution_time"]
        layers = time["layer_compute_total_ms"]
        rows[gpu, int(tp[2:]), int(batch[2:])] = Rows(
            times=prefix_sums(layers),
            held=prefix_sums(profile["execution_memory"]["layer_memory_total_mb"]),
            kept=(),
            update_ms=(),
            overhead_ms=time["forward_backward_time_ms"] - sum(layers),
        )
    first = asked["profiles"].get(asked.get("first_listed_profile"), {})
    sizes = first.get("model", {}).get("parameters", {}).get("parameters_per_layer_bytes", [])
    blocks = [sizes[1]] * (model["num_layers"] - 2) if sizes else []
    return Inputs(
        # Links between nodes are read as links inside (its inter-node getter returns those).
        nodes=tuple(
            MetisNode(
                host["instance_type"],
                slots,
                host["intra_bandwidth"] * BANDWIDTH_UNIT,
                host["intra_bandwidth"] * BANDWIDTH_UNIT,
            )
            for host, slots in hosts
        ),
        layers=model["num_layers"],
        global_batch=asked["gbs"],
        rows=rows,
        room={host["instance_type"]: host["memory"] * 1024.0 for host, _ in hosts},
        gradient_bytes=prefix_sums([sizes[0], *blocks, sizes[-1]] if sizes else []),
        activation_bytes=float(model["sequence_length"] * model["hidden_size"]),
    )


class Released:
    """Metis's own answers, faults included. orders: those of the recorded run (its hash seed)."""

    def __init__(self, run: dict[str, Any]) -> None:
        asked = run["inputs"]
        self.seen_orders = [tuple(o) for o in run["outcome"]["node_sequences_in_order"]]
        self.variance = float(asked["min_group_scale_variance"])
        self.most_permuted = asked["max_permute_len"]
        self.most_tp = asked["max_profiled_tp_degree"]
        self.most_samples = asked["max_profiled_batch_size"]
        first = asked["first_listed_profile"]
        self.first = asked["profiles"][first]["execution_time"]
        gpu = first.removesuffix(".json").split("_")[0]
        alone = asked["profiles"][f"{gpu}_tp1_bs1.json"]["execution_time"]["layer_compute_total_ms"]
        self.weights = [time / sum(alone) for time in alone]
        self.sent_logits = asked["model"]["sequence_length"] * asked["model"]["vocab_size"]

    def passes(self, inputs: Inputs) -> Iterator[tuple[tuple[str, ...], StageCount]]:
        """The second and later orders start with two stages, costed for their first alone."""
        most = min(inputs.gpus, inputs.layers)
        for nth, order in enumerate(self.seen_orders):
            for stages in range(1, most + 1):
                if nth == 0 or stages > 1:
                    yield order, StageCount(stages, stages)
                else:
                    following = next(s for s in range(2, most + 1) if any(self.groups(inputs, s)))
                    yield order, StageCount(following, 1)

    def groups(self, inputs: Inputs, stages: int) -> Iterator[tuple[int, ...]]:
        yield from device_groups(
            inputs.gpus, stages, self.variance, self.most_permuted, miscount=True
        )

    def complaint(self, inputs: Inputs, layout: Layout) -> tuple[str, bool]:
        for dp, tp in layout.degrees:
            samples = inputs.global_batch // dp // layout.micro_batches
            if tp > self.most_tp or samples > self.most_samples:
                return "tp or micro-batch", False
        if any(inputs.global_batch // dp < layout.micro_batches for dp, _ in layout.degrees):
            return "no sample", True
        return "", True

    def partition(self, inputs: Inputs, layout: Layout) -> Partition | None:
        stages = range(len(layout.groups))
        speeds = [1 / stage_work(inputs, layout, k).time_ms(0, inputs.layers) for k in stages]
        share = [speed / sum(speeds) for speed in speeds]
        for attempt in (1, 2, 3):
            bounds = self._balance(share)
            rooms = [sum(inputs.room[inputs.nodes[n].gpu] for n in layout.span(k)) for k in stages]
            asked = [
                self._demand(inputs, layout, k, *pair) for k, pair in enumerate(pairwise(bounds))
            ]
            if all(need <= room for need, room in zip(asked, rooms, strict=True)):
                free = tuple(room - need for room, need in zip(rooms, asked, strict=True))
                return Partition(bounds, attempt == 1, free)
            if attempt < 3:
                moved = _repartition(share, rooms, asked)
                if moved is None:
                    return None
                share = moved
        return None

    def _demand(self, inputs: Inputs, layout: Layout, k: int, first: int, end: int) -> float:
        """Five times one replica's memory, by profiles of the order's first type; of a mixed stage
        that of all its replicas, their samples dealt over the ranks of the whole cluster."""
        dp, tp = layout.degrees[k]
        gpu = layout.order[0]
        if len({inputs.nodes[node].gpu for node in layout.span(k)}) == 1:
            sizes = [inputs.global_batch // dp // layout.micro_batches]
        else:
            owners = [inputs.nodes[node].gpu for node in layout.ranks]
            per = len(layout.ranks) // dp
            dealt = share_samples(
                inputs,
                owners[::per][:dp],
                tp,
                inputs.global_batch // layout.micro_batches,
            )
            sizes = [size for samples in dealt for size in binary_digits(samples)]
        held = [rows_of(inputs, gpu, tp, size).held for size in sizes]
        return SAFETY * sum(prefix[end] - prefix[first] for prefix in held)

    def _balance(self, share: Sequence[float]) -> tuple[int, ...]:
        """Sevenths of layers dealt by share; whole layers of them: some are lost, stages empty."""
        weights = self.weights
        owned = _dealt_slices(weights, share)
        held = []
        for slices in owned:
            counts = Counter(q // SLICES for q in slices)
            held.append(sorted(layer for layer, count in counts.items() if count > SLICES / 2))
        _improve(weights, share, held)
        bounds = [0]
        for layers in held:
            bounds.append(bounds[-1] + len(layers))
        return tuple(bounds)

    def cost_ms(self, inputs: Inputs, layout: Layout, bounds: Sequence[int], costed: int) -> float:
        micro_batches = layout.micro_batches
        works = [stage_work(inputs, layout, k) for k in range(costed)]
        times = [works[k].time_ms(bounds[k], bounds[k + 1]) for k in range(costed)]
        last = costed - 1
        dp, tp = layout.degrees[last]
        samples = inputs.global_batch // dp // micro_batches
        types = {inputs.nodes[node].gpu for node in layout.span(last)}
        overhead = max(rows_of(inputs, gpu, tp, samples).overhead_ms for gpu in types)
        total = (micro_batches - 1) * max(times) + sum(times) + micro_batches * overhead
        updates, rings = [], []
        for k in range(costed):
            first, end = bounds[k], bounds[k + 1]
            dp, tp = layout.degrees[k]
            updates.append(2 * self.first["optimizer_time_ms"] / tp * (end - first) / inputs.layers)
            nbytes = (inputs.gradient_bytes[end] - inputs.gradient_bytes[first]) / tp
            # Its rings run along the TP direction: ranks r, r + dp, ...
            slowest = min(_link(inputs, layout.span(k)[r::dp]) for r in range(dp))
            rings.append(2 * (dp - 1) / dp * nbytes / slowest)
            if k + 1 < costed:
                samples = inputs.global_batch // dp // micro_batches
                sent = samples * inputs.activation_bytes
                if end == inputs.layers - 1:
                    sent = samples * self.sent_logits / tp
                total += sent / _link(inputs, (*layout.span(k), *layout.span(k + 1)))
        total += micro_batches * float(self.first["batch_generator_time_ms"])
        return total + max(updates) + max(rings)


def _link(inputs: Inputs, nodes: Sequence[int]) -> float:
    """On several nodes the slowest of all nodes of the types present, not of those touched."""
    if len(set(nodes)) == 1:
        return inputs.nodes[nodes[0]].intra
    types = {inputs.nodes[node].gpu for node in nodes}
    return min(node.inter for node in inputs.nodes if node.gpu in types)


def _dealt_slices(weights: Sequence[float], share: Sequence[float]) -> list[list[int]]:
    """The slices of each stage: forward by capacity, backward from the end, then one by one."""
    total = SLICES * len(weights)
    size = [weights[q // SLICES] / SLICES for q in range(total)]
    spare = list(share)
    owned: list[list[int]] = [[] for _ in share]

    def give(k: int, q: int) -> None:
        owned[k].append(q)
        spare[k] -= size[q]

    at, left = 0, []
    for k in range(len(share) - 1):
        while at < total - 8 and spare[k] > size[at]:
            give(k, at)
            at += 1
        if at < total - 8:
            left.append(at)
            at += 1
    left += range(at, total)
    last = len(share) - 1
    while left:
        q = left[-1]
        by_right = len(owned[last]) and q == owned[last][-1] - 1 and spare[last] > size[q]
        if total - q > SLICES and not by_right:
            break
        give(last, left.pop())
    for q in left:
        before = [k for k in range(len(share)) if owned[k] and max(owned[k]) < q]
        after = [k for k in range(len(share)) if owned[k] and min(owned[k]) > q]
        low = max(before, key=lambda k: max(owned[k]), default=0)
        high = min(after, key=lambda k: min(owned[k]), default=last)
        give(max(range(low, high + 1), key=lambda k: (spare[k], -k)), q)
    return owned


def _improve(weights: Sequence[float], share: Sequence[float], held: list[list[int]]) -> None:
    """At most three times the stage with most room takes a layer of the fuller neighbour."""

    def spare() -> list[float]:
        return [
            part - sum(weights[layer] for layer in layers)
            for part, layers in zip(share, held, strict=True)
        ]

    for _ in range(3):
        room = spare()
        k = room.index(max(room))
        neighbours = [n for n in (k - 1, k + 1) if 0 <= n < len(share)]
        if not neighbours:
            return
        giver = min(neighbours, key=lambda n: room[n])
        if len(held[giver]) <= 1:
            return
        before = [list(layers) for layers in held]
        if giver < k:
            held[k].insert(0, held[giver].pop())
        else:
            held[k].append(held[giver].pop(0))
        if max(spare()) > room[k]:
            held[:] = before
            return


def _repartition(
    share: Sequence[float], rooms: Sequence[float], asked: Sequence[float]
) -> list[float] | None:
    """Shares after those that do not fit gave 90 % of what is too much to those with room."""
    head = [0.0] * len(share)
    moved = list(share)
    pot = 0.0
    for k in range(len(share)):
        fit = rooms[k] / asked[k] if asked[k] else float("inf")
        if fit >= 1:
            head[k] = share[k] * fit - share[k]
        else:
            moved[k] = 0.9 * share[k] * fit
            pot += share[k] - moved[k]
    if sum(head) < pot:
        return None
    while pot > 0.01:
        takers = [k for k in range(len(share)) if head[k] > 0.001]
        whole = sum(share[k] for k in takers)
        if not takers:
            break
        for k in takers:
            taken = min(head[k], pot * share[k] / whole)
            moved[k] += taken
            head[k] -= taken
            pot -= taken
    return moved


def run(name: str) -> list[Costed]:
    """Every plan the released code costs on a recorded question, best first."""
    question = recorded(name)
    search = MetisSearch(inputs_of(question), Released(question))
    found = sorted(search.run(), key=lambda costed: costed.cost_ms)
    assert search.finished
    return found


def complete_plans(found: Sequence[Costed], layers: int) -> list[Costed]:
    """Plans without lost layers or empty stages; of one listed twice the dearer (the whole one)."""
    kept: dict[tuple[Layout, tuple[int, ...]], Costed] = {}
    for costed in found:
        bounds = costed.bounds
        if any(a == b for a, b in pairwise(bounds)) or bounds[-1] != layers:
            continue
        key = costed.layout, bounds
        if key not in kept or kept[key].cost_ms < costed.cost_ms:
            kept[key] = costed
    return sorted(kept.values(), key=lambda costed: costed.cost_ms)


__all__ = ["NoRow", "Released", "complete_plans", "inputs_of", "recorded", "recorded_plans", "run"]
