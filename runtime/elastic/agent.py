"""The agent of one node: `python -m runtime.elastic.agent`, its setup as JSON on stdin.

It starts the node's workers, passes on what they and the controller say to each other, and
reports when one is gone. It outlives the controller for a while, so that another can take its
place. Workers die with it, however it ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from runtime.process import core_for, last_line, single_threaded, visible_gpu
from specs.gpu import gpu_type
from specs.host import allowed_cores

RETRY_S = 0.3
GRACE_S = 1.0  # between the end of a worker's words and that of its process
BACKLOG = 100_000  # messages kept for a controller that is away

Message = dict[str, Any]


@dataclass
class _Worker:
    id: str
    gpu: int
    process: subprocess.Popen[bytes]
    channel: socket.socket
    log: BinaryIO
    unread: bytes = b""

    def last_words(self) -> str:
        """The last line that the process wrote."""
        return last_line(self.log)


class Agent:
    """Runs until the controller says quit, or stays away for longer than away_s."""

    def __init__(self, url: str, token: str, node: Message, address: str, away_s: float) -> None:
        self._url = urlsplit(url)
        self._token = token
        self.node = node
        self.address = address
        self.away_s = away_s
        self._workers: dict[str, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._controller: socket.socket | None = None
        self._unread = b""
        self._backlog: deque[bytes] = deque(maxlen=BACKLOG)
        self._quit = False

    def run(self) -> int:
        """Serve; the exit code."""
        gone_at = time.monotonic()
        try:
            while not self._quit:
                if self._controller is None and not self._connect():
                    if time.monotonic() - gone_at > self.away_s:
                        return 1
                elif self._controller is not None:
                    gone_at = time.monotonic()
                for key, _ in self._selector.select(RETRY_S if self._controller is None else 5.0):
                    if key.data is None:
                        self._hear_controller()
                    else:
                        self._hear_worker(key.data)
            return 0
        finally:
            self.close()

    def close(self) -> None:
        """Kill and reap every worker."""
        for worker in self._workers.values():
            _kill(worker)
        for worker in self._workers.values():
            worker.process.wait()
        if self._controller is not None:
            self._controller.close()

    def _connect(self) -> bool:
        body = json.dumps(
            {
                "node": self.node,
                "address": self.address,
                "pid": os.getpid(),
                "workers": [
                    {"id": w.id, "gpu": w.gpu, "pid": w.process.pid} for w in self._workers.values()
                ],
            }
        )
        connection = http.client.HTTPConnection(
            self._url.hostname or "127.0.0.1", self._url.port, timeout=5.0
        )
        try:
            headers = {
                "Authorization": f"Bearer {self._token}",
                "Connection": "Upgrade",
                "Upgrade": "arachne-agent",
            }
            connection.request("POST", "/agents", body, headers)
            found, self._unread = _upgraded(connection)
        except OSError:
            connection.close()
            return False
        self._controller = found
        self._selector.register(found, selectors.EVENT_READ, None)
        while self._backlog and self._controller is not None:
            self._send(self._backlog.popleft())
        self._take_lines()
        return True

    def _lose_controller(self) -> None:
        if self._controller is not None:
            self._selector.unregister(self._controller)
            self._controller.close()
            self._controller = None

    def _say(self, message: Message) -> None:
        self._send(json.dumps(message).encode() + b"\n")

    def _send(self, line: bytes) -> None:
        if self._controller is None:
            self._backlog.append(line)
            return
        try:
            self._controller.sendall(line)
        except OSError:
            self._backlog.append(line)
            self._lose_controller()

    def _hear_controller(self) -> None:
        assert self._controller is not None
        try:
            chunk = self._controller.recv(1 << 20)
        except OSError:
            chunk = b""
        if not chunk:
            self._lose_controller()
            return
        self._unread += chunk
        self._take_lines()

    def _take_lines(self) -> None:
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, command: Message) -> None:
        what = command["do"]
        if what == "start":
            self._start(command)
        elif what == "tell":
            worker = self._workers.get(command["worker"])
            if worker is not None:
                with contextlib.suppress(OSError):  # it is gone: its end is reported below
                    worker.channel.sendall(json.dumps(command["message"]).encode() + b"\n")
        elif what == "kill":
            worker = self._workers.get(command["worker"])
            if worker is not None:
                _kill(worker)
        elif what in ("quit", "refused"):
            self._quit = True

    def _start(self, command: Message) -> None:
        gpu = int(command["gpu"])
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        environment = single_threaded(dict(os.environ))
        setup: Message = {"parent": os.getpid(), "address": self.address} | command["setup"]
        if gpu_type(self.node["gpu"]).is_cpu:
            setup["core"] = core_for(int(command["core"]), allowed_cores())
            environment["CUDA_VISIBLE_DEVICES"] = ""
            if self.address.startswith("127."):
                environment["GLOO_SOCKET_IFNAME"] = "lo"
        else:
            environment["CUDA_VISIBLE_DEVICES"] = visible_gpu(gpu, environment)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "runtime.elastic.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        worker = _Worker(command["worker"], gpu, process, ours, log)
        self._workers[worker.id] = worker
        with contextlib.suppress(OSError):
            ours.sendall(json.dumps(setup).encode() + b"\n")
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _hear_worker(self, worker: _Worker) -> None:
        try:
            chunk = worker.channel.recv(1 << 20)
        except OSError:
            chunk = b""
        if chunk:
            *lines, worker.unread = (worker.unread + chunk).split(b"\n")
            for line in lines:
                word = json.loads(line)
                self._say({"type": "worker", "worker": worker.id, "message": word})
            return
        self._selector.unregister(worker.channel)
        worker.channel.close()
        try:
            code = worker.process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            _kill(worker)
            code = worker.process.wait()
        said = worker.last_words() if code > 0 else ""
        worker.log.close()
        del self._workers[worker.id]
        self._say({"type": "exited", "worker": worker.id, "code": code, "said": said})


def _kill(worker: _Worker) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.process.pid, signal.SIGKILL)


def _upgraded(connection: http.client.HTTPConnection) -> tuple[socket.socket, bytes]:
    """The socket behind a request, where the other end has agreed to keep it, and what it read."""
    sock = connection.sock
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = sock.recv(1 << 16)
        if not chunk or len(head) > 1 << 16:
            raise ConnectionError("no answer")
        head += chunk
    status, _, rest = head.partition(b"\r\n\r\n")
    if b" 101 " not in status.split(b"\r\n")[0]:
        raise ConnectionError("not agreed to")
    sock.settimeout(None)
    return sock, rest


def main() -> None:
    """Be the agent that stdin describes."""
    setup = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller, which tells us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    agent = Agent(
        setup["url"], setup["token"], setup["node"], setup["address"], float(setup["away_s"])
    )
    sys.exit(agent.run())


if __name__ == "__main__":
    main()
