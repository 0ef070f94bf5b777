"""Names of copy atoms in PTX, C++ CuTe, CuTe DSL and this package."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from cute_gemm.access.accesses import Direction
from cute_gemm.cute.atoms import BYTE_ATOMS, MATRIX_ATOMS, CopyAtom
from cute_gemm.errors import OptionError

Space = Literal["global", "shared"]


@dataclass(frozen=True, slots=True)
class AtomName:
    """Properties that the name of an atom implies; None if it implies none.

    ``kind``: "universal" for plain loads and stores, "reduce" for atomic operations, "matrix" for
    ldmatrix and stmatrix, "bulk" for one run of bytes, "tma" for a bulk tensor copy. ``space`` and
    ``direction`` of cp.async are those of its global side. ``bits`` is the width, None for the
    widest that fits, at most ``most`` (for a reduction, ``bits`` of its operand, 0 if the name has
    none: then it has one element). ``verb`` begins the names of reductions and bulk copies.
    """

    text: str
    kind: Literal["cp.async", "universal", "reduce", "matrix", "bulk", "tma"]
    space: Space | None = None
    direction: Direction | None = None
    bits: int | None = None
    most: int = 128
    matrix: CopyAtom | None = None
    verb: str = ""

    def instruction(self, space: Space, direction: Direction, bits: int) -> str:
        """Return the instruction for ``bits`` of a thread: ``"cp.async"``, ``"st.shared"``, ..."""
        if self.kind == "bulk":
            return self.verb
        if self.kind == "cp.async" and bits >= 32:
            return "cp.async"
        return f"{self.verb or {'load': 'ld', 'store': 'st'}[direction]}.{space}"

    def asked(self, size: int) -> int:
        """Return how many elements of ``size`` bytes the specified vector has."""
        bits = 128 if self.matrix is not None else self.bits or self.most
        return max(1, bits // (8 * size))

    @property
    def reduces(self) -> bool:
        """Whether it combines values with those in memory."""
        return self.kind == "reduce" or self.verb.startswith("cp.reduce")

    @property
    def is_vector(self) -> bool:
        """Whether it is a reduction of several operands: ``red.global.add.v4.f32``."""
        return self.kind == "reduce" and 0 < self.most < (self.bits or 0)

    @property
    def zero_fills(self) -> bool:
        """Whether inactive lanes write zeros, as in cp.async with a source size."""
        return bool(re.search(r"_ZFILL|\]\s*,\s*\d+\s*,", self.text))

    @property
    def feature(self) -> str:
        """The feature of an architecture that it needs (``Arch.has``), or ""."""
        if self.matrix is not None:
            return self.matrix.feature
        bits = self.bits or 0
        own = {"universal": "ld.256" * (bits > 128), "cp.async": "cp.async"}
        own["reduce"] = "red.vector" * (self.is_vector or bits > 64)
        return own.get(self.kind, "tma")


#: Legal widths of instructions, by prefixes of their names.
_WIDTHS = {
    "ld.global": (8, 16, 32, 64, 128, 256), "st.global": (8, 16, 32, 64, 128, 256),
    "ld.shared": (8, 16, 32, 64, 128), "st.shared": (8, 16, 32, 64, 128),
    "red.global": (16, 32, 64, 128), "atom.global": (16, 32, 64, 128),
    "red.shared": (16, 32, 64, 128), "atom.shared": (16, 32, 64, 128),
    "cp.async": (32, 64, 128), "a copy": (8, 16, 32, 64, 128),
}  # fmt: skip
#: Parts of PTX's names that determine neither space nor width.
_QUALIFIER = re.compile(
    r"weak|volatile|relaxed|acquire|release|acq_rel|cta|cluster|gpu|sys|ca|cg|cs|lu|cv|wb|wt|nc"
    r"|L1::(?:evict_\w+|no_allocate)|L2::(?:cache_hint|evict_\w+|64B|128B|256B)"
)
_OPERATION = re.compile(r"add|min|max|inc|dec|and|or|xor|exch|cas|noftz")
_PTX_ASYNC = re.compile(
    r"cp\.async\.(ca|cg)\.shared(?:::(?:cta|cluster))?\.global(?:\.L2::\w+)*"
    r"(?:\s*\[[^\]]*\]\s*,\s*\[[^\]]*\]\s*,\s*(\d+)\b.*)?"
)
_OWN_ASYNC = re.compile(r"cp\.async(?:\.b?(\d+))?")
_MATRIX_QUALIFIER = re.compile(r"sync|aligned|shared(?:::cta)?|b16|b8|b8x16")
_CPP = re.compile(r"(\w+)(?:<(.*)>)?")
#: Operations of CuTe DSL, as called and as printed.
_DSL_MATRIX = re.compile(
    r"\b((?:Ld|St)Matrix\w*b)(?:Op\(([^()]*)\)| Copy Operation\b(.*))", re.DOTALL
)
_DSL = re.compile(r"\b(CopyG2SOp|CopyUniversalOp)\b(?:.*\bnum_bits_per_copy\s*=\s*(\d+))?")
#: Copies of more than a thread's vector: kind, verb, direction, and names.
_BULK: tuple[tuple[Literal["bulk", "tma"], str, Direction | None, re.Pattern[str]], ...] = (
    ("tma", "", "load", re.compile(
        r"tma(\.load)?|SM90_TMA_LOAD(_MULTICAST)?|[\w.]*\bCopyBulkTensorTileG2S(Multicast)?Op(\(.*\))?"
        r"|cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global[\w.:]*")),
    ("tma", "", "store", re.compile(
        r"tma\.store|SM90_TMA_STORE|[\w.]*\bCopyBulkTensorTileS2GOp(\(.*\))?"
        r"|cp\.async\.bulk\.tensor\.2d\.global\.shared::cta[\w.:]*")),
    ("tma", "cp.reduce", "store", re.compile(
        r"SM90_TMA_REDUCE_ADD|[\w.]*\bCopyReduceBulkTensorTileS2GOp(\(.*\))?"
        r"|cp\.reduce\.async\.bulk\.tensor\.2d\.global\.shared::cta[\w.:]*")),
    ("bulk", "cp.async.bulk", None, re.compile(r"SM90_BULK_COPY_AUTO")),
    ("bulk", "cp.async.bulk", "load", re.compile(
        r"cp\.async\.bulk(\.load)?|SM90_BULK_COPY_G2S|[\w.]*\bCopyBulkG2S(Multicast)?Op(\(.*\))?"
        r"|cp\.async\.bulk\.shared::(cluster|cta)\.global[\w.:]*(\s*\[.*)?")),
    ("bulk", "cp.async.bulk", "store", re.compile(
        r"cp\.async\.bulk\.store|SM90_BULK_COPY_S2G|[\w.]*\bCopyBulkS2GOp(\(.*\))?"
        r"|cp\.async\.bulk\.global\.shared::cta[\w.:]*(\s*\[.*)?")),
    ("bulk", "cp.reduce.async.bulk", "store", re.compile(
        r"cp\.reduce\.async\.bulk(\.global\.shared::cta[\w.:]*(\s*\[.*)?)?")),
)  # fmt: skip
_TYPES = {"float": 32, "double": 64, "half_t": 16, "bfloat16_t": 16, "float2": 64, "float4": 128}
_TYPES |= {"tfloat32_t": 32, "int": 32, "uint4": 128, "half": 16}
_EVERY = (*MATRIX_ATOMS.values(), *BYTE_ATOMS)
#: Atoms by PTX's name, preferring PTX's fragment, and by CuTe's.
_MATRICES = {atom.cpp: atom for atom in _EVERY} | {atom.name: atom for atom in _EVERY[::-1]}


def _dsl(name: str, transpose: object, number: object, unpack: object = None) -> str:
    """Return an operation of CuTe DSL on matrices as text, with all arguments."""
    bits = f", unpack_bits={unpack}" if unpack else ""
    return f"{name}Op(transpose={transpose}, num_matrices={number}{bits})"


#: CuTe DSL's operations on matrices. PTX has no load of 16 rows of 8 bytes: it is an m16n16 with
#: CuTe's fragment. (In earlier releases such a store was transposed, without documentation.)
_DSL_MATRICES = {
    _dsl(name, transpose, number, unpack): atom.format(number, 4 * number)
    for name, transpose, numbers, unpack, atom in (
        ("LdMatrix8x8x16b", False, (1, 2, 4), None, "ldmatrix.x{}"),
        ("LdMatrix8x8x16b", True, (1, 2, 4), None, "ldmatrix.x{}.trans"),
        ("StMatrix8x8x16b", False, (1, 2, 4), None, "stmatrix.x{}"),
        ("StMatrix8x8x16b", True, (1, 2, 4), None, "stmatrix.x{}.trans"),
        ("LdMatrix8x16x8b", False, (1, 2, 4), None, "ldmatrix.x{}"),
        ("LdMatrix8x16x8b", False, (1, 2, 4), 4, "ldmatrix.m8n16.x{}.b4x16_p64"),
        ("LdMatrix8x16x8b", False, (1, 2, 4), 6, "ldmatrix.m8n16.x{}.b6x16_p32"),
        ("StMatrix16x8x8b", True, (1, 2, 4), None, "stmatrix.m16n8.x{}.trans"),
        ("StMatrix16x8x8b", False, (1, 2, 4), None, "stmatrix.m16n8.x{}.trans"),
        ("LdMatrix16x8x8b", True, (2, 4), None, "SM100_U8x{1}_LDSM_T"),
        ("LdMatrix16x16x8b", True, (1, 2), None, "ldmatrix.m16n16.x{}.trans"),
    )
    for number in numbers
}


def atom_name(text: str) -> AtomName:
    """Parse the name of an atom: PTX's, C++ CuTe's or CuTe DSL's.

    Raise OptionError for an unknown name, or a width that its instruction does not have.
    """
    text = str(text)
    name = text.strip().removesuffix("{}").replace("cute::", "").replace("cutlass::", "")
    if wrapped := re.fullmatch(r"Copy_Atom<(.*),[^,<>]*>", name):
        name = wrapped[1].strip()
    # Reports have "cp.async of 128 bits".
    name = re.sub(r"^(\S+) of (\d+) bits$", r"\1.\2", name)
    for kind, verb, way, pattern in _BULK:
        if pattern.fullmatch(name):
            return AtomName(text, kind, "global", way, verb=verb)
    for parsed in (_copy_async, _plain, _matrix, _of_cute):
        if atom := parsed(text, name):
            return atom
    raise OptionError(
        f"atom {text!r} is unknown; expected one like 'cp.async.128', 'ld.global', 'st.shared.64', "
        "'red.global', 'ldmatrix.x4.trans', 'stmatrix.x2', 'cp.async.bulk', 'tma', or CuTe's name, "
        "such as 'SM75_U32x4_LDSM_N' or 'UniversalCopy<uint128_t>'"
    )


def _copy_async(text: str, name: str) -> AtomName | None:
    """Parse ``cp.async.128``, ``cp.async.cg.shared.global [d], [s], 16``."""
    atom = AtomName(text, "cp.async", "global", "load")
    if match := _PTX_ASYNC.fullmatch(name):
        size = 8 * int(match[2]) if match[2] else None
        return _sized(atom, 128 if match[1] == "cg" and size is None else size, "cp.async")
    match = _OWN_ASYNC.fullmatch(name)
    return _sized(atom, match[1], "cp.async") if match else None


def _plain(text: str, name: str) -> AtomName | None:
    """Parse loads, stores, reductions: ``ld.global.128``, ``red.relaxed.gpu.global.add.v4.f32``."""
    head, *parts = name.split(".")
    space, bits, many, operand = None, None, 1, 0
    for part in parts:
        if kind := re.fullmatch(r"([bsuf]|bf)?(\d+)(x2)?", part):
            bits = int(kind[2]) * (2 if kind[3] else 1)
            operand = bits if kind[1] else 0
        elif vector := re.fullmatch(r"v([248])", part):
            many = int(vector[1])
        elif part.partition("::")[0] in ("global", "shared"):
            space = part.partition("::")[0]
        elif not (_QUALIFIER.fullmatch(part) or (head != "ld" and _OPERATION.fullmatch(part))):
            return None
    what = f"{head}.{space}"
    if what not in _WIDTHS or (bits is None and many > 1):
        return None
    atom = AtomName(text, "universal", space, "load" if head == "ld" else "store")  # type: ignore[arg-type]
    if head in ("red", "atom"):
        atom = replace(atom, kind="reduce", most=operand, verb=head)
    return _sized(atom, bits and bits * many, what)


def _matrix(text: str, name: str) -> AtomName | None:
    """Parse ``ldmatrix.x4.trans``, ``stmatrix.sync.aligned.m16n8.x2.trans.shared.b8``, CuTe's."""
    if match := _DSL_MATRIX.search(name):
        text, name = " ".join(text.split()), _of_dsl(text, match)
    head, *parts = name.split(".")
    if head in ("ldmatrix", "stmatrix"):
        order = {"m": 0, "x": 1, "t": 2, "b": 3}  # shape, number, trans, type that is unpacked
        parts = [x for x in parts if not _MATRIX_QUALIFIER.fullmatch(x) and x != "m8n8"]
        name = ".".join([head, *sorted(parts, key=lambda part: order.get(part[:1], 4))])
    atom = _MATRICES.get(name)
    if atom is None or not name:
        return None
    way: Direction = "store" if atom.name.startswith("st") else "load"
    return AtomName(text, "matrix", "shared", way, matrix=atom)


