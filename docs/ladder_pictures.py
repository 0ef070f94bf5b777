"""The pictures of docs/ladder.md, by name; `docs/make_pictures.py` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import cute_gemm as cg
from cute_gemm.cute.atoms import MMA_ATOMS
from cute_gemm.rendering import pictures as draw
from cute_gemm.rendering.pictures.svg import (
    CELL_TEXT,
    GREY,
    INK,
    TINTS,
    Item,
    document,
    group,
    number,
    path,
    rect,
    text,
)  # fmt: skip
from cute_gemm.report.report import Report

#: Tints of A, of B and of C.
A, B, C = TINTS[:3]
_WORDS = 'font-size="12"'
_MIDDLE = 'font-size="12" text-anchor="middle"'
_SMALL = f'font-size="11" fill="{GREY}"'


#: What draws all pictures, and the architecture of those of the ladder.
SCRIPT, ARCH = "python docs/make_pictures.py", "sm_90a"


class Drawn(NamedTuple):
    """An access of a kernel as its report draws it: the report's options, and the access."""

    options: dict[str, Any]
    operand: str
    instruction: str

    @property
    def command(self) -> str:
        """The command that draws the report."""
        words = " ".join(f"--{name} {value}" for name, value in self.options.items())
        return f"cute-gemm analyze NN -m 4096 -n 4096 -k 4096 {words} --html report.html"

    @property
    def svg(self) -> str:
        """The picture of the first access of the operand with that instruction."""
        report = analyzed(**self.options)
        of = zip(report.accesses, report.rows, strict=True)
        name = self.operand, self.instruction
        found = next(access for access, row in of if (row.operand, row.instruction) == name)
        return draw.access_picture(found) or ""


@cache
def analyzed(k: int = 4096, **options: Any) -> Report:
    """Return the report of a kernel on column-major operands."""
    return cg.analyze("NN", m=4096, n=4096, k=k, **options)


# ---- the matrices -------------------------------------------------------------------------------

_SIDE, _GAP = 150.0, 26.0


class Mark(NamedTuple):
    """A part of a matrix: rows and columns as fractions of its extents, and a label within."""

    matrix: str
    rows: tuple[float, float]
    columns: tuple[float, float]
    fill: str
    label: str = ""


def matrices(title: str, caption: list[str], marks: list[Mark], legend: list[Item]) -> str:
    """Draw C with A on its left and B above it, and parts of them."""
    far = _SIDE + _GAP
    corners = {"A": (0.0, far + 14), "B": (far, 14.0), "C": (far, far + 14)}
    names = {"A": "A (M,K)", "B": "B (K,N)", "C": "C (M,N)"}
    body = []
    for name, (x, y) in corners.items():
        body.append(rect(x, y, _SIDE, _SIDE, f'fill="#ffffff" stroke="{GREY}"'))
        body.append(text(x, y - 4, names[name], _SMALL))
    for mark in marks:
        x, y = corners[mark.matrix]
        x, y = x + mark.columns[0] * _SIDE, y + mark.rows[0] * _SIDE
        width = (mark.columns[1] - mark.columns[0]) * _SIDE
        height = (mark.rows[1] - mark.rows[0]) * _SIDE
        body.append(rect(x, y, width, height, f'fill="{mark.fill}" stroke="{INK}"'))
        if mark.label:
            body.append(text(x + width / 2, y + height / 2 + 4, mark.label, _MIDDLE))
    return document(title, caption, body, (far + _SIDE, 2 * far), legend)


def host() -> str:
    """One element of C, with its row and column."""
    marks = [
        Mark("A", (0.3, 0.36), (0, 1), A),
        Mark("B", (0, 1), (0.55, 0.61), B),
        Mark("C", (0.3, 0.36), (0.55, 0.61), C),
    ]
    legend = [
        Item(A, "a row of A"),
        Item(B, "a column of B"),
        Item(C, "the element of C: the sum of their K products"),
    ]
    caption = ["C[i, j] = A[i, 0] B[0, j] + A[i, 1] B[1, j] + ... + A[i, K-1] B[K-1, j]"]
    return matrices("host: an element of C is a sum of K products", caption, marks, legend)


