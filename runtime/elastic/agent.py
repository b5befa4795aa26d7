"""The agent of one node.

On the controller's own host that starts it as `python -m runtime.elastic.agent`, its setup as JSON
on stdin; on any other a person does, by `arachne-run agent`.

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from runtime.addresses import interface_of, this_machine
from runtime.elastic.messages import Kill, Quit, Refused, Start, Tell, from_controller, line_of
from runtime.process import core_for, last_line, single_threaded, visible_gpu
from specs.errors import RunError
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
    """Runs until the controller says quit, or stays away for longer than away_s.

    node: what it offers. address: of this host, where its workers listen; "" for the one by which
    this host reaches the controller. say: is given a line for people.
    """

    def __init__(
        self,
        url: str,
        token: str,
        node: Message,
        address: str,
        away_s: float,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._url = urlsplit(url)
        self._token = token
        self.node = node
        self.address = address
        self.away_s = away_s
        self.say = say
        self._machine = this_machine()
        self._woken, self._wake = os.pipe()
        self._workers: dict[str, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._controller: socket.socket | None = None
        self._unread = b""
        self._backlog: deque[bytes] = deque(maxlen=BACKLOG)
        self._quit = False

    @property
    def registered(self) -> bool:
        """Whether a controller has this agent now."""
        return self._controller is not None

    def leave(self) -> None:
        """Have the node leave the run, its state first; from a signal handler or any thread."""
        os.write(self._wake, b"x")

    def run(self) -> int:
        """Serve; the exit code. Raises RunError where the controller does not take this agent."""
        gone_at = time.monotonic()
        self._selector.register(self._woken, selectors.EVENT_READ, "leave")
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
                    elif key.data == "leave":
                        os.read(self._woken, 1)
                        self._say({"type": "leaving"})
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

    def _registration(self) -> str:
        return json.dumps(
            {
                "node": self.node,
                "address": self.address,
                "machine": self._machine,
                "pid": os.getpid(),
                "workers": [
                    {"id": w.id, "gpu": w.gpu, "pid": w.process.pid} for w in self._workers.values()
                ],
            }
        )

    def _connect(self) -> bool:
        connection = http.client.HTTPConnection(
            self._url.hostname or "127.0.0.1", self._url.port, timeout=5.0
        )
        try:
            connection.connect()
            if not self.address:
                self.address = connection.sock.getsockname()[0]
            headers = {
                "Authorization": f"Bearer {self._token}",
                "Connection": "Upgrade",
                "Upgrade": "arachne-agent",
            }
            connection.request("POST", "/agents", self._registration(), headers)
            found, self._unread = _upgraded(connection)
        except OSError:
            connection.close()
            return False
        self._controller = found
        self._selector.register(found, selectors.EVENT_READ, None)
        self.say(f"node {self.node['name']} is with {self._url.netloc}")
        while self._backlog and self._controller is not None:
            self._send(self._backlog.popleft())
        self._take_lines()
        return True

    def _lose_controller(self) -> None:
        if self._controller is not None:
            self._selector.unregister(self._controller)
            self._controller.close()
            self._controller = None
            self.say(f"the controller is gone; it is awaited for {self.away_s:.0f} s")

    def _say(self, message: Message) -> None:
        self._send(line_of(message))

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
            self._obey(line)

    def _obey(self, line: bytes) -> None:
        order = from_controller(line)
        if isinstance(order, Start):
            self._start(order)
        elif isinstance(order, Tell):
            worker = self._workers.get(order.worker)
            if worker is not None:
                with contextlib.suppress(OSError):  # it is gone: its end is reported below
                    worker.channel.sendall(line_of(order.message))
        elif isinstance(order, Kill):
            worker = self._workers.get(order.worker)
            if worker is not None:
                _kill(worker)
        elif isinstance(order, Refused):
            raise RunError(order.error)
        elif isinstance(order, Quit):
            self._quit = True

    def _start(self, order: Start) -> None:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        environment = single_threaded(dict(os.environ))
        setup: Message = {"parent": os.getpid(), "address": self.address}
        setup |= order.setup.model_dump()
        interface = interface_of(self.address)
        if interface is not None:
            # Else they would be reached by whatever address the host's own name has.
            environment |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), interface)
        if gpu_type(self.node["gpu"]).is_cpu:
            setup["core"] = core_for(order.core, allowed_cores())
            environment["CUDA_VISIBLE_DEVICES"] = ""
        else:
            environment["CUDA_VISIBLE_DEVICES"] = visible_gpu(order.gpu, environment)
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
        worker = _Worker(order.worker, order.gpu, process, ours, log)
        self._workers[worker.id] = worker
        with contextlib.suppress(OSError):
            ours.sendall(line_of(setup))
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
    code = status.split(b"\r\n")[0].split(b" ")[1:2]
    if code != [b"101"]:
        # What comes next is the reason, a document as short as an error is.
        sock.settimeout(1.0)
        with contextlib.suppress(OSError):
            while chunk := sock.recv(1 << 16):
                rest += chunk
        with contextlib.suppress(ValueError, KeyError, TypeError):
            raise RunError(str(json.loads(rest)["error"])[:500])
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
    try:
        sys.exit(agent.run())
    except RunError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
