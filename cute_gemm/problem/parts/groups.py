"""Grouped GEMMs: M, N or K is cut into groups, whose ends lie in an array that the kernel reads.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from cute_gemm.arrays.base import ALIGNMENT, Operand, Order
from cute_gemm.dtypes import COMPONENT_PRODUCTS
from cute_gemm.errors import (
    AlignmentError,
    DeviceError,
    DTypeError,
    OptionError,
    OverlapError,
    ShapeError,
    StrideError,
)
from cute_gemm.problem.describe import describe, from_operands, from_sizes
from cute_gemm.problem.matrix import Matrix, alignments, residue
from cute_gemm.problem.overlap import overlap
from cute_gemm.problem.parts.scales import rows_mode
from cute_gemm.problem.problem import NO_GROUPS, GemmProblem, Groups

#: Dimensions of A and of B, and the mode that is ragged.
_KINDS = {(2, 3): "M", (3, 2): "N", (2, 2): "K"}


def from_groups(
    op: str, A: Operand, B: Operand, offsets: Operand, C: Operand | None = None, *,
    order: Order = "F", out_dtype: Any = None, compute: str | None = None,
) -> GemmProblem:  # fmt: skip
    """Return the problem of a grouped GEMM, after every check; as `problem.from_operands`.

    ``offsets`` is int32 (G,): where each group ends, along the mode that is ragged.

    ShapeError, DTypeError, StrideError, AlignmentError, DeviceError and OverlapError beside those
    of `from_operands`. What the offsets are is not looked at.
    """
    ragged = _KINDS.get((len(A.shape), len(B.shape)))
    if ragged is None:
        raise ShapeError(
            f"A has shape {A.shape} and B has shape {B.shape}; expected two and three dimensions "
            "(ragged M), three and two (ragged N) or two each (ragged K): gemm() takes a batch"
        )
    groups = _check_offsets(offsets, A)
    several = {"M": B, "N": A}.get(ragged)
    if several is not None and several.shape[0] != groups:
        name = "B" if ragged == "M" else "A"
        raise ShapeError(
            f"{name} has shape {several.shape}, {several.shape[0]} matrices, and offsets ends "
            f"{groups} groups; expected as many"
        )
    if C is not None and ragged == "K" and len(C.shape) == 3 and C.shape[0] != groups:
        raise ShapeError(
            f"C has shape {C.shape}, {C.shape[0]} matrices, and offsets ends {groups} groups; "
            "expected as many"
        )
    _check_compute(compute)
    options: dict[str, Any] = {"order": order, "out_dtype": out_dtype, "compute": compute}
    if ragged == "K":
        shared = replace(A, shape=(groups, *A.shape), strides=(0, *A.strides))
        problem = from_operands(op, shared, B, C, **options)
        own = problem.C
    else:
        one_a, one_b = (_single(x, groups) for x in (A, B))
        problem = from_operands(op, one_a, one_b, C, **options)
        name, whole = ("B", B) if ragged == "M" else ("A", A)
        own = describe(problem.op, name, whole, groups)
        if C is not None and overlap(C, whole):
            raise OverlapError(
                f"C shares memory with {name}, which would be read after parts of it are written: "
                f"pass a copy of {name}, or a C of its own"
            )
    if C is not None and overlap(C, offsets):
        raise OverlapError(
            "C shares memory with offsets, which would be read after parts of it are written: "
            "pass a copy of offsets"
        )
    address = (offsets.pointer if offsets.device is not None else 0) | ALIGNMENT
    return _grouped(problem, ragged, own, groups, address & -address)


def from_group_sizes(ragged: str, groups: int, **sizes: Any) -> GemmProblem:
    """Return the problem of so many groups along a mode, without arrays.

    ``sizes``: those that `from_sizes` takes but for a batch's; the extent of that mode is of all
    groups. OptionError for a mode, a number of groups or ``compute`` that there is not.
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
                f"{name} came with ragged={ragged!r}, whose matrices lie one behind the other: "
                "leave it out"
            )
    _check_compute(sizes.get("compute"))
    if ragged == "K":
        problem = from_sizes(**sizes, l=groups, batch_a=0, batch_b=0)
        return _grouped(problem, ragged, problem.C, groups, ALIGNMENT)
    several = from_sizes(**sizes, l=groups)
    own = several.B if ragged == "M" else several.A
    return _grouped(from_sizes(**sizes), ragged, own, groups, ALIGNMENT)


