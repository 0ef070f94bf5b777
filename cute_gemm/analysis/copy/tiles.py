"""A tiled copy of one tile: an atom by any of its names, who addresses what, and the access it is.

Everything here is explicit: the elements of every lane of every request, and their offsets in the
tile's layout, so that hierarchical and swizzled layouts are nothing special.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.cute.atoms import MATRIX_ATOMS, CopyAtom
from cute_gemm.errors import OptionError
from cute_gemm.problem.dtypes import dtype
from cute_gemm.problem.problem import Matrix

if TYPE_CHECKING:
    from cute_gemm.cute.layout import Layout

Space = Literal["global", "shared"]
Direction = Literal["load", "store"]

#: Lanes of a warp.
LANES = 32
#: Bits of a row of an ldmatrix or stmatrix matrix, and of the widest vector.
ROW_BITS = 128
#: Threads that a CTA may have.
MOST_THREADS = 1024


# -- atoms ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtomName:
    """What the name of an atom says.

    Attributes
    ----------
    text
        The name.
    kind
        ``"cp.async"``, ``"universal"`` (plain loads and stores) or ``"matrix"``.
    space, direction
        Where it reads or writes; None where the name leaves it open. Of cp.async the global side.
    bits
        Width, or None for the widest that fits.
    most
        What that width may not pass.
    matrix
        The ldmatrix or stmatrix.
    """

    text: str
    kind: Literal["cp.async", "universal", "matrix"]
    space: Space | None = None
    direction: Direction | None = None
    bits: int | None = None
    most: int = 128
    matrix: CopyAtom | None = None


_PTX = re.compile(r"(ld|st)\.(global|shared)(?:\.b?(\d+))?|(cp\.async)(?:\.b?(\d+))?")
_PTX_MATRIX = re.compile(r"(ldmatrix|stmatrix)\b[\w.]*?\.(x[124])\b(\.trans\b)?(?:\.[\w.:]+)?")
_CPP = re.compile(r"(\w+)(?:<(.*)>)?")
_DSL_MATRIX = re.compile(r"(Ld|St)Matrix8x8x16bOp\((.*)\)")
_TYPES = {"float": 32, "double": 64, "half_t": 16, "bfloat16_t": 16, "float2": 64, "float4": 128}
_TYPES |= {"tfloat32_t": 32, "int": 32, "uint4": 128, "half": 16}


def atom_name(text: str) -> AtomName:
    """Understand the name of an atom: PTX's, C++ CuTe's or CuTe DSL's.

    Raises
    ------
    OptionError
        For a name that is none, or a width that its instruction does not have.

    Examples
    --------
    >>> atom_name("cp.async.128").bits, atom_name("UniversalCopy<uint64_t>").bits
    (128, 64)
    >>> atom_name("SM75_U16x8_LDSM_T").matrix.name
    'ldmatrix.x4.trans'
    """
    text = str(text)
    name = text.strip().removesuffix("{}").replace("cute::", "").replace("cutlass::", "")
    if wrapped := re.fullmatch(r"Copy_Atom<(.*),[^,<>]*>", name):
        name = wrapped[1].strip()
    if found := _PTX.fullmatch(name):
        if found[4]:
            return _sized(AtomName(text, "cp.async", "global", "load"), found[5], (32, 64, 128))
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
        store = matrix.startswith("st")
        atom = MATRIX_ATOMS[matrix]
        return AtomName(text, "matrix", "shared", "store" if store else "load", None, 128, atom)
    if found := _CPP.fullmatch(name):
        head, argument = found[1], (found[2] or "").split(",")[0].strip()
        if re.fullmatch(r"SM80_CP_ASYNC_CACHE(GLOBAL|ALWAYS)(_ZFILL)?", head):
            bits = _type_bits(argument, text)
            return _sized(AtomName(text, "cp.async", "global", "load"), bits, (32, 64, 128))
        if head == "AutoCopyAsync":
            return AtomName(text, "cp.async", "global", "load")
        if head == "UniversalCopy":
            return _sized(AtomName(text, "universal"), _type_bits(argument, text))
        if head in ("AutoVectorizingCopy", "AutoVectorizingCopyWithAssumedAlignment"):
            return AtomName(text, "universal", most=int(argument) if argument.isdigit() else 128)
        if head == "DefaultCopy":
            return AtomName(text, "universal", most=8)  # it assumes no alignment
    if re.fullmatch(r"[\w.]*\bCopyG2SOp(\(.*\))?", name):
        return AtomName(text, "cp.async", "global", "load")
    if re.fullmatch(r"[\w.]*\bCopyUniversalOp(\(.*\))?", name):
        return AtomName(text, "universal")
    raise OptionError(
        f"atom {text!r} is unknown; expected one like 'cp.async.128', 'ld.global', 'st.shared.64', "
        "'ldmatrix.x4.trans', 'stmatrix.x2', or CuTe's name of it, 'SM75_U32x4_LDSM_N', "
        "'UniversalCopy<uint128_t>'"
    )


def _sized(
    atom: AtomName, bits: str | int | None, legal: tuple[int, ...] = (8, 16, 32, 64, 128)
) -> AtomName:
    if bits is None:
        return atom
    if int(bits) not in legal:
        raise OptionError(
            f"atom {atom.text!r} asks for {bits} bits; expected one of {', '.join(map(str, legal))}"
        )
    return AtomName(atom.text, atom.kind, atom.space, atom.direction, int(bits))


def _type_bits(name: str, text: str) -> int:
    """Width of a C++ type."""
    if found := re.fullmatch(r"u?int(\d+)_t", name):
        return int(found[1])
    if name not in _TYPES:
        raise OptionError(f"atom {text!r} copies {name!r}; expected a type such as uint128_t")
    return _TYPES[name]


# -- who holds and who addresses what -------------------------------------------------------------


def vectors(partition: np.ndarray, width: int) -> np.ndarray:
    """Elements of every lane of every request, when each thread addresses what it holds.

    Parameters
    ----------
    partition
        int [threads, values, 2]: coordinates in the tile.
    width
        Values of an instruction: the first ``width`` of a thread are its first vector, and so on.

    Returns
    -------
    int64 [requests, 32, width, 2]
        -1 for the lanes that a last warp of fewer threads lacks.
    """
    threads, values, _ = partition.shape
    lanes = np.full((-(-threads // LANES) * LANES, values, 2), -1, np.int64)
    lanes[:threads] = partition
    split = lanes.reshape(-1, LANES, values // width, width, 2)
    return split.transpose(0, 2, 1, 3, 4).reshape(-1, LANES, width, 2)


def matrix_vectors(partition: np.ndarray, atom: CopyAtom, element_bits: int) -> np.ndarray:
    """Rows that the lanes of ldmatrix or stmatrix address, where ``partition`` is what they hold.

    Returns
    -------
    int64 [requests, 32, elements of a row, 2]
        -1 for the lanes whose address the instruction ignores.
    """
    assert atom.destination is not None
    width = ROW_BITS // element_bits
    # (thread, slot) -> the element's number in the warp's data, row after row
    number = atom.destination.table()[:, ::element_bits] // element_bits
    lane, slot = np.indices(number.shape)
    holder = np.empty((2, number.size), np.int64)
    holder[:, number.ravel()] = lane.ravel(), slot.ravel()
    held = number.shape[1]
    warps = partition.reshape(-1, LANES, partition.shape[1] // held, held, 2)
    rows = warps[:, holder[0], :, holder[1]]  # [element, warp, instruction, 2]
    rows = rows.transpose(1, 2, 0, 3).reshape(-1, number.size // width, width, 2)
    out = np.full((len(rows), LANES, width, 2), -1, np.int64)
    out[:, : rows.shape[1]] = rows
    return out


def held_values(atom: CopyAtom, element_bits: int) -> int:
    """Elements that one ldmatrix or stmatrix gives to or takes from one thread."""
    assert atom.destination is not None
    return atom.destination.extents[1] // element_bits


def matrix_blocks(
    atom: CopyAtom, extents: tuple[int, int], axis: int, element_bits: int
) -> np.ndarray | None:
    """What one warp holds when its rows of 16 bytes run along ``axis`` of a tile.

    The matrices of an x4 lie two by two, the next one across the rows (as the MMA's A wants them),
    those of an x2 side by side along the rows; where the extents do not allow that, in one line.

    Returns
    -------
    int64 [32, values, 2] or None
        None when the tile is not a multiple of any such block.
    """
    assert atom.destination is not None
    width, count = ROW_BITS // element_bits, atom.destination.size // (8 * ROW_BITS)
    for across in {1: (1,), 2: (1, 2), 4: (2, 1, 4)}[count]:
        if extents[axis] % (width * count // across) or extents[1 - axis] % (8 * across):
            continue
        element = atom.destination.table()[:, ::element_bits] // element_bits
        row, place = element // width, element % width
        matrix = row // 8
        out = np.empty((*element.shape, 2), np.int64)
        out[..., axis] = matrix // across * width + place
        out[..., 1 - axis] = matrix % across * 8 + row % 8
        return out
    return None


def repeated(one: np.ndarray, tile: tuple[int, int], extents: tuple[int, int]) -> np.ndarray:
    """The requests ``one`` of a tiled copy of ``tile``, over a tile of ``extents``."""
    corners = np.indices((extents[0] // tile[0], extents[1] // tile[1])).reshape(2, -1).T * tile
    moved = one[None] + corners[:, None, None, None]
    return np.where(one[None] < 0, -1, moved).reshape(-1, *one.shape[1:])


# -- from elements to accesses --------------------------------------------------------------------


def offsets(table: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """Offsets of elements [..., 2] in a layout's table; -1 for those of no lane."""
    found = table[elements[..., 0], elements[..., 1]]
    return np.where((elements < 0).any(axis=-1), -1, found)


def contiguous(found: np.ndarray) -> bool:
    """Whether every lane's elements, offsets [..., width], follow each other."""
    return bool(((found == found[..., :1] + np.arange(found.shape[-1])) | (found < 0)).all())


def runs_along(table: np.ndarray, axis: int, width: int) -> bool:
    """Whether the elements along ``axis`` lie together, ``width`` by ``width``.

    Examples
    --------
    >>> from cute_gemm.cute.notation import parse
    >>> [runs_along(parse("Sw<3,3,3> o 0 o (8,64):(64,1)").table(), 1, w) for w in (8, 16)]
    [True, False]
    """
    if table.shape[axis] % width:
        return False
    groups = np.moveaxis(table, axis, -1).reshape(table.shape[1 - axis], -1, width)
    return contiguous(groups)


def global_access(
    layout: Layout,
    elements: np.ndarray,
    direction: Direction,
    instruction: str,
    dtype_name: str,
    alignment: int,
) -> GlobalAccess:
    """One instruction on one tile of a tensor in global memory.

    Memory is described as what it is, one run of elements; a coordinate is an offset in it.

    Parameters
    ----------
    layout
        The tile's, in elements.
    elements
        int [requests, 32, width, 2]: coordinates of what each lane addresses, contiguous in
        ``layout``.
    alignment
        Bytes that divide the address of element (0, 0).
    """
    first = offsets(layout.table(), elements[:, :, 0])
    cosize, width = layout.cosize, elements.shape[2]
    memory = Matrix("tensor", (cosize, 1), (1, cosize), dtype_name, alignment)
    return GlobalAccess(
        operand="tensor",
        direction=direction,
        instruction=instruction,
        bits=8 * dtype(dtype_name).bytes * width,
        matrix=memory,
        tile=memory.shape,
        coords=np.stack([first, np.where(first < 0, -1, 0)], axis=-1),
        axis=0,
        sweeps=1,
        unit="CTA",
    )


def shared_access(
    layout: Layout,
    elements: np.ndarray,
    direction: Direction,
    instruction: str,
    bits: int,
    size: int,
) -> SharedAccess:
    """One instruction on one tile in shared memory; ``size``: bytes of an element."""
    first = elements[:, :, 0]
    place = offsets(layout.table(), first)
    return SharedAccess(
        operand="tensor",
        direction=direction,
        instruction=instruction,
        bits=bits,
        offsets=np.where(place < 0, -1, place * size),
        executions=1,
        unit="CTA",
        layout=layout,
        coords=first,
        element_bits=8 * size,
    )
