"""A copy of one's own: its tensor, threads, values and atom, judged by the model of the reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm._text import named
from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.analysis.copy.arguments import Copy, understood
from cute_gemm.analysis.copy.tiles import Direction, Space, global_access, shared_access
from cute_gemm.analysis.mends.gmem import mends
from cute_gemm.analysis.rows import AccessRow, copy_table, findings, make_row
from cute_gemm.analysis.shown import Paged
from cute_gemm.analysis.tables import Cell, Findings, Pairs
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.copies import TiledCopy, contiguous
from cute_gemm.cute.notation import parse

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from cute_gemm.analysis.html import Page

#: Version of the keys of ``CopyReport.to_dict``.
FORMAT = 1


@dataclass(frozen=True, eq=False)
class CopyReport(Paged):
    """What one tiled copy does to memory; ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    tensor, atom, dtype, threads, values, smem
        What was asked about, as text; ``""`` for what was left out.
    tile
        Extents that one tiled copy covers.
    base_alignment
        Of the tensor in global memory, bytes.
    rows
        One ``AccessRow`` per side of the copy: the tensor's, and that of ``smem``.
    findings
        One sentence for each thing that is not as good as it could be.
    """

    tensor: str
    atom: str
    dtype: str
    threads: str
    values: str
    smem: str
    tile: tuple[int, int]
    base_alignment: int
    rows: tuple[AccessRow, ...]
    findings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<CopyReport: {self.atom} of {self.dtype}, {self.tensor}>"

    @property
    def coalesced(self) -> bool:
        """Whether its global accesses, if any, are coalesced."""
        return all(row.good for row in self.rows if row.space == "global")

    @property
    def conflict_free(self) -> bool:
        """Whether its shared accesses, if any, take the fewest wavefronts possible."""
        return all(row.good for row in self.rows if row.space == "shared")

    @property
    def bits(self) -> int:
        """Bits that a thread moves with one instruction."""
        return self.rows[0].bits

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report in strings, numbers, lists and dicts, with keys that stay."""
        return {
            "format": FORMAT,
            **named(self, "tensor", "atom", "dtype", "threads", "values", "smem"),
            "tile": list(self.tile),
            **named(self, "base_alignment", "coalesced", "conflict_free", "bits"),
            "accesses": [row.to_dict() for row in self.rows],
            "findings": list(self.findings),
            "mends": [[asdict(mend) for mend in found] for found in self.mends],
        }

    @property
    def alternatives(self) -> list[str]:
        """One sentence for each mend that no finding names."""
        return [
            f"{row.instruction} could also be mended by {mend}."
            for row in self.rows
            # The best mend of what is not good is part of a finding.
            for mend in (row.mends if row.good else row.mends[1:])
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text.assemble("copy ", (self.atom, "bold"), f" of {self.dtype}")
        for name, text in self._asked:
            yield Text(f"{name:<8} {text}")
        covers = self._covers
        if any(row.space == "global" for row in self.rows):
            covers += f", base address aligned to {self.base_alignment} bytes"
        yield Text(covers)
        for row in self.rows:
            yield Text()
            yield copy_table(row)
        if lines := [*self.findings, *self.alternatives]:
            yield Text()
            yield Findings(lines)

    @property
    def _asked(self) -> list[tuple[str, str]]:
        """The layouts that were asked about."""
        layouts = named(self, "tensor", "smem", "threads", "values")
        return [(name, text) for name, text in layouts.items() if text]

    @property
    def _covers(self) -> str:
        return f"one copy covers ({self.tile[0]},{self.tile[1]})"

    def page(self) -> Page:
        """Return what ``to_html`` says."""
        from cute_gemm.analysis.html import Page

        asked: list[tuple[str, str | Cell]] = [
            *((name, Cell(text, code=True)) for name, text in self._asked),
            ("tile", self._covers),
            ("base address", f"aligned to {self.base_alignment} bytes"),
        ]
        return Page(
            title=f"copy {self.atom}, {self.tensor}",
            heading=f"copy {self.atom} of {self.dtype}",
            intro="",
            sections=(
                ("Verdict", (Findings([*self.findings, *self.alternatives]),)),
                ("Copy", (Pairs(asked),)),
            ),
            rows=self.rows,
        )


def analyze_copy(
    *, tensor: Any, threads: Any = None, values: Any = None, atom: str, dtype: Any = "float16",
    space: Space | None = None, direction: Direction | None = None, base_alignment: int = 256,
    tile: Any = None, tv: Any = None, smem: Any = None,
) -> CopyReport:  # fmt: skip
    """Say of a tiled copy whether it is coalesced and free of bank conflicts, and what mends it.

    Layouts are objects (this package's, pycute's, CuTe DSL's) or text in CuTe's notation, as C++
    CuTe and CuTe DSL print layouts and tensors.

    Parameters
    ----------
    tensor
        Layout of a tile, in elements: two modes, hierarchical or not, swizzled or not. The copy is
        repeated over it.
    threads, values
        As ``make_tiled_copy`` takes them: ``(m, n) -> thread`` and ``(m, n) -> value``; one mode
        stands for ``(T, 1)``. For ldmatrix and stmatrix they say what the registers of the threads
        hold. ``values`` left out: one vector along the contiguous mode. Both left out, of ldmatrix
        and stmatrix: one warp, whose rows run along the contiguous mode, the matrices of an x4 two
        by two, those of an x2 side by side.
    atom
        ``"cp.async"``, ``"ld.global"``, ``"st.global"``, ``"ld.shared"``, ``"st.shared"``, each
        with its width in bits or without (``"cp.async.128"``; without, the widest that fits),
        ``"ldmatrix.x4.trans"``, ``"stmatrix.x2"``, ..., or CuTe's name
        (``"SM75_U32x4_LDSM_N"``, ``"UniversalCopy<uint128_t>"``).
    dtype
        Of an element.
    space, direction
        ``"global"`` or ``"shared"``, ``"load"`` or ``"store"``, where atom and tensor leave it
        open: a plain copy loads, cp.async is seen from global memory unless the tensor is in
        shared.
    base_alignment
        Bytes, a power of two, that divide the address of the tensor in global memory. (Shared
        memory is taken to be aligned to 128 bytes.)
    tile, tv
        Instead of ``threads`` and ``values``: the tile that one copy covers, and ``(thread, value)
        -> coordinate`` in it, first mode fastest (CuTe's Tiler_MN and TiledLayout_TV).
    smem
        Layout of the same tile in shared memory, for a copy from global memory into it: a second
        row, of the stores there.

    Returns
    -------
    CopyReport

    Raises
    ------
    NotationError
        For text that does not parse, with the column.
    OptionError
        For threads or values that are not a bijection, or do not cover the tile; a tile that does
        not divide the tensor; elements that share an address where they are stored; an atom, a
        space or a direction that does not exist or fit.
    DTypeError
        For a data type that is not supported.

    Notes
    -----
    An atom wider than the values that lie together is no error: the report then evaluates the
    widest legal one, and says so.

    Examples
    --------
    >>> report = analyze_copy(
    ...     tensor="(128,32):(4096,1)", threads="(16,8):(1,16)", values="(8,1):(1,8)",
    ...     atom="cp.async.128", dtype="float16",
    ... )  # fmt: skip
    >>> report.bits, report.rows[0].sectors, report.rows[0].efficiency
    (16, 16.0, 0.125)
    >>> report.mends[0][0].what
    'threads (32,4):(4,1), values (1,8), cp.async of 128 bits'
    """
    copy = understood(
        tensor, threads, values, atom, dtype, space, direction, base_alignment, tile, tv, smem
    )
    accesses, tiled = _accesses(copy)
    wider = copy.atom.kind if copy.atom.kind == "cp.async" else ""
    found = mends(accesses, len(tiled.partition), copy.layout, tiled, wider)
    rows = tuple(map(make_row, accesses, found))
    return CopyReport(
        _shown(tensor), copy.atom.text, copy.dtype, _shown(threads),
        _shown(tv if threads is None else values), _shown(smem), tiled.tile, base_alignment, rows,
        (*findings(rows), *_widths(rows[0], copy)),
    )  # fmt: skip


def _widths(first: AccessRow, copy: Copy) -> list[str]:
    """What ``findings`` says of global accesses only: why it is not the widest instruction."""
    if not first.limit or first.space == "global":
        return []
    what = f"{first.instruction} of {first.bits} bits, not 128: " * (copy.atom.matrix is None)
    return [f"{first.operand}: {what}{first.limit}."]


def _shown(layout: Any) -> str:
    return "" if layout is None else str(parse(layout))


# -- the accesses ---------------------------------------------------------------------------------


def _accesses(copy: Copy) -> tuple[list[GlobalAccess | SharedAccess], TiledCopy]:
    """The accesses, with what keeps them from being wider, and the copy that they are of."""
    atom, bits = copy.atom, 8 * copy.size
    limit = ""
    if atom.matrix is not None:
        rows = replace(copy.tiled, atom=atom.matrix)
        limit = _matrix_limit(copy, rows)
        if not limit:
            return [shared_access(rows, copy.layout, copy.direction)], rows
        asked = 128 // bits
    else:
        asked = max(1, (atom.bits or atom.most) // bits)
    places = [(copy.layout, copy.space == "shared"), *([(copy.smem, True)] if copy.smem else ())]

    def fits(tiled: TiledCopy) -> bool:
        found = ((tiled.offsets(layout), shared) for layout, shared in places)
        # The model of global memory has a verdict on addresses that are no multiple.
        return all(
            contiguous(at) and (_aligned(at, copy, shared) or not (shared or atom.bits is None))
            for at, shared in found
        )

    width = asked
    while True:
        if copy.tiled.partition.shape[1] % width == 0:
            tiled = replace(copy.tiled, atom=universal("", width * bits))
            if width == 1 or fits(tiled):
                break
        width //= 2
    if atom.matrix is None and width < asked and atom.bits is not None:
        limit = (
            f"{atom.text} needs {asked} elements that lie together, aligned, and a thread has only "
            f"{width} of them at a time; evaluated is the widest that fits"
        )
    elif atom.matrix is None and width * bits < 128:
        limit = _narrow(copy, width)
    is_async = atom.kind == "cp.async" and width * bits >= 32
    plain = {"load": "ld", "store": "st"}[copy.direction]
    name = "cp.async" if is_async else f"{plain}.{copy.space}"
    tiled = replace(tiled, atom=choose.copy_atom(name, width * bits))
    first = shared_access(tiled, copy.layout, copy.direction)
    accesses: list[GlobalAccess | SharedAccess] = [first]
    if copy.space == "global":
        way = copy.direction
        accesses = [global_access(tiled, copy.layout, way, copy.dtype, copy.alignment)]
    if copy.smem is not None:
        accesses.append(shared_access(choose.shared_side(tiled), copy.smem, "store"))
    return [replace(access, limit=limit) for access in accesses], tiled


def _aligned(at: np.ndarray, copy: Copy, shared: bool) -> bool:
    """Whether every lane's address is a multiple of its vector."""
    first, width = at[..., 0], at.shape[-1]
    based = shared or copy.alignment % (width * copy.size) == 0
    return based and not (first[first >= 0] % width).any()


def _matrix_limit(copy: Copy, rows: TiledCopy) -> str:
    """Why an ldmatrix or stmatrix does not fit; empty when it does."""
    held, values = rows.bits // rows.element_bits, rows.partition.shape[1]
    what = "evaluated are plain loads" if copy.direction == "load" else "evaluated are plain stores"
    if values % held:
        return f"{rows.atom.name} moves {held} values of a thread, and there are {values}; {what}"
    at = rows.offsets(copy.layout)
    if not contiguous(at) or not _aligned(at, copy, True):
        return (
            f"{rows.atom.name} takes rows of 16 contiguous bytes, aligned, and the tensor does not "
            f"have what the threads hold in such rows; {what}"
        )
    return ""


def _narrow(copy: Copy, width: int) -> str:
    """What keeps a vector of ``width`` elements from being wider, where no width was missed."""
    if copy.atom.bits is not None:
        return f"the atom is {copy.atom.text}"
    if 2 * width * copy.size * 8 > copy.atom.most:
        return f"{copy.atom.text} assumes an alignment of {copy.atom.most} bits"
    values = copy.tiled.partition.shape[1]
    if values % (2 * width):
        return f"a thread has {values} value{'s' if values > 1 else ''}"
    if copy.space == "global" and copy.alignment < 2 * width * copy.size:
        return f"base address aligned to {copy.alignment} bytes"
    return f"a thread's values lie together, aligned, only {width} at a time"
