"""GEMM on the host by NumPy and its BLAS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cute_gemm.dtypes import DTYPES, scalar_of
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, EpilogueArguments
from cute_gemm.problem.parts.groups import groups_on_host, tail_on_host
from cute_gemm.problem.parts.scales import scaled
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.values import saturated

#: Extent of square blocks of C, and of k for operands that are converted: types that BLAS does not
#: have, and conjugates. The float32 sum of so many products of two int8 is exact: 1024 * (-128) *
#: (-128) = 2**24.
_BLOCK = 1024
#: Longest side of a converted block, in extents of a square one: memory stays small.
_LONGEST = 4


def used(
    problem: GemmProblem, A: np.ndarray, B: np.ndarray, C: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return op(A), not yet conjugated, op(B) and C as views: all matrices, or batches (L, ...)."""
    left = A if problem.op[0] == "N" else A.swapaxes(-1, -2)
    right = B if problem.op[1] == "N" else B.swapaxes(-1, -2)
    if C.ndim == 3:
        left = np.broadcast_to(left, (problem.l, problem.m, problem.k))
        right = np.broadcast_to(right, (problem.l, problem.k, problem.n))
    return left, right, C


def batches(C: np.ndarray, k: int, limit: int) -> list[tuple[slice, ...]]:
    """Return indices of parts of a batch, so that C, op(A) and op(B) have ``limit`` elements each.

    A single matrix has one part, an index of everything.
    """
    if C.ndim == 2:
        return [()]
    m, n = C.shape[1:]
    step = max(1, limit // max(m * n, m * k, k * n, 1))
    return [(slice(i, i + step),) for i in range(0, len(C), step)]


def gemm(
    problem: GemmProblem, A: np.ndarray, B: np.ndarray, C: np.ndarray, alpha: complex = 1,
    beta: complex = 0, operands: Mapping[str, np.ndarray] | None = None,
) -> None:  # fmt: skip
    """Compute ``C <- alpha * op(A) @ op(B) + beta * C`` in place.

    ``problem`` describes the arrays as stored and was checked against them; alpha and beta are
    numbers of the accumulator's type. Half types, 8-bit floats and ``"tf32"`` are multiplied and
    summed in float32, int8 in int32 that wraps. If beta is 0, C is not read. If alpha or k is
    0, A and B are not read, and beta = 1 leaves C unchanged, also infinities of complex numbers.
    An epilogue other than BLAS's is applied to the accumulators; ``operands`` are its operands by
    name, and its further results, which are written. With groups they also have ``offsets``; rows
    or columns of C outside all groups keep their values, or become zero.
    """
    if problem.groups:
        for group in groups_on_host(problem, A, B, C, operands or {}):
            gemm(group.problem, group.A, group.B, group.C, alpha, beta, group.operands)
        if problem.groups.zero_tail and operands:
            tail_on_host(problem, C, operands["offsets"])[...] = 0
        return
    if problem.epilogue != LINEAR_COMBINATION:
        given = dict(operands or {})
        blocks = {x.name: given.pop(x.name) for x in problem.scales}
        sums = np.empty_like(C, problem.accumulator.numpy, shape=(*C.shape[:-1], problem.n))
        plain = replace(problem, epilogue=LINEAR_COMBINATION, operands=(), numbers=())
        gemm(plain, A, B, sums, alpha=int(alpha != 0), operands=blocks)
        sums = sums.astype(problem.scalar.numpy, copy=False)
        old = None if beta == 0 else C.astype(sums.dtype)
        results = {x.name: given.pop(x.name) for x in problem.results}
        arguments = EpilogueArguments(old, alpha, beta, given)
        # C may be an operand, also of further results, so it is written after them.
        first = _as_stored(problem.epilogue.apply(sums, arguments), C)
        for result, value in zip(
            problem.epilogue.results, problem.epilogue.apply_further(sums, arguments), strict=True
        ):
            results[result.name][...] = value
        C[...] = first
        return
    left, right, C = used(problem, A, B, C)
    if problem.scales and alpha != 0:
        left, right = scaled(problem, left, right, operands or {})
    conj = problem.A.conj, problem.B.conj
    # NumPy's results are row-major: transpose the product, to write C in its own order.
    if problem.C.unit == 0:
        left, right, C = right.swapaxes(-1, -2), left.swapaxes(-1, -2), C.swapaxes(-1, -2)
        conj = conj[::-1]
    # Infinities and NaN are results here, as in BLAS, and need no warning.
    with np.errstate(all="ignore"):
        for part in batches(C, problem.k, _BLOCK**2):
            a, b, c = left[part], right[part], C[part]
            down, across = _extents(c.shape[-2], c.shape[-1], _as_they_are(a, b, conj))
            for i in range(0, c.shape[-2], down):
                for j in range(0, c.shape[-1], across):
                    rows, columns = slice(i, i + down), slice(j, j + across)
                    block = c[..., rows, columns]
                    _block(a[..., rows, :], b[..., columns], block, conj, alpha, beta)


def _as_they_are(A: np.ndarray, B: np.ndarray, conj: tuple[bool, bool]) -> bool:
    """Return whether BLAS multiplies these operands in place."""
    return not any(conj) and all(_work(x) == x.dtype for x in (A, B))


def _work(x: np.ndarray) -> np.dtype:
    """Return the type in which BLAS multiplies."""
    return x.dtype if x.dtype.kind == "c" or x.dtype == np.float64 else np.dtype(np.float32)


def _extents(m: int, n: int, as_they_are: bool) -> tuple[int, int]:
    """Return the extents of blocks of C: long if C is thin, to make few calls of BLAS."""
    longest = max(m, n, 1) if as_they_are else _LONGEST * _BLOCK
    rows, columns = (max(_BLOCK, min(longest, _BLOCK**2 // max(x, 1))) for x in (n, m))
    return rows, columns


def _block(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, conj: tuple[bool, bool], alpha: complex,
    beta: complex,
) -> None:  # fmt: skip
    accumulator = np.dtype(DTYPES[A.dtype.name].accumulator)
    k = A.shape[-1]
    total: np.ndarray | None = None
    if alpha != 0 and k > 0:
        deep = k if _as_they_are(A, B, conj) else _BLOCK
        for start in range(0, k, deep):
            step = slice(start, start + deep)
            part = _product(A[..., step], B[..., step, :], conj).astype(accumulator, copy=False)
            total = part if total is None else np.add(total, part, out=total)
    scale(total, C, accumulator, alpha, beta)


def scale(
    total: np.ndarray | None, C: np.ndarray, accumulator: np.dtype, alpha: complex, beta: complex
) -> None:
    """Compute ``C <- alpha * total + beta * C`` in place, as BLAS does; ``total=None`` is 0.

    Factors of 1 are skipped: the product of 1 + 0j and an infinity has a NaN.
    """
    scalar = scalar_of(DTYPES[accumulator.name], DTYPES[C.dtype.name]).numpy
    result = None if total is None else total.astype(scalar, copy=False)
    if result is not None and alpha != 1:
        result = scalar.type(alpha) * result
    if beta != 0:
        old = C.astype(scalar, copy=False)
        old = old if beta == 1 else scalar.type(beta) * old
        result = old if result is None else result + old
    C[...] = 0 if result is None else _as_stored(result, C)


def _as_stored(result: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Return results in the range of C's type: clipped if it saturates."""
    return saturated(result, C.dtype.name) if DTYPES[C.dtype.name].saturates else result


def _product(A: np.ndarray, B: np.ndarray, conj: tuple[bool, bool]) -> np.ndarray:
    """Return A @ B by BLAS, which takes transposes and sub-matrices in place."""
    A, B = (x.conj() if turn else x for x, turn in zip((A, B), conj, strict=True))
    return A.astype(_work(A), copy=False) @ B.astype(_work(B), copy=False)
