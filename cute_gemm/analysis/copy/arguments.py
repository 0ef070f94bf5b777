"""The arguments of ``analyze_copy``, checked and understood."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cute_gemm.analysis.copy.tiles import AtomName, Direction, Space, atom_name
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.copies import LANES, TiledCopy, gmem_tiled_copy
from cute_gemm.cute.layout import Layout
from cute_gemm.cute.notation import Printed, as_printed, parse
from cute_gemm.errors import OptionError
from cute_gemm.problem.arrays import dtype_name
from cute_gemm.problem.dtypes import dtype as dtype_row

#: Elements of the largest tile that is taken, and threads that a CTA may have.
MOST_ELEMENTS, MOST_THREADS = 1 << 20, 1024


@dataclass(frozen=True, eq=False)
class Copy:
    """The question, understood; ``tiled`` moves element by element, or by a matrix atom's rows."""

    atom: AtomName
    dtype: str
    size: int
    alignment: int
    space: Space
    direction: Direction
    layout: Layout
    smem: Layout | None
    tiled: TiledCopy


def understood(
    tensor: Any, threads: Any, values: Any, atom: str, dtype: Any, space: Space | None,
    direction: Direction | None, base_alignment: int, tile: Any, tv: Any, smem: Any,
) -> Copy:  # fmt: skip
    """Check every argument; the first that does not fit is named."""
    name = atom_name(atom)
    row = dtype_row(dtype_name(dtype))
    printed = as_printed(tensor)
    layout = _tile_layout("tensor", printed, row.bytes)
    home = None if smem is None else _tile_layout("smem", as_printed(smem), row.bytes)
    space = _one_of("space", space, ("global", "shared"))
    direction = _one_of("direction", direction, ("load", "store"))
    where: Any = space or printed.space
    if where is None or name.kind == "matrix" or (name.kind == "universal" and name.space):
        where = name.space or "global"
    if space not in (None, where):
        raise OptionError(f"space={space!r} does not fit atom {atom!r}, which is of {where} memory")
    way: Any = name.direction or direction or "load"
    if name.kind == "cp.async" and where == "shared":
        way = "store"
    if direction not in (None, way):
        raise OptionError(f"direction={direction!r} does not fit atom {atom!r}, which is a {way}")
    whole = isinstance(base_alignment, int) and not isinstance(base_alignment, bool)
    if not whole or base_alignment < row.bytes or base_alignment & (base_alignment - 1):
        raise OptionError(
            f"base_alignment={base_alignment!r}; expected a power of two, in bytes, of at least "
            f"the {row.bytes} of {row.name}"
        )
    if home is not None and (where, way) != ("global", "load"):
        raise OptionError(f"smem is the target of a copy from global memory; atom {atom!r} is none")
    if home is not None and home.extents != layout.extents:
        raise OptionError(
            f"smem {home} has extents {_pair(home.extents)}; expected those of the tensor, "
            f"{_pair(layout.extents)}"
        )
    if way == "store":
        _injective("tensor", layout)
    if home is not None:
        _injective("smem", home)
    _fits_elements(name, row.name, 8 * row.bytes)
    tiled = _tiled(name, layout, threads, values, tile, tv, row.bytes)
    if tv is not None and (way == "store" or home is not None):
        _injective("tv", parse(tv))
    for mode, (extent, step) in enumerate(zip(layout.extents, tiled.tile, strict=True)):
        if extent % step:
            raise OptionError(
                f"tensor {layout} has {extent} elements in mode {mode}, which the {step} that one "
                f"copy covers there do not divide; expected a multiple"
            )
    return Copy(name, row.name, row.bytes, base_alignment, where, way, layout, home, tiled)


def _one_of(argument: str, value: Any, choices: tuple[str, ...]) -> Any:
    if value is not None and value not in choices:
        raise OptionError(f"{argument}={value!r} is unknown; expected one of {', '.join(choices)}")
    return value


def _tile_layout(argument: str, printed: Printed, size: int) -> Layout:
    """A tile's layout, with what can be said against it."""
    layout = printed.layout
    if printed.bits not in (None, 8 * size):
        raise OptionError(
            f"{argument} is printed with elements of {printed.bits} bits, and dtype has {8 * size}"
        )
    if layout.rank != 2:
        raise OptionError(
            f"{argument} {layout} has {_modes(layout.rank)}; expected the two of a tile (of a "
            "pipeline: one stage)"
        )
    return _bounded(argument, layout)


def _bounded(argument: str, layout: Layout) -> Layout:
    """Refuse a layout that is too large to be looked at element by element."""
    if not 0 < layout.size <= MOST_ELEMENTS:
        raise OptionError(
            f"{argument} {layout} has {layout.size:,} elements; expected 1 to {MOST_ELEMENTS:,}: "
            "those of a tile, with the strides of the whole tensor"
        )
    swizzle = layout.swizzle
    high = swizzle.bits + swizzle.base + abs(swizzle.shift) if swizzle else 0
    if high > 40 or sum((extent - 1) * stride for extent, stride in layout.leaves) >> 48:
        raise OptionError(f"{argument} {layout} reaches further than memory does")
    return layout


def _modes(count: int) -> str:
    return f"{count} mode{'s' * (count > 1)}"


def _injective(argument: str, layout: Layout) -> None:
    """Refuse a layout that stores two elements at one address."""
    table = layout.table().reshape(-1)
    order = np.argsort(table, kind="stable")
    same = np.flatnonzero(table[order][1:] == table[order][:-1])
    if same.size:
        pair = [np.unravel_index(order[same[0] + i], layout.extents) for i in (0, 1)]
        raise OptionError(
            f"{argument} {layout} is not injective, and stored to: coordinates {_pair(pair[0])} "
            f"and {_pair(pair[1])} are both at {table[order][same[0]]}"
        )


