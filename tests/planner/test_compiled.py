"""Compiled code is kept by a hash of everything it is made of."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FunctionType

import planner.baselines
import planner.policy.planning  # noqa: F401
from planner.compiled import _HERE, _sources


def test_every_compiled_function_stands_in_a_hashed_file() -> None:
    from numba.core.dispatcher import Dispatcher

    found: dict[str, set[Path]] = {}
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith("planner."):
            continue
        for value in vars(module).values():
            if isinstance(value, Dispatcher):
                function = value.py_func
                assert isinstance(function, FunctionType)
                path = Path(function.__code__.co_filename)
                found.setdefault(path.parent.name, set()).add(path)
    assert {"kernel", "sailor", "metis", "amp", "espresso", "hexiscale"} <= set(found)
    missing = {path for paths in found.values() for path in paths} - set(_sources())
    assert not missing


def test_a_file_that_compiles_and_its_neighbours_are_hashed(tmp_path: Path) -> None:
    texts = {
        "plain.py": "import numpy\n",
        "own_kernel.py": "from numba import njit\n",
        "baselines/plain.py": "import numpy\n",
        "baselines/one.py": "from planner.kernel.jit import compiled\n",
        "baselines/peer/search.py": "    from numba import njit\n",
        "baselines/peer/rules.py": "LIMIT = 3\n",
        "baselines/other/rules.py": '"""Does not import numba."""\n',
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    hashed = {str(path.relative_to(tmp_path)) for path in _sources(tmp_path)}
    assert hashed == {
        "own_kernel.py",
        "baselines/one.py",
        "baselines/peer/search.py",
        "baselines/peer/rules.py",
    }


def test_kernels_of_the_planner_are_hashed() -> None:
    names = {str(path.relative_to(_HERE)) for path in _sources()}
    assert {"replica_kernel.py", "kernel/jit.py", "kernel/price.py"} <= names
    assert {"policy/kernel/moves.py", "baselines/sailor/kernel.py"} <= names
