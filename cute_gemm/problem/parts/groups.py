"""Grouped GEMMs: M, N or K is cut into groups, whose ends the kernel reads from an array.

The kinds are those of ``torch._grouped_mm``, read from the dimensions of A and B as stored:

=====  =====  ======  ==================================================================
A      B      ragged  C
=====  =====  ======  ==================================================================
2-D    3-D    M       (M, N): rows of group g are ``op(A)[rows] @ op(B[g])``
3-D    2-D    N       (M, N): columns of group g are ``op(A[g]) @ op(B)[:, columns]``
2-D    2-D    K       (G, M, N): ``C[g]`` is ``op(A)[:, part] @ op(B)[part]`` of group g
=====  =====  ======  ==================================================================
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cute_gemm.arrays.base import ALIGNMENT, Operand, Order
from cute_gemm.dtypes import COMPONENT_PRODUCTS
from cute_gemm.errors import (
    AlignmentError,
    DeviceError,
    DTypeError,
    OptionError,
    ShapeError,
    StrideError,
)
from cute_gemm.problem.describe import describe, from_operands, from_sizes
from cute_gemm.problem.matrix import Matrix, alignment_of, alignments, residue
from cute_gemm.problem.overlap import refuse_overlap
from cute_gemm.problem.parts.scales import rows_mode
from cute_gemm.problem.problem import NO_GROUPS, GemmProblem, Groups

#: Dimensions of A and of B, and the mode that is ragged.
_KINDS = {(2, 3): "M", (3, 2): "N", (2, 2): "K"}

#: Treatment of rows or columns of C after the last group.
UNWRITTEN, ZERO = "unwritten", "zero"
TAILS = UNWRITTEN, ZERO
#: Whether ends that decrease or exceed the extent are an error, on a device of a later call.
UNCHECKED, DEVICE = "none", "device"
CHECKS = UNCHECKED, DEVICE


def check_words(tail: Any, check: Any) -> None:
    """Refuse values that are not in `TAILS`, or not in `CHECKS`."""
    for name, word, words in (("tail", tail, TAILS), ("check", check, CHECKS)):
        if word not in words:
            raise OptionError(
                f"{name}={word!r} is unknown; expected {' or '.join(map(repr, words))}"
            )


def from_groups(
    op: str, A: Operand, B: Operand, offsets: Operand, C: Operand | None = None, *,
    order: Order = "F", out_dtype: Any = None, compute: str | None = None, tail: str = UNWRITTEN,
    check: str = UNCHECKED,
) -> GemmProblem:  # fmt: skip
    """Return the problem of a grouped GEMM after every check; see `problem.from_operands`.

    ``offsets`` is int32 (G,): the end of each group along the ragged mode; ``tail``:
    treatment of C after the last end, of `TAILS`; ``check``: whether ends are checked, of `CHECKS`.

    Raises ShapeError, DTypeError, StrideError, AlignmentError, DeviceError, OverlapError, and the
    errors of `from_operands`. The values of the offsets are not read.
    """
    ragged = _KINDS.get((len(A.shape), len(B.shape)))
    if ragged is None:
        raise ShapeError(
            f"A has shape {A.shape} and B has shape {B.shape}; expected two and three dimensions "
            "(ragged M), three and two (ragged N) or two each (ragged K): gemm() takes a batch"
        )
    groups = _check_offsets(offsets, A)
    name, several = {"M": ("B", B), "N": ("A", A), "K": ("C", C)}[ragged]
    if several is not None and len(several.shape) == 3 and several.shape[0] != groups:
        raise ShapeError(
            f"{name} has shape {several.shape}, {several.shape[0]} matrices, and offsets ends "
            f"{groups} groups; expected as many"
        )
    _check_compute(compute)
    options: dict[str, Any] = {"order": order, "out_dtype": out_dtype, "compute": compute}
    if ragged == "K":
        shared = replace(A, shape=(groups, *A.shape), strides=(0, *A.strides))
        problem = from_operands(op, shared, B, C, **options)
        own = problem.C
    else:
        one_a, one_b = (replace(x, shape=x.shape[-2:], strides=x.strides[-2:]) for x in (A, B))
        problem = from_operands(op, one_a, one_b, C, **options)
        whole = B if ragged == "M" else A
        own = describe(problem.op, name, whole, groups)
        if C is not None:
            refuse_overlap(C, whole, name)
    if C is not None:
        refuse_overlap(C, offsets, "offsets", "")
    return _grouped(problem, ragged, own, groups, alignment_of(offsets), tail, check)


def from_group_sizes(
    ragged: str, groups: int, tail: str = UNWRITTEN, check: str = UNCHECKED, **sizes: Any
) -> GemmProblem:
    """Return the problem of so many groups along a mode, without arrays.

    ``sizes``: those of `from_sizes` except for a batch's; the extent of that mode is the sum of all
    groups. Raises OptionError for an unknown mode, number of groups or ``compute``.
    """
    if not isinstance(ragged, str) or ragged not in ("M", "N", "K"):
        raise OptionError(f"ragged={ragged!r} is unknown; expected 'M', 'N' or 'K'")
    if not isinstance(groups, int) or isinstance(groups, bool) or groups < 1:
        raise OptionError(
            f"l={groups!r} groups came with ragged={ragged!r}; expected 1 group or more"
        )
    for name in ("batch_a", "batch_b", "batch_c"):
        if sizes.pop(name, None) is not None:
            raise OptionError(
                f"{name} came with ragged={ragged!r}, whose matrices are contiguous: leave it out"
            )
    _check_compute(sizes.get("compute"))
    if ragged == "K":
        problem = from_sizes(**sizes, l=groups, batch_a=0, batch_b=0)
        return _grouped(problem, ragged, problem.C, groups, ALIGNMENT, tail, check)
    several = from_sizes(**sizes, l=groups)
    own = several.B if ragged == "M" else several.A
    return _grouped(from_sizes(**sizes), ragged, own, groups, ALIGNMENT, tail, check)


def _check_compute(compute: str | None) -> None:
    """Refuse products of components."""
    if compute in COMPONENT_PRODUCTS:
        raise OptionError(
            f"compute={compute!r} came with a grouped GEMM, which has no components: leave it out, "
            "or pass 'tf32'"
        )


def _check_offsets(offsets: Operand, A: Operand) -> int:
    """Refuse an array that cannot be the ends of groups; return their number."""
    if len(offsets.shape) != 1 or not offsets.shape[0]:
        raise ShapeError(
            f"offsets has shape {offsets.shape}; expected (G,): the end of each of G groups"
        )
    if offsets.dtype != "int32":
        raise DTypeError(
            f"offsets has dtype {offsets.dtype}; expected int32, as for torch._grouped_mm"
        )
    if offsets.strides != (1,) and offsets.shape[0] > 1:
        raise StrideError(
            f"offsets has stride {offsets.strides[0]}; expected 1: pass a contiguous copy"
        )
    if offsets.device is not None and offsets.pointer % 4:
        raise AlignmentError(
            "offsets starts at an address that is not a multiple of 4 bytes: pass a copy"
        )
    if offsets.device != A.device:
        raise DeviceError(
            f"offsets is on {offsets.place} and A is on {A.place}; expected one place for both"
        )
    return offsets.shape[0]


@lru_cache(maxsize=1024)
def _grouped(
    problem: GemmProblem, ragged: str, own: Matrix, groups: int, alignment: int, tail: str,
    check: str,
) -> GemmProblem:  # fmt: skip
    """Return a problem of one group, or a batch along K, with all groups and their ends."""
    check_words(tail, check)
    ends = Matrix("offsets", (groups, 1), (1, groups), "int32", alignment)
    # With a ragged K, each element of C belongs to a group.
    zero_tail = tail == ZERO and ragged != "K"

    def changed(matrix: Matrix) -> Matrix:
        return own if matrix.name == own.name and ragged != "K" else matrix.of_groups(ragged)

    described = Groups(ragged, ends, zero_tail, check == DEVICE)
    return problem.with_matrices(changed, l=groups, groups=described)


def evenly(problem: GemmProblem) -> GemmProblem:
    """Return a grouped GEMM as a batch of equal products; other problems unchanged.

    A report shows its accesses, since the sizes of groups are on the device. If an extent does
    not divide evenly, products are one larger.
    """
    if not problem.groups:
        return problem
    mode, each = problem.groups.mode, -(-problem.extents[problem.groups.mode] // problem.l)

    def apart(matrix: Matrix) -> Matrix:
        if matrix.name not in ("A", "B", "C") or mode not in matrix.modes:
            return matrix
        step = each * matrix.stride[matrix.modes.index(mode)]
        return replace(matrix, l=problem.l, batch_stride=step if problem.l > 1 else 0)

    return _dense(problem, each).with_matrices(apart)


def _dense(problem: GemmProblem, extent: int) -> GemmProblem:
    """Return the problem of a group of this extent, with the strides of the whole matrices."""
    m, n, k = (problem.extents | {problem.groups.mode: extent}).values()
    scales = tuple(
        replace(x, shape=(extent, x.shape[1])) if rows_mode(x.name) == problem.groups.mode else x
        for x in problem.scales
    )
    return replace(
        problem, m=m, n=n, k=k, groups=NO_GROUPS, scales=scales, A=replace(problem.A, shape=(m, k)),
        B=replace(problem.B, shape=(n, k)), C=replace(problem.C, shape=(m, n)),
    )  # fmt: skip


def _cut(problem: GemmProblem, ends: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each group, as kernels read the ends.

    A group that would end before it begins is empty, and no group ends after the extent.
    """
    whole, end = problem.extents[problem.groups.mode], 0
    for value in ends:
        begin, end = end, min(max(int(value), end), whole)
        yield begin, end


