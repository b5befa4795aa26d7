from __future__ import annotations

from pathlib import Path

import pytest

from profiler.exporters import EXPORTERS
from profiler.importers import IMPORTERS
from profiler.importers.csv_form import COLUMNS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text()


@pytest.mark.parametrize("file", COLUMNS)
def test_every_column_of_the_csv_files_stands_in_the_docs(file: str) -> None:
    section = PAGE.split(f"### {file}\n")[1].split("\n#")[0]
    for column in COLUMNS[file]:
        needed = "yes" if column.required else ""
        assert f"| `{column.name}` | {needed} | {column.meaning} |" in section


def test_every_layout_stands_in_the_docs() -> None:
    for form in IMPORTERS:
        assert f"arachne-prof import {form} " in PAGE
    for layout in EXPORTERS:
        assert f"arachne-prof export {layout} " in PAGE
