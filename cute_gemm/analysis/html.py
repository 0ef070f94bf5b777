"""The report as one HTML file: no script, no network, pictures inline; and as a notebook's cell."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from hashlib import sha256
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.analysis import draw
from cute_gemm.analysis.rows import modes, number, percent
from cute_gemm.kernels.base import GlobalAccess, SharedAccess
from cute_gemm.kernels.sm80_structure import Config, structure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cute_gemm.analysis.report import OperandView, Report
    from cute_gemm.analysis.rows import AccessRow
    from cute_gemm.kernels.base import Access

# Everything is under .cute-gemm, so that a notebook's own tables stay as they are.
_STYLE = """
.cute-gemm { color-scheme: light; background: #fff; color: #1b1b1b; max-width: 1100px; padding: 4px;
  font: 14px/1.45 Helvetica, Arial, "Liberation Sans", sans-serif; }
.cute-gemm h1 { font-size: 22px; margin: 0 0 2px; color: inherit; }
.cute-gemm h2 { font-size: 17px; margin: 26px 0 8px; padding-bottom: 3px; color: inherit;
  border-bottom: 1px solid #999; }
.cute-gemm p { margin: 4px 0 8px; }
.cute-gemm .scroll { overflow-x: auto; }
.cute-gemm table { border-collapse: collapse; margin: 4px 0 12px; font-size: 13px; color: inherit;
  font-variant-numeric: tabular-nums; background: #fff; }
.cute-gemm caption { text-align: left; font-weight: bold; padding: 2px 0 5px; color: inherit; }
.cute-gemm th, .cute-gemm td { padding: 3px 9px; border-bottom: 1px solid #ddd; text-align: left;
  vertical-align: baseline; white-space: nowrap; background: #fff; color: inherit; }
.cute-gemm thead th { border-bottom: 1.5px solid #666; font-weight: 600; }
.cute-gemm .n { text-align: right; }
.cute-gemm td.wide { white-space: normal; overflow-wrap: anywhere; }
.cute-gemm code { font-size: 0.93em; color: inherit;
  font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
  background: none; padding: 0; }
.cute-gemm .good { color: #00573f; }
.cute-gemm .bad { color: #9c2f00; font-weight: bold; }
.cute-gemm dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 16px; margin: 4px 0;
  font-size: 13px; font-variant-numeric: tabular-nums; }
.cute-gemm dl.compact { grid-template-columns: repeat(3, max-content 1fr); }
.cute-gemm dt { font-weight: 600; }
.cute-gemm dd { margin: 0; overflow-wrap: anywhere; }
.cute-gemm li { margin: 3px 0; }
.cute-gemm a { color: #004f86; }
.cute-gemm details { border-top: 1px solid #ccc; padding: 7px 0; }
.cute-gemm summary { cursor: pointer; }
.cute-gemm figure { margin: 6px 0; overflow-x: auto; }
.cute-gemm figure svg { display: block; }
@media print {
  .cute-gemm { max-width: none; padding: 0; font-size: 11px; }
  .cute-gemm table, .cute-gemm dl { font-size: 10.5px; }
  .cute-gemm tr, .cute-gemm li, .cute-gemm figure, .cute-gemm dl { break-inside: avoid; }
  .cute-gemm table.short { break-inside: avoid; }
  .cute-gemm thead { display: table-header-group; }
  .cute-gemm h2, .cute-gemm caption, .cute-gemm summary { break-after: avoid; }
  .cute-gemm figure, .cute-gemm .scroll { overflow: visible; }
  .cute-gemm figure svg { max-width: 90%; max-height: 168mm; height: auto; }
  .cute-gemm details::details-content { content-visibility: visible; display: block; }
  .cute-gemm * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
html {{ background: #fff; color-scheme: light; }}
body {{ margin: 20px auto; max-width: 1110px; }}
@page {{ size: A4 landscape; margin: 10mm; }}
@media print {{ body {{ margin: 0; max-width: none; }} }}
{style}</style>
</head>
<body>
<div class="cute-gemm">
{body}
</div>
</body>
</html>
"""

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


class _Column(NamedTuple):
    """A column of a table: its head, and whether it holds numbers."""

    head: str
    numeric: bool = True


class _Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def _cell(value: Any) -> str:
    return value if isinstance(value, _Markup) else escape(str(value), quote=False)


def _table(title: str, columns: Sequence[_Column], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table; numbers to the right, none when there are no rows."""
    if not rows:
        return ""

    def line(tag: str, cells: Sequence[Any]) -> str:
        kinds = [' class="n"' if column.numeric else "" for column in columns]
        inner = (f"<{tag}{k}>{_cell(c)}</{tag}>" for k, c in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(inner)}</tr>\n"

    head = line("th", [column.head for column in columns])
    body = "".join(line("td", row) for row in rows)
    # One that is longer than a page has to be broken; then its head is printed again.
    kind = ' class="short"' if len(rows) <= 25 else ""
    caption = f"<caption>{_cell(title)}</caption>\n" if title else ""
    return (
        f'<div class="scroll"><table{kind}>{caption}<thead>\n{head}</thead>'
        f"<tbody>\n{body}</tbody></table></div>\n"
    )


def _definitions(pairs: Iterable[tuple[str, Any]], kind: str = "") -> str:
    inner = "".join(f"<dt>{_cell(dt)}</dt><dd>{_cell(dd)}</dd>\n" for dt, dd in pairs)
    name = f' class="{kind}"' if kind else ""
    return f"<dl{name}>\n{inner}</dl>\n" if inner else ""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n" if body else ""


def _verdict(good: bool, words: str) -> _Markup:
    """A verdict in words, with a sign and a colour."""
    sign, kind = ("\u2713", "good") if good else ("\u2717", "bad")
    return _Markup(f'<span class="{kind}">{sign} {escape(words, quote=False)}</span>')


def _code(value: Any) -> _Markup:
    return _Markup(f"<code>{escape(str(value), quote=False)}</code>")


# ---- sections of a report -----------------------------------------------------------------------


def _heading(report: Report) -> str:
    problem = report.problem
    title = f"gemm {problem.op}, {problem.m:,} x {problem.n:,} x {problem.k:,}, {problem.A.dtype}"
    says = f"Kernel {_code(report.kernel)} for {_code(report.arch)}: what its memory accesses cost."
    return f"<h1>{escape(title)}</h1>\n<p>{says}</p>\n"


def _summary(operands: Iterable[OperandView]) -> str:
    lines = []
    for view in operands:
        cells: list[Any] = [_Markup(f"<b>{escape(view.name)}</b>")]
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
            cells.append(_verdict(good, words))
        lines.append(cells)
    columns = [_Column(head, False) for head in ("operand", "global memory", "shared memory")]
    return _table("", columns, lines)


def _findings(findings: Sequence[str]) -> str:
    if not findings:
        return "<p>No finding: every access is as good as it can be.</p>\n"
    items = []
    for finding in findings:
        says, mend, how = finding.partition(" Mend: ")
        inner = _cell(says)
        if mend:
            inner += f" <b>Mend:</b> {_cell(how)}"
        items.append(f"<li>{inner}</li>\n")
    return f"<ul>\n{''.join(items)}</ul>\n"


def _problem(report: Report) -> str:
    problem = report.problem
    said = _definitions(
        (
            ("op", f"{problem.op} (BLAS-equivalent of the storage: {problem.blas_op})"),
            ("M, N, K", f"{problem.m:,}, {problem.n:,}, {problem.k:,}"),
            ("types", f"{problem.A.dtype} -> {problem.C.dtype}, compute {problem.compute}"),
        )
    )
    columns = [
        _Column("matrix", False),
        _Column("shape : stride", False),
        _Column("major", False),
        _Column("ld"),
        _Column("dtype", False),
        _Column("base aligned to"),
        _Column("bytes"),
    ]
    lines = [
        [
            _Markup(f"<b>{matrix.name}({','.join(modes(matrix))})</b>"),
            _code(matrix),
            matrix.major,
            f"{matrix.ld:,}",
            matrix.dtype + (", conjugated" if matrix.conj else ""),
            f"{matrix.alignment} bytes",
            f"{matrix.nbytes:,}",
        ]
        for matrix in (problem.A, problem.B, problem.C)
    ]
    return said + _table("Descriptors", columns, lines)


def _kernel(report: Report) -> str:
    launch, built, config = report.launch, report.resources, report.config
    pairs: list[tuple[str, Any]] = [
        ("kernel", _code(report.kernel)),
        ("arch", _code(report.arch)),
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
        pairs.append(("config", _code(getattr(config, "name", None) or config)))
    if is_dataclass(config):
        of_config = ((f.name, _code(getattr(config, f.name))) for f in fields(config))
        return _definitions(pairs) + _definitions(of_config, "compact")
    return _definitions(pairs)


def _performance(report: Report) -> str:
    performance = getattr(report, "performance", None)
    lines = getattr(performance, "lines", None)
    return _definitions(lines()) if callable(lines) else ""


# ---- accesses -----------------------------------------------------------------------------------


def _name(row: AccessRow, access: Access | None) -> str:
    part = getattr(access, "part", "")
    return f"{row.instruction} ({part})" if part else row.instruction


def _link(index: int, anchors: dict[int, str]) -> Any:
    """The number of an access, which leads to its picture."""
    if index not in anchors:
        return f"{index + 1}"
    return _Markup(f'<a href="#{anchors[index]}">{index + 1}</a>')


def _tables(
    rows: Sequence[AccessRow], accesses: Sequence[Access | None], anchors: dict[int, str]
) -> str:
    told = list(enumerate(zip(rows, accesses, strict=True)))

    def columns(*heads: str) -> list[_Column]:
        text_heads = ("operand", "access", "requests per", "verdict")
        return [
            _Column(head, head not in text_heads) for head in ("#", "operand", "access", *heads)
        ]

    def first(index: int, row: AccessRow, access: Access | None) -> list[Any]:
        return [_link(index, anchors), row.operand, _code(_name(row, access))]

    edges = any(row.edge_tiles for row in rows)
    global_rows, shared_rows, launch_rows = [], [], []
    for index, (row, access) in told:
        start = first(index, row, access)
        per = [str(row.bits), number(row.lanes), f"{number(row.requests)} / {row.unit}"]
        verdict = _verdict(row.good, row.verdict)
        totals = row.launch
        if row.space == "shared":
            shared_rows.append(
                [*start, *per, number(row.wavefronts), number(row.ideal_wavefronts)]
                + [number(row.conflicts), verdict]
            )
        else:
            at_edges = [number(row.edge_tiles), percent(row.edge_efficiency)] if edges else []
            global_rows.append(
                [*start, *per, number(row.sectors), number(row.ideal_sectors), number(row.lines)]
                + [number(row.bytes), percent(row.efficiency), *at_edges, verdict]
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
    totals_columns[3] = _Column("space", False)
    return (
        _table(
            "Global memory, per request of the interior tiles",
            columns(*each, "sectors", "ideal", "lines", "bytes", "efficiency", *more, "verdict"),
            global_rows,
        )
        + _table(
            "Shared memory, per request",
            columns(*each, "wavefronts", "ideal", "conflicts", "verdict"),
            shared_rows,
        )
        + _table("The whole launch", totals_columns, launch_rows)
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
    accesses: Sequence[Access | None],
    pictures: Sequence[_Picture],
    anchors: dict[int, str],
) -> str:
    out = []
    for svg, indices in pictures:
        row, access = rows[indices[0]], accesses[indices[0]]
        numbers = ", ".join(f"#{index + 1}" for index in indices)
        what = f"<b>{numbers} {_cell(row.operand)}: {_cell(_name(row, access))}</b>, "
        what += f"{row.direction}, {row.space} memory: {_verdict(row.good, row.verdict)}"
        if row.why:
            what += f"; {_cell(row.why)}"
        if row.mend:
            what += f". <b>Mend:</b> {_cell(row.mend)}"
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
    pictures = _access_pictures(accesses)
    anchors = {
        index: f"{prefix}-access-{picture.indices[0] + 1}"
        for picture in pictures
        for index in picture.indices
    }
    shown = _access_figures(rows, accesses, pictures, anchors)
    intro = (
        "<p>The worst request of each access, of the first tile for global memory. The numbers "
        "in the cells are lanes; the mouse over a cell shows its bytes.</p>\n"
    )
    return _section("Memory accesses", _tables(rows, accesses, anchors)) + _section(
        "Requests, drawn", intro + shown if shown else ""
    )


def _tile_pictures(report: Report) -> str:
    """The thread-value layouts of the tiled copies, and the tiles in shared memory."""
    out = []
    config = report.config
    if isinstance(config, Config):
        parts = structure(config)
        for plan in parts.operands:
            title = (
                f"{plan.source}: gmem tiled copy, threads {plan.gmem_threads}, values "
                f"{plan.gmem_values}"
            )
            svg = draw.tv_layout(plan.gmem_copy.partition, plan.gmem_copy.tile, title)
            out.append(_details(f"<b>{plan.source}</b>: thread-value layout, gmem copy", [svg]))
    seen = set()
    for access in _accesses(report):
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


def _accesses(report: Report) -> Sequence[Access | None]:
    found: Sequence[Access | None] = getattr(report, "accesses", ())
    return found or (None,) * len(report.rows)


# ---- whole pages --------------------------------------------------------------------------------


def page_html(title: str, body: str) -> str:
    """Return a self-contained HTML page around sections.

    Parameters
    ----------
    title
        Plain text: what the browser's tab says.
    body
        HTML, such as ``accesses_html`` returns.

    Examples
    --------
    >>> page_html("a < b", "<p>hello</p>")[:15]
    '<!DOCTYPE html>'
    """
    return _PAGE.format(title=escape(title), style=_STYLE, body=body)


def fragment(body: str) -> str:
    """Return sections as one ``<div>`` with its style sheet, for ``_repr_html_``.

    Examples
    --------
    >>> fragment("<p>hello</p>").startswith("<div")
    True
    """
    return f'<div class="cute-gemm">\n<style>{_STYLE}</style>\n{body}</div>\n'


def _body(report: Report, prefix: str) -> str:
    return "".join(
        chain(
            [_heading(report)],
            [_section("Verdict", _summary(report.operands) + _findings(report.findings))],
            [_section("Problem", _problem(report))],
            [_section("Kernel", _kernel(report))],
            [_section("Performance", _performance(report))],
            [accesses_html(report.rows, _accesses(report), prefix)],
            [_section("Tiles, drawn", _tile_pictures(report))],
            [_section("Terms", _definitions(_TERMS))],
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
    title = f"gemm {problem.op} {problem.m}x{problem.n}x{problem.k} {problem.A.dtype}"
    return page_html(f"{title}, {report.kernel}", _body(report, "cg"))


def fragment_html(report: Report) -> str:
    """Return a report as a ``<div>`` with its own style: what ``_repr_html_`` gives a notebook.

    Its ids follow from what it says, so that the cells of different reports do not collide.

    Examples
    --------
    ``IPython.display.HTML(fragment_html(report))``
    """
    prefix = "cg-" + sha256(report.to_json().encode()).hexdigest()[:8]
    return fragment(_body(report, prefix))
