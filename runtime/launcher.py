"""The built-in launcher: one process for each device of a plan, all on this host."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from runtime.addresses import LOOPBACK
from runtime.process import core_for, last_line, single_threaded, visible_gpu
from runtime.records import Assembly, Iteration, RankStep
from runtime.training import Options
from specs.cluster import Cluster
from specs.errors import HostError, RunError
from specs.gpu import gpu_type
from specs.host import allowed_cores
from specs.layout import RankPlace, ranks_of
from specs.plan import Plan
from specs.plan_file import plan_to_document

START_TIMEOUT_S = 300.0  # importing torch and transformers with many processes on few cores
GRACE_S = 2.0  # after one rank's complaint: time for the culprit's own word to arrive


@dataclass
class _Worker:
    place: RankPlace
    process: subprocess.Popen[bytes]
    channel: socket.socket
    log: BinaryIO
    unread: bytes = b""
    done: bool = False

    def last_words(self) -> str:
        """The last line that the process wrote."""
        return last_line(self.log)


def nodes_elsewhere(cluster: Cluster, host_name: str | None = None) -> frozenset[str]:
    """The nodes of a cluster that are other hosts than this one; a node without host is this."""
    here = {"", "localhost", "127.0.0.1", host_name or socket.gethostname()}
    return frozenset(node.name for node in cluster.nodes if node.host not in here)


def check_local(
    plan: Plan, host_name: str | None = None, *, elsewhere: Collection[str] = ()
) -> None:
    """Raise HostError where this host cannot hold the plan: it is on others, or has no such GPU.

    elsewhere: nodes that need not be here.
    """
    used = sorted({place.node for place in ranks_of(plan)} - set(elsewhere))
    away = [name for name in used if name in nodes_elsewhere(plan.cluster, host_name)]
    if away:
        node = plan.cluster.node(away[0])
        raise HostError(
            f"node {node.name} is host {node.host}, this is {socket.gethostname()}: the built-in "
            "launcher starts processes on this host only; start `arachne-run worker` on every "
            "host with torchrun or srun"
        )
    gpus = {plan.cluster.node(name).gpu for name in used}
    real = sorted(gpu for gpu in gpus if not gpu_type(gpu).is_cpu)
    if real and len(used) > 1:
        raise HostError(
            f"the plan uses nodes {', '.join(used)} of {', '.join(real)} and names no hosts: one "
            "host cannot be all of them; give `hosts` in the cluster file"
        )
    if real and len(gpus) > 1:
        raise HostError(f"the plan mixes {', '.join(sorted(gpus))}: run it on one kind of device")
    if real:
        _check_gpus(real[0], 1 + max(p.gpu for p in ranks_of(plan) if p.node in used))


def _check_gpus(wanted: str, needed: int) -> None:
    import pynvml

    try:
        pynvml.nvmlInit()
        found = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise HostError(
            f"the plan runs on {wanted}, this host has no NVIDIA GPU ({error}); its profile and "
            "prediction need none: arachne-plan evaluate"
        ) from None
    if found < needed:
        raise HostError(f"the plan uses GPU 0 to {needed - 1}, this host has {found}")


class LocalLauncher:
    """Starts the processes of a plan, yields iterations as they end, and leaves no process behind.

    Use it in a `with`. Every process is pinned to a core (CPU), dies with this one, and is
    killed with its children when the block is left, for whatever reason.
    """

    def __init__(self, plan: Plan, options: Options) -> None:
        check_local(plan)
        self.plan = plan
        self.options = options
        self._workers: list[_Worker] = []
        self._assembly = Assembly(plan.gpus_used)

    def __enter__(self) -> LocalLauncher:
        try:
            for place in ranks_of(self.plan):
                self._workers.append(self._spawn(place))
            # Loaded here, while the workers load theirs.
            from runtime.meeting import meeting_store

            self._store = meeting_store(LOOPBACK)
            self._send({"port": self._store.port})
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes, by rank."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """Kill and reap every process."""
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in self._workers:
            worker.process.wait()
            worker.channel.close()
            worker.log.close()
        self._workers = []

    def _spawn(self, place: RankPlace) -> _Worker:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        setup: dict[str, Any] = {
            "rank": place.rank,
            "parent": os.getpid(),
            "plan": plan_to_document(self.plan) | {"prediction": None},
            "options": self.options.to_json(),
        }
        environment = single_threaded(dict(os.environ))
        stage = self.plan.templates[place.template].stages[place.stage]
        if gpu_type(stage.gpu).is_cpu:
            setup["core"] = core_for(place.rank, allowed_cores())
            environment |= {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        else:
            environment["CUDA_VISIBLE_DEVICES"] = visible_gpu(place.gpu, environment)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "runtime.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends them
            )
        worker = _Worker(place, process, ours, log)
        self._tell(worker, setup)
        return worker

    def _send(self, message: Mapping[str, Any]) -> None:
        for worker in self._workers:
            self._tell(worker, message)

    def _tell(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it is gone: reading from it says why
            worker.channel.sendall(json.dumps(message).encode() + b"\n")

    def run(self) -> Iterator[Iteration]:
        """Every iteration as soon as all ranks have reported it.

        Raises RunError with the culprit's own error where a rank fails, dies or is silent for
        longer than the timeout.
        """
        limit_s = max(START_TIMEOUT_S, self.options.timeout_s)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.channel, selectors.EVENT_READ, worker)
            heard = time.monotonic()
            while not all(worker.done for worker in self._workers):
                events = selector.select(timeout=1.0)
                if not events and time.monotonic() - heard > limit_s:
                    silent = [w.place.rank for w in self._workers if not w.done]
                    raise RunError(f"ranks {silent} said nothing for {limit_s:.0f} s; run ended")
                for key, _ in events:
                    heard = time.monotonic()
                    limit_s = self.options.timeout_s
                    worker = key.data
                    for message in self._read(worker, selector):
                        yield from self._take(worker, message)

    def _read(self, worker: _Worker, selector: selectors.BaseSelector) -> list[dict[str, Any]]:
        try:
            chunk = worker.channel.recv(1 << 20)
        except OSError:
            chunk = b""
        if not chunk:
            selector.unregister(worker.channel)
            if not worker.done:
                self._fail(worker, None)
            return []
        *lines, worker.unread = (worker.unread + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def _take(self, worker: _Worker, message: Mapping[str, Any]) -> Iterator[Iteration]:
        if "error" in message:
            self._fail(worker, message)
        elif "done" in message:
            worker.done = True
        elif "step" in message:
            yield from self._assembly.add(RankStep.from_json(message["step"]))

    def _fail(self, worker: _Worker, message: Mapping[str, Any] | None) -> None:
        """End the run with the best account of what went wrong.

        When a rank is lost, its peers complain at once about closed connections; what counts is
        the word of the one that was lost, or the signal that ended it.
        """
        accounts: dict[int, tuple[_Worker, Mapping[str, Any] | None]] = {}
        accounts[worker.place.rank] = (worker, message)
        if message is None or message.get("peer"):
            self._gather(accounts)
        best = min(accounts.values(), key=_blame)
        raise RunError(f"the run of the plan ended: {_account(*best)}")

    def _gather(self, accounts: dict[int, tuple[_Worker, Mapping[str, Any] | None]]) -> None:
        deadline = time.monotonic() + GRACE_S
        for other in self._workers:
            if other.place.rank in accounts and accounts[other.place.rank][1] is not None:
                continue
            other.channel.settimeout(max(0.05, deadline - time.monotonic()))
            with contextlib.suppress(OSError, ValueError):
                while chunk := other.channel.recv(1 << 20):
                    *lines, other.unread = (other.unread + chunk).split(b"\n")
                    for line in lines:
                        said = json.loads(line)
                        if "error" in said:
                            accounts[other.place.rank] = (other, said)
                        elif "done" in said:
                            other.done = True
            if other.process.poll() is not None and not other.done:
                accounts.setdefault(other.place.rank, (other, None))


def _blame(account: tuple[_Worker, Mapping[str, Any] | None]) -> int:
    """Lower = nearer to the cause: own errors, then deaths by signal, then losses of a peer."""
    message = account[1]
    if message is not None:
        return 2 if message.get("peer") else 0
    return 1


def _account(worker: _Worker, message: Mapping[str, Any] | None) -> str:
    place = worker.place
    who = (
        f"rank {place.rank} (template {place.template} replica {place.replica} "
        f"stage {place.stage}, node {place.node} device {place.gpu})"
    )
    if message is not None:
        return f"{who}: {message['error']}"
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.process.wait(timeout=GRACE_S)
    code = worker.process.returncode
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ", the kernel may have been out of memory" if -code == signal.SIGKILL else ""
        return f"{who} was killed by {name}{hint}"
    said = worker.last_words()
    return f"{who} ended with exit code {code}" + (f": {said}" if said else "")
