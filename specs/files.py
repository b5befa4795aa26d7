"""Reading the files people write: YAML or JSON, checked by pydantic, refused in one line."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from specs.errors import SpecError


class Document(BaseModel):
    """Base of every file schema: an unknown field is a mistake, not a comment."""

    model_config = ConfigDict(extra="forbid", strict=True)


DocumentT = TypeVar("DocumentT", bound=Document)


def read_yaml_or_json(path: str | Path) -> Any:
    """The content of a .yaml, .yml or .json file. Raises SpecError where it cannot be read."""
    import yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text ({error})") from None
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}: line {error.lineno} is not JSON ({error.msg})") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1} " if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise SpecError(f"{path}: {line}is not YAML ({problem})") from None


def validate(schema: type[DocumentT], content: Any, where: str | Path) -> DocumentT:
    """The content as the schema says. Raises SpecError with file, field, value and expectation."""
    try:
        # JSON mode: strict about 3.5 GPUs and "4" GPUs, but text may name an enum member.
        return schema.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        raise _first_complaint(error, where) from None
    except (TypeError, ValueError) as error:
        raise SpecError(f"{where}: is not a document of plain values ({error})") from None


def _first_complaint(error: ValidationError, where: str | Path) -> SpecError:
    first = error.errors(include_url=False)[0]
    field = ""
    for part in first["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    expected = {
        "missing": "the field to be there",
        "extra_forbidden": "no such field (a misspelling?)",
        "too_short": f"at least {first.get('ctx', {}).get('min_length')} in the list",
    }.get(
        first["type"], first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    )
    value = None if first["type"] == "missing" else first["input"]
    return SpecError.in_file(where, field or "the document", value, expected)


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file so that a kill leaves the old one or the new one, never a half."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise SpecError(f"{path}: cannot be written ({error.strerror})") from None