def _of_dsl(text: str, match: re.Match[str]) -> str:
    """Return PTX's or CuTe's name of an operation of CuTe DSL on matrices."""
    name, called, printed = match.groups()
    given: dict[str, str] = {}
    # transpose, num_matrices and unpack_bits, by name or in this order; or as printed.
    for argument in filter(None, map(str.strip, (called or "").split(","))):
        key, _, value = map(str.strip, argument.rpartition("="))
        place = "transpose" if value in ("True", "False") else "num_matrices"
        given[key or ("unpack_bits" if place in given else place)] = value
    if printed:
        patterns = {"num_matrices": r"matrices\s*=\s*(\d+)", "unpack_bits": r"unpack (\d+)b"}
        matches = {key: re.search(pattern, printed) for key, pattern in patterns.items()}
        given = {key: match[1] for key, match in matches.items() if match}
        given["transpose"] = str("transposed" in printed)
    bits = given.get("unpack_bits", "None")
    transpose, number = given.get("transpose", False), given.get("num_matrices", 1)
    full = _dsl(name, transpose, number, None if bits == "None" else bits)
    if full in _DSL_MATRICES:
        return _DSL_MATRICES[full]
    known = [x for x in _DSL_MATRICES if x.startswith(f"{name}Op(")]
    known = known or [*dict.fromkeys(x.partition("(")[0] for x in _DSL_MATRICES)]
    raise OptionError(f"atom {text!r} is unknown; expected one of {', '.join(known)}")


