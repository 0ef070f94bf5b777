"""Pictures of tiles: which thread holds an element, and where it lies in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cute_gemm._text import counted
from cute_gemm.access import smem
from cute_gemm.rendering.pictures import svg

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cute_gemm.cute.layout import Layout

#: Cells from which a tile is cropped, and the width of a row of cells in pixels.
_ROWS, _GRID_WIDTH = 32, 960


def _vector(index: np.ndarray, most: int) -> tuple[int, int]:
    """Return the axis along which ``index`` counts up in aligned groups, and a group's width."""
    best = (0, 1)
    for axis in (0, 1):
        lines = np.moveaxis(index, axis, -1)
        width = 2
        while width <= most and lines.shape[-1] % width == 0:
            groups = lines.reshape(-1, width)
            first = groups[:, :1]
            fits = (groups == first + np.arange(width)) & (first % width == 0)
            if not (fits | (groups < 0)).all() or ((groups < 0).any(1) & (first[:, 0] >= 0)).any():
                break
            if width > best[1]:
                best = (axis, width)
            width *= 2
    return best


def _drawn(
    title: str, captions: Iterable[str], labels: list[list[tuple[str, str]]], fills: np.ndarray,
    heads: tuple[range, range], legend: list[svg.Item],
) -> str:  # fmt: skip
    """Return the picture of a grid of cells.

    A cell has two labels and a colour. ``fills``, int [rows, columns], are indices into ``TINTS``,
    -1 for blank; ``heads`` the numbers of rows and columns.
    """
    rows, columns = fills.shape
    first = max((svg.cell_width(a) for row in labels for a, _ in row), default=0)
    second = max((svg.cell_width(b) for row in labels for _, b in row), default=0)
    one_line = columns * (first + second + 16) <= _GRID_WIDTH
    wide = max(first + second + 16 if one_line else max(first, second) + 7, 24)
    high = 19 if one_line else 30
    left, top = 44, 34

    places: dict[int, list[tuple[float, float]]] = {}
    words: list[str] = []
    for i, row in enumerate(labels):
        for j, (a, b) in enumerate(row):
            fill = int(fills[i, j])
            x, y = left + j * wide, top + i * high
            places.setdefault(fill, []).append((x, y))
            if fill == -1:
                continue
            for n, line in enumerate([f"{a} {b}"] if one_line else [a, b]):
                words += [svg.text(x + wide / 2, y + 13 + 12 * n, line)] * bool(line)
    parts = []
    for fill, where in sorted(places.items()):
        tint, stroke = (svg.TINTS[fill], svg.INK) if fill >= 0 else ("#ffffff", "#bbbbbb")
        look = f'fill="{tint}" stroke="{stroke}" stroke-width="0.7"'
        parts.append(f'<path d="{svg.boxes(where, wide, high)}" {look}/>')
    parts.append(svg.group(f'{svg.CELL_TEXT} fill="{svg.INK}"', words))
    parts.append(svg.text(0, 11, "mode 0 down, mode 1 across", f'font-size="11" fill="{svg.GREY}"'))
    # Leave out column numbers that would overlap.
    every = 1
    while every * wide < svg.cell_width(str(max(heads[1], default=0))) + 6:
        every *= 2
    sides = [
        svg.text(left + (j + 0.5) * wide, top - 5, str(heads[1][j]), 'text-anchor="middle"')
        for j in range(0, columns, every)
    ]
    sides += [
        svg.text(left - 6, top + i * high + high / 2 + 4, str(head), 'text-anchor="end"')
        for i, head in enumerate(heads[0])
    ]
    parts.append(svg.group(f'font-family="{svg.MONO}" font-size="10" fill="{svg.GREY}"', sides))
    size = left + columns * wide + 1, top + rows * high + 1
    return svg.document(title, [*filter(None, captions)], parts, size, legend)


def _swatches(names: Iterable[str], label: str) -> list[svg.Item]:
    """Return a row of tints with names inside, and one label after the last."""
    row = [svg.Item(tint, "", text=name) for name, tint in zip(names, svg.TINTS, strict=False)]
    return [*row[:-1], row[-1]._replace(label=label)]


