"""MMA atoms and copy atoms, as rows of data.

To add an instruction to the project, add a row here; all rules elsewhere read these rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from cute_gemm.cute.layout import Layout
from cute_gemm.cute.notation import parse


@dataclass(frozen=True, slots=True)
class MmaAtom:
    """One matrix instruction, with the thread-value layouts of its operands (CuTe's MMA_Traits).

    ``a``, ``b``, ``c`` are ``(thread, value) -> coordinate``, linear with the first mode fastest,
    in (M,K), (N,K), (M,N); ``threads`` execute it together.
    """

    #: The CuTe operation.
    name: str
    shape_mnk: tuple[int, int, int]
    threads: int
    a: Layout
    b: Layout
    c: Layout
    #: ``DType.tag`` of the factors from A and from B.
    takes: tuple[str, str]
    #: Lowest compute capability.
    minimum_cc: int = 80

    @property
    def cpp(self) -> str:
        """C++ type, which has the name only if CuTe's traits are included."""
        return self.name.replace("SM90_", "SM90::MMA_")

    @property
    def header(self) -> str:
        """CuTe's header that defines it."""
        return f"cute/arch/mma_sm{self.minimum_cc}.hpp"


def _tensor_op(name: str, a: str, b: str, c: str = "((4,8),(2,2)):((32,1),(16,8))") -> MmaAtom:
    """Return a warp's tensor core instruction by its name: SM80_16x8x16_F32F16F16F32_TN.

    ``c`` is by default the accumulator layout that all m16n8 instructions share.
    """
    cc, extents, types, _ = name.split("_")
    m, n, k = map(int, extents.split("x"))
    _, left, right, _ = re.findall(r"e\dm\d|[a-z]+\d+", types.lower())
    layouts = parse(a), parse(b), parse(c)
    return MmaAtom(name, (m, n, k), 32, *layouts, (left, right), minimum_cc=int(cc[2:]))


_ONE = Layout((1, 1), (0, 0))
_A_16BIT, _B_16BIT = "((4,8),(2,2,2)):((32,1),(16,8,128))", "((4,8),(2,2)):((16,1),(8,64))"
_A_32BIT, _B_32BIT = "((4,8),(2,2)):((16,1),(8,64))", "((4,8),2):((8,1),32)"
_A_8BIT, _B_8BIT = "((4,8),(4,2,2)):((64,1),(16,8,256))", "((4,8),(4,2)):((32,1),(8,128))"
_ROW = "((4,8),1):((8,1),0)"

#: MMA atoms by name; the first one of a type that the GPU has is the default.
MMA_ATOMS: dict[str, MmaAtom] = {
    atom.name: atom
    for atom in (
        _tensor_op("SM80_16x8x16_F32F16F16F32_TN", _A_16BIT, _B_16BIT),
        _tensor_op("SM80_16x8x16_F32BF16BF16F32_TN", _A_16BIT, _B_16BIT),
        _tensor_op("SM80_16x8x8_F32TF32TF32F32_TN", _A_32BIT, _B_32BIT),
        _tensor_op("SM80_16x8x32_S32S8S8S32_TN", _A_8BIT, _B_8BIT),
        *(
            _tensor_op(f"SM89_16x8x32_F32{a}{b}F32_TN", _A_8BIT, _B_8BIT)
            for a in ("E4M3", "E5M2")
            for b in ("E4M3", "E5M2")
        ),
        _tensor_op("SM90_16x8x4_F64F64F64F64_TN", "((4,8),2):((16,1),8)", _ROW),
        _tensor_op("SM90_16x8x8_F64F64F64F64_TN", _A_32BIT, _B_32BIT),
        _tensor_op(
            "SM90_16x8x16_F64F64F64F64_TN", "((4,8),(2,4)):((16,1),(8,64))", "((4,8),4):((8,1),32)"
        ),
        _tensor_op("SM80_8x8x4_F64F64F64F64_TN", _ROW, _ROW, "((4,8),2):((16,1),8)"),
        MmaAtom("UniversalFMA<float>", (1, 1, 1), 1, _ONE, _ONE, _ONE, ("f32", "f32")),
    )
}


def mma_atoms(a: str, b: str) -> tuple[MmaAtom, ...]:
    """Return the atoms that multiply factors of the types tagged ``a`` and ``b``."""
    return tuple(atom for atom in MMA_ATOMS.values() if atom.takes == (a, b))


#: Columns of the wgmma operations in CuTe's header ``mma_sm90_gmma.hpp``.
COLUMNS = (8, 16, 32, 64, 96, 128, 192, 256)


def wgmma(
    columns: int, types: tuple[str, str, str], size: int, majors: tuple[str, str], register_a: bool
) -> str:
    """Return the CuTe operation of a wgmma: the products of 64 rows by ``columns`` over 32 bytes.

    ``types`` are tags of the accumulators', A's and B's type, and ``size`` the bytes of an element
    of A or B. ``majors`` are ``"K"`` or ``"MN"``; elements of sizes other than 2 bytes are read
    along K from shared memory. ``register_a``: A comes from registers.
    """
    source = "RS" if register_a else "SS"
    tags = "".join(types).upper()
    name = f"SM90::GMMA::MMA_64x{columns}x{32 // size}_{tags}_{source}"
    if size == 2:
        return f"{name}<{', '.join(f'SM90::GMMA::Major::{major}' for major in majors)}>"
    return f"{name}_TN" + ("" if types[0] == "s32" else "<>")


@dataclass(frozen=True, slots=True)
class CopyAtom:
    """One copy instruction, which ``threads`` execute together."""

    #: Name in reports.
    name: str
    #: The CuTe operation.
    cpp: str
    #: Bits per thread (its address stands for that many contiguous bits).
    bits: int
    threads: int = 1
    #: ``(thread, bit) -> bit`` of the warp's data, for instructions that pass a thread's data to
    #: other threads (ldmatrix) or take it from them (stmatrix); None if every thread keeps the data
    #: at its address.
    destination: Layout | None = None
    #: Rows of a matrix of such an instruction, 16 bytes each.
    rows: int = 8
    #: Lane -> row, among all matrices, whose address it gives; None: lane i gives row i.
    order: Layout | None = None
    #: Feature that an architecture needs for it (``Arch.has``), or "".
    feature: str = ""

    @property
    def unit(self) -> int:
        """Bits of the warp's data that stay adjacent in a thread."""
        assert self.destination is not None
        return next(extent for extent, stride in self.destination.leaves if stride == 1)


def cp_async(bits: int) -> CopyAtom:
    """Return ``cp.async`` with zero fill; 4, 8 or 16 bytes."""
    cache = "CACHEGLOBAL" if bits == 128 else "CACHEALWAYS"
    return CopyAtom("cp.async", f"SM80_CP_ASYNC_{cache}_ZFILL<uint{bits}_t>", bits)


def universal(name: str, bits: int) -> CopyAtom:
    """Return a plain load or store of 1 to 16 bytes."""
    return CopyAtom(name, f"UniversalCopy<uint{bits}_t>", bits)


def _matrix(name: str, cpp: str, held: str, matrices: int, **more: Any) -> CopyAtom:
    """Return an instruction of a whole warp that moves matrices of 8 or 16 rows of 16 bytes."""
    return CopyAtom(name, cpp, 128, 32, parse(held, [matrices]), **more)


#: What a thread holds of ``?`` matrices: ``(thread, bit) -> bit``, row of 128 bits by row.
_ROWS = "(32,(32,?)):(32,(1,1024))"
_COLUMNS = "((4,8),(16,2,?)):((256,16),(1,128,1024))"

#: ldmatrix and stmatrix by name. The row addresses come from the first 8 lanes for one matrix, 16
#: for two, all for four. For stmatrix ``destination`` is the data that threads store.
MATRIX_ATOMS: dict[str, CopyAtom] = {
    atom.name: atom
    for n in (1, 2, 4)
    for verb, cc, cpp, feature in (("ld", 75, "LDSM", ""), ("st", 90, "STSM", "stmatrix"))
    for atom in (
        _matrix(f"{verb}matrix.x{n}", f"SM{cc}_U32x{n}_{cpp}_N", _ROWS, n, feature=feature),
        _matrix(
            f"{verb}matrix.x{n}.trans", f"SM{cc}_U16x{2 * n}_{cpp}_T", _COLUMNS, n, feature=feature
        ),
    )
}

#: Instructions for 8-bit elements. ldmatrix of m16n16 has two rows here: with PTX's fragment, four
#: rows of a column per thread, and with CuTe's, that of ``stmatrix.m16n8``: two rows and the two
#: eight below, since CuTe gives the row addresses in another order. m8n16 unpacks rows of 16
#: elements that occupy 16 bytes with their padding.
_PAIRS = "((4,8),(8,2,2,?)):((256,8),(1,128,64,1024))"
_QUADS = "((4,8),(8,4,2,?)):((512,8),(1,128,64,2048))"
_CUTE_ORDER = "((2,2,4,?)):((1,8,2,16))"
_of_bytes = partial(_matrix, feature="matrix.b8")
BYTE_ATOMS: tuple[CopyAtom, ...] = (
    *(
        _of_bytes(f"ldmatrix.m16n16.x{n}.trans", cpp, held, many, rows=16, order=order)
        for n in (1, 2)
        for cpp, held, many, order in (
            ("", _QUADS, n, None),
            (f"SM100_U8x{8 * n}_LDSM_T", _PAIRS, 2 * n, parse(_CUTE_ORDER, [n])),
        )
    ),
    *(
        _of_bytes(f"stmatrix.m16n8.x{n}.trans", f"SM100_U8x{4 * n}_STSM_T", _PAIRS, n)
        for n in (1, 2, 4)
    ),
    *(
        _of_bytes(
            f"ldmatrix.m8n16.x{n}.b{bits}x16_p{128 - 16 * bits}",
            f"SM100_SU{bits}_DU8x16_x{n}_LDSM_N", _ROWS, n,
        )
        for n in (1, 2, 4)
        for bits in (4, 6)
    ),
)  # fmt: skip

LDMATRIX = MATRIX_ATOMS["ldmatrix.x4"]
LDMATRIX_TRANS = MATRIX_ATOMS["ldmatrix.x4.trans"]
