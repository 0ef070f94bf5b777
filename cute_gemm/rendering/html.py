"""A report as one HTML file: no script, no network, pictures inline; and as a notebook's cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm._text import bound
from cute_gemm.access.accesses import SharedAccess
from cute_gemm.rendering import html_page
from cute_gemm.rendering import pictures as draw
from cute_gemm.rendering.html_page import section
from cute_gemm.rendering.rows import access_tables
from cute_gemm.rendering.tables import Cell, Column, Pairs, Table, figure, markup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cute_gemm.access.accesses import Partition
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.rendering.rows import AccessRow
    from cute_gemm.rendering.tables import Part

#: A glossary, for readers who have only the page.
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


@dataclass(frozen=True)
class Page:
    """The content of a report's page.

    ``lead`` is its first sentence. ``figures`` are the most important figures, with labels.
    ``sections`` are titles with their parts. The tables and pictures of ``rows`` come after the
    sections. If ``pictures`` is not None, they and the tiles in shared memory come last.
    """

    title: str
    heading: str
    intro: str
    sections: Sequence[tuple[str, Sequence[Part]]]
    rows: Sequence[AccessRow]
    pictures: Sequence[Partition] | None = None
    lead: str = ""
    figures: Sequence[tuple[str, str]] = ()

    @classmethod
    def of(cls, what: str, problem: GemmProblem, kernel: str, **content: Any) -> Page:
        """Return the page of a kernel for a problem, with their names in title and heading."""
        m, n, k = problem.m, problem.n, problem.k
        title = f"{what} {problem.op} {m}x{n}x{k} {problem.dtype}, {kernel}"
        heading = f"{what} {problem.op}, {m:,} x {n:,} x {k:,}, {problem.dtype}"
        return cls(title, heading, **content)


def _drawn_together(rows: Sequence[AccessRow]) -> list[list[int]]:
    """Return the indices of the accesses to draw, grouped by equal worst requests."""
    groups: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        if (worst := draw.worst(row.access)) is not None:
            drawn = (array.tobytes() for array in worst[1:])
            key = (row.space, row.operand, row.instruction, row.bits, row.direction, *drawn)
            groups.setdefault(key, []).append(place)
    return list(groups.values())


def _details(summary: str, svg: str, anchor: str = "") -> str:
    identity = f' id="{anchor}"' if anchor else ""
    return f"<details open{identity}><summary>{summary}</summary>\n{figure(svg)}</details>\n"


def _access_figure(row: AccessRow, places: Sequence[int], anchor: str) -> str:
    numbers = ", ".join(f"#{place + 1}" for place in places)
    what = f"<b>{numbers} {markup(row.operand)}: {markup(row.name)}</b>, "
    what += f"{row.direction}, {row.space} memory: {markup(Cell(row.verdict, good=row.good))}"
    what += f"; {markup(row.why)}" if row.why else ""
    what += f". <b>Fix:</b> {markup(row.fix)}" if row.fix else ""
    return _details(what, draw.access_picture(row.access) or "", anchor)


def accesses_html(rows: Sequence[AccessRow], prefix: str = "cg") -> str:
    """Return the tables of some accesses and a picture of the worst request of each.

    They belong in an element of class ``cute-gemm``. Ids begin with ``prefix``, which must be
    unique in the page.
    """
    groups = _drawn_together(rows)
    anchors = {place: f"{prefix}-access-{group[0] + 1}" for group in groups for place in group}
    tables = ""
    for table, places in access_tables(rows):
        columns = (Column("#"), Column("operand", left=True), *table.columns[1:])
        lines = [
            ["" if at is None else Cell(str(at + 1), link=anchors.get(at, "")), *line]
            for at, line in zip(places, table.rows, strict=True)
        ]
        tables += Table(table.title, columns, lines).html()
    shown = "".join(_access_figure(rows[g[0]], g, anchors[g[0]]) for g in groups)
    intro = (
        "<p>The worst request of each access, in the first tile for global memory. The numbers "
        "in the cells are lanes; hover over a cell to see its bytes.</p>\n"
    )
    drawn = section("Requests, drawn", intro + shown if shown else "", prefix)
    return section("Memory accesses", tables, prefix) + drawn


def _tile_pictures(partitions: Iterable[Partition], rows: Iterable[AccessRow]) -> str:
    """Draw the thread-value layouts of tiled copies, and the tiles in shared memory."""
    out = []
    for x in partitions:
        svg = draw.tv_layout(x.table, x.extents, f"{x.operand}: {x.what}, {x.layouts}")
        what = f"<b>{markup(x.operand)}</b>: thread-value layout, {markup(x.what)}"
        out.append(_details(what, svg))
    tiles: dict[tuple[str, str], SharedAccess] = {}
    for access in (row.access for row in rows):
        if isinstance(access, SharedAccess) and access.layout and access.layout.rank == 2:
            tiles.setdefault((access.operand, str(access.layout)), access)
    for (operand, _), access in tiles.items():
        assert access.layout is not None
        what, (rows_, columns) = "tile in shared memory", access.layout.extents
        title = f"{operand}: {what}"
        svg = draw.shared_layout(access.layout, (rows_, columns), access.element_bits, title)
        out.append(_details(f"<b>{markup(operand)}</b>: {what}", svg))
    return "".join(out)


def _head(page: Page) -> str:
    """Return the heading of a page, its first sentences and its most important figures."""
    intro = f'<p class="intro">{markup(page.intro)}</p>\n' if page.intro else ""
    lead = f'<p class="lead">{markup(bound(page.lead))}</p>\n' if page.lead else ""
    pairs = (f"<div><dt>{markup(a)}</dt><dd>{markup(b)}</dd></div>\n" for a, b in page.figures)
    tiles = f'<dl class="tiles">\n{"".join(pairs)}</dl>\n' if page.figures else ""
    return f"<h1>{markup(page.heading)}</h1>\n{intro}{lead}{tiles}"


def _body(page: Page, prefix: str) -> str:
    tiles = "" if page.pictures is None else _tile_pictures(page.pictures, page.rows)
    sections = (
        section(title, "".join(part.html() for part in parts), prefix)
        for title, parts in page.sections
    )
    ends = ("Tiles, drawn", tiles), ("Terms", Pairs(_TERMS).html())
    drawn = (section(title, body, prefix) for title, body in ends)
    return "".join((*sections, accesses_html(page.rows, prefix), *drawn))


def page_html(page: Page) -> str:
    """Return a page as one self-contained HTML file."""
    return html_page.page_html(page.title, _body(page, "cg"), _head(page))


def cell_html(page: Page, prefix: str) -> str:
    """Return a page as a ``<div>`` with its own style, whose ids begin with ``prefix``."""
    return html_page.fragment(_head(page) + _body(page, prefix))