def _check_compute(compute: str | None) -> None:
    """Refuse products of components."""
    if compute in COMPONENT_PRODUCTS:
        raise OptionError(
            f"compute={compute!r} came with a grouped GEMM, which has no components: leave it out, "
            "or take 'tf32'"
        )


def _single(operand: Operand, groups: int) -> Operand:
    """One matrix of an operand that has one for each group."""
    if len(operand.shape) == 2:
        return operand
    return replace(operand, shape=operand.shape[1:], strides=operand.strides[1:])


def _check_offsets(offsets: Operand, A: Operand) -> int:
    """Refuse an array that cannot be the ends of groups; return how many there are."""
    if len(offsets.shape) != 1 or not offsets.shape[0]:
        raise ShapeError(
            f"offsets has shape {offsets.shape}; expected (G,): where each of G groups ends"
        )
    if offsets.dtype != "int32":
        raise DTypeError(
            f"offsets has dtype {offsets.dtype}; expected int32, as torch._grouped_mm has it"
        )
    if offsets.strides != (1,) and offsets.shape[0] > 1:
        raise StrideError(
            f"offsets has stride {offsets.strides[0]}; expected 1: pass a contiguous copy"
        )
    if offsets.device is not None and offsets.pointer % 4:
        raise AlignmentError(
            "offsets starts at an address that is no multiple of 4 bytes: pass a copy"
        )
    if offsets.device != A.device:
        raise DeviceError(
            f"offsets is on {offsets.place} and A is on {A.place}; expected one place for both"
        )
    return offsets.shape[0]


@lru_cache(maxsize=1024)
def _grouped(
    problem: GemmProblem, ragged: str, own: Matrix, groups: int, alignment: int
) -> GemmProblem:
    """Return a problem of one group, or a batch along K, with all groups and their ends."""
    ends = Matrix("offsets", (groups, 1), (1, groups), "int32", alignment)
    parts: dict[str, Any] = {x.name: x.of_groups(ragged) for x in (problem.A, problem.B, problem.C)}
    if ragged != "K":
        parts[own.name] = own
    return replace(problem, l=groups, groups=Groups(ragged, ends), **parts)