def _grid(
    index: np.ndarray, extents: tuple[int, int], most: int
) -> tuple[np.ndarray, tuple[range, range], tuple[int, int], str]:
    """Crop a tile to a size that can be drawn, and join neighbours in cells.

    Return the first number of each cell, its rows and columns, the axis along which a cell has
    elements and their number (at most ``most``), and a note if the tile is cropped.
    """
    axis, width = _vector(index, most)
    step = (width, 1) if axis == 0 else (1, width)
    rows, columns = min(extents[0], _ROWS * step[0]), min(extents[1], _GRID_WIDTH // 30 * step[1])
    note = f"Shown: the first {rows}x{columns} of {extents[0]}x{extents[1]}."
    heads = range(0, rows, step[0]), range(0, columns, step[1])
    first = index[: rows : step[0], : columns : step[1]]
    return first, heads, (axis, width), note * ((rows, columns) != tuple(extents))


def tv_layout(
    table: np.ndarray, extents: tuple[int, int], title: str = "thread-value layout"
) -> str:
    """Draw which thread holds each element of a tile, and as which of its values.

    ``table``, int [threads, values, 2], has coordinates in the tile (mode 0 down, mode 1 across),
    -1 for none. A large tile is cropped, with a note; values that are consecutive along a mode
    share a cell (``T0 V0-7``).
    """
    table = np.asarray(table, np.int64)
    if table.ndim != 3 or table.shape[-1] != 2:
        raise ValueError(f"table is of shape {table.shape}; expected [threads, values, 2]")
    threads, values, _ = table.shape
    power = 1 << max(1, values.bit_length())
    index = np.arange(threads)[:, None] * power + np.arange(values)
    fits = ((table >= 0) & (table < np.asarray(extents))).all(axis=-1)
    holders = np.zeros(extents, np.int64)
    np.add.at(holders, tuple(table[fits].T), 1)
    cells = np.full(extents, -1, np.int64)
    # The last write wins: the first thread.
    order = np.argsort(-index[fits], kind="stable")
    cells[tuple(table[fits][order].T)] = index[fits][order]

    first, heads, (axis, width), note = _grid(cells, extents, values)
    owner, value = first // power, first % power
    fills = np.where(first < 0, -1, owner % len(svg.TINTS))

    def label(thread: int, v: int) -> tuple[str, str]:
        values = f"V{v}" if width == 1 else f"V{v}-{v + width - 1}"
        return ("", "") if thread < 0 else (f"T{thread}", values)

    holds = zip(np.where(first < 0, -1, owner).tolist(), value.tolist(), strict=True)
    labels = [list(map(label, *row)) for row in holds]
    caption = f"{counted(threads, 'thread')}, {counted(values, 'value')} each, on a tile of "
    caption += f"{extents[0]}x{extents[1]}."
    if width > 1:
        caption += f" A cell is {width} elements along mode {axis}."
    if holders.max(initial=0) > 1:
        caption += f" Up to {holders.max()} threads hold the same element; one is named."
    legend = [svg.Item("#ffffff", "thread and its values", text="T0 V0")]
    kinds = min(threads, len(svg.TINTS))
    legend += _swatches(map(str, range(kinds)), "thread mod 8")
    if (fills == -1).any():
        legend.append(svg.Item("#ffffff", "no thread", stroke="#bbbbbb"))
    return _drawn(title, (caption, note), labels, fills, heads, legend)


def shared_layout(
    layout: Layout, extents: tuple[int, int], element_bits: int,
    title: str = "tile in shared memory",
) -> str:  # fmt: skip
    """Draw where the elements of a tile lie in shared memory: offsets, coloured by bank.

    ``layout`` is (mode 0, mode 1) -> offset in elements. A large tile is cropped, with a note;
    contiguous elements, up to 16 bytes, share a cell.
    """
    rows, columns = np.ogrid[: extents[0], : extents[1]]
    offsets = np.broadcast_to(layout(rows, columns), extents).astype(np.int64)
    first, heads, (axis, width), note = _grid(offsets, extents, max(1, 128 // element_bits))
    bank = first * element_bits // 8 // smem.WORD % smem.BANKS
    cells = zip(first.tolist(), bank.tolist(), strict=True)
    labels = [[(str(at), f"b{b}") for at, b in zip(*row, strict=True)] for row in cells]
    caption = f"{layout}, {element_bits}-bit elements."
    if width > 1:
        size_ = width * element_bits // 8
        caption += f" A cell is {width} elements ({size_} bytes) along mode {axis}"
        caption += ", numbered by the first."
    caption += " Cells of one colour lie in the same banks."
    legend = [svg.Item("#ffffff", "offset in elements, and its bank", text="72 b4")]
    legend += _swatches((f"{4 * n}-{4 * n + 3}" for n in range(len(svg.TINTS))), "banks")
    return _drawn(title, (caption, note), labels, bank // 4, heads, legend)