def _fits_elements(atom: AtomName, name: str, bits: int) -> None:
    """Refuse an atom that cannot move elements of ``bits``."""
    wrong = ""
    if atom.bits is not None and atom.bits < bits:
        wrong = f"moves {atom.bits} bits; an element of {name}"
    elif atom.matrix is not None and atom.matrix.name.endswith(".trans") and bits != 16:
        wrong = f"transposes elements of 16 bits; {name}"
    elif atom.matrix is not None and bits > 32:
        wrong = f"gives a thread 32 bits of a matrix; {name}"
    if wrong:
        raise OptionError(f"atom {atom.text!r} {wrong} has {bits}")


def _pair(numbers: Sequence[Any]) -> str:
    return f"({int(numbers[0])},{int(numbers[1])})"


# -- who holds what -------------------------------------------------------------------------------


def _tiled(
    atom: AtomName, layout: Layout, threads: Any, values: Any, tile: Any, tv: Any, size: int
) -> TiledCopy:
    """What each thread holds of the tile."""
    one = universal("", 8 * size)
    if tv is not None:
        if threads is not None or values is not None or tile is None:
            raise OptionError("tv comes with tile, and without threads and values")
        copy = TiledCopy(one, 8 * size, covered := _extents(tile), _from_tv(parse(tv), covered))
    elif tile is not None:
        raise OptionError("tile comes with tv; threads and values make their own")
    elif threads is not None:
        thread = _bijection("threads", threads)
        value = _bijection("values", _vector(atom, layout, size) if values is None else values)
        copy = gmem_tiled_copy(one, 8 * size, thread, value)
    elif values is not None:
        raise OptionError(f"values {parse(values)} come without threads; expected both")
    elif atom.matrix is None:
        raise OptionError(
            f"threads is missing; expected a layout such as '(16,8):(1,16)' for atom {atom.text!r}"
        )
    elif found := choose.matrix_copy(atom.matrix, size, layout.extents, _contiguous_mode(layout)):
        return found
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


def _bijection(argument: str, given: Any) -> Layout:
    """A thread or value layout of two modes that numbers its coordinates 0, 1, ..., once each."""
    layout = parse(given)
    if layout.rank == 1:
        shape: Any = layout.shape
        stride: Any = layout.stride
        if isinstance(shape, tuple):
            shape, stride = shape[0], stride[0]
        layout = Layout((shape, 1), (stride, 0), layout.swizzle)
    if layout.rank != 2:
        raise OptionError(f"{argument} {layout} has {layout.rank} modes; expected 2 or 1")
    table = _bounded(argument, layout).table()
    seen = np.zeros(layout.size, bool)
    for place in np.ndindex(table.shape):
        number = table[place]
        if number < layout.size and not seen[number]:
            seen[number] = True
            continue
        wrong = f"{_pair(place)} is number {number} of {layout.size}"
        if number < layout.size:
            wrong = f"number {number} has more than one place, {_pair(place)} for instance"
        raise OptionError(
            f"{argument} {layout} do not cover the tile: {wrong}; expected each of 0 to "
            f"{layout.size - 1} once"
        )
    return layout


def _extents(tile: Any) -> tuple[int, int]:
    """The tile's extents: two integers, or text such as ``(_128,_32)`` or ``128x32``."""
    numbers = re.findall(r"\d+", tile) if isinstance(tile, str) else list(tile)
    try:
        first, second = map(int, numbers)
    except (TypeError, ValueError):
        raise OptionError(f"tile={tile!r}; expected two extents, such as (128, 32)") from None
    if first < 1 or second < 1 or first * second > MOST_ELEMENTS:
        raise OptionError(f"tile={tile!r}; expected two extents of 1 or more")
    return first, second


def _from_tv(tv: Layout, tile: tuple[int, int]) -> np.ndarray:
    """Coordinates [threads, values, 2] in the tile."""
    if tv.rank != 2:
        raise OptionError(f"tv {tv} has {_modes(tv.rank)}; expected 2")
    table = _bounded("tv", tv).table()
    size = tile[0] * tile[1]
    if table.max() >= size:
        raise OptionError(
            f"tv {tv} reaches coordinate {table.max()}; the tile {_pair(tile)} has {size}"
        )
    missing = np.setdiff1d(np.arange(size), table)
    if missing.size:
        place = missing[0] % tile[0], missing[0] // tile[0]
        raise OptionError(
            f"tv {tv} does not cover the tile {_pair(tile)}: nobody has element {_pair(place)}"
        )
    return np.stack([table % tile[0], table // tile[0]], axis=-1)


def _contiguous_mode(layout: Layout) -> int:
    """The mode along which elements lie together; 1 when neither does."""
    axis = choose.contiguous_axis(layout)
    return 1 if axis is None else axis


def _vector(atom: AtomName, layout: Layout, size: int) -> Layout:
    """One vector along the contiguous mode, as wide as the atom and the tensor allow."""
    if atom.matrix is not None:
        raise OptionError(f"values are missing; expected what atom {atom.text!r} gives a thread")
    axis = _contiguous_mode(layout)
    width, run = (atom.bits or atom.most) // (8 * size), choose.run(layout.table(), axis)
    while width > 1 and run % width:
        width //= 2
    width = max(width, 1)
    return Layout((1, width), (0, 1)) if axis else Layout((width, 1), (1, 0))