def panels(report: Report) -> str:
    """The panels of smem_full_k."""
    rows, columns, _ = report.config.tile
    marks = [
        Mark("A", (0.3, 0.45), (0, 1), A),
        Mark("B", (0, 1), (0.5, 0.65), B),
        Mark("C", (0.3, 0.45), (0.5, 0.65), C),
    ]
    legend = [
        Item(A, "A's panel, in shared memory"),
        Item(B, "B's panel, in shared memory"),
        Item(C, f"the CTA's tile of C, {rows} x {columns}, a thread per element"),
    ]
    caption = [
        f"The CTA copies both panels once. Then {columns} threads use each word of A, and {rows} "
        f"threads each word of B. The panels have (bM + bN) K words: {report.launch.smem:,} bytes "
        f"for K = {report.problem.k:,}. Not to scale."
    ]
    return matrices("smem_full_k: whole panels of A and B", caption, marks, legend)


def steps(report: Report) -> str:
    """The steps along k of smem_tiled."""
    rows, columns, depth = report.config.tile
    cuts, now = np.linspace(0, 1, 7).tolist(), 2
    marks = [
        Mark("A", (0.3, 0.45), span, A if n == now else "#ffffff", "now" * (n == now))
        for n, span in enumerate(pairwise(cuts))
    ]
    marks += [
        Mark("B", span, (0.5, 0.65), B if n == now else "#ffffff", "now" * (n == now))
        for n, span in enumerate(pairwise(cuts))
    ]
    marks.append(Mark("C", (0.3, 0.45), (0.5, 0.65), C))
    legend = [
        Item(A, f"A's tile, {rows} x {depth}"),
        Item(B, f"B's tile, {columns} x {depth}"),
        Item("#ffffff", "other steps: not in shared memory"),
        Item(C, "the CTA's tile of C: accumulators in registers"),
    ]
    caption = [
        f"K is cut into steps of {depth}. In each step the CTA copies both tiles, waits, "
        f"multiplies, and waits before the next tiles replace these. The tiles take "
        f"{report.launch.smem:,} bytes for any K. Not to scale."
    ]
    return matrices("smem_tiled: K in steps", caption, marks, legend)


# ---- the products of a thread -------------------------------------------------------------------


def thread_products(report: Report) -> str:
    """Draw what a thread reads of a column of A's tile and of B's, and its products."""
    cell, config = 21.0, report.config
    rows, columns = config.thread_tile
    run_a, run_b = (layout.shape[0] for layout in config.values)
    x, y, body = 2 * cell, 2 * cell, []
    for i in range(rows):
        body.append(rect(0, y + i * cell, cell, cell, f'fill="{A}" stroke="#888888"'))
        body += [
            rect(x + j * cell, y + i * cell, cell, cell, f'fill="{C}" stroke="#888888"')
            for j in range(columns)
        ]
    for j in range(columns):
        body.append(rect(x + j * cell, 0, cell, cell, f'fill="{B}" stroke="#888888"'))
    outline = f'fill="none" stroke="{INK}" stroke-width="2"'
    body += [rect(0, y + i * cell, cell, run_a * cell, outline) for i in range(0, rows, run_a)]
    body += [rect(x + j * cell, 0, run_b * cell, cell, outline) for j in range(0, columns, run_b)]
    made, words = rows * columns, rows + columns
    loads = rows // run_a + columns // run_b
    legend = [
        Item(A, "a word of A"),
        Item(B, "a word of B"),
        Item(C, "a product, added to an accumulator"),
        Item("#ffffff", "thick outline: one load from shared memory"),
    ]
    products = f"{made} product{'s' * (made > 1)}"
    caption = [
        f"{words} words for {products} in {loads} loads: {words / made:.4g} words per product. "
        "One thread and one column k of the tiles in shared memory."
    ]
    title = f"{config.kernel}: a thread's products"
    return document(title, caption, body, (x + columns * cell, y + rows * cell), legend)


# ---- the results of a warp ----------------------------------------------------------------------


def _results(report: Report) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of C's tile that each thread of the first warp holds: int [32, values]."""
    config = report.config
    first = np.asarray([config.first_results(thread) for thread in range(32)])
    rows, columns = first % config.tile[0], first // config.tile[0]
    m, n = (np.asarray([layout(i) for i in range(layout.size)]) for layout in config.values)
    return rows[:, None] + m, columns[:, None] + n