def evenly(problem: GemmProblem) -> GemmProblem:
    """Return the batch of equal products that a grouped GEMM would be; another problem as it is.

    A report shows its accesses, since the sizes of groups are on the device. Where an extent does
    not divide, products are one larger.
    """
    if not problem.groups:
        return problem
    extents = {"M": problem.m, "N": problem.n, "K": problem.k}
    each = extents[problem.groups.mode] = -(-extents[problem.groups.mode] // problem.l)
    m, n, k = extents.values()
    parts = {}
    for name, shape in (("A", (m, k)), ("B", (n, k)), ("C", (m, n))):
        matrix, modes = getattr(problem, name), {"A": "MK", "B": "NK", "C": "MN"}[name]
        if problem.groups.mode in modes:
            step = each * matrix.stride[modes.index(problem.groups.mode)]
            matrix = replace(matrix, l=problem.l, batch_stride=step if problem.l > 1 else 0)
        parts[name] = replace(matrix, shape=shape)
    scales = _block_scales(problem, each)
    return replace(problem, m=m, n=n, k=k, groups=NO_GROUPS, scales=scales, **parts)


def _block_scales(problem: GemmProblem, rows: int) -> tuple[Matrix, ...]:
    """Return the block scales of a group, which has so many ragged rows."""
    return tuple(
        replace(x, shape=(rows, x.shape[1])) if rows_mode(x.name) == problem.groups.mode else x
        for x in problem.scales
    )


def parts(
    problem: GemmProblem, ends: Sequence[int], beyond: int = 0, operands_beyond: bool = False
) -> Iterator[GemmProblem]:
    """Yield the problems of groups that have elements of C, with where their matrices begin.

    Groups that are alike are a batch. ``beyond``: extent of the last tile along the ragged mode, of
    which all is read that A and B have, and of a ragged K, where it is a unit-stride mode, another
    tile; with ``operands_beyond``, the epilogue's operands; 0: what the group has.
    """
    for part, count in Counter(_each(problem, ends, beyond, operands_beyond)).items():
        yield part if count == 1 else _several(part, count)


def _several(part: GemmProblem, count: int) -> GemmProblem:
    """A batch of products like this one, whose matrices begin alike in lines."""

    def apart(matrix: Matrix) -> Matrix:
        return replace(matrix, l=count, batch_stride=ALIGNMENT)

    A, B, C = (apart(x) for x in (part.A, part.B, part.C))
    scales, operands = (tuple(map(apart, x)) for x in (part.scales, part.operands))
    return replace(part, l=count, A=A, B=B, C=C, scales=scales, operands=operands)


def _each(
    problem: GemmProblem, ends: Sequence[int], beyond: int, operands_beyond: bool
) -> Iterator[GemmProblem]:
    extents = {"M": problem.m, "N": problem.n, "K": problem.k}
    whole, begin = extents[problem.groups.mode], 0
    along_k = 1 in (problem.A.unit, problem.B.unit)
    for number, value in enumerate(ends):
        end = min(max(int(value), begin), whole)
        extents[problem.groups.mode] = end - begin
        m, n, k = extents.values()
        if m and n:
            matrices = tuple(
                _part(problem, x, number, begin, shape)
                for x, shape in zip(
                    (problem.A, problem.B, problem.C, *problem.operands),
                    ((m, k), (n, k), *((m, n),) * (1 + len(problem.operands))), strict=True,
                )
            )  # fmt: skip
            if beyond and (problem.groups.mode != "K" or along_k):
                tiles = -(-(end - begin) // beyond) + (problem.groups.mode == "K")
                length = min(tiles * beyond, whole - begin)
                matrices = tuple(
                    _longer(x, problem.groups.mode, length)
                    if x.name in ("A", "B") or (operands_beyond and x.name != "C")
                    else x
                    for x in matrices
                )
            A, B, C, *operands = matrices
            scales = tuple(
                _part(problem, x, number, begin, x.shape)
                for x in _block_scales(problem, end - begin)
            )
            yield replace(
                problem, m=m, n=n, k=k, l=1, A=A, B=B, C=C, operands=tuple(operands),
                groups=NO_GROUPS, scales=scales,
            )  # fmt: skip
        begin = end


def _part(
    problem: GemmProblem, matrix: Matrix, number: int, begin: int, shape: tuple[int, int]
) -> Matrix:
    """One group's matrix: its alignment is where it begins, modulo 256 bytes."""
    at = number * matrix.batch_stride
    if problem.groups.mode in matrix.modes:
        at += begin * matrix.stride[matrix.modes.index(problem.groups.mode)]
    first = max(matrix.alignment, matrix.first_alignment) + at * matrix.element.bytes
    return replace(matrix, shape=shape, l=1, batch_stride=0, **alignments(residue(first)))


def _longer(matrix: Matrix, mode: str, extent: int) -> Matrix:
    if mode not in matrix.modes:
        return matrix
    first, second = matrix.shape
    return replace(matrix, shape=(first, extent) if matrix.modes[1] == mode else (extent, second))


def equal_ends(problem: GemmProblem) -> list[int]:
    """Return where groups of equal sizes end; the last ones are less where that does not divide."""
    whole = {"M": problem.m, "N": problem.n, "K": problem.k}[problem.groups.mode]
    each = -(-whole // problem.l)
    return [min(each * (group + 1), whole) for group in range(problem.l)]


def ends_of(offsets: Any, groups: int) -> list[int]:
    """Return the ends of groups as numbers; OptionError for what is no array of so many."""
    try:
        ends = [operator.index(end) for end in offsets]
    except TypeError:
        ends = []
    if len(ends) != groups:
        raise OptionError(
            f"offsets={offsets!r} does not fit; expected {groups} integers on the host, where each "
            "group ends"
        )
    return ends


def stored_ends(problem: GemmProblem, offset: int) -> np.ndarray:
    """Return the ends of groups of equal sizes as a column, so many bytes from its beginning."""
    return np.array([0] * (offset // 4) + equal_ends(problem), np.int32)[:, None]


def sizes_of(problem: GemmProblem, ends: Sequence[int]) -> list[int]:
    """Return how long each group is, as kernels read the ends."""
    whole = {"M": problem.m, "N": problem.n, "K": problem.k}[problem.groups.mode]
    reached = list(accumulate((min(max(int(end), 0), whole) for end in ends), max, initial=0))
    return [end - begin for begin, end in pairwise(reached)]


def tiles_at_most(problem: GemmProblem, tile: tuple[int, ...]) -> int:
    """Return how many tiles (bM, bN) of C there may be: each group may end within one."""
    along_m, along_n = -(-problem.m // tile[0]), -(-problem.n // tile[1])
    if problem.groups.mode == "M":
        return (along_m + problem.l) * along_n
    if problem.groups.mode == "N":
        return along_m * (along_n + problem.l)
    return along_m * along_n * problem.l


# ---- on the host --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """One group on the host: its problem, and what it has of A, B, C as stored and of operands."""

    problem: GemmProblem
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    operands: Mapping[str, np.ndarray]


def groups_on_host(
    problem: GemmProblem, A: np.ndarray, B: np.ndarray, C: np.ndarray,
    operands: Mapping[str, np.ndarray],
) -> Iterator[Group]:  # fmt: skip
    """Yield the groups of host arrays, as views; ``operands`` has ``offsets`` beside others.

    A group that would end before it begins is empty, and none ends beyond all.
    """
    others = {name: array for name, array in operands.items() if name != "offsets"}
    blocks = [x.name for x in problem.scales]
    extents = {"M": problem.m, "N": problem.n, "K": problem.k}
    whole, begin = extents[problem.groups.mode], 0
    axes = {
        "A": {"M": 0, "K": 1} if problem.op[0] == "N" else {"M": 1, "K": 0},
        "B": {"K": 0, "N": 1} if problem.op[1] == "N" else {"K": 1, "N": 0},
        "C": {"M": 0, "N": 1},
    }
    for g, value in enumerate(operands["offsets"].tolist()):
        end = min(max(value, begin), whole)
        extents[problem.groups.mode] = end - begin
        m, n, k = extents.values()
        parts: list[np.ndarray] = []
        for name, array in (("A", A), ("B", B), ("C", C)):
            axis = axes[name].get(problem.groups.mode)
            if axis is None:
                parts.append(array[g])
            else:
                cut = (slice(None),) * axis + (slice(begin, end),)
                parts.append(array[cut])
        own = {
            name: _scales_of_group(problem, name, array, g, slice(begin, end))
            if name in blocks
            else _of_group(problem, array, g, slice(begin, end))
            for name, array in others.items()
        }
        single: dict[str, Any] = {
            name: replace(getattr(problem, name), shape=shape, l=1, batch_stride=0)
            for name, shape in (("A", (m, k)), ("B", (n, k)), ("C", (m, n)))
        }
        scales = _block_scales(problem, end - begin)
        dense = replace(problem, m=m, n=n, k=k, l=1, groups=NO_GROUPS, scales=scales, **single)
        yield Group(dense, parts[0], parts[1], parts[2], own)
        begin = end


def operand_shape(problem: GemmProblem, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an epilogue's operand of a grouped GEMM with its group, (G, N), apart.

    (G, N) is (G, 1, N) unless it broadcasts to (M, N).
    """
    if len(shape) != 2 or shape[0] in (1, problem.m) or shape[0] != problem.l:
        return shape
    return shape[0], 1, shape[1]


def check_operand(problem: GemmProblem, name: str, shape: tuple[int, ...]) -> None:
    """Refuse an operand with elements of its own for each group and each row of a ragged M."""
    axis = {"M": 1, "N": 2}.get(problem.groups.mode)
    if axis is not None and len(shape) == 3 and shape[0] > 1 and shape[axis] > 1:
        raise ShapeError(
            f"{name} has shape {shape}; expected one row or column for each group, or elements "
            f"that go with C's: {problem.groups.mode} is ragged"
        )


def check_results(problem: GemmProblem, label: str) -> None:
    """Refuse an epilogue with further results of a grouped GEMM."""
    if problem.groups:
        raise OptionError(
            f"epilogue {label!r} has further results, which a grouped GEMM does not store: "
            "return one"
        )


def _of_group(problem: GemmProblem, array: np.ndarray, g: int, part: slice) -> np.ndarray:
    """What a group has of an operand, which broadcasts to its C."""
    shape = operand_shape(problem, array.shape)
    array = array.reshape(shape)
    if len(shape) == 3:
        array, shape = array[g if shape[0] > 1 else 0], shape[1:]
    if problem.groups.mode == "M" and len(shape) == 2 and shape[0] > 1:
        return array[part]
    if problem.groups.mode == "N" and shape and shape[-1] > 1:
        return array[..., part]
    return array


def _scales_of_group(
    problem: GemmProblem, name: str, array: np.ndarray, g: int, part: slice
) -> np.ndarray:
    """What a group has of block scales."""
    if rows_mode(name) == problem.groups.mode:
        return array[part]
    return array[g if len(array) > 1 else 0] if array.ndim == 3 else array
