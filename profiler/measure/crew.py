"""The processes that measure, seen from the command: start, ask, lose, replace, stop."""

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, BinaryIO

from profiler.host import Devices
from runtime.process import core_for, single_threaded
from specs.errors import RunError
from specs.model import Model
from specs.profile import EntryStatus

START_TIMEOUT_S = 180.0  # importing torch and transformers on a busy host takes half a minute
GRACE_S = 1.0  # after one worker's complaint: time for the culprit's own word to arrive
LOG_TAIL_BYTES = 4000


class CrewError(RunError):
    """The crew could not answer: it is gone, and this is what to record."""

    def __init__(self, status: EntryStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    channel: socket.socket
    log: BinaryIO
    unread: bytes = b""

    def last_words(self) -> str:
        """The last line that the process wrote, for a reason somebody can act on."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - LOG_TAIL_BYTES))
        lines = self.log.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip() and not line.startswith("USDT:")]
        return said[-1][:200] if said else ""


class Crew:
    """One process for each device, all busy at the same time, as they will be in a run.

    ask() sends one message to every worker and waits for every answer. Whatever goes wrong (a
    death, a timeout, memory) ends the whole crew, because the survivors may hang in a collective;
    the next ask() starts a new one. Close it, or use it in a `with`: no process outlives it.
    model: whose layers are built, None where only links are measured. degrees: sizes of the groups
    that are needed.
    """

    def __init__(
        self,
        devices: Devices,
        model: Model | None,
        degrees: Sequence[int],
        *,
        memory_limit_bytes: int | None = None,
        seed: int = 0,
    ) -> None:
        self.devices = devices
        self.setup: dict[str, Any] = {
            "gpu": devices.gpu,
            "ranks": devices.count,
            "model": model and {"name": model.name, "config": dict(model.config)},
            "degrees": sorted(set(degrees)),
            "seed": seed,
            "memory_limit_bytes": memory_limit_bytes,
        }
        self.starts = 0
        self._workers: list[_Worker] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes that are there now, by rank."""
        return [worker.process.pid for worker in self._workers]

    def start(self) -> list[dict[str, Any]]:
        """Start the processes and wait until all are ready; their first words, by rank.

        Raises RunError where they cannot be started at all.
        """
        self.close()
        self.starts += 1
        try:
            for rank in range(self.devices.count):
                self._workers.append(self._spawn(rank))
            port = self._collect(START_TIMEOUT_S, [self._workers[0]])[0]["port"]
            self._send({"port": port})
            return self._collect(START_TIMEOUT_S, self._workers)
        except CrewError as error:
            self.close()
            raise RunError(f"the measuring processes do not start: {error.reason}") from None
        except BaseException:
            self.close()
            raise

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """Every worker's answer to a message, by rank. Raises CrewError, and has no crew then."""
        if not self._workers:
            self.start()
        try:
            self._send(message)
            return self._collect(timeout_s, self._workers)
        except BaseException:
            self.close()
            raise

    def reference_ms(self, timeout_s: float = 90.0) -> float:
        """Median over all processes of the reference work, the quietest of three timings, in ms."""
        timings = [self.ask({"do": "reference"}, timeout_s) for _ in range(3)]
        return min(float(median(answer["reference_ms"] for answer in timing)) for timing in timings)

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

    def _spawn(self, rank: int) -> _Worker:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        setup = self.setup | {"rank": rank, "parent": os.getpid()}
        environment = single_threaded(dict(os.environ))
        if self.devices.is_cpu:
            setup["core"] = core_for(rank, list(self.devices.cores))
            environment |= {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        else:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices.gpus[rank].uuid
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "profiler.measure.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the command, which ends them itself
            )
        worker = _Worker(rank, process, ours, log)
        with contextlib.suppress(BrokenPipeError):
            ours.sendall(_line(setup))
        return worker

    def _send(self, message: Mapping[str, Any]) -> None:
        for worker in self._workers:
            # A worker that is gone is found, and its reason told, by _collect.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                worker.channel.sendall(_line(message))

    def _collect(self, timeout_s: float, workers: Sequence[_Worker]) -> list[dict[str, Any]]:
        """One answer from each worker. Raises CrewError naming who did not answer and why."""
        deadline = time.monotonic() + timeout_s
        answers: dict[int, dict[str, Any]] = {}
        complaints: list[CrewError] = []
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                selector.register(worker.channel, selectors.EVENT_READ, worker)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    break
                for key, _ in ready:
                    worker = key.data
                    answer = self._read(worker, complaints)
                    if answer is None:
                        continue
                    selector.unregister(worker.channel)
                    if "error" in answer:
                        complaints.append(_complaint(worker.rank, answer))
                    else:
                        answers[worker.rank] = answer
                    if complaints:
                        deadline = min(deadline, time.monotonic() + GRACE_S)
        if complaints:
            # Peers of a dead worker complain about the connection: the cause comes first.
            raise min(complaints, key=lambda error: _CAUSES.index(error.status))
        missing = [worker.rank for worker in workers if worker.rank not in answers]
        if missing:
            raise CrewError(
                EntryStatus.TIMED_OUT,
                f"no answer from process {', '.join(map(str, missing))} within {timeout_s:.0f} s",
            )
        return [answers[worker.rank] for worker in workers]

    def _read(self, worker: _Worker, complaints: list[CrewError]) -> dict[str, Any] | None:
        """The next whole message of a worker, None where there is none yet."""
        try:
            data = worker.channel.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            complaints.append(_death(worker))
            return {"error": EntryStatus.WORKER_DIED.value, "reason": "", "dead": True}
        worker.unread += data
        line, newline, rest = worker.unread.partition(b"\n")
        if not newline:
            return None
        worker.unread = rest
        message: dict[str, Any] = json.loads(line)
        return message


# What tells most about the cause comes first.
_CAUSES = (EntryStatus.OUT_OF_MEMORY, EntryStatus.WORKER_DIED, EntryStatus.TIMED_OUT)


def _complaint(rank: int, answer: Mapping[str, Any]) -> CrewError:
    return CrewError(EntryStatus(answer["error"]), f"process {rank}: {answer['reason']}")


def _death(worker: _Worker) -> CrewError:
    try:
        code = worker.process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        code = 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    words = worker.last_words()
    return CrewError(
        EntryStatus.WORKER_DIED,
        f"process {worker.rank} {how}{f' after {words!r}' if words else ''}",
    )


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