def parts(
    problem: GemmProblem, ends: Sequence[int], beyond: int = 0, operands_beyond: bool = False
) -> Iterator[GemmProblem]:
    """Yield the problems of groups that have elements of C, with the offsets of their matrices.

    Equal groups are a batch. ``beyond``: extent of the last tile along the ragged mode, of which
    everything within A and B is read, and, if a ragged K is the unit-stride mode, one more
    tile; with ``operands_beyond``, also of the epilogue's operands; 0: only the group.
    """
    for part, count in Counter(_each(problem, ends, beyond, operands_beyond)).items():
        yield part if count == 1 else _several(part, count)


def tail_of(problem: GemmProblem, ends: Sequence[int]) -> Matrix:
    """Return the part of C after the last group along M or N, of extent 0 if it is empty."""
    mode, (*_, (_, end)) = problem.groups.mode, _cut(problem, ends)
    whole = problem.extents[mode]
    return _part(_dense(problem, whole - end).C, mode, 0, end)


def _several(part: GemmProblem, count: int) -> GemmProblem:
    """Return a batch of products like this one, whose matrices have the same offsets in lines."""
    return part.with_matrices(lambda x: replace(x, l=count, batch_stride=ALIGNMENT), l=count)


def _each(
    problem: GemmProblem, ends: Sequence[int], beyond: int, operands_beyond: bool
) -> Iterator[GemmProblem]:
    mode, whole = problem.groups.mode, problem.extents[problem.groups.mode]
    along_k = 1 in (problem.A.unit, problem.B.unit)
    for number, (begin, end) in enumerate(_cut(problem, ends)):
        dense, length = _dense(problem, end - begin), 0
        if not (dense.m and dense.n):
            continue
        if beyond and (mode != "K" or along_k):
            tiles = -(-(end - begin) // beyond) + (mode == "K")
            length = min(tiles * beyond, whole - begin)
        A, B = (_part(x, mode, number, begin, length) for x in (dense.A, dense.B))
        operands = tuple(
            _part(replace(x, shape=dense.C.shape), mode, number, begin, length * operands_beyond)
            for x in problem.operands
        )
        C, *scales = (_part(x, mode, number, begin) for x in (dense.C, *dense.scales))
        yield replace(dense, l=1, A=A, B=B, C=C, operands=operands, scales=tuple(scales))


def _part(matrix: Matrix, mode: str, number: int, begin: int, length: int = 0) -> Matrix:
    """Return one group's matrix, whose alignment is its offset modulo 256 bytes.

    ``length``: its extent along the mode of the groups; 0: unchanged.
    """
    at, shape = number * matrix.batch_stride, matrix.shape
    if mode in matrix.modes:
        axis = matrix.modes.index(mode)
        at += begin * matrix.stride[axis]
        if length:
            shape = (length, shape[1]) if axis == 0 else (shape[0], length)
    first = max(matrix.alignment, matrix.first_alignment) + at * matrix.element.bytes
    return replace(matrix, shape=shape, l=1, batch_stride=0, **alignments(residue(first)))


def equal_ends(problem: GemmProblem) -> list[int]:
    """Return the ends of groups of equal sizes, the last of them smaller if they do not divide."""
    whole = problem.extents[problem.groups.mode]
    each = -(-whole // problem.l)
    return [min(each * (group + 1), whole) for group in range(problem.l)]


def ends_of(offsets: Any, groups: int) -> list[int]:
    """Return the ends of groups as numbers; raise OptionError for other arrays."""
    try:
        ends = [operator.index(end) for end in offsets]
    except TypeError:
        ends = []
    if len(ends) != groups:
        raise OptionError(
            f"offsets={offsets!r} does not fit; expected {groups} integers on the host, the end "
            "of each group"
        )
    return ends


def stored_ends(problem: GemmProblem, offset: int) -> np.ndarray:
    """Return the ends of groups of equal sizes as a column, so many bytes after its start."""
    return np.array([0] * (offset // 4) + equal_ends(problem), np.int32)[:, None]


def sizes_of(problem: GemmProblem, ends: Sequence[int]) -> list[int]:
    """Return the size of each group, as kernels read the ends."""
    return [end - begin for begin, end in _cut(problem, ends)]


def tiles_at_most(problem: GemmProblem, tile: tuple[int, ...]) -> int:
    """Return the greatest number of tiles (bM, bN) of C: each group may end within a tile.

    With p groups that are not empty there are at most ceil(m / bM) + p - 1 along M, which leaves
    room for the tiles after l groups too.
    """
    along_m, along_n = -(-problem.m // tile[0]), -(-problem.n // tile[1])
    if problem.groups.mode == "M":
        return (along_m + problem.l) * along_n
    if problem.groups.mode == "N":
        return along_m * (along_n + problem.l)
    return along_m * along_n * problem.l


# ---- on the host --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """One group on the host: its problem, and its parts of A, B, C as stored and of operands."""

    problem: GemmProblem
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    operands: Mapping[str, np.ndarray]


def groups_on_host(
    problem: GemmProblem, A: np.ndarray, B: np.ndarray, C: np.ndarray,
    operands: Mapping[str, np.ndarray],
) -> Iterator[Group]:  # fmt: skip
    """Yield the groups of host arrays, as views; ``operands`` also has ``offsets``."""
    mode, op = problem.groups.mode, problem.op
    stored = ("MK" if op[0] == "N" else "KM"), ("KN" if op[1] == "N" else "NK"), "MN"
    for g, (begin, end) in enumerate(_cut(problem, operands["offsets"].tolist())):
        part = slice(begin, end)
        parts = [
            array[g] if mode not in modes else array[part] if modes[0] == mode else array[:, part]
            for array, modes in zip((A, B, C), stored, strict=True)
        ]
        own = {
            name: _of_group(problem, name, array, g, part)
            for name, array in operands.items() if name != "offsets"
        }  # fmt: skip
        dense = _dense(problem, end - begin)
        single = dense.with_matrices(lambda x: replace(x, l=1, batch_stride=0), l=1)
        yield Group(single, parts[0], parts[1], parts[2], own)


def tail_on_host(problem: GemmProblem, C: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the part of C on the host after the last group along M or N, as a view."""
    *_, (_, end) = _cut(problem, ends.tolist())
    return C[end:] if problem.groups.mode == "M" else C[:, end:]


def operand_shape(problem: GemmProblem, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an epilogue's operand of a grouped GEMM with (G, N) as (G, 1, N).

    (G, N) stays if it broadcasts to (M, N).
    """
    if len(shape) != 2 or shape[0] in (1, problem.m) or shape[0] != problem.l:
        return shape
    return shape[0], 1, shape[1]


def check_operand(problem: GemmProblem, name: str, shape: tuple[int, ...]) -> None:
    """Refuse an operand with separate elements for each group and each row of a ragged M."""
    axis = {"M": 1, "N": 2}.get(problem.groups.mode)
    if axis is not None and len(shape) == 3 and shape[0] > 1 and shape[axis] > 1:
        raise ShapeError(
            f"{name} has shape {shape}; expected one row or column for each group, or elements "
            f"that broadcast to C: {problem.groups.mode} is ragged"
        )


def _of_group(
    problem: GemmProblem, name: str, array: np.ndarray, g: int, part: slice
) -> np.ndarray:
    """Return a group's part of an operand, which broadcasts to its C, or of block scales."""
    mode, is_scale = problem.groups.mode, name in [x.name for x in problem.scales]
    if not is_scale:
        array = array.reshape(operand_shape(problem, array.shape))
    if array.ndim == 3:
        array = array[g if len(array) > 1 else 0]
    if is_scale:
        return array[part] if rows_mode(name) == mode else array
    if mode == "M" and array.ndim == 2 and len(array) > 1:
        return array[part]
    if mode == "N" and array.ndim and array.shape[-1] > 1:
        return array[..., part]
    return array
