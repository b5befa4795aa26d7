"""The control endpoint: HTTP at one address, with a token; agents register and stay connected."""

from __future__ import annotations

import hmac
import json
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from runtime.elastic.messages import (
    MAX_LINE,
    AgentWord,
    NodeOffer,
    Registration,
    from_agent,
    line_of,
)
from specs.errors import ArachneError, RunError
from specs.files import validate

PROTOCOL = "arachne-agent"
MAX_BODY = 1 << 20  # bytes of a request
ANSWER_S = 30.0  # longest wait for the controller's own loop to take a request
SEND_S = 20.0  # an agent that takes nothing for so long is lost


@dataclass
class AddNode:
    """Somebody wants a node to join; the answer is a word of it."""

    offer: NodeOffer
    answer: Future[str] = field(default_factory=Future)


@dataclass
class RemoveNode:
    """Somebody wants a node to leave."""

    name: str
    answer: Future[str] = field(default_factory=Future)


class AgentLink:
    """The connection to one agent."""

    def __init__(self, registration: Registration, write: Callable[[bytes], object]) -> None:
        self.registration = registration
        self._write = write
        self._lock = threading.Lock()
        self.lost = False

    def send(self, message: Any) -> None:
        """Tell the agent; where it is gone, its end is reported as an event of its own."""
        with self._lock:
            try:
                self._write(line_of(message))
            except OSError:
                self.lost = True


@dataclass
class AgentCame:
    """An agent has registered; answer with an error to refuse it."""

    link: AgentLink
    answer: Future[str] = field(default_factory=Future)


@dataclass
class AgentSaid:
    """An agent passes something on."""

    link: AgentLink
    message: AgentWord


@dataclass
class AgentLost:
    """An agent's connection has ended, and its workers with it."""

    link: AgentLink
    why: str


@dataclass
class Tick:
    """Something that the controller waits for has happened; it will see what."""


@dataclass
class Halt:
    """The run is to end now."""


Event = AddNode | RemoveNode | AgentCame | AgentSaid | AgentLost | Tick | Halt


class Endpoint:
    """Serves until closed; what comes in is given to `put`, from many threads.

    Raises RunError where the address cannot be bound.
    """

    def __init__(
        self,
        token: str,
        put: Callable[[Event], None],
        status: Callable[[], dict[str, Any]],
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        endpoint = self

        class Handler(_Handler):
            owner = endpoint

        self.token, self.put, self.status = token, put, status
        try:
            self._server = _Server((address, port), Handler)
        except OSError as error:
            raise RunError(f"cannot listen at {address}:{port} ({error.strerror})") from None
        self.address, self.port = address, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self.address}:{self.port}"

    def close(self) -> None:
        """Stop listening; connections of agents end with this process or by the agents."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True


class _Handler(BaseHTTPRequestHandler):
    owner: Endpoint
    protocol_version = "HTTP/1.1"
    timeout = SEND_S  # of a request; an agent's stream is read without a limit

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are not news."""

    def do_GET(self) -> None:
        """GET /status."""
        if self._allowed():
            if self.path == "/status":
                self._answer(HTTPStatus.OK, self.owner.status())
            else:
                self._refuse(HTTPStatus.NOT_FOUND, f"no {self.path}, expected /status")

    def do_DELETE(self) -> None:
        """DELETE /nodes/NAME: the node leaves."""
        if self._allowed():
            if self.path.startswith("/nodes/"):
                self._ask(RemoveNode(unquote(self.path.removeprefix("/nodes/"))))
            else:
                self._refuse(HTTPStatus.NOT_FOUND, f"no {self.path}, expected /nodes/NAME")

    def do_POST(self) -> None:
        """POST /nodes: a node joins. POST /agents: an agent registers and stays."""
        if not self._allowed():
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= MAX_BODY:
                raise ValueError
        except ValueError:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, f"a body of at most {MAX_BODY} bytes is due")
            return
        try:
            body = json.loads(self.rfile.read(length))
            if self.path == "/nodes":
                self._ask(AddNode(validate(NodeOffer, body, "the request")))
            elif self.path == "/agents":
                self._serve_agent(validate(Registration, body, "the request"))
            else:
                self._refuse(HTTPStatus.NOT_FOUND, f"no {self.path}, expected /nodes or /agents")
        except (ValueError, RecursionError):
            self._refuse(HTTPStatus.BAD_REQUEST, "the body is not JSON")
        except ArachneError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {self.owner.token}".encode()):
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
        return False

    def _ask(self, event: AddNode | RemoveNode) -> None:
        self.owner.put(event)
        try:
            self._answer(HTTPStatus.ACCEPTED, {"said": event.answer.result(ANSWER_S)})
        except ArachneError as error:
            self._refuse(HTTPStatus.CONFLICT, str(error))
        except FutureTimeout:
            self._answer(HTTPStatus.ACCEPTED, {"said": "asked; the controller is busy"})

    def _serve_agent(self, registration: Registration) -> None:
        """From here on lines go both ways, until either end closes."""
        self.close_connection = True
        link = AgentLink(registration, self.wfile.write)
        came = AgentCame(link)
        self.send_response(HTTPStatus.SWITCHING_PROTOCOLS)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", PROTOCOL)
        self.end_headers()
        self.owner.put(came)
        why = "its connection ended"
        try:
            came.answer.result()
            self.connection.settimeout(None)
            limit = struct.pack("ll", int(SEND_S), 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            while line := self.rfile.readline(MAX_LINE):
                self.owner.put(AgentSaid(link, from_agent(line)))
        except ArachneError as error:
            why = str(error)
            link.send({"do": "refused", "error": why})
        except OSError as error:
            why = f"its connection broke ({error.strerror})"
        self.owner.put(AgentLost(link, why))

    def _refuse(self, status: HTTPStatus, error: str) -> None:
        self.close_connection = True
        self._answer(status, {"error": error})

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
