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
    """An agent comes, or comes back.

    address: where its workers listen, for workers of other hosts. machine: equal for agents that
    share process ids and cores (runtime/addresses.py).
    """

    node: NodeOffer
    address: str = Field(min_length=1, max_length=300)
    machine: str = Field(min_length=1, max_length=300)
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


# (kind, micro-batch, start ms, end ms); kind: one of runtime.timeline.Kind, which loads torch.
ActionFact = tuple[
    Literal["forward", "backward", "receive", "send", "sync", "update"], int, float, float
]


class StepDone(Document):
    """One iteration on one rank; actions and comm_ms as in runtime.records.RankStep."""

    type: Literal["step"]
    generation: int
    rank: int = Field(ge=0)
    iteration: int = Field(ge=0)
    elapsed_ms: float
    loss: float
    peak_bytes: int = Field(ge=0)
    started_s: float
    actions: tuple[ActionFact, ...]
    comm_ms: tuple[float, ...]


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


class Leaving(Document):
    """An agent's node is to leave: somebody has asked the agent itself."""

    type: Literal["leaving"]


AgentWord = FromWorker | Exited | Leaving

_FROM_AGENT: TypeAdapter[AgentWord] = TypeAdapter(
    Annotated[FromWorker | Exited | Leaving, Field(discriminator="type")]
)


def from_agent(line: bytes) -> AgentWord:
    """One line of an agent. Raises RunError for anything else than the messages above."""
    try:
        return _FROM_AGENT.validate_json(line)
    except ValidationError as error:
        raise _no_message("an agent", error) from None


class WorkerSetup(Document):
    """What a worker that is to be started must know: its options, and a plan of the model."""

    options: dict[str, Any]
    plan: dict[str, Any]


class Start(Document):
    """An agent is to start a worker on a device, on the core of this number of its host."""

    do: Literal["start"]
    worker: str = Field(min_length=1, max_length=300)
    gpu: int = Field(ge=0, le=63)
    core: int = Field(ge=0)
    setup: WorkerSetup


class Tell(Document):
    """An agent is to pass a message on to a worker."""

    do: Literal["tell"]
    worker: str
    message: dict[str, Any]


class Kill(Document):
    """An agent is to end a worker that does not answer."""

    do: Literal["kill"]
    worker: str


class Quit(Document):
    """An agent is to end, and its workers with it."""

    do: Literal["quit"]


class Refused(Document):
    """An agent is not taken, and why."""

    do: Literal["refused"]
    error: str


AgentOrder = Start | Tell | Kill | Quit | Refused

_TO_AGENT: TypeAdapter[AgentOrder] = TypeAdapter(
    Annotated[Start | Tell | Kill | Quit | Refused, Field(discriminator="do")]
)


def from_controller(line: bytes) -> AgentOrder:
    """One line of a controller. Raises RunError for anything else than the orders above."""
    try:
        return _TO_AGENT.validate_json(line)
    except ValidationError as error:
        raise _no_message("the controller", error) from None


def _no_message(who: str, error: ValidationError) -> RunError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return RunError(f"what {who} said is no message: {where}: {first['msg']}")


def line_of(message: Any) -> bytes:
    """A message as one line."""
    return json.dumps(message).encode() + b"\n"
