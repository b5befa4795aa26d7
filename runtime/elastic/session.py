"""The session file: where a run can be reached, and what another controller needs to take over."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from pydantic import Field

from runtime.elastic.messages import NodeOffer
from specs.errors import RunError
from specs.files import Document, validate

MIN_TOKEN = 16  # characters


class SessionFile(Document):
    """An elastic run; its file is for its owner's eyes alone, for it holds the token."""

    schema_version: int = Field(1, alias="schema", ge=1, le=1)
    address: str
    port: int = Field(ge=1, le=65535)
    token: str = Field(min_length=MIN_TOKEN)
    pid: int = Field(description="of the controller")
    generation: int = Field(ge=0)
    end: int = Field(ge=0, description="the iteration at which training ends")
    plan: str = Field(description="key of the plan that is trained")
    plans: dict[str, dict[str, Any]] = Field(description="plans that workers may hold state of")
    nodes: list[NodeOffer]
    excluded: list[str] = Field(description="nodes that are not to be used")
    options: dict[str, Any]
    door: dict[str, Any] = Field(description="what the command itself keeps")

    @property
    def url(self) -> str:
        """Where its control endpoint is."""
        return f"http://{self.address}:{self.port}"


def write_session(path: str | Path, document: dict[str, Any]) -> None:
    """Write the session file: the old one or the new one, never a half, readable by the owner."""
    path = Path(path)
    making = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"schema": 1} | document, file)
        os.replace(making, path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from None


def token_of(path: str | Path, *, create: bool = False) -> str:
    """The token in a file; create: where there is none, a new one is written, for the owner alone.

    Raises RunError where it cannot be read or is too short to keep anybody out.
    """
    path = Path(path)
    try:
        if create and not path.exists():
            token = secrets.token_urlsafe(32)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(token + "\n")
            return token
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: no token can be read or written there ({error})") from None
    if len(token) < MIN_TOKEN or not token.isprintable():
        raise RunError(
            f"{path}: holds no token, expected at least {MIN_TOKEN} characters; start the run "
            "with --token-file of a file that does not exist, and copy that"
        )
    return token


def read_session(path: str | Path) -> SessionFile:
    """The session of a file. Raises RunError where there is none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path}: is no session that can be read ({error}); "
            "start one with arachne-run elastic start PLAN"
        ) from None
    return validate(SessionFile, content, path)
