"""The report as one HTML file: no script, no network, pictures inline; and as a notebook's cell."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from hashlib import sha256
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.analysis.html_page import (
    Column,
    Markup,
    cell,
    code,
    definitions,
    fragment,
    page_html,
    section,
    table,
    verdict,
)
from cute_gemm.analysis.pictures import requests as draw
from cute_gemm.analysis.rows import modes, number, percent
from cute_gemm.kernels.sm80.structure import Config, structure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cute_gemm.access import Access
    from cute_gemm.analysis.copy.report import CopyReport
    from cute_gemm.analysis.report import OperandView, Report
    from cute_gemm.analysis.rows import AccessRow

__all__ = ["accesses_html", "copy_fragment", "copy_html", "fragment_html", "report_html"]

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


# ---- sections of a report -----------------------------------------------------------------------


def _heading(report: Report) -> str:
    problem = report.problem
    sizes = f"{problem.m:,} x {problem.n:,} x {problem.k:,}"
    title = f"gemm {problem.op}, {sizes}, {problem.inputs.name}"
    says = f"Kernel {code(report.kernel)} for {code(report.arch)}: what its memory accesses cost."
    return f"<h1>{escape(title)}</h1>\n<p>{says}</p>\n"


def _summary(operands: Iterable[OperandView]) -> str:
    lines = []
    for view in operands:
        cells: list[Any] = [Markup(f"<b>{escape(view.name)}</b>")]
        for space, good, yes, no in (
            ("global", view.coalesced, "coalesced", "not coalesced"),
            ("shared", view.conflict_free, "conflict-free", "bank conflicts"),
        ):
            rows = [row for row in view.rows if row.space == space]
            if not rows:
                cells.append("-")
                continue
            words = yes if good else no
            bad = [row.efficiency for row in rows if not row.good and row.efficiency is not None]
            ways = [row.verdict for row in rows if not row.good]
            if bad:
                words += f": {percent(min(bad))} of the bytes are used"
            elif not good:
                words += f": {', '.join(dict.fromkeys(ways))}"
            cells.append(verdict(good, words))
        lines.append(cells)
    columns = [Column(head, False) for head in ("operand", "global memory", "shared memory")]
    return table("", columns, lines)


def _findings(findings: Sequence[str]) -> str:
    if not findings:
        return "<p>No finding: every access is as good as it can be.</p>\n"
    items = []
    for finding in findings:
        says, mend, how = finding.partition(" Mend: ")
        inner = cell(says)
        if mend:
            inner += f" <b>Mend:</b> {cell(how)}"
        items.append(f"<li>{inner}</li>\n")
    return f"<ul>\n{''.join(items)}</ul>\n"


def _problem(report: Report) -> str:
    problem = report.problem
    said = definitions(
        (
            ("op", f"{problem.op} (BLAS-equivalent of the storage: {problem.blas_op})"),
            ("M, N, K", f"{problem.m:,}, {problem.n:,}, {problem.k:,}"),
            ("types", problem.types),
        )
    )
    columns = [
        Column("matrix", False),
        Column("shape : stride", False),
        Column("major", False),
        Column("ld"),
        Column("dtype", False),
        Column("base aligned to"),
        Column("bytes"),
    ]
    lines = [
        [
            Markup(f"<b>{matrix.name}({','.join(modes(matrix))})</b>"),
            code(matrix),
            matrix.major,
            f"{matrix.ld:,}",
            matrix.dtype + (", conjugated" if matrix.conj else ""),
            f"{matrix.alignment} bytes",
            f"{matrix.nbytes:,}",
        ]
        for matrix in (problem.A, problem.B, problem.C)
    ]
    return said + table("Descriptors", columns, lines)


def _kernel(report: Report) -> str:
    launch, built, config = report.launch, report.resources, report.config
    pairs: list[tuple[str, Any]] = [
        ("kernel", code(report.kernel)),
        ("arch", code(report.arch)),
        (
            "launch",
            f"{launch.grid:,} CTAs x {launch.block} threads, {launch.smem:,} bytes of dynamic "
            "shared memory",
        ),
    ]
    if built is not None:
        spilled = built.spill_stores + built.spill_loads
        pairs.append(
            (
                "build",
                f"{built.registers} registers per thread, {built.shared_static:,} bytes of static "
                f"shared memory, {f'{spilled} bytes spilled' if spilled else 'no spills'}",
            )
        )
    if config is not None:
        pairs.append(("config", code(getattr(config, "name", None) or config)))
    if is_dataclass(config):
        of_config = ((f.name, code(getattr(config, f.name))) for f in fields(config))
        return definitions(pairs) + definitions(of_config, "compact")
    return definitions(pairs)


# ---- accesses -----------------------------------------------------------------------------------


def _name(row: AccessRow) -> str:
    return f"{row.instruction} ({row.part})" if row.part else row.instruction


def _access_cell(row: AccessRow) -> Any:
    """The instruction, and under it the part of the launch."""
    part = f'<small class="part">{cell(row.part)}</small>' if row.part else ""
    return Markup(f"{cell(code(row.instruction))}{part}")


def _link(index: int, anchors: dict[int, str]) -> Any:
    """The number of an access, which leads to its picture."""
    if index not in anchors:
        return f"{index + 1}"
    return Markup(f'<a href="#{anchors[index]}">{index + 1}</a>')


def _tables(rows: Sequence[AccessRow], anchors: dict[int, str]) -> str:

    def columns(*heads: str) -> list[Column]:
        text_heads = ("operand", "access", "requests per", "verdict")
        return [Column(head, head not in text_heads) for head in ("#", "operand", "access", *heads)]

    def first(index: int, row: AccessRow) -> list[Any]:
        return [_link(index, anchors), row.operand, _access_cell(row)]

    edges = any(row.edge_tiles for row in rows)
    global_rows, shared_rows, launch_rows = [], [], []
    for index, row in enumerate(rows):
        start = first(index, row)
        per = [
            str(row.bits or "-"),
            number(row.lanes if row.bits else None),
            f"{number(row.requests)} / {row.unit}",
        ]
        judged = verdict(row.good, row.verdict)
        totals = row.launch
        if row.space == "shared":
            shared_rows.append(
                [*start, *per, number(row.wavefronts), number(row.ideal_wavefronts)]
                + [number(row.conflicts), judged]
            )
        else:
            at_edges = [number(row.edge_tiles), percent(row.edge_efficiency)] if edges else []
            global_rows.append(
                [*start, *per, number(row.sectors), number(row.ideal_sectors), number(row.lines)]
                + [number(row.bytes), percent(row.efficiency), *at_edges, judged]
            )
        launch_rows.append(
            [*start, row.space, number(totals.requests), number(totals.sectors)]
            + [number(totals.ideal_sectors), number(totals.wavefronts), number(totals.conflicts)]
        )
    more = ("edge tiles", "efficiency there") if edges else ()
    each = ("bits", "lanes", "requests")
    totals_columns = columns(
        "space", "requests", "sectors", "ideal sectors", "wavefronts", "conflicts"
    )
    totals_columns[3] = Column("space", False)
    return (
        table(
            "Global memory, per request of the interior tiles",
            columns(*each, "sectors", "ideal", "lines", "bytes", "efficiency", *more, "verdict"),
            global_rows,
        )
        + table(
            "Shared memory, per request",
            columns(*each, "wavefronts", "ideal", "conflicts", "verdict"),
            shared_rows,
        )
        + table("The whole launch", totals_columns, launch_rows)
    )


class _Picture(NamedTuple):
    """A picture, and the accesses that it shows."""

    svg: str
    indices: tuple[int, ...]


def _access_pictures(accesses: Sequence[Access | None]) -> list[_Picture]:
    """Draw the worst request of each access; those with the same request share a picture."""
    found: dict[Any, list[int]] = {}
    for index, access in enumerate(accesses):
        key: Any = None
        if isinstance(access, GlobalAccess):
            worst = draw.worst_request(access)
            if worst is not None:
                run = (worst[1].tobytes(), worst[2].tobytes())
                key = ("global", access.operand, access.instruction, access.bits, *run)
        elif isinstance(access, SharedAccess):
            chosen = draw.worst_banks(access)
            if chosen is not None:
                key = ("shared", access.operand, access.instruction, access.bits)
                key += (access.direction, chosen[1].tobytes())
        if key is not None:
            found.setdefault(key, []).append(index)
    out = []
    for indices in found.values():
        access = accesses[indices[0]]
        svg = draw.access_picture(access) if access is not None else None
        if svg is not None:
            out.append(_Picture(svg, tuple(indices)))
    return out


def _details(summary: str, svgs: Iterable[str], anchor: str = "") -> str:
    figures = "".join(f"<figure>{svg}</figure>\n" for svg in svgs)
    identity = f' id="{anchor}"' if anchor else ""
    return f"<details open{identity}><summary>{summary}</summary>\n{figures}</details>\n"


def _access_figures(
    rows: Sequence[AccessRow],
    pictures: Sequence[_Picture],
    anchors: dict[int, str],
) -> str:
    out = []
    for svg, indices in pictures:
        row = rows[indices[0]]
        numbers = ", ".join(f"#{index + 1}" for index in indices)
        what = f"<b>{numbers} {cell(row.operand)}: {cell(_name(row))}</b>, "
        what += f"{row.direction}, {row.space} memory: {verdict(row.good, row.verdict)}"
        if row.why:
            what += f"; {cell(row.why)}"
        if row.mend:
            what += f". <b>Mend:</b> {cell(row.mend)}"
        out.append(_details(what, [svg], anchors[indices[0]]))
    return "".join(out)


def accesses_html(
    rows: Sequence[AccessRow], accesses: Sequence[Access | None], prefix: str = "cg"
) -> str:
    """Return the tables of some accesses and a picture of the worst request of each.

    Parameters
    ----------
    rows, accesses
        What was found about each access, and the access itself (None: no picture).
    prefix
        What the ids of the pictures begin with: another one for each such part of a page.

    Returns
    -------
    str
        HTML without a style sheet: it belongs into an element of class ``cute-gemm`` of a page made
        by ``page_html`` or ``fragment``.

    Raises
    ------
    ValueError
        When there are not as many rows as accesses.

    Examples
    --------
    ``accesses_html(report.rows, report.accesses)``.
    """
    if len(rows) != len(accesses):
        raise ValueError(f"there are {len(rows)} rows and {len(accesses)} accesses")
    pictures = _access_pictures(accesses)
    anchors = {
        index: f"{prefix}-access-{picture.indices[0] + 1}"
        for picture in pictures
        for index in picture.indices
    }
    shown = _access_figures(rows, pictures, anchors)
    intro = (
        "<p>The worst request of each access, of the first tile for global memory. The numbers "
        "in the cells are lanes; the mouse over a cell shows its bytes.</p>\n"
    )
    return section("Memory accesses", _tables(rows, anchors)) + section(
        "Requests, drawn", intro + shown if shown else ""
    )


def _tile_pictures(report: Report) -> str:
    """The thread-value layouts of the tiled copies, and the tiles in shared memory."""
    out = []
    config = report.config
    if isinstance(config, Config):
        parts = structure(config)
        for plan in parts.operands:
            threads, values = plan.gmem_copy.layouts
            title = f"{plan.source}: gmem tiled copy, threads {threads}, values {values}"
            svg = draw.tv_layout(plan.gmem_copy.partition, plan.gmem_copy.tile, title)
            out.append(_details(f"<b>{plan.source}</b>: thread-value layout, gmem copy", [svg]))
    seen = set()
    for access in report.accesses:
        if not isinstance(access, SharedAccess) or access.layout is None:
            continue
        key = (access.operand, str(access.layout))
        if key in seen or access.layout.rank != 2:
            continue
        seen.add(key)
        extents = access.layout.extents
        title = f"{access.operand}: tile in shared memory"
        svg = draw.shared_layout(
            access.layout, (extents[0], extents[1]), access.element_bits, title
        )
        out.append(_details(f"<b>{escape(access.operand)}</b>: tile in shared memory", [svg]))
    return "".join(out)


# ---- whole pages --------------------------------------------------------------------------------


def _body(report: Report, prefix: str) -> str:
    return "".join(
        chain(
            [_heading(report)],
            [section("Verdict", _summary(report.operands) + _findings(report.findings))],
            [section("Problem", _problem(report))],
            [section("Kernel", _kernel(report))],
            [section("Performance", definitions(report.performance.lines()))],
            [accesses_html(report.rows, report.accesses, prefix)],
            [section("Tiles, drawn", _tile_pictures(report))],
            [section("Terms", definitions(_TERMS))],
        )
    )


def report_html(report: Report) -> str:
    """Return a report as one HTML file that needs nothing beside it.

    Parameters
    ----------
    report
        The report; its ``accesses`` are drawn.

    Returns
    -------
    str
        HTML5 in UTF-8, with its style sheet and its pictures inline, no script and no reference to
        the network. It prints on A4, landscape.

    Examples
    --------
    ``Path("report.html").write_text(report_html(report), encoding="utf-8")``
    """
    problem = report.problem
    title = f"gemm {problem.op} {problem.m}x{problem.n}x{problem.k} {problem.inputs.name}"
    return page_html(f"{title}, {report.kernel}", _body(report, "cg"))


def fragment_html(report: Report) -> str:
    """Return a report as a ``<div>`` with its own style: what ``_repr_html_`` gives a notebook.

    Its ids follow from what it says, so that the cells of different reports do not collide.

    Examples
    --------
    ``IPython.display.HTML(fragment_html(report))``
    """
    return fragment(_body(report, _prefix(report)))


def _copy_body(report: CopyReport, prefix: str) -> str:
    covers = f"one copy covers ({report.tile[0]},{report.tile[1]})"
    named = ("tensor", "smem", "threads", "values")
    asked: list[tuple[str, Any]] = [
        (name, code(getattr(report, name))) for name in named if getattr(report, name)
    ]
    asked += [("tile", covers), ("base address", f"aligned to {report.base_alignment} bytes")]
    heading = f"<h1>copy {cell(report.atom)} of {cell(report.dtype)}</h1>\n"
    return (
        heading
        + section("Verdict", _findings([*report.findings, *report.alternatives]))
        + section("Copy", definitions(asked))
        + accesses_html(report.rows, report.accesses, prefix)
        + section("Terms", definitions(_TERMS))
    )


def copy_html(report: CopyReport) -> str:
    """Return the report of a copy as one HTML file, as ``report_html`` does for a kernel's."""
    return page_html(f"copy {report.atom}, {report.tensor}", _copy_body(report, "cg"))


def copy_fragment(report: CopyReport) -> str:
    """Return the report of a copy as a ``<div>``, as ``fragment_html`` does for a kernel's."""
    return fragment(_copy_body(report, _prefix(report)))


def _prefix(report: Report | CopyReport) -> str:
    """What ids begin with: it follows from what a report says."""
    return "cg-" + sha256(report.to_json().encode()).hexdigest()[:8]
