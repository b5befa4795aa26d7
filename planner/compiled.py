"""Where compiled code is kept between processes.

numba looks only at the file of the function that it caches: a change in a file whose functions it
calls would go unnoticed, and stale machine code be run. So the folder is named by a hash of all
compiled sources. Import this before anything that is compiled.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

import numba

_HERE = Path(__file__).parent
_COMPILES = re.compile(r"^\s*(?:from|import) (?:numba|planner\.kernel\.jit)\b", re.MULTILINE)


def _sources(here: Path = _HERE) -> list[Path]:
    """Every file that a compiled function may be made of.

    Those that import the compiler, and all others of their folder: compiled code takes constants
    from them as they were.
    """
    files = [file for file in here.rglob("*.py") if file != Path(__file__)]
    compiling = {file for file in files if _COMPILES.search(file.read_text(encoding="utf-8"))}
    whole = {file.parent for file in compiling} - {here, here / "baselines"}
    return sorted(compiling | {file for file in files if file.parent in whole})


def _folder() -> Path:
    digest = hashlib.sha256(f"numba {numba.__version__}".encode())
    for source in _sources():
        digest.update(source.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = f"numba-{digest.hexdigest()[:16]}"
    for parent in (Path(home) / "arachne", Path(tempfile.gettempdir()) / f"arachne-{os.getuid()}"):
        folder = parent / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    return Path(tempfile.mkdtemp(prefix="arachne-numba-"))


if "NUMBA_CACHE_DIR" not in os.environ:
    numba.config.CACHE_DIR = str(_folder())
