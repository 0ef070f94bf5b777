"""A tiled copy of one tile: an atom by any of its names, and the access that the copy makes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.cute.atoms import MATRIX_ATOMS, CopyAtom
from cute_gemm.errors import OptionError
from cute_gemm.problem.problem import Matrix

if TYPE_CHECKING:
    from cute_gemm.cute.copies import TiledCopy
    from cute_gemm.cute.layout import Layout

Space = Literal["global", "shared"]
Direction = Literal["load", "store"]


# -- atoms ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtomName:
    """What the name of an atom says; None where it leaves something open.

    ``kind`` "universal" is plain loads and stores, "matrix" ldmatrix and stmatrix, "tma" a bulk
    tensor copy. ``space`` and
    ``direction`` of cp.async are its global side's. ``bits`` is the width, None for the widest that
    fits, which may not pass ``most``.
    """

    text: str
    kind: Literal["cp.async", "universal", "matrix", "tma"]
    space: Space | None = None
    direction: Direction | None = None
    bits: int | None = None
    most: int = 128
    matrix: CopyAtom | None = None


_OWN = re.compile(r"(ld|st)\.(global|shared)(?:\.b?(\d+))?|(cp\.async)(?:\.b?(\d+))?")
#: What PTX puts into the name of a load or store that says nothing of where and how wide.
_PTX_QUALIFIERS = re.compile(
    r"weak|volatile|relaxed|acquire|release|cta|cluster|gpu|sys|ca|cg|cs|lu|cv|wb|wt|nc"
    r"|L1::(?:evict_\w+|no_allocate)|L2::(?:cache_hint|evict_\w+|64B|128B|256B)"
)
_PTX_ASYNC = re.compile(
    r"cp\.async\.(ca|cg)\.shared(?:::(?:cta|cluster))?\.global(?:\.L2::\w+)*"
    r"(?:\s*\[[^\]]*\]\s*,\s*\[[^\]]*\]\s*,\s*(\d+)\b.*)?"
)
_PTX_MATRIX = re.compile(r"(ldmatrix|stmatrix)\b[\w.]*?\.(x[124])\b(\.trans\b)?(?:\.[\w.:]+)?")
_CPP = re.compile(r"(\w+)(?:<(.*)>)?")
_DSL_MATRIX = re.compile(r"(Ld|St)Matrix8x8x16bOp\((.*)\)")
#: Bulk tensor copies of two modes; the first that matches says which way.
_TMA = {
    "load": re.compile(
        r"tma(\.load)?|SM90_TMA_LOAD(_MULTICAST)?|[\w.]*\bCopyBulkTensorTileG2S(Multicast)?Op(\(.*\))?"
        r"|cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global[\w.:]*"
    ),
    "store": re.compile(
        r"tma\.store|SM90_TMA_STORE|[\w.]*\bCopyBulkTensorTileS2GOp(\(.*\))?"
        r"|cp\.async\.bulk\.tensor\.2d\.global\.shared::cta[\w.:]*"
    ),
}
_DSL = re.compile(r"\b(CopyG2SOp|CopyUniversalOp)\b(?:.*\bnum_bits_per_copy\s*=\s*(\d+))?")
_LEGAL = (8, 16, 32, 64, 128)
_TYPES = {"float": 32, "double": 64, "half_t": 16, "bfloat16_t": 16, "float2": 64, "float4": 128}
_TYPES |= {"tfloat32_t": 32, "int": 32, "uint4": 128, "half": 16}


def atom_name(text: str) -> AtomName:
    """Understand the name of an atom: PTX's, C++ CuTe's or CuTe DSL's.

    OptionError for a name that is none, or a width that its instruction does not have.
    """
    text = str(text)
    name = text.strip().removesuffix("{}").replace("cute::", "").replace("cutlass::", "")
    if wrapped := re.fullmatch(r"Copy_Atom<(.*),[^,<>]*>", name):
        name = wrapped[1].strip()
    cp_async, plain = AtomName(text, "cp.async", "global", "load"), AtomName(text, "universal")
    # A report says "cp.async of 128 bits".
    name = re.sub(r"^(\S+) of (\d+) bits$", r"\1.\2", name)
    for along, pattern in _TMA.items():
        if pattern.fullmatch(name):
            return AtomName(text, "tma", "global", along)  # type: ignore[arg-type]
    if found := _PTX_ASYNC.fullmatch(name):
        size = 8 * int(found[2]) if found[2] else None
        return _sized(cp_async, 128 if found[1] == "cg" and size is None else size, (32, 64, 128))
    name = _own_name(name)
    if found := _OWN.fullmatch(name):
        if found[4]:
            return _sized(cp_async, found[5], (32, 64, 128))
        space: Space = "global" if found[2] == "global" else "shared"
        direction: Direction = "load" if found[1] == "ld" else "store"
        return _sized(AtomName(text, "universal", space, direction), found[3])
    matrix = None
    if found := _PTX_MATRIX.fullmatch(name):
        matrix = f"{found[1]}.{found[2]}{'.trans' if found[3] else ''}"
    elif found := _DSL_MATRIX.search(name):
        number = re.search(r"\b([124])\b", found[2])
        trans = ".trans" if "True" in found[2] else ""
        matrix = f"{found[1].lower()}matrix.x{number[1] if number else 1}{trans}"
    else:
        matrix = next((atom.name for atom in MATRIX_ATOMS.values() if atom.cpp == name), None)
    if matrix:
        way: Direction = "store" if matrix.startswith("st") else "load"
        return AtomName(text, "matrix", "shared", way, matrix=MATRIX_ATOMS[matrix])
    if found := _CPP.fullmatch(name):
        head, argument = found[1], (found[2] or "").split(",")[0].strip()
        if re.fullmatch(r"SM80_CP_ASYNC_CACHE(GLOBAL|ALWAYS)(_ZFILL)?", head):
            return _sized(cp_async, _type_bits(argument, text), (32, 64, 128))
        if head == "AutoCopyAsync":
            return cp_async
        if head == "UniversalCopy":
            return _sized(plain, _type_bits(argument, text))
        if head in ("AutoVectorizingCopy", "AutoVectorizingCopyWithAssumedAlignment"):
            return replace(plain, most=int(argument) if argument.isdigit() else 128)
        if head == "DefaultCopy":
            return replace(plain, most=8)  # it assumes no alignment
    if found := _DSL.search(name):
        atom = cp_async if found[1] == "CopyG2SOp" else plain
        return _sized(atom, found[2], (32, 64, 128) if atom is cp_async else _LEGAL)
    raise OptionError(
        f"atom {text!r} is unknown; expected one like 'cp.async.128', 'ld.global', 'st.shared.64', "
        "'ldmatrix.x4.trans', 'stmatrix.x2', or CuTe's name of it, 'SM75_U32x4_LDSM_N', "
        "'UniversalCopy<uint128_t>'"
    )


def _own_name(name: str) -> str:
    """PTX's name of a load or store as this package has it: ``ld.global.nc.v4.f32`` of 128 bits."""
    head, *parts = name.split(".")
    if head not in ("ld", "st") or len(parts) < 2 or parts[-1].isdigit():
        return name
    kind = re.fullmatch(r"[bsuf](\d+)(x2)?", parts[-1])
    if kind is None:
        return name
    bits, space = int(kind[1]) * (2 if kind[2] else 1), ""
    for part in parts[:-1]:
        if vector := re.fullmatch(r"v([248])", part):
            bits *= int(vector[1])
        elif part.partition("::")[0] in ("global", "shared"):
            space = part.partition("::")[0]
        elif not _PTX_QUALIFIERS.fullmatch(part):
            return name
    return f"{head}.{space}.{bits}"


