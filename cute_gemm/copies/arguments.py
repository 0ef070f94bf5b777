"""Validation and parsing of the arguments of ``analyze_copy``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cute_gemm._text import counted
from cute_gemm.access.accesses import BULK_BYTES, Direction, is_bulk
from cute_gemm.arch import Arch
from cute_gemm.copies.atoms import AtomName, Space, atom_name
from cute_gemm.copies.elements import element, of_bits
from cute_gemm.copies.packed import Packing
from cute_gemm.copies.partition import bounded, bulk_copy, extents_of, pair, read_tv, tiled_copy
from cute_gemm.cute.copies import TiledCopy, contiguous
from cute_gemm.cute.layout import Layout, composes
from cute_gemm.cute.notation import Printed, as_indexed, as_printed
from cute_gemm.errors import NotationError, OptionError, UnsupportedError
from cute_gemm.fixes.tiles import plain_strides

#: Default alignments of addresses in bytes, by memory space.
ALIGNMENT = {"global": 256, "shared": 128}


@dataclass(frozen=True, eq=False)
class Copy:
    """A copy to analyze. ``tiled`` moves single elements, or the rows of a matrix atom.

    ``alignment`` is the alignment of the tensor's address in bytes, ``smem_alignment`` that of
    ``smem``. With ``extents`` the tensor is one tile of a matrix of these extents; all its tiles
    are copied, and lanes outside it are predicated off. If elements share bytes (``packing``),
    everything is in bytes.
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
    extents: tuple[int, int] | None = None
    packing: Packing | None = None

    @property
    def sides(self) -> list[tuple[Layout, int]]:
        """Layouts and alignments of the tensor and of ``smem``, if the copy has one."""
        tensor = self.layout, self.alignment
        return [tensor] if self.smem is None else [tensor, (self.smem, self.smem_alignment)]

    @property
    def units(self) -> str:
        """The unit of counts: bytes or elements."""
        return "bytes" if self.packing else "elements"

    @property
    def moved(self) -> int:
        """Number of elements (bytes) copied."""
        return prod(self.extents or self.layout.extents)

    @property
    def axis(self) -> int:
        """The unit-stride mode of a matrix whose tiles are copied."""
        return plain_strides(self.layout).index(1)

    def aliases(self) -> bool:
        """Return whether elements of the tensor share an address."""
        if self.extents is None:
            return len(np.unique(self.layout.table())) != self.layout.size
        pitch = plain_strides(self.layout)[1 - self.axis]
        return self.extents[1 - self.axis] > 1 and pitch < self.extents[self.axis]


