"""A small drawing: shapes and text as SVG that takes its colours from the page.

Units are CSS pixels of the view box. Colours are `var(--name)` tokens of static/page.css.
"""

from __future__ import annotations

from html import escape

GLYPH = 0.56  # mean width of a character over the font size, for sans-serif text


class Drawing:
    """Collects shapes; `to_svg` gives the picture. All text in it is escaped."""

    def __init__(self, title: str, description: str) -> None:
        self.title = title
        self.description = description
        self.width = 0.0
        self.height = 0.0
        self._parts: list[str] = []

    def _grow(self, x: float, y: float) -> None:
        self.width = max(self.width, x)
        self.height = max(self.height, y)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str = "none",
        radius: float = 0.0,
        tint: float = 1.0,
        dashed: bool = False,
        hover: str = "",
    ) -> None:
        """A rectangle. tint: opacity of its filling. hover: what a pointer reads on it."""
        self._grow(x + width, y + height)
        dash = ";stroke-dasharray:3 3" if dashed else ""
        title = f"<title>{escape(hover)}</title>" if hover else ""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{radius:g}" style="fill:{fill};fill-opacity:{tint:g};stroke:{stroke}{dash}">'
            f"{title}</rect>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        anchor: str = "start",
        weight: int = 400,
        fill: str = "var(--ink)",
        room: float | None = None,
    ) -> None:
        """Text on a base line. room: cut to this width in pixels, whole in the pointer's hint."""
        self._grow(x if anchor == "end" else x + 4, y + size * 0.3)
        shown = fitted(text, size, room)
        title = f"<title>{escape(text)}</title>" if shown != text else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" style="font-size:{size:g}px;text-anchor:{anchor};'
            f'font-weight:{weight};fill:{fill}">{title}{escape(shown)}</text>'
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        stroke: str = "var(--axis)",
        width: float = 1.0,
        dashed: bool = False,
    ) -> None:
        """A straight line."""
        self._grow(max(x1, x2), max(y1, y2))
        dash = ";stroke-dasharray:4 3" if dashed else ""
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'style="stroke:{stroke};stroke-width:{width:g}{dash}"/>'
        )

    def arrow(self, x1: float, y: float, x2: float, *, dashed: bool = False) -> None:
        """A horizontal arrow from x1 to x2; dashed where it leaves a machine."""
        self.line(x1, y, x2 - 4, y, dashed=dashed)
        self._parts.append(
            f'<path d="M{x2 - 6:.1f} {y - 3.5:.1f}L{x2:.1f} {y:.1f}L{x2 - 6:.1f} {y + 3.5:.1f}Z" '
            'style="fill:var(--axis);stroke:none"/>'
        )

    def to_svg(self) -> str:
        """The picture, as wide and high as what was drawn."""
        return (
            f'<svg class="picture" viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" '
            f'aria-label="{escape(self.title)}">'
            f"<desc>{escape(self.description)}</desc>{''.join(self._parts)}</svg>"
        )


def fitted(text: str, size: float, room: float | None) -> str:
    """The text, cut with an ellipsis where it is wider than the room in pixels."""
    if room is None or len(text) * size * GLYPH <= room:
        return text
    kept = max(1, int(room / (size * GLYPH)) - 1)
    return text[:kept].rstrip() + "…"
