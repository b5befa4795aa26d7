"""The colours of static/page.css: readable, and told apart by colour-blind eyes."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from reports.page import static

Rgb = tuple[float, float, float]

# Machado, Oliveira & Fernandes (2009), severity 1.0, on linear RGB.
VISION: dict[str, tuple[Rgb, Rgb, Rgb]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def themes() -> dict[str, dict[str, str]]:
    """Hex tokens of the light theme and of both ways into the dark one."""
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", static("page.css"))
    tokens = [dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", block)) for block in blocks]
    assert len(tokens) == 3
    return {"light": tokens[0], "dark by system": tokens[1], "dark by choice": tokens[2]}


def linear(colour: str) -> Rgb:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return r, g, b


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""
    lights = sorted(
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (a, b)
    )
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def oklab(rgb: Rgb) -> Rgb:
    """Bjoern Ottosson's OKLab of linear RGB."""
    r, g, b = (max(0.0, c) for c in rgb)
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def apart(a: str, b: str, vision: str) -> float:
    """Distance of two colours as an eye of that vision sees them, in hundredths of OKLab."""

    def seen(colour: str) -> Rgb:
        rgb = linear(colour)
        x, y, z = (sum(m * c for m, c in zip(row, rgb, strict=True)) for row in VISION[vision])
        return oklab((x, y, z))

    return 100 * math.dist(seen(a), seen(b))


@pytest.mark.parametrize("theme", list(themes()))
def test_text_has_a_contrast_of_at_least_4_5(theme: str) -> None:
    tokens = themes()[theme]
    for text, ground in itertools.product(
        ("ink", "quiet", "accent", "good", "warn", "bad"), ("ground", "panel", "raised")
    ):
        assert contrast(tokens[text], tokens[ground]) >= 4.5, (text, ground)


@pytest.mark.parametrize("theme", list(themes()))
def test_marks_of_figures_have_a_contrast_of_at_least_3(theme: str) -> None:
    tokens = themes()[theme]
    for i in range(1, 9):
        assert contrast(tokens[f"c{i}"], tokens["panel"]) >= 3, i
    assert contrast(tokens["axis"], tokens["panel"]) >= 3


@pytest.mark.parametrize("vision", list(VISION))
@pytest.mark.parametrize("theme", list(themes()))
def test_categories_are_told_apart_by_every_kind_of_eye(theme: str, vision: str) -> None:
    tokens = themes()[theme]
    colours = [tokens[f"c{i}"] for i in range(1, 9)]
    nearest = min(apart(a, b, vision) for a, b in itertools.combinations(colours, 2))
    sources = min(apart(a, b, vision) for a, b in itertools.combinations(colours[:4], 2))
    assert nearest >= 7
    assert sources >= 10


def test_both_ways_into_the_dark_give_the_same_colours() -> None:
    found = themes()
    assert found["dark by system"] == found["dark by choice"]


def test_a_measure_of_distance_that_sees_no_difference_would_be_caught() -> None:
    # Red and green of equal lightness: far apart for most eyes, near for deuteranopes.
    assert apart("#c04040", "#608030", "normal") > 2 * apart("#c04040", "#608030", "deuteranopia")