def warp_tile(report: Report) -> str:
    """Draw which lanes of a warp hold which 4 x 4 results of C, and what the warp reads."""
    cell, high, body = 26.0, 17.0, []
    rows, columns = _results(report)
    owner: dict[tuple[int, int], int] = {}
    for lane in range(32):
        for m in set((rows[lane] // 4).tolist()):
            for n in set((columns[lane] // 4).tolist()):
                owner[m, n] = lane
    down, across = (1 + max(place[mode] for place in owner) for mode in (0, 1))
    body += [
        rect(n * cell, m * high, cell, high, f'fill="{TINTS[lane % 8]}"')
        for (m, n), lane in owner.items()
    ]
    body.append(path(
        [f"M0 {number(m * high)}h{number(across * cell)}" for m in range(down + 1)]
        + [f"M{number(n * cell)} 0v{number(down * high)}" for n in range(across + 1)],
        'stroke="#888888"',
    ))  # fmt: skip
    labels = [
        text((n + 0.5) * cell, (m + 0.5) * high + 4, str(lane)) for (m, n), lane in owner.items()
    ]
    body.append(group(CELL_TEXT, labels))
    legend = [Item("#ffffff", "4 x 4 results of a lane, and its number", text="7")]
    caption = [
        f"{4 * down} x {4 * across} results, M down and N across. For each column of the tiles the "
        f"warp loads {4 * down} + {4 * across} = {4 * (down + across)} different words."
    ]
    title = f"{report.config.kernel}: the results of warp 0"
    return document(title, caption, body, (across * cell, down * high), legend)


# ---- time ---------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Something that is busy from ``start`` on, for ``length``."""

    start: float
    length: float
    label: str
    fill: str


_UNIT = 22.0


def timeline(title: str, caption: str, rows: dict[str, list[Span]], legend: list[Item]) -> str:
    """Draw what is busy when. A schema: nothing is measured."""
    left, body, y = 66.0, [], 0.0
    end = max(span.start + span.length for spans in rows.values() for span in spans)
    for name, spans in rows.items():
        body.append(text(left - 10, y + 17, name, f'{_WORDS} text-anchor="end"'))
        body.append(path([f"M{number(left)} {number(y + 26)}h{number(end * _UNIT)}"],
                         'stroke="#cccccc"'))  # fmt: skip
        for span in spans:
            box = (left + span.start * _UNIT, y, span.length * _UNIT, 24.0)
            body.append(rect(*box, f'fill="{span.fill}" stroke="{INK}" stroke-width="0.8"'))
            middle = left + (span.start + span.length / 2) * _UNIT
            body.append(text(middle, y + 16, span.label, _MIDDLE))
        y += 32
    body.append(text(left, y + 10, "time from left to right; not to scale", _SMALL))
    return document(title, [caption], body, (left + end * _UNIT + 4, y + 16), legend)


_COPY, _PRODUCTS = Item(A, "copies to shared memory"), Item(C, "products")


def in_turn(title: str, caption: str, tiles: int, copy: float) -> str:
    """Copy, wait, multiply, tile after tile."""
    copies = [Span(k * (copy + 2), copy, f"tile {k}", A) for k in range(tiles)]
    products = [Span(k * (copy + 2) + copy, 2, f"tile {k}", C) for k in range(tiles)]
    rows = {"copies": copies, "products": products}
    return timeline(title, caption, rows, [_COPY, _PRODUCTS])


def double_buffered() -> str:
    """Two buffers."""
    copies = [Span(2 * k, 2, f"tile {k}", A if k % 2 == 0 else TINTS[6]) for k in range(5)]
    products = [Span(2 * k + 2, 2, f"tile {k}", C) for k in range(5)]
    legend = [
        Item(A, "copies to shared memory, buffer 0"),
        Item(TINTS[6], "buffer 1"),
        _PRODUCTS,
    ]
    caption = (
        "The CTA copies a k tile into one buffer while it multiplies the previous tile from the "
        "other. A k tile takes one barrier instead of two."
    )
    rows = {"copies": copies, "products": products}
    return timeline("double_buffered: two buffers", caption, rows, legend)


def sm80_pipeline(stages: int) -> str:
    """A tensor core kernel with a ring of stages."""
    rows: dict[str, list[Span]] = {}
    tiles = stages + 2
    for stage in range(stages):
        mine = range(stage, tiles, stages)
        # All stages but one are loaded ahead; a stage is free when its tile has been multiplied.
        starts = [k * 0.4 if k < stages - 1 else 4 + 2 * (k - stages + 1) for k in mine]
        spans = [Span(at, 4, f"tile {k}", A) for at, k in zip(starts, mine, strict=True)]
        rows[f"stage {stage}"] = spans
    rows["products"] = [Span(4 + 2 * k, 2, f"tile {k}", C) for k in range(tiles - 1)]
    caption = (
        "Several copies of k tiles are in flight at a time, each to a stage of shared memory. The "
        "latency of a copy is longer than the products of a tile. The CTA waits for it once, at "
        "the start."
    )
    title = f"sm80_pipeline: a ring of {stages} stages"
    return timeline(title, caption, rows, [_COPY, _PRODUCTS])


def sm90_wgmma(stages: int) -> str:
    """Producer and consumers over two tiles of C."""
    shades = (TINTS[0], TINTS[6])
    # Loads of `stages` tiles run ahead; then each waits until a stage is released.
    loads, products = [], []
    tiles, of_c = 5, 2
    clock = 2.0
    done: list[float] = []
    for tile in range(of_c):
        for k in range(tiles):
            n = tile * tiles + k
            start = 0.5 * n if n < stages else max(done[n - stages], loads[-1].start + 0.5)
            loads.append(Span(start, 0.5, str(n % stages), shades[tile]))
            begin = max(clock, start + 1.5)
            products.append(Span(begin, 1, f"k {k}", C))
            clock = begin + 1
            done.append(clock)
        clock += 3
    epilogues = [Span(done[tile * tiles + tiles - 1], 3, "C", TINTS[3]) for tile in range(of_c)]
    rows = {"TMA loads": loads, "wgmma": products, "epilogue": epilogues}
    legend = [
        Item(shades[0], "load of a k tile into the stage with this number", text="2"),
        Item(shades[1], "the same for the next tile of C"),
        Item(C, "wgmma of a k tile"),
        Item(TINTS[3], "accumulators stored to C by TMA"),
    ]
    caption = (
        f"One thread issues the loads of A and B into a ring of {stages} stages. It loads a stage "
        "again as soon as the consumers have released it. The CTA computes several tiles of C: "
        "while the consumers store the accumulators of the first, the stages fill with k tiles of "
        "the second."
    )
    return timeline("sm90_wgmma: producer, consumers, persistent grid", caption, rows, legend)


def fragment() -> str:
    """Which lane holds which elements of A for mma.sync."""
    atom = MMA_ATOMS["SM80_16x8x16_F32F16F16F32_TN"]
    rows, _, depth = atom.shape_mnk
    values = atom.a.size // atom.threads
    places = np.asarray(
        [[atom.a(t + atom.threads * v) for v in range(values)] for t in range(atom.threads)]
    )
    table = np.stack([places % rows, places // rows], axis=-1)
    title = "tensor_core: A of an mma.sync.m16n8k16, float16"
    return draw.tv_layout(table, (rows, depth), title)


# ---- all of them --------------------------------------------------------------------------------


def accesses() -> dict[str, Drawn]:
    """Return the pictures that the reports of kernels have, by name."""

    def of(kernel: str, operand: str, instruction: str, dtype: str = "float32") -> Drawn:
        return Drawn({"dtype": dtype, "kernel": kernel, "arch": ARCH}, operand, instruction)

    return {
        "naive": of("naive", "B", "ld.global"),
        "coalesced": of("coalesced", "A", "ld.global"),
        "vectorized_banks": of("vectorized", "A", "ld.shared"),
        "bank_free_banks": of("bank_free", "A", "ld.shared"),
        "warp_tiled_banks": of("warp_tiled", "A", "ld.shared"),
        "tensor_core_banks": of("tensor_core", "A", "ldmatrix.x4.trans", "float16"),
    }


def drawn_by(name: str) -> str:
    """Return the command that draws a picture of the ladder."""
    picture = accesses().get(name)
    return picture.command if picture else SCRIPT


def ladder() -> Iterator[tuple[str, str]]:
    """Yield the name of each picture and its SVG."""

    def report(kernel: str, dtype: str = "float32", k: int = 4096) -> Report:
        return analyzed(k, dtype=dtype, kernel=kernel, arch=ARCH)

    yield from ((name, drawn.svg) for name, drawn in accesses().items())
    yield "host", host()
    yield "smem_full_k", panels(report("smem_full_k", k=1024))
    yield "smem_tiled", steps(report("smem_tiled"))
    for name in ("smem_tiled", "register_rows", "thread_tile_1d", "thread_tile_2d", "vectorized"):
        yield f"{name}_products", thread_products(report(name))
    for name in ("bank_free", "warp_tiled"):
        yield f"{name}_warp", warp_tile(report(name))
    caption = "The CTA copies a k tile, waits, multiplies, and waits again."
    yield "warp_tiled_time", in_turn("warp_tiled: one buffer", caption, 3, 2)
    yield "double_buffered", double_buffered()
    yield "tensor_core", fragment()
    yield "tensor_core_time", in_turn("tensor_core: one tile at a time", caption, 2, 4)
    yield "sm80_pipeline", sm80_pipeline(report("sm80_pipeline", "float16").config.stages)
    yield "sm90_wgmma", sm90_wgmma(report("sm90_wgmma", "float16").config.stages)
