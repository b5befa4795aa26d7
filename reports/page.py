"""A page: one self-contained HTML file from a template, its figures, its data and its scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports import words
from reports.figures import Figure
from specs.files import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

MUCH = 48  # letters; static/tables.js has the same
# Every page has these scripts; a page with more names them in `scripts`.
COMMON_SCRIPTS = ("theme.js", "words.js", "tables.js", "figures.js")


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of a page come from: the store, when it was read, by which Arachne."""

    store: str
    made: datetime
    version: str
    command: str


@dataclass(frozen=True)
class Page:
    """What goes into a file.

    name: of the file, without `.html`. context: what the template reads. data: what the scripts
    read, by name. files: text files written beside the page, by file name.
    """

    name: str
    title: str
    template: str
    provenance: Provenance
    context: Mapping[str, Any] = field(default_factory=dict)
    figures: Sequence[Figure] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    scripts: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """The page's own file name."""
        return f"{self.name}.html"

    def csv_name(self, figure: Figure) -> str:
        """The file beside the page that holds a figure's data."""
        return f"{self.name}-{figure.name}.csv"


def render(page: Page, *, live: bool = False) -> str:
    """The page as one HTML text that needs nothing from a network.

    live: with the script that asks the server which made the page whether the store has changed.
    The content security policy in the page lets its own scripts run, by hash, and nothing else:
    a name that got past the escaping would still be no script.
    """
    names = (*COMMON_SCRIPTS, *page.scripts, *(("live.js",) if live else ()))
    scripts = [static(name) for name in names]
    boot = static("boot.js")
    plotly = plotly_js() if page.figures else ""
    allowed = [text for text in (boot, plotly, *scripts) if text]
    figures = {figure.name: figure for figure in page.figures}
    data = {"figures": [figure.spec() for figure in page.figures], "page": page.name, **page.data}
    return (
        environment()
        .get_template(page.template)
        .render(
            page=page,
            provenance=page.provenance,
            figures=figures,
            css=trusted(static("page.css")),
            boot=trusted(boot),
            plotly=trusted(plotly),
            scripts=[trusted(text) for text in scripts],
            data=trusted(script_json(data)),
            policy=content_policy(allowed, live=live),
            live=live,
            **page.context,
        )
    )


def write_page(page: Page, directory: Path) -> Path:
    """Write a page and the files beside it, each whole or not at all, the page last.

    Raises SpecError where a file cannot be written.
    """
    for figure in page.figures:
        write_atomically(directory / page.csv_name(figure), figure.table.to_csv())
    for name, text in page.files.items():
        write_atomically(directory / name, text)
    path = directory / page.file_name
    write_atomically(path, render(page))
    return path.resolve()


def script_json(value: Any) -> str:
    """JSON that may stand inside a <script> element: no text in it can close the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def content_policy(scripts: Sequence[str], *, live: bool) -> str:
    """The content security policy of a page with these inline scripts."""
    hashes = " ".join(
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}; "
        "base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=64)
def static(name: str) -> str:
    """A file of reports/static as text. No carriage returns: browsers drop them before hashing."""
    return resources.files("reports").joinpath("static", name).read_text("utf-8").replace("\r", "")


@lru_cache(maxsize=1)
def plotly_js() -> str:
    """The plotly.js bundle of the installed plotly package."""
    from plotly.offline import get_plotlyjs

    text = str(get_plotlyjs()).replace("\r\n", "\n")
    # Inside an inline script, these would end the element or open a comment.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The Jinja environment: everything escaped, an unknown name an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        ms=words.ms,
        memory=words.memory,
        percent=words.percent,
        signed=words.signed_percent,
        number=words.number,
        moment=words.moment,
        plural=words.plural,
        paper_range=words.seconds_range,
        cell=words.cell,
        sort_value=words.sort_value,
        source_class=source_class,
        long=long_class,
        trusted_svg=trusted,
    )
    env.globals["web_ring"] = web_ring
    return env


def long_class(text: object) -> str:
    """The style of a table cell that holds text of any length; much text gets more room."""
    return "long much" if len(str(text)) > MUCH else "long"


def source_class(label: str) -> str:
    """The style of a source label: its own for a pure source, one for every mixture."""
    return label if label in ("measured", "imported", "estimated") else "mixture"


def web_ring(radius: float) -> str:
    """The corners of one ring of the web in the head of a page, around (100, 100)."""
    corners = (math.tau * i / 24 for i in range(24))
    return " ".join(
        f"{100 + radius * math.cos(a):.1f},{100 + radius * math.sin(a):.1f}" for a in corners
    )


def trusted(text: str) -> Markup:
    """Text of ours that goes into a page as it is."""
    from markupsafe import Markup

    return Markup(text)
