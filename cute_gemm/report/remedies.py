"""Arguments that improve accesses: another place of a matrix, another order, another option."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._text import counted
from cute_gemm.access.gmem import SECTOR
from cute_gemm.kernels.options import access_bytes

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Option
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: Size of the widest vector in bytes.
VECTOR = 16


class Remedy(NamedTuple):
    """A change of arguments: the text, the arguments of ``analyze``, and the new problem.

    ``problem`` is None for a change of options. ``moves``: whether a matrix moves, in its order.
    """

    what: str
    change: dict[str, Any]
    problem: GemmProblem | None = None
    moves: bool = False


def of_option(option: Option) -> Remedy:
    """Return the remedy that sets an option."""
    return Remedy(str(option), {option.name: option.value})


def misplaced(problem: GemmProblem, matrix: Matrix) -> str:
    """Return the fault of a leading dimension and a base address; "" without a fault.

    Groups along the unit-stride mode begin at any element; along the other mode, at a row.
    """
    if matrix.alignment < SECTOR and problem.groups_along_unit(matrix):
        return (
            f"{matrix.name}'s groups begin at any element, since {problem.groups.mode} is ragged "
            "and its unit-stride mode"
        )
    pitch = matrix.ld * matrix.element.bytes
    words = []
    if matrix.shape[1 - matrix.unit] > 1 and pitch % SECTOR:
        of = VECTOR if pitch % VECTOR else SECTOR
        words.append(
            f"ld{matrix.name.lower()} of {matrix.ld} ({pitch:,} bytes) is not a multiple of "
            f"{of} bytes"
        )
    if _apart(problem, matrix):
        words.append(f"batch stride of {matrix.batch_stride} is not a multiple of {SECTOR} bytes")
    if _first(matrix) < SECTOR:
        words.append(f"base address is aligned to {_first(matrix)} bytes only")
    return f"{matrix.name}'s {' and its '.join(words)}" if words else ""


def rows_that_end_anywhere(C: Matrix) -> str:
    """Return the fault of the extent of C's rows, beyond which wide stores must not go.

    Return "" if C's leading dimension or address limits stores more, or nothing does.
    """
    elements = C.shape[C.unit]
    size = elements * C.element.bytes
    if access_bytes(C, True)[0] == access_bytes(C, False)[0]:
        return ""
    rows = counted(elements, "element")
    return f"C's rows of {rows} ({size:,} bytes) are not multiples of {VECTOR} bytes"


def placed(problem: GemmProblem, matrix: Matrix, sizes: bool) -> Remedy:
    """Return a matrix in the same order whose rows begin at a sector.

    ``sizes``: whether ``base_offset`` gives the base addresses of A, B and C together; those of
    arrays on a device are not arguments.
    """
    step, stride = max(1, SECTOR // matrix.element.bytes), list(matrix.stride)
    change: dict[str, Any] = {}
    letter, rows = matrix.name.lower(), matrix.shape[1 - matrix.unit]
    ld, batch = -(-matrix.ld // step) * step, matrix.batch_stride
    if ld != matrix.ld and rows > 1:
        stride[1 - matrix.unit] = change[f"ld{letter}"] = ld
        batch = ld * rows if batch == matrix.ld * rows else batch
    if _apart(problem, matrix) and not problem.groups:  # groups have no batch stride argument
        batch = change[f"batch_{letter}"] = -(-max(batch, ld * rows) // step) * step
    base, own = _first(matrix), matrix.name in ("A", "B", "C")
    moved = base < SECTOR and sizes and own
    if moved:
        base = change["base_offset"] = 0
    words = [f"{name}={value}" for name, value in change.items()]
    if 0 < base < SECTOR:
        base = SECTOR
        words.append(f"{matrix.name}'s base address aligned to {SECTOR} bytes")
    new = replace(matrix, stride=(stride[0], stride[1]), batch_stride=batch)
    result = _with(problem, new.at(base))
    for other in (problem.A, problem.B, problem.C) if moved else ():
        if other.name != matrix.name:
            result = _with(result, other.at(0))
    return Remedy(" and ".join(words), change if own else {}, result, moves=True)


def turned(problem: GemmProblem) -> Iterator[Remedy]:
    """Yield C in the other order: unpadded if it is now, or with its leading dimension."""
    C, order = problem.C, "FC"[problem.C.unit == 0]
    rows, extent = C.shape[C.unit], C.shape[1 - C.unit]  # rows and their elements in that order
    if min(C.shape) <= 1:
        return
    step = max(1, SECTOR // C.element.bytes)
    padded = -(-extent // step) * step
    dense = C.ld == rows
    kept = extent if dense else C.ld
    for ld in dict.fromkeys((kept, kept if dense else padded)):
        own = C.l == 1 or C.batch_stride == C.ld * extent
        batch = (ld * rows if C.l > 1 else 0) if own else C.batch_stride
        if ld < extent or (C.l > 1 and batch < ld * rows and not problem.groups):
            continue
        stride = (1, ld) if order == "F" else (ld, 1)
        new = replace(C, stride=stride, batch_stride=batch if C.batch_stride else 0)
        words = f'order="{order}"' + f" and ldc={ld}" * (ld != kept)
        change = {"order": order} | ({"ldc": ld} if ld != kept else {})
        yield Remedy(words, change, _with(problem, new.at(_first(C))))


def _first(matrix: Matrix) -> int:
    """Return the alignment of the first matrix of a batch in bytes."""
    return max(matrix.alignment, matrix.first_alignment)


def _apart(problem: GemmProblem, matrix: Matrix) -> bool:
    """Return whether the batch stride moves matrices of a batch off sectors.

    Groups lie one after the other in a matrix, which then has no batch stride.
    """
    in_groups = bool(problem.groups) and problem.groups.mode in matrix.modes
    return not in_groups and matrix.l > 1 and bool(matrix.batch_bytes % SECTOR)


def _with(problem: GemmProblem, matrix: Matrix) -> GemmProblem:
    """Return the problem with this matrix in place of the one of its name."""
    matrix = matrix.of_groups(problem.groups.mode)
    if matrix.name in ("A", "B", "C"):
        field: dict[str, Any] = {matrix.name: matrix}
        return replace(problem, **field)
    operands = (matrix if x.name == matrix.name else x for x in problem.operands)
    return replace(problem, operands=tuple(operands))
