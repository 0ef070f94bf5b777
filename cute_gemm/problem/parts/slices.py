"""Slices of K as a batch of parts of each product, and the reduction that adds them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from cute_gemm.dtypes import DType, scalar_of
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, Epilogue
from cute_gemm.problem.matrix import Matrix, alignments, residue
from cute_gemm.problem.parts.packing import LINE, Auxiliary, aligned, padded, span_of
from cute_gemm.problem.parts.scales import BLOCK, SCALES
from cute_gemm.problem.problem import GemmProblem


@dataclass(frozen=True, slots=True)
class Reduction(Auxiliary):
    """The reduction of a split-k GEMM: the epilogue of the sum of ``partials`` over their batch.

    ``partials`` is (M, N) of the accumulator's type, in scratch, with the major of C: a matrix for
    each slice of K, the product of that slice. In a batch, those of a product are consecutive.
    There may be a single slice, if the epilogue combines pairs of columns and the kernel that
    multiplies does not.
    """

    partials: Matrix
    C: Matrix
    epilogue: Epilogue
    operands: tuple[Matrix, ...] = ()
    numbers: tuple[float, ...] = ()

    @property
    def scalar(self) -> DType:
        """The type of alpha and beta, as in a `GemmProblem`."""
        return scalar_of(self.partials.element, self.C.element)

    @property
    def slices(self) -> int:
        """Slices of a product."""
        return self.partials.l // self.C.l

    @property
    def nbytes(self) -> int:
        """Bytes of scratch."""
        return span_of(self.partials)


def of_pairs(matrix: Matrix, pairs: str) -> Matrix:
    """Return B, or a batch, as two matrices (N / 2, K) of the columns that make one of C.

    ``pairs``: these columns, as in `Epilogue.pairs`.
    """
    (n, k), (step, along_k) = matrix.shape, matrix.stride
    apart = step if pairs == "pairs" else n // 2 * step
    return replace(
        matrix, shape=(n // 2, k), stride=(2 * step if pairs == "pairs" else step, along_k),
        l=2 * matrix.l, slices=2, slice_stride=apart, **_stepped(matrix, apart),
    )  # fmt: skip


def _stepped(matrix: Matrix, step: int) -> dict[str, Any]:
    """Return the alignment fields of a matrix followed by another after so many elements."""
    first = max(matrix.alignment, matrix.first_alignment)
    return alignments(first, matrix.alignment, step * matrix.element.bytes)


def sliced(problem: GemmProblem, slices: int, tile_k: int) -> tuple[GemmProblem, Reduction]:
    """Return the problem as a batch of slices of K, each of whole tiles, and their reduction.

    Slices of a product are consecutive in the batch. The last may be shorter, and there may be
    fewer than ``slices``. A and B have the extents of the last slice, since a kernel depends on
    where rows end. For k > 0, or a single slice: the product unchanged, followed by the epilogue.
    """
    depth, count = slice_extents(problem, slices, tile_k)
    last = problem.k - (count - 1) * depth
    ends = last if last > 1 or count == 1 else depth + last  # one column has no leading dimension
    shape, kind = (problem.m, problem.n), problem.accumulator.name
    partials = aligned(replace(problem.C, dtype=kind, shape=shape), problem.C.unit)
    each = span_of(replace(partials, l=1)) // partials.element.bytes
    total = problem.l * count
    partials = replace(partials, l=total, batch_stride=each if total > 1 else 0)

    def cut(matrix: Matrix) -> Matrix:
        jump = depth * matrix.stride[1] if count > 1 else 0
        return replace(
            matrix, shape=(matrix.shape[0], ends), l=total, slices=count, slice_stride=jump,
            **_stepped(matrix, jump),
        )  # fmt: skip

    parts = replace(
        problem, k=depth, k_last=last % max(depth, 1), l=total, A=cut(problem.A),
        B=cut(problem.B), C=partials,
        epilogue=LINEAR_COMBINATION, operands=(), numbers=(),
    )  # fmt: skip
    end = Reduction(partials, problem.C, problem.epilogue, problem.operands, problem.numbers)
    return parts, end


def sliced_class(problem: GemmProblem, slices: int) -> GemmProblem:
    """Return the batched problem of the slices of K, with the alignments of the whole problem.

    Access widths stay the same, so the counts of A's and B's accesses serve for both.
    """
    cut = sliced(problem, slices, 1)[0]
    return replace(cut, A=cut.A.aligned_as(problem.A), B=cut.B.aligned_as(problem.B))


def slice_extents(problem: GemmProblem, slices: int, tile_k: int) -> tuple[int, int]:
    """Return k of each slice but the last, and the number of slices of a product."""
    if slices == 1:
        return problem.k, 1
    # If K is the unit-stride mode, a slice begins at a line, so that vectors stay aligned.
    narrowest = min(matrix.element.bytes for matrix in (problem.A, problem.B))
    step = math.lcm(tile_k, LINE // narrowest)
    depth = -(-problem.k // (step * slices)) * step
    return depth, -(-problem.k // depth)


def alike(problem: Any) -> tuple[Any, ...]:
    """Return the parts with one k: all slices, or all but the last ones, and the last ones."""
    last = problem.k_last
    if not last:
        # Block scales are described for whole products.
        cut = problem.scales and problem.slices > 1
        return (_some_slices(problem, 0, problem.slices, problem.k) if cut else problem,)
    before = problem.slices - 1
    end = _some_slices(problem, before, 1, last)
    return (_some_slices(problem, 0, before, problem.k), end) if before else (end,)


def _some_slices(problem: GemmProblem, first: int, count: int, k: int) -> GemmProblem:
    """Return ``count`` slices of every product from number ``first`` on, with this k."""
    products = problem.l // problem.slices

    def part(matrix: Matrix) -> Matrix:
        near, far, extent = matrix.slice_stride, matrix.batch_stride, k
        if matrix.name == "C":  # matrices of results of slices are consecutive
            near, far, extent = far, far * problem.slices, matrix.shape[1]
        elif matrix.name in SCALES:
            near, extent = problem.k // BLOCK * matrix.stride[1], -(-k // BLOCK)
        size = matrix.element.bytes
        begin = residue(max(matrix.alignment, matrix.first_alignment) + first * near * size)
        near, far = near if count > 1 else 0, far if products > 1 else 0
        return replace(
            matrix,
            shape=(matrix.shape[0], extent),
            l=products * count,
            batch_stride=far,
            slices=count,
            slice_stride=near,
            **alignments(begin, near * size, far * size),
        )

    return problem.with_matrices(part, k=k, k_last=0, l=products * count)


def partials_bytes(problem: GemmProblem) -> int:
    """Return the bytes of scratch for the results of a slice of K."""
    unit, shape = problem.C.unit, (problem.m, problem.n)
    return padded(shape[unit] * problem.accumulator.bytes) * shape[1 - unit]
