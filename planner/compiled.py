"""Where compiled code is kept between processes, and saying that the first use compiles.

numba looks only at the file of the function that it caches: a change in a file whose functions it
calls would go unnoticed, and stale machine code be run. So the folder is named by a hash of all
compiled sources. Import this before anything that is compiled.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

import numba

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent


def _sources() -> list[Path]:
    folders = (_HERE / "kernel", _HERE / "policy" / "kernel")
    files = [file for folder in folders for file in folder.glob("*.py")]
    return sorted([*files, *_HERE.glob("*_kernel.py")])


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


def is_compiled() -> bool:
    """Whether machine code of the kernel is there already; if not, first use takes a while."""
    return any(Path(numba.config.CACHE_DIR).rglob("*.nbc"))


def announce_compilation() -> None:
    """Say on the log that the kernel is compiled now, where it is."""
    if not is_compiled():
        log.warning("compiling the planner's kernel: about a minute, once after each install")
