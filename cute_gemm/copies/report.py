"""``analyze_copy``: the report on a user's copy, from its tensor, threads and atom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm._text import FORMAT, counted, named
from cute_gemm.access.accesses import Direction, GlobalAccess, TmaAccess
from cute_gemm.copies.arguments import Copy, on_arch, read_let, read_tensor, understood
from cute_gemm.copies.atoms import AtomName, Space, atom_name
from cute_gemm.copies.bulk import bulk_access
from cute_gemm.copies.elements import element
from cute_gemm.copies.fixes import CopySearch
from cute_gemm.copies.partition import not_with, read_tv, read_values
from cute_gemm.copies.partners import named_partners
from cute_gemm.cute.notation import parse
from cute_gemm.rendering.rows import AccessRow, access_tables, copy_table, findings, make_row
from cute_gemm.rendering.shown import Paged
from cute_gemm.rendering.tables import Cell, Findings, Pairs, Table, styled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cute_gemm.access.accesses import Access
    from cute_gemm.rendering.html import Page


@dataclass(frozen=True, eq=False)
class CopyReport(Paged):
    """Report on the memory accesses of one tiled copy; ``print`` it, or use ``to_dict()``.

    Attributes
    ----------
    tensor, matrix, atom, dtype, threads, values, smem
        The arguments as text; ``""`` for an omitted argument.
    tile
        Extents that one application of the tiled copy covers.
    base_alignment
        Alignment of the tensor in global memory, in bytes.
    extents
        Extents of the matrix whose tiles are copied; None if only the tensor is copied.
    packing
        Number of elements that share bytes, and number of these bytes; None if elements share no
        bytes.
    rows
        One ``AccessRow`` for each side of the copy: the tensor, ``smem``, ``reader`` and
        ``writer``. The rows of ``reader`` and ``writer`` have these names as their ``part``.
    findings
        One sentence for each access that is not ideal.
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
    extents: tuple[int, int] | None = None
    packing: tuple[int, int] | None = None
    matrix: str = ""

    def __repr__(self) -> str:
        return f"<CopyReport: {self.atom} of {self.dtype}, {self.tensor}>"

    @property
    def coalesced(self) -> bool:
        """Whether all global accesses are coalesced."""
        return all(row.good for row in self.rows if row.space == "global")

    @property
    def conflict_free(self) -> bool:
        """Whether all shared accesses have the fewest possible wavefronts.

        For a bulk copy: whether 8 rows of the box, 16 bytes of each, take one wavefront.
        """
        return all(getattr(row.analysis, "conflict_free", True) for row in self.rows)

    @property
    def bits(self) -> int:
        """Bits that a thread moves with one instruction."""
        return self.rows[0].bits

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as strings, numbers, lists and dicts, with stable keys."""
        return {
            "format": FORMAT,
            **named(self, "tensor", "matrix", "atom", "dtype", "threads", "values", "smem"),
            "tile": list(self.tile),
            "extents": self.extents and list(self.extents),
            "packing": self.packing and list(self.packing),
            **named(self, "base_alignment", "coalesced", "conflict_free", "bits"),
            "accesses": [row.to_dict() for row in self.rows],
            "findings": list(self.findings),
            "fixes": [[fix.to_dict() for fix in of_row] for of_row in self.fixes],
        }

    @property
    def alternatives(self) -> list[str]:
        """Return one sentence for each fix that no finding names."""
        return [
            f"{row.instruction} could also be fixed by {fix}."
            for row in self.rows
            # The finding of an access that is not good names the best fix.
            for fix in (row.fixes if row.good else row.fixes[1:])
        ]

    def _printed(self) -> Iterator[Any]:
        yield styled("copy ", (self.atom, "bold"), f" of {self.dtype}")
        for name, text in self._asked:
            yield f"{name:<8} {text}"
        covers = self._covers
        if any(row.space == "global" for row in self.rows):
            covers += f", base address aligned to {self.base_alignment} bytes"
        yield covers
        for table in self._tables:
            yield from ("", table)
        if lines := [*self.findings, *self.alternatives]:
            yield from ("", Findings(lines))

    @property
    def _tables(self) -> list[Table]:
        """Return a table for each side, or a kernel report's tables for the tiles of a matrix."""
        if self.extents:
            return [table for table, _ in access_tables(self.rows)]
        return [*map(copy_table, self.rows)]

    @property
    def _asked(self) -> list[tuple[str, str]]:
        """Return the given layouts, by argument."""
        layouts = named(self, "tensor", "matrix", "smem", "threads", "values")
        return [(name, text) for name, text in layouts.items() if text]

    @property
    def _covers(self) -> str:
        covers = f"one copy covers ({self.tile[0]},{self.tile[1]})"
        if self.extents:
            covers += ", the tensor is a tile of a matrix of ({},{})".format(*self.extents)
        if self.packing:
            elements, shared = self.packing
            covers += f", {elements} elements share {counted(shared, 'byte')}"
        return covers

    def page(self) -> Page:
        """Return the page that ``to_html`` writes."""
        from cute_gemm.rendering.html import Page

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
    space: Space | None = None, direction: Direction | None = None,
    base_alignment: int | None = None, tile: Any = None, tv: Any = None, smem: Any = None,
    reader: str | None = None, writer: str | None = None, let: Any = None, extents: Any = None,
    arch: str | None = None, matrix: Any = None,
) -> CopyReport:  # fmt: skip
    """Report whether a tiled copy is coalesced and free of bank conflicts, with fixes.

    Layouts are objects of this package, pycute or CuTe DSL, or text in CuTe's notation, as C++ CuTe
    and CuTe DSL print it.

    Parameters
    ----------
    tensor
        Layout of a tile in elements. It has two modes, which may be hierarchical, and may have a
        swizzle. A third mode is the mode of stages, which are all copied. The copy is repeated over
        the tile.
    threads, values
        Layouts as for ``make_tiled_copy``: ``(m, n) -> thread`` and ``(m, n) -> value``. A layout
        of one mode stands for ``(T, 1)``. For ldmatrix and stmatrix they are the layouts of the
        threads' registers. By default ``values`` is one vector along the contiguous mode. Without
        both, an ldmatrix or stmatrix is executed by one warp with rows along the contiguous mode;
        the matrices of an x4 are arranged two by two, those of an x2 next to each other.
    atom
        Name of the instruction. It is one of:

        - ``"cp.async"``, ``"ld.global"``, ``"st.global"``, ``"ld.shared"`` or ``"st.shared"``, with
          or without the width in bits, as in ``"cp.async.128"``. The default is the widest vector
          that fits.
        - ``"ldmatrix.x4.trans"``, ``"stmatrix.x2"`` and similar names.
        - A name of PTX (``"ld.global.nc.v4.f32"``) or CuTe (``"SM75_U32x4_LDSM_N"``,
          ``"UniversalCopy<uint128_t>"``).
        - ``"red.global"``, ``"atom.shared"`` and similar names: reductions of one element, or of
          the vector in the name (``"red.global.add.v4.f32"``).
        - ``"cp.async.bulk"`` or ``"cp.async.bulk.store"`` (``"SM90_BULK_COPY_G2S"``): one thread
          moves ``tile``, one run of bytes. The default is the whole ``tensor``.
        - ``"tma"`` or ``"tma.store"`` (``"SM90_TMA_LOAD"``): a bulk tensor copy of the whole
          ``tensor``. One instruction moves the box ``tile``. The layout ``smem`` of the box in
          shared memory gives the swizzle.
    dtype
        Element type: a type of this package, or the name in PTX or CuTe of any type of 1, 2, 4, 8
        or 16 bytes, or of 4 or 6 bits (``"int4"``, ``"e3m2"``). Two elements of 4 bits share one
        byte, and four elements of 6 bits share three bytes. Elements that share bytes must be
        neighbours in memory and in a thread's values. The report then describes the copy of the
        bytes.
    space, direction
        ``"global"`` or ``"shared"``, and ``"load"`` or ``"store"``, unless atom and tensor imply
        them. By default a plain copy loads, and the tensor of cp.async is in global memory.
    base_alignment
        Alignment of the tensor in global memory, in bytes: a power of two. The default is the
        alignment of the pointer in its text, by its address or else by its type. It is 256 without
        a pointer. (Shared memory without a pointer is aligned to 128 bytes.)
    tile, tv
        Alternative to ``threads`` and ``values``: the tile that one copy covers, and the layout
        ``(thread, value) -> coordinate`` in the tile, in which the first mode is the fastest
        (CuTe's Tiler_MN and TiledLayout_TV).
    smem
        Layout of the same tile in shared memory, for a copy from global memory. The report then has
        a row for the stores to shared memory. Of several stages, the first is analyzed.
    reader, writer
        The access that loads from (``reader``) or stores to (``writer``) the same tile in shared
        memory. It has its own row, and no fix makes it worse. It is an ldmatrix or stmatrix,
        ``"ldmatrix.x4.trans"``, or a plain atom with its threads and values,
        ``"ld.shared.64 threads (8,4):(4,1) values (1,2)"``. By default the report assumes that
        ldmatrix reads what 16-byte ``cp.async`` stores, and that 16-byte vectors store what
        ldmatrix reads, if a layout suits both. There is no default for plain accesses.
    let
        Values of the dynamic extents and strides ``?``: one integer for all, or one for each, in
        the order of each text.
    extents
        Extents of a matrix of which ``tensor`` is one tile, such as ``(4000, 100)``. All tiles of
        the matrix are copied, and vectors outside it are predicated off. At the end of a row,
        cp.async copies the elements inside the matrix. The extent limits the width of other
        vectors.
    arch
        Architecture, such as ``"sm_90a"``. An atom that it does not have raises UnsupportedError.
    matrix
        Layout of the matrix that a ``tensor`` of coordinates indexes, in elements:
        ``"(4096,4096):(4096,1)"``, with or without its pointer. A tensor of coordinates is
        ``"(128,64):(1@0,1@1)"``, with or without the prefix ``"ArithTuple(256,0) o "``. The modes
        of the matrix are in the order of the coordinates. For TMA the unit-stride mode is the
        first, ``"(4096,4096):(1,4096)"``, and the box is the ``tensor`` unless ``tile`` is given.

    Returns
    -------
    CopyReport
        The report; see `cute_gemm.CopyReport`.

    Raises
    ------
    NotationError
        If a text cannot be parsed. The error has the column.
    OptionError
        If threads or values are not a bijection, or do not cover the tile; if a tile does not
        divide the tensor; if stored elements share an address; or if an atom, a space or a
        direction is unknown or does not fit.
    DTypeError
        If the data type is not supported.
    UnsupportedError
        If ``arch`` does not have the atom.

    Notes
    -----
    An atom wider than the contiguous values of a thread is not an error. The report evaluates the
    widest legal atom, and a finding describes the limit.

    Examples
    --------
    >>> report = analyze_copy(
    ...     tensor="(128,32):(4096,1)", threads="(16,8):(1,16)", values="(8,1):(1,8)",
    ...     atom="cp.async.128", dtype="float16",
    ... )  # fmt: skip
    >>> report.bits, report.rows[0].sectors, report.rows[0].efficiency
    (16, 16.0, 0.125)
    >>> report.fixes[0][0].what
    'threads (32,4):(4,1), values (1,8), cp.async of 128 bits'
    """
    name, numbers, values_text = atom_name(atom), read_let(let), ""
    whole: tuple[int, int] | None = None
    if name.kind == "tma":
        on_arch(name, arch)
        not_with(
            name, threads=threads, values=values, tv=tv, reader=reader, writer=writer, space=space,
            direction=direction, extents=extents,
        )  # fmt: skip
        box, packing = bulk_access(name, tensor, tile, smem, dtype, base_alignment, let, matrix)
        rows: tuple[AccessRow, ...] = (make_row(box),)
        covered, alignment = box.box, box.matrix.alignment
        sentences = [*findings(rows), *_reduced(rows[0], name)]
        if packing:  # boxes and strides in the sentences are those of bytes
            sentences = [line.replace("tensor:", "tensor as bytes:", 1) for line in sentences]
    else:
        copy = understood(
            tensor, threads, values, atom, dtype, space, direction, base_alignment, tile, tv, smem,
            let, extents, arch, matrix,
        )  # fmt: skip
        partners = named_partners(copy, reader, writer)
        place: dict[str, Any] = {}
        if matrix is not None:  # in another placement the tensor has offsets
            offsets = str(read_tensor(tensor, matrix, numbers)[0].layout)
            place = {"tensor": offsets, "matrix": None, "space": copy.space}
        search = CopySearch(copy, partners, place)
        rows, covered = search.rows(), search.tiled.tile
        alignment, whole, packing = copy.alignment, copy.extents, copy.packing
        whole = packing.in_elements(whole) if packing and whole else whole
        asked = [(rows[0], copy)]
        asked += zip(rows[len(rows) - len(partners) :], (x.alone for x in partners), strict=True)
        sentences = [
            *findings(rows), *(line for row, of in asked for line in _widths(row, of)),
            *_counted(rows), *(line for row, of in asked for line in _reduced(row, of.atom)),
        ]  # fmt: skip
        if tv is not None or values is not None:
            values_text = str(read_values(values) if tv is None else read_tv(tv))
    return CopyReport(
        tensor=_text(tensor, numbers) if matrix is None else str(tensor).strip(),
        matrix=_text(matrix, numbers), smem=_text(smem, numbers), threads=_text(threads, numbers),
        values=values_text, atom=name.text, dtype=element(dtype)[0],
        tile=packing.in_elements(covered) if packing else covered, base_alignment=alignment,
        rows=rows, findings=tuple(sentences), extents=whole,
        packing=(packing.elements, packing.bytes) if packing else None,
    )  # fmt: skip


