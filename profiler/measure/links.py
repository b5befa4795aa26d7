"""Measuring links: which transfers, of which sizes, over how many ranks, into one profile run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from profiler.host import Devices, HostFacts
from profiler.measure.crew import Crew, CrewError
from profiler.measure.patience import Patience
from profiler.measure.timing import figure, repetitions, steady
from specs.errors import ArachneError, HostError, RunError
from specs.profile import LinkProfile, NewRun, Operation, RunStatus, Source
from specs.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from db.store import Store

SMALLEST_BYTES = 4 * KIB
SIZE_STEP = 4  # the curve is a latency and a slope: four sizes a decade lose nothing
CPU_LARGEST_BYTES = 64 * MIB
GPU_LARGEST_BYTES = 1 * GIB
WINDOW_S = 0.25
MEMORY_SHARE = 8  # a transfer holds three buffers of its size, and gloo its own copies


@dataclass(frozen=True, slots=True)
class Transfer:
    """One point to measure."""

    operation: Operation
    ranks: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LinkOutcome:
    """What became of one point. unsteady: no window was free of drift."""

    transfer: Transfer
    row: LinkProfile | None
    reason: str = ""
    unsteady: bool = False


class LinkListener(Protocol):
    """Told how a run of links goes on."""

    def links_started(self, run_id: int, transfers: int) -> None:
        """Once, before the first transfer."""

    def link_finished(self, outcome: LinkOutcome) -> None:
        """After its row is in the store."""


def largest_bytes(devices: Devices) -> int:
    """The largest message that is measured without --max-bytes, as memory allows."""
    if devices.is_cpu:
        return min(CPU_LARGEST_BYTES, devices.usable_bytes // devices.count // MEMORY_SHARE)
    return min(GPU_LARGEST_BYTES, devices.usable_bytes // MEMORY_SHARE)


def sizes(largest: int) -> list[int]:
    """4 KiB and every fourfold of it up to the largest."""
    found = []
    size = SMALLEST_BYTES
    while size <= largest:
        found.append(size)
        size *= SIZE_STEP
    return found


def transfers_of(ranks: Sequence[int], largest: int) -> list[Transfer]:
    """Every point of a run, small messages first; p2p once, between two ranks.

    Sizes are rounded down to whole elements for every rank.
    """
    points = []
    for size in sizes(largest):
        points.append(Transfer(Operation.P2P, 2, size))
        for operation in (o for o in Operation if o is not Operation.P2P):
            for n in ranks:
                points.append(Transfer(operation, n, size // (4 * n) * (4 * n)))
    return points


def measure_links(
    devices: Devices,
    host: HostFacts,
    ranks: Sequence[int],
    largest: int,
    open_store: Callable[[], Store],
    listener: LinkListener,
    patience: Patience | None = None,
) -> tuple[int, list[LinkOutcome]]:
    """Measure every transfer between the devices of this host: run id, and what became of each.

    All groups of a rank count run at the same time, as they will in training. Each row is stored
    when it is measured. Raises HostError where there is no second device or not one as many ranks
    as asked for; RunError where nothing could be measured.
    """
    if devices.count < 2:
        raise HostError(
            f"a link needs two devices, this host has {devices.count} {devices.gpu}; a plan on one "
            "device needs no link"
        )
    if max(ranks) > devices.count:
        raise HostError(
            f"--ranks {max(ranks)} needs {max(ranks)} devices, this host has {devices.count} "
            f"{devices.gpu}; leave --ranks out for what it can do"
        )
    patience = patience or Patience()
    groups = sorted({2, *ranks})
    limit = devices.usable_bytes // devices.count if devices.is_cpu else None
    outcomes: list[LinkOutcome] = []
    with Crew(devices, None, groups, memory_limit_bytes=limit) as crew:
        words = crew.start()
        with open_store() as store:
            run_id = store.start_run(
                NewRun(
                    source=Source.MEASURED,
                    origin=f"arachne-prof links --gpu {devices.gpu} "
                    f"--ranks {','.join(map(str, ranks))} --max-bytes {largest}",
                    host=host.fingerprint,
                    driver="" if devices.is_cpu else host.gpu_report.driver,
                    torch_version=words[0]["torch"],
                    nccl_version=words[0]["nccl"],
                    reference_ms=crew.reference_ms(),
                )
            )
            try:
                points = transfers_of(ranks, largest)
                listener.links_started(run_id, len(points))
                for point in points:
                    outcome = _measured(crew, devices, point, patience)
                    if outcome.row is not None:
                        store.add_link_profiles(run_id, [outcome.row])
                    outcomes.append(outcome)
                    listener.link_finished(outcome)
                good = any(outcome.row is not None for outcome in outcomes)
                store.finish_run(run_id, RunStatus.COMPLETE if good else RunStatus.FAILED)
            except BaseException:
                with contextlib.suppress(ArachneError):
                    store.finish_run(run_id, RunStatus.FAILED)
                raise
    if not good:
        raise RunError(f"no transfer could be measured: {outcomes[0].reason}")
    return run_id, outcomes


def _measured(crew: Crew, devices: Devices, point: Transfer, patience: Patience) -> LinkOutcome:
    message = {
        "operation": point.operation.value,
        "ranks": point.ranks,
        "nbytes": point.nbytes,
    }
    try:
        first = crew.ask({"do": "open_link", **message}, patience.answer_s)
        pass_ms = max(answer["pass_ms"] for answer in first if not answer["idle"])
        passes = repetitions(pass_ms, window_s=WINDOW_S)
        windows: list[list[dict[str, Any]]] = []
        good = False
        while not good and len(windows) < patience.windows:
            wait_s = patience.for_work(passes * pass_ms / 1e3)
            answers = crew.ask({"do": "time_link", "passes": passes}, wait_s)
            good = all(steady(answer["before_ms"], answer["after_ms"]) for answer in answers)
            windows = [answers] if good else [*windows, answers]
    except CrewError as error:
        return LinkOutcome(point, None, f"{error.status.value}: {error.reason}")
    result = figure(
        [
            sample
            for answers in windows
            for answer in answers
            if not answer["idle"]
            for sample in answer["times_ms"]
        ]
    )
    row = LinkProfile(
        gpu=devices.gpu,
        topology=devices.topology,
        operation=point.operation,
        ranks=point.ranks,
        nbytes=point.nbytes,
        time_ms=result.ms,
        samples=result.samples,
        mad_ms=result.mad_ms,
    )
    return LinkOutcome(point, row, unsteady=not good)
