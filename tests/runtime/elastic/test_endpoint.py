from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.elastic.endpoint import (
    AddNode,
    AgentCame,
    AgentLost,
    AgentSaid,
    Endpoint,
    Event,
    RemoveNode,
)
from specs.errors import HostError

TOKEN = "a-token-of-the-test-that-is-long"


@pytest.fixture
def events() -> queue.Queue[Event]:
    return queue.Queue()


@pytest.fixture
def endpoint(events: queue.Queue[Event]) -> Iterator[Endpoint]:
    found = Endpoint(TOKEN, events.put, lambda: {"iteration": 7})
    yield found
    found.close()


def _ask(
    endpoint: Endpoint, method: str, path: str, body: bytes | None = None, token: str = TOKEN
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
    connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    found = json.load(answer)
    connection.close()
    return answer.status, found


def test_it_listens_on_loopback_only(endpoint: Endpoint) -> None:
    assert endpoint._server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/status"), ("POST", "/nodes"), ("POST", "/agents"), ("DELETE", "/nodes/a")],
)
def test_without_the_token_nothing_is_heard(
    endpoint: Endpoint, events: queue.Queue[Event], token: str, method: str, path: str
) -> None:
    status, said = _ask(endpoint, method, path, b"{}", token)
    assert (status, said) == (401, {"error": "the token is missing or wrong"})
    assert events.empty()


def test_status_is_what_the_controller_says(endpoint: Endpoint) -> None:
    assert _ask(endpoint, "GET", "/status") == (200, {"iteration": 7})
    assert _ask(endpoint, "GET", "/other")[0] == 404


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"not json", "the body is not JSON"),
        (b"\x80\x04\x95", "the body is not JSON"),  # how a pickle begins
        (b"[1]", "the document is [1]"),
        (b'{"gpus": 1}', "name is None, expected the field to be there"),
        (b'{"name": "a", "gpus": "2"}', "gpus is '2', expected a valid integer"),
        (b'{"name": "a", "gpus": 0}', "gpus is 0"),
        (b'{"name": "../a"}', "name is '../a'"),
        (b'{"name": "a", "run": "rm"}', "run is 'rm', expected no such field"),
        (b"[" * 100_000, "the body is not JSON"),
    ],
)
def test_what_is_not_valid_is_refused_and_reaches_nobody(
    endpoint: Endpoint, events: queue.Queue[Event], body: bytes, error: str
) -> None:
    status, said = _ask(endpoint, "POST", "/nodes", body)
    assert status == 400
    assert error in said["error"]
    assert events.empty()


def test_a_body_that_is_too_long_is_not_read(endpoint: Endpoint) -> None:
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as sock:
        head = f"POST /nodes HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        sock.sendall((head + "Content-Length: 9999999999\r\n\r\n").encode())
        assert b" 411 " in sock.recv(1 << 16).split(b"\r\n")[0]


def test_requests_are_answered_by_the_controller(
    endpoint: Endpoint, events: queue.Queue[Event]
) -> None:
    def control() -> None:
        added = events.get(timeout=20)
        assert isinstance(added, AddNode)
        added.answer.set_result(f"{added.offer.name} with {added.offer.gpus}")
        removed = events.get(timeout=20)
        assert isinstance(removed, RemoveNode)
        removed.answer.set_exception(HostError(f"no node {removed.name}"))

    thread = threading.Thread(target=control, daemon=True)
    thread.start()
    assert _ask(endpoint, "POST", "/nodes", b'{"name": "a", "gpus": 2}') == (
        202,
        {"said": "a with 2"},
    )
    assert _ask(endpoint, "DELETE", "/nodes/b%20c") == (409, {"error": "no node b c"})
    thread.join(20)


def test_an_agent_stays_connected_and_is_missed_when_it_goes(
    endpoint: Endpoint, events: queue.Queue[Event]
) -> None:
    registration = {"node": {"name": "a"}, "address": "127.0.0.1", "pid": 5, "workers": []}
    registration["machine"] = "m"
    body = json.dumps(registration).encode()
    head = f"POST /agents HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=20) as sock:
        sock.sendall((head + f"Content-Length: {len(body)}\r\n\r\n").encode() + body)
        assert b" 101 " in sock.recv(1 << 16).split(b"\r\n")[0]
        came = events.get(timeout=20)
        assert isinstance(came, AgentCame)
        assert came.link.registration.node.name == "a"
        came.answer.set_result("welcome")
        came.link.send({"do": "quit"})
        assert sock.recv(1 << 16) == b'{"do": "quit"}\n'
        sock.sendall(b'{"type": "exited", "worker": "w", "code": -9, "said": ""}\n')
        said = events.get(timeout=20)
        assert isinstance(said, AgentSaid)
        assert said.message.worker == "w"
        sock.sendall(b'{"type": "exited", "worker": "w", "code": "x"}\n')
        lost = events.get(timeout=20)
        assert isinstance(lost, AgentLost)
        assert "is no message: exited.code" in lost.why