def _widths(first: AccessRow, copy: Copy) -> list[str]:
    """Return why an access does not use the widest instruction, if no finding of it does."""
    if not first.limit or (first.space == "global" and first.bits < 128):
        return []
    asked = max(128, copy.atom.bits or 0)
    what = f"{first.instruction} of {first.bits} bits, not {asked}: " * (copy.atom.matrix is None)
    return [f"{first.operand}: {what}{first.limit}."]


def _counted(rows: Sequence[AccessRow]) -> list[str]:
    """Return counts of hardware counters for narrow ``cp.async``, with bank conflicts in L1."""
    totals = [(row, row.launch.counted_wavefronts, row.launch.wavefronts) for row in rows]
    return [
        f"{row.operand}: {row.instruction} of {row.bits} bits: hardware counters show {counted:,} "
        f"wavefronts in all, not {wavefronts:,}: they include bank conflicts of its reads in L1."
        for row, counted, wavefronts in totals
        if counted is not None and wavefronts is not None and counted > wavefronts
    ]


def _reduced(row: AccessRow, atom: AtomName) -> list[str]:
    """Return the costs of a reduction that are not counted."""
    if not atom.reduces:
        return []
    left_out = ["what L2 reads and writes"]
    if row.space == "shared":
        left_out = ["the compiler's loop for an operation that shared memory lacks"]
    if (many := _sharers(row.access)) > 1:
        left_out.insert(0, f"the serialization of up to {many} lanes that share an address")
    if row.instruction.startswith("atom"):
        left_out.append("the return of the old values")
    what = f"{row.operand}: {row.instruction}" + f" of {row.bits} bits" * bool(row.bits)
    return [f"{what} is counted as a store; not counted: {', '.join(left_out)}."]


def _sharers(access: Access) -> int:
    """Return the most lanes of a request with the same address."""
    if isinstance(access, TmaAccess):
        return 1
    if isinstance(access, GlobalAccess):
        starts, lengths = access.lanes(access.tile)
        places = np.where(lengths > 0, starts, -1)
    else:
        places = access.offsets
    shares = (np.unique(request[request >= 0], return_counts=True)[1] for request in places)
    return int(max(counts.max(initial=0) for counts in shares))


def _text(layout: Any, let: Sequence[int]) -> str:
    return "" if layout is None else str(parse(layout, let))
