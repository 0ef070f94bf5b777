"""A result against float64, element by element, with a bound that a wrong tile cannot pass.

Complex results are compared with complex128, by the magnitude of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from cute_gemm.dtypes import factor
from cute_gemm.problem.epilogue import EpilogueArguments
from cute_gemm.problem.grouped import groups_on_host
from cute_gemm.problem.reference import batches, used

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem

#: Elements of C per block: keeps the float64 temporaries near 100 MB whatever the problem's size.
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a result is from float64.

    ``ok`` when every element is within its bound; ``elements`` were compared, ``wrong`` of them are
    out of bound. ``max_error`` is the largest ``|C - reference|`` and ``max_ratio`` the largest
    ``|C - reference| / bound``, at most 1 when ``ok``; ``worst`` is the index of the element with
    that ratio, (row, column), of a batch (matrix, row, column), and None when there are no
    elements. ``bound`` is the bound as a formula.
    """

    ok: bool
    elements: int
    wrong: int
    max_error: float
    max_ratio: float
    worst: tuple[int, ...] | None
    bound: str


def bound_formula(problem: GemmProblem) -> str:
    """Return the error bound of ``problem`` as text, for reports."""
    out = problem.C.element
    if out.roundoff == 0:
        return "exact, modulo 2^32"
    exponent = int(np.log2(out.roundoff))
    if out.is_complex:
        sums = f"{4 if problem.compute == 'float64' else 2} sqrt(2) K 2^{exponent}"
    else:
        sums = {"float64": "2 K 2^-53", "tf32": "(K 2^-24 + 2^-10)"}.get(problem.compute, "K 2^-24")
    return f"2^{exponent} |C| + {sums} sum |a||b|"


def _roundings(problem: GemmProblem) -> float:
    """Return how many unit roundoffs of ``sum |a||b|`` the sums may be off; see `verify`."""
    terms = problem.k * (2 if problem.compute == "float64" else 1)
    return 2 * math.sqrt(2) * terms if problem.C.element.is_complex else terms


