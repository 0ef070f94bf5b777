"""The partition of a user's copy: validation and parsing of its threads and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from cute_gemm._text import counted
from cute_gemm.access.accesses import BULK_BYTES
from cute_gemm.copies.atoms import AtomName
from cute_gemm.copies.packed import Packing
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.copies import LANES, TiledCopy, gmem_tiled_copy
from cute_gemm.cute.layout import Layout, column_major, compact
from cute_gemm.cute.notation import parse
from cute_gemm.errors import OptionError

#: Most elements of a tile, and most threads of a CTA.
MOST_ELEMENTS, MOST_THREADS = 1 << 20, 1024


def pair(numbers: Sequence[Any]) -> str:
    """Return two numbers as CuTe prints a coordinate."""
    return f"({int(numbers[0])},{int(numbers[1])})"


def not_with(atom: AtomName, **given: Any) -> None:
    """Raise OptionError for the first argument that is not None: the atom does not take it."""
    for argument, value in given.items():
        if value is not None:
            raise OptionError(f"{argument}={value!r} does not go with atom {atom.text!r}")


def bounded(argument: str, layout: Layout) -> Layout:
    """Return a layout; raise OptionError if it is too large to analyze element by element."""
    if not 0 < layout.size <= MOST_ELEMENTS:
        raise OptionError(
            f"{argument} {layout} has {layout.size:,} elements; expected 1 to {MOST_ELEMENTS:,}: "
            "those of a tile, with the strides of the whole tensor"
        )
    swizzle = layout.swizzle
    high = swizzle.bits + swizzle.base + abs(swizzle.shift) if swizzle else 0
    if high > 40 or sum((extent - 1) * stride for extent, stride in layout.leaves) >> 48:
        raise OptionError(f"{argument} {layout} exceeds the range of memory addresses")
    return layout


def tiled_copy(
    atom: AtomName, layout: Layout, threads: Any, values: Any, tile: Any, tv: Any, size: int,
    packing: Packing | None = None,
) -> TiledCopy:  # fmt: skip
    """Return the elements of the tile that each thread holds; ``packing``: of the arguments."""
    element = universal("", 8 * size)
    if tv is not None:
        if threads is not None or values is not None or tile is None:
            raise OptionError("tv comes with tile, and without threads and values")
        partition = _from_tv(read_tv(tv), covered := extents_of(tile))
        if packing:
            partition = packing.partition(read_tv(tv), partition, covered)
            covered = packing.extents("tile", covered)
        copy = TiledCopy(element, 8 * size, covered, partition)
    elif tile is not None:
        raise OptionError("tile comes with tv; threads and values determine the tile")
    elif threads is not None:
        thread = bijection("threads", threads)
        if packing and packing.bytes > 1 and values is None:
            many = pair((1, 64) if packing.axis else (64, 1))
            raise OptionError(
                f"values are missing: {packing.what}; expected values of a thread, such as {many}"
            )
        value = _vector(atom, layout, size) if values is None else value_layout(values, packing)
        copy = gmem_tiled_copy(element, 8 * size, thread, value)
    elif values is not None:
        raise OptionError(f"values {read_values(values)} come without threads; expected both")
    elif atom.matrix is None:
        raise OptionError(
            f"threads is missing; expected a layout such as '(16,8):(1,16)' for atom {atom.text!r}"
        )
    elif matrix := choose.matrix_copy(atom.matrix, size, layout.extents, choose.unit_mode(layout)):
        return matrix
    else:
        raise OptionError(
            f"tensor {layout} is not a multiple of 8 rows of 16 bytes, as many times as atom "
            f"{atom.text!r} has matrices"
        )
    count = len(copy.partition)
    if count > MOST_THREADS:
        raise OptionError(f"{count} threads; a CTA has at most {MOST_THREADS}")
    if atom.matrix is not None and count % LANES:
        raise OptionError(f"{count} threads; atom {atom.text!r} takes whole warps of {LANES}")
    return copy


def bulk_copy(
    atom: AtomName, layout: Layout, threads: Any, values: Any, tile: Any, tv: Any, size: int,
    packing: Packing | None = None,
) -> TiledCopy:  # fmt: skip
    """Return the copy of a tile, or the whole tensor, by one thread in the order of bytes."""
    not_with(atom, threads=threads, values=values, tv=tv)
    covered = layout.extents[0], layout.extents[1]
    if tile is not None:
        covered = extents_of(tile)
        covered = packing.extents("tile", covered) if packing else covered
    count = prod(covered)
    if count * size % BULK_BYTES:
        raise OptionError(
            f"tile={pair(covered)} has {count * size} bytes; atom {atom.text!r} moves multiples "
            f"of {BULK_BYTES}"
        )
    places = np.indices(covered).reshape(2, -1).T
    clipped = np.minimum(places, np.subtract(layout.extents, 1))
    order = np.argsort(layout(*clipped.T), kind="stable")
    atom_ = universal(atom.verb, 8 * size * count)
    return TiledCopy(atom_, 8 * size, covered, places[order][None])


def bijection(argument: str, given: Any) -> Layout:
    """Return a thread or value layout of two modes; raise OptionError if not a bijection."""
    layout = parse(given)
    if layout.rank == 1:
        mode = layout[0]
        layout = Layout((mode.shape, 1), (mode.stride, 0), layout.swizzle)
    if layout.rank != 2:
        raise OptionError(f"{argument} {layout} has {layout.rank} modes; expected 2 or 1")
    table = bounded(argument, layout).table()
    again = np.ones(layout.size, bool)
    again[np.unique(table, return_index=True)[1]] = False
    if at := np.flatnonzero(again | (table.ravel() >= layout.size))[:1].tolist():
        place = np.unravel_index(at[0], table.shape)
        number = table[place]
        wrong = f"{pair(place)} is number {number} of {layout.size}"
        if number < layout.size:
            wrong = f"number {number} has more than one place, {pair(place)} for instance"
        raise OptionError(
            f"{argument} {layout} do not cover the tile: {wrong}; expected each of 0 to "
            f"{layout.size - 1} once"
        )
    return layout


def read_values(values: Any) -> Layout:
    """Return a value layout; a bare shape, as in fixes, ``(1,8)``, is first mode fastest."""
    shape = re.fullmatch(r"\s*\(\s*_?(\d+)\s*,\s*_?(\d+)\s*\)\s*", str(values))
    return column_major(int(shape[1]), int(shape[2])) if shape else parse(values)


def value_layout(values: Any, packing: Packing | None) -> Layout:
    """Return the layout of a thread's values, in bytes if elements share bytes."""
    layout = bijection("values", read_values(values))
    return packing.layout("values", layout) if packing else layout


