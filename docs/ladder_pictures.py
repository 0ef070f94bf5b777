"""The pictures of docs/ladder.md, by name; `docs/make_pictures.py` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

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


def access(report: Report, operand: str, instruction: str, title: str = "") -> str:
    """Return the picture of the first access of ``operand`` with that instruction."""
    found = next(
        access
        for access, row in zip(report.accesses, report.rows, strict=True)
        if row.operand == operand and row.instruction.startswith(instruction)
    )
    return draw.access_picture(found, title) or ""


# ---- the matrices -------------------------------------------------------------------------------

_SIDE, _GAP = 176.0, 26.0


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
    left = 120.0  # of the least width of a picture, the middle
    corners = {"A": (left, far + 14), "B": (left + far, 14.0), "C": (left + far, far + 14)}
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
    return document(title, caption, body, (left + 2 * far, 2 * far), legend)


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


class Reads(NamedTuple):
    """The results of a thread along M and N, and the words of a read of A and of B."""

    name: str
    results: tuple[int, int]
    runs: tuple[int, int]


def reads(report: Report) -> Reads:
    """Return the results and reads of a kernel that multiplies by FMA."""
    values = report.config.values
    runs = tuple(layout.shape[0] for layout in values)
    return Reads(report.config.kernel, report.config.thread_tile, runs)


def thread_products(title: str, kernels: list[Reads]) -> str:
    """Draw what a thread reads of a column of A's tile and of B's, and its products."""
    cell, left, body = 21.0, 0.0, []
    down = max(kernel.results[0] for kernel in kernels)
    for kernel in kernels:
        (rows, columns), (run_a, run_b) = kernel.results, kernel.runs
        x, y = left + 2 * cell, 22 + 2 * cell
        body.append(text(left, 11, kernel.name, f'{_WORDS} font-weight="bold"'))
        for i in range(rows):
            body.append(rect(left, y + i * cell, cell, cell, f'fill="{A}" stroke="#888888"'))
            body += [
                rect(x + j * cell, y + i * cell, cell, cell, f'fill="{C}" stroke="#888888"')
                for j in range(columns)
            ]
        for j in range(columns):
            body.append(rect(x + j * cell, 22, cell, cell, f'fill="{B}" stroke="#888888"'))
        outline = f'fill="none" stroke="{INK}" stroke-width="2"'
        body += [
            rect(left, y + i * cell, cell, run_a * cell, outline) for i in range(0, rows, run_a)
        ]
        body += [
            rect(x + j * cell, 22, run_b * cell, cell, outline) for j in range(0, columns, run_b)
        ]
        made, words = rows * columns, rows + columns
        loads = rows // run_a + columns // run_b
        below = y + down * cell + 18
        for n, line in enumerate((
            f"{words} words for {made} product{'s' * (made > 1)}",
            f"in {loads} loads",
            f"{words / made:.4g} words per product",
        )):  # fmt: skip
            body.append(text(left, below + 15 * n, line, _WORDS))
        left += max((columns + 2) * cell, 170) + 40
    legend = [
        Item(A, "a word of A"),
        Item(B, "a word of B"),
        Item(C, "a product, added to an accumulator in a register"),
        Item("#ffffff", "thick outline: one load from shared memory"),
    ]
    caption = ["One thread and one column k of the tiles in shared memory."]
    return document(title, caption, body, (left - 40, 22 + (down + 2) * cell + 60), legend)


# ---- the results of a warp ----------------------------------------------------------------------


def _results(report: Report) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of C's tile that each thread of the first warp holds: int [32, values]."""
    config = report.config
    first = np.asarray([config.first_results(thread) for thread in range(32)])
    rows, columns = first % config.tile[0], first // config.tile[0]
    m, n = (np.asarray([layout(i) for i in range(layout.size)]) for layout in config.values)
    return rows[:, None] + m, columns[:, None] + n