def verify(
    problem: GemmProblem,
    A: np.ndarray,
    B: np.ndarray,
    result: np.ndarray,
    *,
    C: np.ndarray | None = None,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    operands: Mapping[str, np.ndarray] | None = None,
) -> Verdict:
    """Compare ``result`` with ``alpha * op(A) @ op(B) + beta * C`` in float64 or complex128.

    A and B are host arrays as stored, ``result`` is (M, N) or (L, M, N), and ``C`` is what C held
    before, read only when beta is not 0. ``operands`` are those of the problem's epilogue, by name,
    and broadcast to ``result``; the reference and the bound are then the epilogue's.

    The bound of an element is ``u_out |ref| + K u_acc sum |a||b|``, where u_out and u_acc are the
    unit roundoffs of C's type and of the accumulator: the error of summing K products in any order
    (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1) and of the
    final rounding. With tf32, ``2^-10 sum |a||b|`` comes on top for rounding the factors; with
    float64 the sum counts twice, since the reference has the same error; with alpha or beta,
    ``2 u_acc (|alpha| sum |a||b| + |beta C|)`` for scaling and adding. Integers must be exact
    modulo 2**32. Infinities and NaN must be where the reference has them.

    Of complex types each part is a real sum of 2 K products, so it is off by at most 2 K u_acc
    times the sum of their magnitudes: ``|re a||re b| + |im a||im b|`` for the real part,
    ``|re a||im b| + |im a||re b|`` for the imaginary one. As the two parts of a number these have
    a magnitude of at most ``sqrt(2) |a||b|``, hence ``2 sqrt(2) K u_acc sum |a||b|``, in any order
    and with or without fused multiply-adds. Scaling by alpha and beta costs ``sqrt(2) gamma_2``
    (the book's section 3.6) and an addition: ``(2 sqrt(2) + 1) u_acc`` in place of ``2 u_acc``.
    Which part of a complex number is infinite or NaN depends on the order of the products, so where
    the reference, rounded to C's type, is not finite, the result need only not be finite either.

    Of a grouped GEMM ``operands`` has ``offsets`` too, and each group is compared with a bound of
    its own.
    """
    if problem.ragged:
        verdicts = [
            verify(
                group.problem, group.A, group.B, group.C, C=held, alpha=alpha, beta=beta,
                operands=group.operands,
            )
            for group, held in zip(
                groups_on_host(problem, A, B, result, operands or {}),
                _held(problem, A, B, C, operands or {}), strict=False,
            )
        ]  # fmt: skip
        return _together(problem, verdicts)
    left, right, _ = used(problem, A, B, result)
    before = None if beta == 0 else C
    use_ab = alpha != 0 and problem.k > 0
    alpha = alpha if use_ab else 0  # which also makes nothing of an infinite alpha without products
    wide: type[np.inexact] = np.complex128 if problem.C.element.is_complex else np.float64
    m, n = problem.m, problem.n
    columns = max(1, _BLOCK // max(1, m))
    integers = problem.C.element.roundoff == 0
    broadcast = {
        name: np.broadcast_to(array, result.shape) for name, array in (operands or {}).items()
    }

    wrong = 0
    max_error = max_ratio = 0.0
    worst: tuple[int, ...] | None = None
    for part in batches(result, problem.k, _BLOCK) if m else []:
        left64 = _widened(left[part], wide, problem.A.conj) if use_ab else left
        for j in range(0, n, columns):
            block = (*part, slice(None), slice(j, j + columns))
            got = result[block]
            with np.errstate(all="ignore"):
                old = None if before is None else before[block].astype(wide)
                right64 = _widened(right[block], wide, problem.B.conj) if use_ab else right
                products = left64 @ right64 if use_ab else np.zeros(got.shape, wide)
                if integers:
                    error, bound, good = _compare_integers(products, old, got, alpha, beta)
                else:
                    sums = abs(left64) @ abs(right64) if use_ab else abs(products)
                    own = {name: array[block].astype(wide) for name, array in broadcast.items()}
                    arguments = EpilogueArguments(old, alpha, beta, own)
                    error, bound, good = compare_floats(problem, products, sums, got, arguments)
                ratio = error / np.maximum(bound, 1e-300)
            ratio[good & ~(ratio <= 1)] = 0.0  # the same infinity, NaN or rounded value
            ratio[~good & np.isnan(ratio)] = np.inf
            index = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
            if worst is None or ratio[index] > max_ratio:
                corner = (*(x.start for x in part), 0, j)
                worst = tuple(int(x) + first for x, first in zip(index, corner, strict=True))
            max_ratio = max(max_ratio, float(ratio[index]))
            finite = error[np.isfinite(error)]
            max_error = max(max_error, float(finite.max(initial=0.0)))
            wrong += int(np.count_nonzero(~good))
    elements = problem.l * m * n
    return Verdict(wrong == 0, elements, wrong, max_error, max_ratio, worst, bound_formula(problem))


def _held(
    problem: GemmProblem, A: np.ndarray, B: np.ndarray, C: np.ndarray | None,
    operands: Mapping[str, np.ndarray],
) -> Iterator[np.ndarray | None]:  # fmt: skip
    """Yield what each group of C held before."""
    if C is None:
        yield from repeat(None)
    else:
        yield from (group.C for group in groups_on_host(problem, A, B, C, operands))


def _together(problem: GemmProblem, verdicts: list[Verdict]) -> Verdict:
    """Return the verdict on all groups; ``worst`` begins with the group, and counts within it."""
    place = max(range(len(verdicts)), key=lambda g: verdicts[g].max_ratio)
    worst = verdicts[place].worst
    return Verdict(
        all(each.ok for each in verdicts),
        sum(each.elements for each in verdicts),
        sum(each.wrong for each in verdicts),
        max(each.max_error for each in verdicts),
        verdicts[place].max_ratio,
        None if worst is None else (place, *worst),
        bound_formula(problem),
    )


def _widened(array: np.ndarray, wide: type[np.inexact], conj: bool) -> np.ndarray:
    array = array.astype(wide)
    return array.conj() if conj else array


def _compare_integers(
    products: np.ndarray, old: np.ndarray | None, got: np.ndarray, alpha: complex, beta: complex
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return error, bound and verdict of each element, modulo 2**32."""
    exact = np.int64(alpha.real) * products.astype(np.int64)
    if old is not None:
        exact = exact + np.int64(beta.real) * old.astype(np.int64)
    reference = exact.astype(np.int32)
    error = abs(got.astype(np.float64) - reference)
    return error, np.zeros_like(error), got == reference


def compare_floats(
    problem: GemmProblem,
    products: np.ndarray,
    sums: np.ndarray,
    got: np.ndarray,
    arguments: EpilogueArguments,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return error, bound and verdict of each element."""
    out, accumulator, epilogue = problem.C.element, problem.accumulator, problem.epilogue
    # A product is off by the rounding of its two factors, where they are rounded.
    factors = 0.0
    for element in (problem.A.element, problem.B.element):
        multiplied = factor(element.name, problem.compute)
        factors += multiplied.roundoff * (multiplied.roundoff > element.roundoff)
    error = (_roundings(problem) * accumulator.roundoff + factors) * sums
    reference = epilogue.apply(products, arguments)
    bound = epilogue.bound(products, error, sums, accumulator, arguments)
    # (1 + u): the final rounding acts on the computed value, not on the reference.
    bound = out.roundoff * abs(reference) + (1 + out.roundoff) * bound
    bound = bound + out.underflow

    wide = got.astype(reference.dtype)
    error = abs(wide - reference)
    rounded = reference.astype(got.dtype)
    same = (got == rounded) | (np.isnan(reference) & np.isnan(wide))
    if out.is_complex:
        same |= ~np.isfinite(rounded) & ~np.isfinite(wide)
    return error, bound, np.where(np.isfinite(reference), error <= bound, False) | same