def _of_cute(text: str, name: str) -> AtomName | None:
    """Parse CuTe's other operations: ``UniversalCopy<uint128_t>``, ``CopyG2SOp(...)``."""
    cp_async, plain = AtomName(text, "cp.async", "global", "load"), AtomName(text, "universal")
    if match := _CPP.fullmatch(name):
        head, argument = match[1], (match[2] or "").split(",")[0].strip()
        if wide := re.fullmatch(r"SM100_(LOAD|STORE)_256bit_CACHE_NOALLOCATION", head):
            return replace(
                plain, space="global", direction=wide[1].lower(), bits=256  # type: ignore[arg-type]
            )  # fmt: skip
        if re.fullmatch(r"SM80_CP_ASYNC_CACHE(GLOBAL|ALWAYS)(_ZFILL)?", head):
            return _sized(cp_async, _type_bits(argument, text), "cp.async")
        if head == "AutoCopyAsync":
            return cp_async
        if head == "UniversalCopy":
            return _sized(plain, _type_bits(argument, text), "a copy")
        if head in ("AutoVectorizingCopy", "AutoVectorizingCopyWithAssumedAlignment"):
            return replace(plain, most=int(argument) if argument.isdigit() else 128)
        if head == "DefaultCopy":
            return replace(plain, most=8)  # it assumes no alignment
    if match := _DSL.search(name):
        atom = cp_async if match[1] == "CopyG2SOp" else plain
        return _sized(atom, match[2], "cp.async" if atom is cp_async else "a copy")
    return None


def _sized(atom: AtomName, bits: str | int | None, what: str) -> AtomName:
    if bits is None:
        return atom
    if int(bits) not in _WIDTHS[what]:
        legal = ", ".join(map(str, _WIDTHS[what]))
        raise OptionError(f"atom {atom.text!r} has a width of {bits} bits; expected one of {legal}")
    return replace(atom, bits=int(bits))


def _type_bits(name: str, text: str) -> int:
    """Return the width of a C++ type in bits."""
    if match := re.fullmatch(r"u?int(\d+)_t|uint_bit_t<(\d+)>", name):
        return int(match[1] or match[2])
    if match := re.fullmatch(r"uint_byte_t<(\d+)>", name):
        return 8 * int(match[1])
    if name not in _TYPES:
        raise OptionError(f"atom {text!r} copies {name!r}; expected a type such as uint128_t")
    return _TYPES[name]