def warp_tiles(title: str, reports: list[Report]) -> str:
    """Draw which lanes of a warp hold which 4 x 4 results of C, and what the warp reads."""
    cell, high, left, body, bottom = 26.0, 17.0, 0.0, [], 0.0
    for report in reports:
        rows, columns = _results(report)
        owner: dict[tuple[int, int], int] = {}
        for lane in range(32):
            for m in set((rows[lane] // 4).tolist()):
                for n in set((columns[lane] // 4).tolist()):
                    owner[m, n] = lane
        down, across = (1 + max(place[mode] for place in owner) for mode in (0, 1))
        body.append(text(left, 11, report.config.kernel, f'{_WORDS} font-weight="bold"'))
        body += [
            rect(left + n * cell, 22 + m * high, cell, high, f'fill="{TINTS[lane % 8]}"')
            for (m, n), lane in owner.items()
        ]
        body.append(path(
            [f"M{number(left)} {number(22 + m * high)}h{number(across * cell)}"
             for m in range(down + 1)]
            + [f"M{number(left + n * cell)} 22v{number(down * high)}" for n in range(across + 1)],
            'stroke="#888888"',
        ))  # fmt: skip
        labels = [
            text(left + (n + 0.5) * cell, 22 + (m + 0.5) * high + 4, str(lane))
            for (m, n), lane in owner.items()
        ]
        body.append(group(CELL_TEXT, labels))
        below = 22 + down * high + 18
        words = 4 * (down + across)
        for n, line in enumerate((
            f"{4 * down} x {4 * across} results of a warp",
            f"{4 * down} + {4 * across} = {words} different words",
            "for each column of the tiles",
        )):  # fmt: skip
            body.append(text(left, below + 15 * n, line, _WORDS))
        bottom = max(bottom, below + 45)
        left += max(across * cell, 220) + 40
    legend = [Item("#ffffff", "4 x 4 results of a lane, and its number", text="7")]
    caption = [
        "The results of warp 0, M down and N across. A lane loads the same number of words in both "
        "kernels. The number of different words that the warp loads is smaller in the second."
    ]
    return document(title, caption, body, (left - 40, bottom), legend)


# ---- time ---------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Something that is busy from ``start`` on, for ``length``."""

    start: float
    length: float
    label: str
    fill: str


_UNIT = 46.0


def timeline(
    title: str, caption: str, rows: list[tuple[str, list[Span]]], legend: list[Item]
) -> str:
    """Draw what is busy when; a row without spans is a heading. A schema: nothing is measured."""
    left, body, y = 150.0, [], 6.0
    end = max(span.start + span.length for _, spans in rows for span in spans)
    for name, spans in rows:
        if not spans:
            body.append(text(0, y + 16, name, f'{_WORDS} font-weight="bold"'))
            y += 24
            continue
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


def _in_turn(tiles: int, copy: float) -> list[tuple[str, list[Span]]]:
    """Copy, wait, multiply, tile after tile."""
    copies = [Span(k * (copy + 2), copy, f"tile {k}", A) for k in range(tiles)]
    products = [Span(k * (copy + 2) + copy, 2, f"tile {k}", C) for k in range(tiles)]
    return [("copies", copies), ("products", products)]


def double_buffered() -> str:
    """One buffer, and two."""
    rows: list[tuple[str, list[Span]]] = [("warp_tiled: one buffer", []), *_in_turn(3, 2)]
    copies = [Span(2 * k, 2, f"tile {k}", A if k % 2 == 0 else TINTS[6]) for k in range(5)]
    products = [Span(2 * k + 2, 2, f"tile {k}", C) for k in range(5)]
    rows += [("double_buffered: two", []), ("copies", copies), ("products", products)]
    legend = [
        Item(A, "copies to shared memory, buffer 0"),
        Item(TINTS[6], "buffer 1"),
        _PRODUCTS,
    ]
    caption = (
        "With two buffers the CTA copies a k tile into one while it multiplies the previous tile "
        "from the other. A k tile takes one barrier instead of two."
    )
    return timeline("double_buffered: copies during products", caption, rows, legend)


def sm80_pipeline(stages: int) -> str:
    """A tensor core kernel without and with a ring of stages."""
    rows: list[tuple[str, list[Span]]] = [("tensor_core", [])]
    copies = [Span(6 * k, 4, f"tile {k}", A) for k in range(2)]
    products = [Span(6 * k + 4, 2, f"tile {k}", C) for k in range(2)]
    rows += [("copies", copies), ("products", products)]
    rows += [(f"sm80_pipeline, {stages} stages", [])]
    tiles = 6
    for stage in range(stages):
        mine = range(stage, tiles, stages)
        # All stages but one are loaded ahead; a stage is free when its tile has been multiplied.
        starts = [k * 0.4 if k < stages - 1 else 4 + 2 * (k - stages + 1) for k in mine]
        spans = [Span(at, 4, f"tile {k}", A) for at, k in zip(starts, mine, strict=True)]
        rows.append((f"stage {stage}", spans))
    rows.append(("products", [Span(4 + 2 * k, 2, f"tile {k}", C) for k in range(tiles - 2)]))
    caption = (
        "Several copies of k tiles are in flight at a time, each to a stage of shared memory. The "
        "latency of a copy is longer than the products of a tile. The CTA waits for it once, at "
        "the start."
    )
    title = "sm80_pipeline: a ring of stages"
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
    rows = [
        ("producer: TMA loads", loads),
        ("consumers: wgmma", products),
        ("consumers: epilogue", epilogues),
    ]
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


def ladder() -> Iterator[tuple[str, str]]:
    """Yield the name of each picture and its SVG."""

    def report(kernel: str, dtype: str = "float32", k: int = 4096) -> Report:
        sizes = {"m": 4096, "n": 4096, "k": k, "dtype": dtype, "arch": "sm_90a"}
        return cg.analyze("NN", **sizes, kernel=kernel)

    of = {
        name: report(name)
        for name in ("naive", "coalesced", "smem_tiled", "register_rows", "thread_tile_1d",
                     "thread_tile_2d", "vectorized", "bank_free", "warp_tiled")
    }  # fmt: skip
    read = {name: reads(of[name]) for name in list(of)[2:]}

    def beside(title: str, *names: str) -> str:
        return thread_products(title, [read[name] for name in names])

    yield "host", host()
    yield "naive", access(of["naive"], "B", "ld.global", "naive: a request for B, NN")
    yield "coalesced", access(of["coalesced"], "A", "ld.global", "coalesced: a request for A, NN")
    yield "smem_full_k", panels(report("smem_full_k", k=1024))
    yield "smem_tiled", steps(of["smem_tiled"])
    title = "a thread uses a word of B for all of its rows"
    yield "register_rows", beside(f"register_rows: {title}", "smem_tiled", "register_rows")
    title = "eight rows, loaded as two vectors"
    yield "thread_tile_1d", beside(f"thread_tile_1d: {title}", "register_rows", "thread_tile_1d")
    title = "an outer product per column k"
    yield "thread_tile_2d", beside(f"thread_tile_2d: {title}", "thread_tile_1d", "thread_tile_2d")
    title = "the same products, in loads of four words"
    yield "vectorized", beside(f"vectorized: {title}", "thread_tile_2d", "vectorized")
    for name in ("vectorized", "bank_free", "warp_tiled"):
        title = f"{name}: a 128-bit load of A's tile in shared memory"
        yield f"{name}_banks", access(of[name], "A", "ld.shared", title)
    title = "warp_tiled: the results of a warp form a compact tile"
    yield "warp_tiled", warp_tiles(title, [of["bank_free"], of["warp_tiled"]])
    yield "double_buffered", double_buffered()
    yield "tensor_core", fragment()
    title = "tensor_core: ldmatrix of A's tile in swizzled shared memory"
    yield "tensor_core_banks", access(report("tensor_core", "float16"), "A", "ldmatrix", title)
    yield "sm80_pipeline", sm80_pipeline(report("sm80_pipeline", "float16").config.stages)
    yield "sm90_wgmma", sm90_wgmma(report("sm90_wgmma", "float16").config.stages)