def understood(
    tensor: Any, threads: Any, values: Any, atom: str, dtype: Any, space: Space | None,
    direction: Direction | None, base_alignment: int | None, tile: Any, tv: Any, smem: Any,
    let: Any = None, extents: Any = None, arch: str | None = None, matrix: Any = None,
) -> Copy:  # fmt: skip
    """Return the parsed copy; raise an error for the first invalid argument."""
    name = atom_name(atom)
    kind, bits = element(dtype)
    size = max(1, bits // 8)
    on_arch(name, arch)
    numbers = read_let(let)
    printed, start = read_tensor(tensor, matrix, numbers)
    texts = {"tensor": printed}
    if matrix is not None and extents is not None:
        raise OptionError(
            f"extents={extents!r} do not go with matrix={str(matrix)!r}; expected a tensor of "
            "offsets, for copies of all tiles, or one tile of coordinates"
        )
    if smem is not None:
        texts["smem"] = of_stages = as_printed(smem, numbers)
        if (printed.layout.rank, of_stages.layout.rank) == (2, 3):  # of stages, the first
            texts["smem"] = of_stages._replace(layout=of_stages.layout[:2])
    layouts = {argument: _tile_layout(argument, text, bits) for argument, text in texts.items()}
    layout, target = layouts["tensor"], layouts.get("smem")
    where, way = _where(name, printed.space, space, direction)
    if target is not None and (where, way) != ("global", "load"):
        raise OptionError(f"smem came with atom {atom!r}; expected a copy from global memory")
    if target is not None and target.extents != layout.extents:
        raise OptionError(
            f"smem {target} has extents {pair(target.extents)}; expected those of the tensor, "
            f"{pair(layout.extents)}"
        )
    alignment = tensor_alignment("tensor", printed, where, kind, size, base_alignment)
    alignment = begun(alignment, start, bits)
    under = ALIGNMENT["shared"]
    written = way == "store" and not name.reduces
    if written and extents is None:
        _injective("tensor", layout)
    if target is not None:
        under = tensor_alignment("smem", texts["smem"], "shared", kind, size)
        _injective("smem", target)
    fits_elements(name, where, kind, bits)
    packing, note = Packing.of(kind, bits, layout), ""
    if packing:
        note = " as bytes"
        if extents is not None:
            packing.pitched(layout)
        layouts = {argument: packing.layout(argument, x) for argument, x in layouts.items()}
        layout, target = layouts["tensor"], layouts.get("smem")
    partition = bulk_copy if name.kind == "bulk" else tiled_copy
    tiled = partition(name, layout, threads, values, tile, tv, size, packing)
    if tv is not None and (written or target is not None):
        _injective("tv", read_tv(tv))
    for argument, x in layouts.items():
        if wrong := undivided(x, tiled):
            raise OptionError(f"{argument}{note} {x} {wrong}")
    if (
        target is not None
        and name.kind == "bulk"
        and (under < BULK_BYTES or (tiled.vector_offsets(target)[:, 0] % BULK_BYTES).any())
    ):
        raise OptionError(
            f"smem {target} has a tile that does not begin at a multiple of {BULK_BYTES} "
            f"bytes, as atom {atom!r} needs; expected rows padded to such"
        )
    whole = None if extents is None else _whole(extents, layout, where, name)
    if whole is not None and packing:
        whole = packing.extents("extents", whole)
    copy = Copy(
        name, kind, size, alignment, under, where, way, layout, target, tiled, whole, packing
    )
    if whole is not None and written and copy.aliases():
        raise OptionError(
            f"tensor{note} {layout} of extents {pair(whole)} is not injective, and stored to: its "
            f"rows are {whole[copy.axis]} {copy.units} long; expected a stride of as many"
        )
    return copy


def on_arch(name: AtomName, arch: str | None) -> None:
    """Raise UnsupportedError if an architecture lacks an atom."""
    where = None if arch is None else Arch(arch)
    if where is not None and name.feature and not where.has(name.feature):
        raise UnsupportedError(
            f"atom {name.text!r} needs {Arch.that_has(name.feature)}; arch is {arch!r}"
        )


def _whole(given: Any, layout: Layout, space: Space, atom: AtomName) -> tuple[int, int]:
    """Return the extents of the matrix of which the tensor is one tile."""
    if space != "global" or atom.kind == "bulk":
        raise OptionError(
            f"extents={given!r} do not go with atom {atom.text!r}; expected one that moves vectors "
            "of global memory, which can be predicated off"
        )
    if not plain_strides(layout):
        raise OptionError(
            f"tensor {layout} has extents={given!r}; expected a tile in two plain modes, one of "
            "stride 1"
        )
    return extents_of(given, "extents", 1 << 62)


def _where(
    name: AtomName, printed: str | None, space: Space | None, direction: Direction | None
) -> tuple[Space, Direction]:
    """Return the memory space and direction of the copy, from atom, text and arguments."""
    space = _one_of("space", space, ("global", "shared"))
    direction = _one_of("direction", direction, ("load", "store"))
    where: Any = space or printed
    if where is None or (name.space and name.kind != "cp.async"):
        where = name.space or "global"
    if space not in (None, where):
        raise OptionError(
            f"space={space!r} does not fit atom {name.text!r}, which accesses {where} memory"
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
    """Return the alignment of the address: as given, else as printed, else the default."""
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
            f"{argument} is printed with a pointer aligned to {printed.alignment} bytes; "
            f"expected at least the {size} of {kind}"
        )
    return min(printed.alignment, ALIGNMENT[space])


def begun(alignment: int, start: int, bits: int) -> int:
    """Return the alignment of a tile that begins at element ``start`` of a matrix."""
    first = start * bits
    if first % 8:
        raise OptionError(
            f"tensor begins at element {start} of the matrix, within a byte of {bits}-bit "
            "elements; expected coordinates at the start of a byte"
        )
    return min(alignment, first // 8 & -(first // 8)) if first else alignment


def read_tensor(tensor: Any, matrix: Any, let: tuple[int, ...]) -> tuple[Printed, int]:
    """Return a tensor and 0; for one of coordinates in ``matrix``, its offsets and its start."""
    if matrix is not None:
        whole = as_printed(matrix, let)
        if whole.layout.swizzle:
            raise OptionError(f"matrix {whole.layout} is swizzled; expected a plain layout")
        return as_indexed(tensor, whole, let)
    try:
        return as_printed(tensor, let), 0
    except NotationError as error:
        if "@" not in str(tensor):
            raise
        what = f"{error}; matrix= takes the layout that they index"
        raise NotationError(what, column=error.column) from None


def read_let(let: Any) -> tuple[int, ...]:
    """Return the values of dynamic extents and strides: an integer, several, or ``?=4096``."""
    given: Any = [let] if isinstance(let, int) else () if let is None else let
    if isinstance(let, str):
        name, _, value = let.rpartition("=")
        given = (value.split(",") if let else []) if name.strip() in ("?", "") else "?"
    try:
        numbers = tuple(map(int, given))
    except (TypeError, ValueError):
        numbers = (-1,)
    if any(number < 0 for number in numbers):
        raise OptionError(f"let={let!r}; expected the values of '?', such as 4096 or '?=64,4096'")
    return numbers


def undivided(layout: Layout, tiled: TiledCopy) -> str:
    """Return why a copy does not divide a tile by CuTe's algebra, or ""."""
    for mode, (extent, step) in enumerate(zip(layout.extents, tiled.tile, strict=True)):
        if extent % step:
            return (
                f"has {extent} elements in mode {mode}, which the {step} that one copy covers "
                "there do not divide; expected a multiple (and extents=, if the matrix has fewer)"
            )
        modes = layout.affine[mode]
        values = tiled.layouts[1].extents[mode] if tiled.layouts else 1
        for many, apart in ((step, 1), (values, 1), (step // values, values)):
            if not composes(modes, many, apart):
                return (
                    f"has mode {mode}, {modes}, which {many}:{apart} of the copy does not divide: "
                    "CuTe refuses it; expected extents that it divides"
                )
    if is_bulk(tiled.atom.name) and not contiguous(tiled.offsets(layout)):
        return (
            f"has tiles of {pair(tiled.tile)} that are not each one run of bytes in the same "
            f"order, as {tiled.atom.name} needs; expected tile= of one run"
        )
    return ""


def _one_of(argument: str, value: Any, choices: tuple[str, ...]) -> Any:
    if value is not None and value not in choices:
        raise OptionError(f"{argument}={value!r} is unknown; expected one of {', '.join(choices)}")
    return value


def _tile_layout(argument: str, printed: Printed, bits: int) -> Layout:
    """Return the layout of a tile; raise OptionError if it cannot be analyzed."""
    layout = printed.layout
    if printed.bits is not None and printed.bits != bits:
        name = of_bits(printed.bits)
        raise OptionError(
            f"{argument} is printed with elements of {printed.bits} bits, and dtype has {bits}"
            + f"; expected dtype={name!r}" * bool(name)
        )
    if layout.rank == 3:  # the tiles of a pipeline, one after the other
        modes = layout[0], layout[1:]
        shape, stride = tuple(x.shape for x in modes), tuple(x.stride for x in modes)
        layout = Layout(shape, stride, layout.swizzle, layout.offset)
    if layout.rank != 2:
        raise OptionError(
            f"{argument} {layout} has {counted(layout.rank, 'mode')}; expected two for a tile, "
            "or three with stages"
        )
    return bounded(argument, layout)


def _injective(argument: str, layout: Layout) -> None:
    """Raise OptionError for a layout that stores two elements at one address."""
    table = layout.table().reshape(-1)
    order = np.argsort(table, kind="stable")
    same = np.flatnonzero(table[order][1:] == table[order][:-1])
    if same.size:
        places = [np.unravel_index(order[same[0] + i], layout.extents) for i in (0, 1)]
        raise OptionError(
            f"{argument} {layout} is not injective, and stored to: coordinates {pair(places[0])} "
            f"and {pair(places[1])} are both at {table[order][same[0]]}"
        )


def fits_elements(atom: AtomName, space: Space, name: str, bits: int) -> None:
    """Raise OptionError for an atom that cannot move elements of ``bits``."""
    wrong = ""
    unit = bits if atom.matrix is None else atom.matrix.unit
    if bits < 8 and atom.matrix is not None and "m8n16" in atom.matrix.name:
        raise OptionError(
            f"atom {atom.text!r} unpacks padded elements, 16 of them in 16 bytes; "
            f"expected a tile of these containers, dtype='uint8', not {name}"
        )
    if atom.bits is not None and atom.bits < bits:
        wrong = f"moves {atom.bits} bits; an element of {name}"
    elif atom.kind == "reduce" and bits < 16:
        wrong = f"combines elements of 16 bits or more; {name}"
    elif atom.is_vector and space == "shared":
        wrong = f"is a vector, which reductions of shared memory are not; {name}"
    elif unit % bits and unit < 32:
        wrong = f"transposes elements of {unit} bits; {name}"
    elif unit % bits:
        wrong = f"gives a thread 32 bits of a matrix; {name}"
    if wrong:
        raise OptionError(f"atom {atom.text!r} {wrong} has {bits}")
