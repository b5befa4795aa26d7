"""What may be said at the control endpoint and between controller, agents and workers: all JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from specs.errors import RunError
from specs.files import Document

MAX_LINE = 64 << 20  # bytes of one message: a plan of a large cluster has some megabytes
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

NodeName = Annotated[str, Field(min_length=1, max_length=200, pattern=NAME)]


class NodeOffer(Document):
    """A node that can train: devices of one type."""

    name: NodeName
    gpu: str = Field("cpu", min_length=1, max_length=100)
    gpus: int = Field(1, ge=1, le=64)


class WorkerFact(Document):
    """A worker that an agent has."""

    id: str = Field(min_length=1, max_length=300)
    gpu: int = Field(ge=0, le=63)
    pid: int = Field(ge=1)


class Registration(Document):
    """An agent comes, or comes back."""

    node: NodeOffer
    address: str = Field(min_length=1, max_length=300)
    pid: int = Field(ge=1)
    workers: list[WorkerFact] = Field(max_length=64)


class Holds(Document):
    """The state that a worker has: of which rank of which plan, before which iteration."""

    plan: str
    rank: int = Field(ge=0)
    iteration: int = Field(ge=0)
    agreed: bool


class _Standing(Document):
    generation: int = Field(ge=0)
    port: int = Field(ge=1, le=65535)
    holds: Holds | None


class Ready(_Standing):
    """A worker has loaded everything."""

    type: Literal["ready"]
    pid: int = Field(ge=1)


class Paused(_Standing):
    """A worker is out of its process groups; error: why, where nobody asked it to."""

    type: Literal["paused"]
    error: str | None = None
    peer: bool = False
    finished: bool = False


class Moved(Document):
    """A worker has all the state that it is to have."""

    type: Literal["moved"]
    generation: int
    received_bytes: int = Field(ge=0)


class Started(Document):
    """A worker trains; times_ms: of each phase of getting there."""

    type: Literal["started"]
    generation: int
    times_ms: dict[str, float]


class StepDone(Document):
    """One iteration on one rank."""

    type: Literal["step"]
    generation: int
    rank: int = Field(ge=0)
    iteration: int = Field(ge=0)
    elapsed_ms: float
    compute_ms: float
    loss: float
    peak_bytes: int = Field(ge=0)


class Saved(Document):
    """A checkpoint is written."""

    type: Literal["saved"]
    iteration: int
    path: str


class Failed(Document):
    """A worker ends by a fault of its own."""

    type: Literal["error"]
    error: str


WorkerWord = Annotated[
    Ready | Paused | Moved | Started | StepDone | Saved | Failed, Field(discriminator="type")
]


class FromWorker(Document):
    """What a worker said, on its way through its agent."""

    type: Literal["worker"]
    worker: str
    message: WorkerWord


class Exited(Document):
    """A worker's process is gone. code: negative for a signal. said: its last line."""

    type: Literal["exited"]
    worker: str
    code: int
    said: str = ""


_FROM_AGENT: TypeAdapter[FromWorker | Exited] = TypeAdapter(
    Annotated[FromWorker | Exited, Field(discriminator="type")]
)


def from_agent(line: bytes) -> FromWorker | Exited:
    """One line of an agent. Raises RunError for anything else than the messages above."""
    try:
        return _FROM_AGENT.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(f"what an agent said is no message: {where}: {first['msg']}") from None


def line_of(message: Any) -> bytes:
    """A message as one line."""
    return json.dumps(message).encode() + b"\n"
