"""A report as one HTML file: no script, no network, pictures inline; and as a notebook's cell."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.analysis import html_page
from cute_gemm.analysis import pictures as draw
from cute_gemm.analysis.html_page import section
from cute_gemm.analysis.rows import access_tables
from cute_gemm.analysis.tables import Cell, Column, Pairs, Table, markup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cute_gemm.access import Partition
    from cute_gemm.analysis.rows import AccessRow
    from cute_gemm.analysis.shown import Page

#: What the words mean, for a reader who has only this page.
_TERMS = (
    ("request", "One instruction of one warp: 32 lanes at most."),
    ("sector, line", "32 and 128 aligned bytes of global memory. Memory is fetched by sectors."),
    (
        "coalesced",
        "A request touches the fewest sectors that can hold the bytes it uses (its ideal). "
        "Efficiency is bytes used over bytes of the sectors touched.",
    ),
    (
        "bank, wavefront",
        "Shared memory has 32 banks of 4-byte words. A wavefront serves one word from each; a "
        "phase is the lanes of a request that are served together, in one wavefront if no bank has "
        "two words to give.",
    ),
    ("conflict", "A wavefront beyond the ideal."),
    (
        "interior, edge tiles",
        "Tiles that the matrix fills, and those it does not. Figures per request are means over "
        "the interior tiles, or all when there are none.",
    ),
)


class _Picture(NamedTuple):
    """A picture, and the places of the rows whose accesses it shows."""

    svg: str
    places: tuple[int, ...]


def _access_pictures(rows: Sequence[AccessRow]) -> list[_Picture]:
    """Draw the worst request of each access; those with the same request share a picture."""
    found: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        access = row.access
        worst: Any = None
        if isinstance(access, GlobalAccess):
            worst = draw.worst_request(access)
        elif isinstance(access, SharedAccess):
            worst = draw.worst_banks(access)
        if worst is not None:
            drawn = (array.tobytes() for array in worst[1:])
            key = (row.space, row.operand, row.instruction, row.bits, row.direction, *drawn)
            found.setdefault(key, []).append(place)
    return [
        _Picture(draw.access_picture(rows[places[0]].access) or "", tuple(places))
        for places in found.values()
    ]


def _details(summary: str, svg: str, anchor: str = "") -> str:
    identity = f' id="{anchor}"' if anchor else ""
    figure = f"<figure>{svg}</figure>\n"
    return f"<details open{identity}><summary>{summary}</summary>\n{figure}</details>\n"


def _access_figure(row: AccessRow, picture: _Picture, anchor: str) -> str:
    numbers = ", ".join(f"#{place + 1}" for place in picture.places)
    what = f"<b>{numbers} {markup(row.operand)}: {markup(row.name)}</b>, "
    what += f"{row.direction}, {row.space} memory: {markup(Cell(row.verdict, good=row.good))}"
    what += f"; {markup(row.why)}" if row.why else ""
    what += f". <b>Mend:</b> {markup(row.mend)}" if row.mend else ""
    return _details(what, picture.svg, anchor)


def accesses_html(rows: Sequence[AccessRow], prefix: str = "cg") -> str:
    """Return the tables of some accesses and a picture of the worst request of each.

    It belongs into an element of class ``cute-gemm``; ids begin with ``prefix``, which must be
    another one for each such part of a page.
    """
    pictures = _access_pictures(rows)
    anchors = {
        place: f"{prefix}-access-{picture.places[0] + 1}"
        for picture in pictures
        for place in picture.places
    }
    tables = ""
    for table, places in access_tables(rows):
        columns = (Column("#"), Column("operand", left=True), *table.columns[1:])
        links = [
            "" if place is None else Cell(str(place + 1), link=anchors.get(place, ""))
            for place in places
        ]
        lines = [[link, *line] for link, line in zip(links, table.rows, strict=True)]
        tables += Table(table.title, columns, lines).html()
    shown = "".join(
        _access_figure(rows[picture.places[0]], picture, anchors[picture.places[0]])
        for picture in pictures
    )
    intro = (
        "<p>The worst request of each access, of the first tile for global memory. The numbers "
        "in the cells are lanes; the mouse over a cell shows its bytes.</p>\n"
    )
    return section("Memory accesses", tables) + section(
        "Requests, drawn", intro + shown if shown else ""
    )


def _tile_pictures(partitions: Iterable[Partition], rows: Iterable[AccessRow]) -> str:
    """The thread-value layouts of tiled copies, and the tiles in shared memory."""
    out = []
    for one in partitions:
        svg = draw.tv_layout(one.table, one.extents, f"{one.operand}: {one.what}, {one.layouts}")
        what = f"<b>{markup(one.operand)}</b>: thread-value layout, {markup(one.what)}"
        out.append(_details(what, svg))
    seen = set()
    for access in (row.access for row in rows):
        if not isinstance(access, SharedAccess) or access.layout is None:
            continue
        key = (access.operand, str(access.layout))
        if key in seen or access.layout.rank != 2:
            continue
        seen.add(key)
        extents = (access.layout.extents[0], access.layout.extents[1])
        title = f"{access.operand}: tile in shared memory"
        svg = draw.shared_layout(access.layout, extents, access.element_bits, title)
        out.append(_details(f"<b>{markup(access.operand)}</b>: tile in shared memory", svg))
    return "".join(out)


def _body(page: Page, prefix: str) -> str:
    intro = f"<p>{markup(page.intro)}</p>\n" if page.intro else ""
    tiles = "" if page.pictures is None else _tile_pictures(page.pictures, page.rows)
    return "".join(
        chain(
            [f"<h1>{markup(page.heading)}</h1>\n{intro}"],
            (section(title, "".join(p.html() for p in parts)) for title, parts in page.sections),
            [accesses_html(page.rows, prefix)],
            [section("Tiles, drawn", tiles)],
            [section("Terms", Pairs(_TERMS).html())],
        )
    )


def page_html(page: Page) -> str:
    """Return a page as one HTML file that needs nothing beside it."""
    return html_page.page_html(page.title, _body(page, "cg"))


def cell_html(page: Page, prefix: str) -> str:
    """Return a page as a ``<div>`` with its own style, whose ids begin with ``prefix``."""
    return html_page.fragment(_body(page, prefix))
