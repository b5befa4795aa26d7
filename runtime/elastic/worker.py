"""A worker of an elastic run: `python -m runtime.elastic.worker FD`, started by an agent.

It reads JSON documents, one a line, from the socket FD: first what it is, then what to do. What it
answers goes back the same way. It ends when told, or with its agent.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from runtime.worker import complaint, is_peer_loss
from specs.parent import die_with_parent

if TYPE_CHECKING:
    from runtime.elastic.member import Member
    from specs.plan import Plan

Message = dict[str, Any]
CUT_EVERY_S = 0.1


class Control:
    """What the agent says, read in a thread of its own while the worker trains.

    `stop` and `abort` act at once on a worker that is in a generation; all else waits its turn.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lines = channel.makefile("rb")
        self._sending = threading.Lock()
        self._state = threading.Condition()
        self._commands: deque[Message] = deque()
        self._busy = False  # in a generation
        self._stop = False  # ... which is to end at the next border between iterations
        self._cut = False  # ... which is to end now: its connections are cut
        self._aborted = -1  # this generation and all before it are given up

    def first(self) -> Message:
        """The setup, the first line."""
        found: Message = json.loads(self._lines.readline())
        return found

    def listen(self) -> None:
        """Start to read all further lines."""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._cut_loop, daemon=True).start()

    def tell(self, message: Any) -> None:
        """Send one message to the agent."""
        with self._sending, contextlib.suppress(OSError):  # no agent: the kernel ends us
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def stop_wanted(self) -> bool:
        """Whether this generation is to end at the next border between iterations."""
        return self._stop

    def next(self) -> Message:
        """The next command; one of a generation can be stopped and aborted from here on."""
        with self._state:
            while not self._commands:
                self._state.wait()
            command = self._commands.popleft()
            if command["type"] in ("move", "go"):
                self._busy = True
                self._cut = command["generation"] <= self._aborted
                self._state.notify_all()
            return command

    def end(self) -> bool:
        """It has ended, no connection is cut from here on; whether it was to stop."""
        with self._state:
            stop = self._stop
            self._busy = self._stop = self._cut = False
            return stop

    def _read(self) -> None:
        for line in self._lines:
            message: Message = json.loads(line)
            with self._state:
                if message["type"] == "stop" and (self._busy or self._commands):
                    self._stop = True
                elif message["type"] == "abort":
                    self._aborted = max(self._aborted, message["generation"])
                    self._cut = self._busy
                else:
                    self._commands.append(message)
                self._state.notify_all()
        os._exit(0)  # the agent is gone

    def _cut_loop(self) -> None:
        from runtime.elastic.connections import cut_connections

        with self._state:
            while True:
                # Again and again: a connection may be made just after the others were cut.
                self._state.wait(timeout=CUT_EVERY_S if self._cut else None)
                if self._cut:
                    cut_connections()


def main() -> None:
    """Be the worker that the agent asks for."""
    control = Control(socket.socket(fileno=int(sys.argv[1])))
    setup = control.first()
    die_with_parent(setup["parent"])
    if setup.get("core") is not None:
        os.sched_setaffinity(0, {setup["core"]})
    try:
        _work(control, setup)
    except Exception as error:
        control.tell({"type": "error", "error": complaint(error)})
        raise  # the log has the trace


def _work(control: Control, setup: Message) -> None:
    # Here and not above: core and threads must be settled before torch is loaded.
    import torch

    from runtime.elastic.member import Member
    from runtime.families import family_of
    from runtime.optimizer import import_optimizers
    from runtime.training import Options
    from specs.plan_file import plan_from_document

    torch.set_num_threads(1)
    # What takes seconds to import is imported now, while the others train.
    import_optimizers()
    family_of(plan_from_document(setup["plan"], "the plan").model)
    options = Options(**setup["options"])
    member = Member(options, control.tell, control.stop_wanted, setup["address"])
    plans: dict[str, Plan] = {}
    gc.collect()
    gc.freeze()  # what is imported stays: collections while training stands need not look at it
    control.listen()
    control.tell({"type": "ready", "pid": os.getpid(), **member.standing()})
    while True:
        command = control.next()
        kind = command["type"]
        if kind == "quit":
            return
        if kind in ("move", "go"):
            given = {k: plan_from_document(v, k) for k, v in command["plans"].items()}
            plans = given | {k: plan for k, plan in plans.items() if k == member.key}
            _obey(control, member, plans, command)
        else:
            control.tell({"type": "paused", **member.standing(), "error": None, "peer": False})


def _obey(control: Control, member: Member, plans: dict[str, Plan], command: Message) -> None:
    """Do one step of a generation, and where training is not on then, say how things stand."""
    from torch.distributed.checkpoint.api import CheckpointException

    member.generation = command["generation"]
    error_text, peer, finished = None, False, False
    try:
        if command["type"] == "move":
            member.move(command, plans)
        else:
            member.go(command, plans[command["plan"]])
            finished = member.train(command["end"])
    except (Exception, CheckpointException) as error:
        error_text, peer = complaint(error), is_peer_loss(error)
        _forget_frames(error)
    stop = control.end()
    if command["type"] == "go" or error_text is not None:
        member.release()
    elif not stop:
        return
    said = {"type": "paused", "error": error_text, "peer": peer, "finished": finished}
    control.tell(said | member.standing())


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what failed: its frames hold process groups, and those their connections."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


if __name__ == "__main__":
    main()
