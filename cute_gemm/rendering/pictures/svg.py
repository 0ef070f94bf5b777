"""SVG primitives of the pictures.

A picture has no ids, style sheets or fonts to load, so a page can have any number of pictures.
Background and text colour are explicit. Dark pages apply a filter.
"""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Colour of text and outlines.
INK = "#1b1b1b"
#: Colour of secondary text: 7:1 on white.
GREY = "#555555"
#: Okabe and Ito's vermillion, for bad cells, which are also hatched.
BAD, BAD_TINT = "#b34700", "#f7d3bd"
#: Tints of Okabe and Ito's eight colours (https://jfly.uni-koeln.de/color/), light enough for dark
#: text and distinct for colour-blind readers.
TINTS = ("#bfe1f6", "#f6d793", "#a6dcc9", "#f8f3a6", "#dcdcdc", "#ecc6d9", "#9fc4e4", "#f2bd97")

SANS = "Helvetica, Arial, 'Liberation Sans', sans-serif"
MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
#: Width per em of a monospaced character, of an average proportional one, and of a bold one.
MONO_EM, SANS_EM, BOLD_EM = 0.605, 0.51, 0.58

MARGIN = 12
#: Least width of a body in pixels: with margins it fits a viewport of 390 pixels.
LEAST = 334
#: Attributes of text in cells.
CELL_TEXT = f'font-family="{MONO}" font-size="10" text-anchor="middle"'


#: x, y, width and height.
Box = tuple[float, float, float, float]


class Item(NamedTuple):
    """One entry of a legend: fill and stroke of its swatch, the text in it, and its label."""

    fill: str
    label: str
    stroke: str = INK
    hatched: bool = False
    dashed: bool = False
    text: str = ""


def number(value: float) -> str:
    """Return a coordinate with up to two decimals, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def cell_width(label: str) -> float:
    """Return the width of a label in a cell in pixels."""
    return len(label) * MONO_EM * 10


def rect(
    x: float, y: float, width: float, height: float, attributes: str = "", tip: str = ""
) -> str:
    """Return a rectangle; ``tip`` is its tooltip."""
    size = f'width="{number(width)}" height="{number(height)}"'
    head = f'<rect x="{number(x)}" y="{number(y)}" {size}' + f" {attributes}" * bool(attributes)
    return f"{head}><title>{escape(tip)}</title></rect>" if tip else f"{head}/>"


def text(x: float, y: float, content: str, attributes: str = "") -> str:
    """Return one line of text, escaped."""
    more = f" {attributes}" if attributes else ""
    return f'<text x="{number(x)}" y="{number(y)}"{more}>{escape(content, quote=False)}</text>'


def group(attributes: str, parts: Iterable[str]) -> str:
    """Return ``parts`` with common attributes, or "" without parts."""
    inner = "".join(parts)
    return f"<g {attributes}>{inner}</g>" if inner else ""


def path(moves: Iterable[str], attributes: str) -> str:
    """Return a path without fill, or "" without moves."""
    inner = "".join(moves)
    return f'<path d="{inner}" {attributes} fill="none"/>' if inner else ""


def hatch(boxes: Iterable[Box]) -> str:
    """Return lines at 45 degrees through boxes.

    They are lines, since a pattern needs an id, and ids of several pictures in a page collide.
    """
    step = 6
    lines = []
    for x, y, width, height in boxes:
        for at in range(step // 2, int(width + height), step):
            x0, y0 = x + max(0.0, at - height), y + min(at, height)
            x1, y1 = x + min(at, width), y + max(0.0, at - width)
            lines.append(f"M{number(x0)} {number(y0)}L{number(x1)} {number(y1)}")
    return path(lines, f'stroke="{BAD}"')


def boxes(places: Iterable[tuple[float, float]], width: float, height: float) -> str:
    """Return path data for equal boxes at ``places``, much shorter than rectangles."""
    size = f"h{number(width)}v{number(height)}h{number(-width)}z"
    return "".join(f"M{number(x)} {number(y)}{size}" for x, y in places)


def wrap(content: str, width: float, size: float, em: float = SANS_EM) -> list[str]:
    """Break text into lines that fit ``width`` pixels at ``size`` pixels."""
    return textwrap.wrap(content, max(8, int(width / (em * size)))) or [""]


def _legend(items: Sequence[Item], width: float, top: float) -> tuple[list[str], float]:
    """Return the legend's parts and its bottom."""
    parts, swatches = [], []
    x, y = float(MARGIN), top
    for item in items:
        # wide enough for fallback fonts
        box = max(26.0, cell_width(item.text) + 6)
        need = box + (6 + len(item.label) * SANS_EM * 12 + 20 if item.label else 4)
        if x > MARGIN and x + need > width - MARGIN:
            x, y = float(MARGIN), y + 22
        dash = ' stroke-dasharray="3 2"' if item.dashed else ""
        parts.append(rect(x, y, box, 15, f'fill="{item.fill}" stroke="{item.stroke}"{dash}'))
        if item.hatched:
            swatches.append((x, y, box, 15.0))
        if item.text:
            parts.append(text(x + box / 2, y + 11, item.text, CELL_TEXT))
        if item.label:
            parts.append(text(x + box + 6, y + 12, item.label, 'font-size="12"'))
        x += need
    parts.append(hatch(swatches))
    return parts, y + 15


def document(
    title: str, caption: Sequence[str], body: Sequence[str], size: tuple[float, float],
    legend: Sequence[Item],
) -> str:  # fmt: skip
    """Return an ``<svg>`` element with title, caption (paragraphs), body and legend.

    The body is drawn in ``size`` pixels with the origin in its upper left corner.
    """
    # A narrow body needs room for lines of text too.
    width = max(size[0], LEAST) + 2 * MARGIN
    top = float(MARGIN)
    head = []
    for line in wrap(title, width - 2 * MARGIN, 15, BOLD_EM):
        top += 17
        head.append(text(MARGIN, top, line, 'font-size="15" font-weight="bold"'))
    top += 3
    for line in (line for part in caption for line in wrap(part, width - 2 * MARGIN, 12)):
        top += 16
        head.append(text(MARGIN, top, line, 'font-size="12"'))
    top += 12
    foot, bottom = _legend(legend, width, top + size[1] + 12)
    height = bottom + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" '
        f'height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}" role="img" '
        f'aria-label="{escape(title)}" font-family="{SANS}" fill="{INK}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        + "".join(head)
        + group(f'transform="translate({MARGIN} {number(top)})"', body)
        + "".join(foot)
        + "</svg>\n"
    )
