"""The arguments of ``analyze_copy``, checked and understood."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cute_gemm.analysis.copy.elements import element
from cute_gemm.analysis.copy.tiles import AtomName, Direction, Space, atom_name
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.copies import LANES, TiledCopy, gmem_tiled_copy
from cute_gemm.cute.layout import Layout, column_major, composes
from cute_gemm.cute.notation import Printed, as_printed, parse
from cute_gemm.errors import OptionError

#: Elements of the largest tile that is taken, and threads that a CTA may have.
MOST_ELEMENTS, MOST_THREADS = 1 << 20, 1024


#: Bytes that divide an address of which nothing is said, by memory space.
ALIGNMENT = {"global": 256, "shared": 128}


@dataclass(frozen=True, eq=False)
class Copy:
    """The question, understood; ``tiled`` moves element by element, or by a matrix atom's rows.

    ``alignment`` is that of the tensor's address, in bytes, ``smem_alignment`` that of ``smem``.
    """

    atom: AtomName
    dtype: str
    size: int
    alignment: int
    smem_alignment: int
    space: Space
    direction: Direction
    layout: Layout
    smem: Layout | None
    tiled: TiledCopy


def understood(
    tensor: Any, threads: Any, values: Any, atom: str, dtype: Any, space: Space | None,
    direction: Direction | None, base_alignment: int | None, tile: Any, tv: Any, smem: Any,
    let: Any = None,
) -> Copy:  # fmt: skip
    """Check every argument; the first that does not fit is named."""
    name = atom_name(atom)
    kind, size = element(dtype)
    values_of = read_let(let)
    printed, home = as_printed(tensor, values_of), None
    if smem is not None:
        printed, home = _one_stage(printed, as_printed(smem, values_of))
        home = home._replace(layout=_tile_layout("smem", home, size))
    layout = _tile_layout("tensor", printed, size)
    where, way = _where(name, printed.space, space, direction)
    if home is not None and (where, way) != ("global", "load"):
        raise OptionError(f"smem is the target of a copy from global memory; atom {atom!r} is none")
    if home is not None and home.layout.extents != layout.extents:
        raise OptionError(
            f"smem {home.layout} has extents {_pair(home.layout.extents)}; expected those of the "
            f"tensor, {_pair(layout.extents)}"
        )
    alignment = tensor_alignment("tensor", printed, where, kind, size, base_alignment)
    under = (
        ALIGNMENT["shared"]
        if home is None
        else tensor_alignment("smem", home, "shared", kind, size)
    )
    if way == "store":
        _injective("tensor", layout)
    if home is not None:
        _injective("smem", home.layout)
    _fits_elements(name, kind, 8 * size)
    tiled = _tiled(name, layout, threads, values, tile, tv, size)
    if tv is not None and (way == "store" or home is not None):
        _injective("tv", read_tv(tv))
    _divided("tensor", layout, tiled)
    if home is not None:
        _divided("smem", home.layout, tiled)
    target = None if home is None else home.layout
    return Copy(name, kind, size, alignment, under, where, way, layout, target, tiled)


def _where(
    name: AtomName, printed: str | None, space: Space | None, direction: Direction | None
) -> tuple[Space, Direction]:
    """Where the tensor is, and which way it is copied: what atom, text and arguments agree on."""
    space = _one_of("space", space, ("global", "shared"))
    direction = _one_of("direction", direction, ("load", "store"))
    where: Any = space or printed
    if where is None or name.kind == "matrix" or (name.kind == "universal" and name.space):
        where = name.space or "global"
    if space not in (None, where):
        raise OptionError(
            f"space={space!r} does not fit atom {name.text!r}, which is of {where} memory"
        )
    way: Any = name.direction or direction or "load"
    if name.kind == "cp.async" and where == "shared":
        way = "store"
    if direction not in (None, way):
        raise OptionError(
            f"direction={direction!r} does not fit atom {name.text!r}, which is a {way}"
        )
    return where, way


def tensor_alignment(
    argument: str, printed: Printed, space: str, kind: str, size: int, given: Any = None
) -> int:
    """Bytes that divide the address: what is given, else what is printed, else the usual."""
    if given is not None:
        whole = isinstance(given, int) and not isinstance(given, bool)
        if not whole or given < size or given & (given - 1):
            raise OptionError(
                f"base_alignment={given!r}; expected a power of two, in bytes, of at least the "
                f"{size} of {kind}"
            )
        if space == "global":
            return int(given)
    if printed.alignment is None:
        return ALIGNMENT[space]
    if printed.alignment < size:
        raise OptionError(
            f"{argument} is printed with a pointer that is aligned to {printed.alignment} bytes; "
            f"expected at least the {size} of {kind}"
        )
    return min(printed.alignment, ALIGNMENT[space])


def read_let(let: Any) -> tuple[int, ...]:
    """The values of dynamic extents and strides: an integer, several, or text ``?=4096``."""
    given: Any = [let] if isinstance(let, int) else () if let is None else let
    if isinstance(let, str):
        name, _, value = let.rpartition("=")
        given = [one for one in value.split(",") if let] if name.strip() in ("?", "") else "?"
    try:
        found = tuple(map(int, given))
    except (TypeError, ValueError):
        found = (-1,)
    if any(value < 0 for value in found):
        raise OptionError(f"let={let!r}; expected what '?' stands for, such as 4096 or '?=64,4096'")
    return found


def _one_stage(tensor: Printed, smem: Printed) -> tuple[Printed, Printed]:
    """A tile and its place of several stages: the first of them, one is as another."""
    home = smem.layout
    if tensor.layout.rank == 2 and home.rank == 3 and isinstance(home.shape, tuple):
        stride: Any = home.stride
        one = Layout(home.shape[:2], stride[:2], home.swizzle, home.offset)
        return tensor, smem._replace(layout=one)
    return tensor, smem


def undivided(layout: Layout, tiled: TiledCopy) -> str:
    """Why a copy does not divide a tile, as CuTe's algebra has it; empty when it does."""
    for mode, (extent, step) in enumerate(zip(layout.extents, tiled.tile, strict=True)):
        if extent % step:
            return (
                f"has {extent} elements in mode {mode}, which the {step} that one copy covers "
                "there do not divide; expected a multiple"
            )
        shape: Any = layout.shape
        stride: Any = layout.stride
        modes = Layout(shape[mode], stride[mode])
        values = tiled.layouts[1].extents[mode] if tiled.layouts else 1
        for many, apart in ((step, 1), (values, 1), (step // values, values)):
            if not composes(modes, many, apart):
                return (
                    f"has mode {mode}, {modes}, which {many}:{apart} of the copy does not divide: "
                    "CuTe refuses it; expected extents that do"
                )
    return ""


def _divided(argument: str, layout: Layout, tiled: TiledCopy) -> None:
    if wrong := undivided(layout, tiled):
        raise OptionError(f"{argument} {layout} {wrong}")


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
    shape: Any = layout.shape
    stride: Any = layout.stride
    if layout.rank == 3:  # the tiles of a pipeline, one after the other
        modes = (shape[0], shape[1:]), (stride[0], stride[1:])
        layout = Layout(*modes, layout.swizzle, layout.offset)
    if layout.rank != 2:
        raise OptionError(
            f"{argument} {layout} has {_modes(layout.rank)}; expected the two of a tile, or three "
            "with its stages"
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
        copy = TiledCopy(one, 8 * size, covered := extents_of(tile), _from_tv(read_tv(tv), covered))
    elif tile is not None:
        raise OptionError("tile comes with tv; threads and values make their own")
    elif threads is not None:
        thread = bijection("threads", threads)
        value = _vector(atom, layout, size) if values is None else read_values(values)
        value = bijection("values", value)
        copy = gmem_tiled_copy(one, 8 * size, thread, value)
    elif values is not None:
        raise OptionError(f"values {read_values(values)} come without threads; expected both")
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


def bijection(argument: str, given: Any) -> Layout:
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


def read_values(values: Any) -> Layout:
    """A value layout; a shape alone, as mends name it, ``(1,8)``, is first mode fastest."""
    shape = re.fullmatch(r"\s*\(\s*_?(\d+)\s*,\s*_?(\d+)\s*\)\s*", str(values))
    return column_major(int(shape[1]), int(shape[2])) if shape else parse(values)


def read_tv(tv: Any) -> Layout:
    """A TV layout, with or without the name under which CuTe prints it."""
    return parse(re.sub(r"^\s*(TiledLayout_TV|TV Layout tiled)\s*:", "", str(tv)))


def extents_of(tile: Any) -> tuple[int, int]:
    """The tile's extents: two integers, or text such as ``(_128,_32)`` or ``128x32``.

    CuTe DSL has a layout for each mode, ``(128:1,32:1)``.
    """
    text = tile if isinstance(tile, str) else f"({','.join(map(str, _items(tile)))})"
    bare = re.sub(r"^\s*(Tiler_MN|Tiler MN)\s*:", "", text)
    part = r"_?(\d+)(?:\s*:\s*_?1)?"
    found = re.fullmatch(rf"\s*\(?\s*{part}\s*[,x]\s*{part}\s*\)?\s*", bare)
    first, second = (int(found[1]), int(found[2])) if found else (0, 0)
    if first < 1 or second < 1 or first * second > MOST_ELEMENTS:
        raise OptionError(f"tile={tile!r}; expected two extents, such as (128, 32)")
    return first, second


def _items(tile: Any) -> list[Any]:
    """What a tile's object holds; nothing where it holds nothing."""
    try:
        return list(tile)
    except TypeError:
        return []


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