def read_tv(tv: Any) -> Layout:
    """Return a TV layout, with or without the name with which CuTe prints it."""
    return parse(re.sub(r"^\s*(TiledLayout_TV|TV Layout tiled)\s*:", "", str(tv)))


def extents_of(tile: Any, argument: str = "tile", most: int = MOST_ELEMENTS) -> tuple[int, int]:
    """Return extents from two integers, or text such as ``(_128,_32)`` or ``128x32``.

    CuTe DSL has a layout for each mode, ``(128:1,32:1)``.
    """
    items = tile if isinstance(tile, Iterable) else ()
    text = tile if isinstance(tile, str) else f"({','.join(map(str, items))})"
    bare = re.sub(r"^\s*(Tiler_MN|Tiler MN)\s*:", "", text)
    part = r"_?(\d+)(?:\s*:\s*_?1)?"
    match = re.fullmatch(rf"\s*\(?\s*{part}\s*[,x]\s*{part}\s*\)?\s*", bare)
    first, second = (int(match[1]), int(match[2])) if match else (0, 0)
    if first < 1 or second < 1 or first * second > most:
        raise OptionError(f"{argument}={tile!r}; expected two extents, such as (128, 32)")
    return first, second


def _from_tv(tv: Layout, tile: tuple[int, int]) -> np.ndarray:
    """Return coordinates [threads, values, 2] in the tile."""
    if tv.rank != 2:
        raise OptionError(f"tv {tv} has {counted(tv.rank, 'mode')}; expected 2")
    table = bounded("tv", tv).table()
    size = tile[0] * tile[1]
    if table.max() >= size:
        raise OptionError(
            f"tv {tv} reaches coordinate {table.max()}; the tile {pair(tile)} has {size}"
        )
    missing = np.setdiff1d(np.arange(size), table)
    if missing.size:
        place = missing[0] % tile[0], missing[0] // tile[0]
        raise OptionError(
            f"tv {tv} does not cover the tile {pair(tile)}: no thread has element {pair(place)}"
        )
    return np.stack([table % tile[0], table // tile[0]], axis=-1)


def _vector(atom: AtomName, layout: Layout, size: int) -> Layout:
    """Return one vector along the contiguous mode, as wide as atom and tensor allow."""
    if atom.matrix is not None:
        raise OptionError(f"values are missing; expected a thread's values for atom {atom.text!r}")
    axis, width = choose.unit_mode(layout), atom.asked(size)
    run = choose.run(layout.table(), axis)
    while run % width:
        width //= 2
    return compact(axis, width)