def _sized(atom: AtomName, bits: str | int | None, legal: tuple[int, ...] = _LEGAL) -> AtomName:
    if bits is None:
        return atom
    if int(bits) not in legal:
        raise OptionError(
            f"atom {atom.text!r} asks for {bits} bits; expected one of {', '.join(map(str, legal))}"
        )
    return replace(atom, bits=int(bits))


def _type_bits(name: str, text: str) -> int:
    """Width of a C++ type."""
    if found := re.fullmatch(r"u?int(\d+)_t|uint_bit_t<(\d+)>", name):
        return int(found[1] or found[2])
    if found := re.fullmatch(r"uint_byte_t<(\d+)>", name):
        return 8 * int(found[1])
    if name not in _TYPES:
        raise OptionError(f"atom {text!r} copies {name!r}; expected a type such as uint128_t")
    return _TYPES[name]


# -- from a copy to accesses ----------------------------------------------------------------------


#: A type of each size: what a copy costs depends on nothing else of it.
OF_SIZE = {1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}


def global_access(
    copy: TiledCopy, layout: Layout, direction: Direction, size: int, alignment: int
) -> GlobalAccess:
    """The copy of one tile of a tensor in global memory; ``alignment``: bytes, of element (0, 0).

    Memory is described as what it is, one run of elements; a coordinate is an offset in it.
    """
    first = copy.offsets(layout)[..., 0]
    extent = int(first.max()) + copy.values
    memory = Matrix("tensor", (extent, 1), (1, extent), OF_SIZE[size], alignment)
    return GlobalAccess(
        operand="tensor", direction=direction, instruction=copy.atom.name, bits=copy.bits,
        matrix=memory, tile=memory.shape, axis=0, sweeps=1, unit="CTA",
        coords=np.stack([first, np.where(first < 0, -1, 0)], axis=-1),
    )  # fmt: skip


def shared_access(copy: TiledCopy, layout: Layout, direction: Direction) -> SharedAccess:
    """The copy of one tile in shared memory."""
    return SharedAccess(
        operand="tensor", direction=direction, instruction=copy.atom.name, bits=copy.bits,
        offsets=copy.vector_offsets(layout), executions=1, unit="CTA", layout=layout,
        coords=copy.requests(layout.extents), element_bits=copy.element_bits,
    )  # fmt: skip
