"""Comparison of results with float64, element by element, with a bound that wrong tiles exceed.

Complex results are compared with complex128, by the magnitude of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.dtypes import FAST_ACCUM, FLOAT8, factor
from cute_gemm.problem.epilogue.epilogue import EpilogueArguments
from cute_gemm.problem.parts.groups import Group, groups_on_host, tail_on_host
from cute_gemm.problem.parts.scales import scaled
from cute_gemm.problem.reference import batches, used
from cute_gemm.problem.values import saturated

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem

#: k of the products that tensor cores add before they are added to float32 accumulators, for 8-bit
#: floats; and k of an instruction.
PROMOTED, _INSTRUCTION = 128, 32
#: Unit in the last place of sums of 8-bit floats on Hopper's tensor cores, relative to the greatest
#: term, and how many times an instruction drops less than that.
_TRUNCATED, _TIMES = 2.0**-13, _INSTRUCTION + 2
#: Elements of C per block: keeps the float64 temporaries near 100 MB for every size.
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class Verdict:
    """The errors of a result against float64.

    ``ok`` if every element is within its bound; ``elements`` were compared, ``wrong`` of them are
    out of bound. ``max_error`` is the largest ``|C - reference|`` and ``max_ratio`` the largest
    ``|C - reference| / bound``, at most 1 if ``ok``; ``worst`` is the index of the element with
    that ratio, (row, column), in a batch (matrix, row, column), and None without
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
    if problem.A.dtype in FLOAT8:
        twice = "2 " * (problem.compute == FAST_ACCUM)
        return (
            f"2^{exponent} |C| + K 2^-24 sum |a||b| + {twice}34 2^-13 sum over 32 of k of "
            "max(max |a| max |b|, |sums|)"
        )
    if not problem.accumulator.roundoff:
        return f"2^{exponent} |C| + 2^-24 |sums|"
    if out.is_complex:
        sums = f"{4 if problem.compute == 'float64' else 2} sqrt(2) K 2^{exponent}"
    else:
        sums = {"float64": "2 K 2^-53", "tf32": "(K 2^-24 + 2^-10)"}.get(problem.compute, "K 2^-24")
    return f"2^{exponent} |C| + {sums} sum |a||b|"


def _roundings(problem: GemmProblem) -> float:
    """Return the error bound of accumulators in unit roundoffs of ``sum |a||b|``; see `verify`."""
    if not problem.accumulator.roundoff:
        return 1
    terms = problem.k * (2 if problem.compute == "float64" else 1)
    return 2 * math.sqrt(2) * terms if problem.C.element.is_complex else terms


def verify(
    problem: GemmProblem, A: np.ndarray, B: np.ndarray, result: np.ndarray, *,
    C: np.ndarray | None = None, alpha: complex = 1.0, beta: complex = 0.0,
    operands: Mapping[str, np.ndarray] | None = None,
) -> Verdict:  # fmt: skip
    """Compare ``result`` with ``alpha * op(A) @ op(B) + beta * C`` in float64 or complex128.

    Parameters
    ----------
    problem
        The problem, for example ``plan.problem``.
    A, B
        Host arrays as stored.
    result
        (M, N) or (L, M, N), on the host.
    C
        The values of C before the call. They are read only if beta is not 0.
    alpha, beta
        Numbers.
    operands
        The operands of the epilogue by name, which broadcast to ``result``. With groups,
        ``offsets`` too; each group then has a bound of its own, and rows that must be zero after
        the groups are one more group.

    Returns
    -------
    Verdict
        Whether each element is within its bound, the greatest error, and its place.

    Notes
    -----
    The bound of an element is ``u_out |ref| + K u_acc sum |a||b|``, where u_out and u_acc are the
    unit roundoffs of C's type and of the accumulator: the error of summing K products in any order
    (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1) and of the
    final rounding. With tf32, ``2^-10 sum |a||b|`` comes on top for rounding the factors; with
    float64 the sum counts twice, since the reference has the same error; with alpha or beta,
    ``2 u_acc (|alpha| sum |a||b| + |beta C|)`` for scaling and adding. Integers must be exact
    modulo 2**32; where C is of floating-point numbers, they may be off by ``u_acc`` of themselves
    before alpha. Infinities and NaN must be where the reference has them.

    Each part of a complex result is a real sum of 2 K products, so it is off by at most 2 K u_acc
    times the sum of their magnitudes: ``|re a||re b| + |im a||im b|`` for the real part,
    ``|re a||im b| + |im a||re b|`` for the imaginary one. As the two parts of a number these have
    a magnitude of at most ``sqrt(2) |a||b|``, hence ``2 sqrt(2) K u_acc sum |a||b|``, in any order
    and with or without fused multiply-adds. Scaling by alpha and beta costs ``sqrt(2) gamma_2``
    (the book's section 3.6) and an addition: ``(2 sqrt(2) + 1) u_acc`` in place of ``2 u_acc``.
    Which part of a complex number is infinite or NaN depends on the order of the products, so where
    the reference, rounded to C's type, is not finite, the result need only not be finite either.
    """
    given, comparison = operands or {}, _Comparison()
    if problem.groups:
        held = repeat(None) if C is None else (x.C for x in groups_on_host(problem, A, B, C, given))
        groups = groups_on_host(problem, A, B, result, given)
        for number, (group, before) in enumerate(zip(groups, held, strict=False)):
            _compare(comparison, group, before, alpha, beta, (number,))
        if problem.groups.zero_tail:
            tail = tail_on_host(problem, result, given["offsets"])
            if tail.size:
                error = abs(np.nan_to_num(tail.astype(np.complex128), nan=np.inf))
                zero = np.zeros_like(error)
                comparison.add(error, zero, error == 0, (problem.l,), (0, 0))
    else:
        _compare(comparison, Group(problem, A, B, result, given), C, alpha, beta)
    return comparison.verdict(bound_formula(problem))


def _compare(
    comparison: _Comparison, group: Group, C: np.ndarray | None, alpha: complex, beta: complex,
    place: tuple[int, ...] = (),
) -> None:  # fmt: skip
    """Add the elements of one problem, whose indices begin with ``place``."""
    problem, result = group.problem, group.C
    left, right, _ = used(problem, group.A, group.B, result)
    operands = dict(group.operands)
    blocks = {x.name: np.asarray(operands.pop(x.name), np.float64) for x in problem.scales}
    if blocks and alpha != 0:
        left, right = scaled(problem, left, right, blocks)
    before = None if beta == 0 else C
    use_ab = alpha != 0 and problem.k > 0
    alpha = alpha if use_ab else 0  # also for an infinite alpha without products
    wide: type[np.inexact] = np.complex128 if problem.C.element.is_complex else np.float64
    m, n = problem.m, problem.columns
    columns = max(1, _BLOCK // max(1, m))
    broadcast = {name: np.broadcast_to(x, result.shape) for name, x in operands.items()}
    for part in batches(result, problem.k, _BLOCK) if m else []:
        left64 = _widened(left[part], wide, problem.A.conj) if use_ab else left
        for j in range(0, n, columns):
            index = (*part, slice(None), slice(j, j + columns))
            got = result[index]
            of_product = (*part, slice(None), _product_columns(problem, j, min(j + columns, n)))
            with np.errstate(all="ignore"):
                right64 = right[of_product]
                if use_ab:
                    right64 = _widened(right64, wide, problem.B.conj)
                    products = left64 @ right64
                else:
                    products = np.zeros((*got.shape[:-1], right64.shape[-1]), wide)
                old = None if before is None else before[index].astype(wide)
                own = {name: array[index].astype(wide) for name, array in broadcast.items()}
                arguments = EpilogueArguments(old, alpha, beta, own)
                if problem.C.element.roundoff == 0:
                    compared = _compare_integers(products, got, arguments)
                else:
                    sums: np.ndarray = abs(products)
                    lost: np.ndarray | float = 0.0
                    if use_ab:
                        # A scale, and its product with another one, are rounded.
                        scalings = 1 + 2 * len(blocks) * problem.accumulator.roundoff
                        sums = abs(left64) @ abs(right64) * scalings
                        lost = lost_of(problem, left64, right64)
                    compared = compare_floats(problem, products, sums, got, arguments, lost)
            comparison.add(*compared, place, tuple(x.start or 0 for x in index))


class _Comparison:
    """Errors of all elements that were compared."""

    def __init__(self) -> None:
        self.elements = self.wrong = 0
        self.error = self.ratio = 0.0
        self.worst: tuple[int, ...] | None = None

    def add(
        self, error: np.ndarray, bound: np.ndarray, good: np.ndarray, place: tuple[int, ...],
        corner: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Add a block of elements, the first of them at ``corner`` of the matrix at ``place``."""
        with np.errstate(all="ignore"):
            ratio = error / np.maximum(bound, 1e-300)
        ratio[good & ~(ratio <= 1)] = 0.0  # the same infinity, NaN or rounded value
        ratio[~good & np.isnan(ratio)] = np.inf
        index = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        if self.worst is None or ratio[index] > self.ratio:
            within = (int(x) + first for x, first in zip(index, corner, strict=True))
            self.worst = (*place, *within)
        self.ratio = max(self.ratio, float(ratio[index]))
        finite = error[np.isfinite(error)]
        self.error = max(self.error, float(finite.max(initial=0.0)))
        self.wrong += int(np.count_nonzero(~good))
        self.elements += error.size

    def verdict(self, bound: str) -> Verdict:
        """Return the verdict."""
        return Verdict(
            self.wrong == 0, self.elements, self.wrong, self.error, self.ratio, self.worst, bound
        )


def _product_columns(problem: GemmProblem, begin: int, end: int) -> Any:
    """Return the index of the columns of the product that make these columns of C."""
    if problem.epilogue.pairs == "halves":
        both = range(begin, end), range(problem.columns + begin, problem.columns + end)
        return [column for half in both for column in half]
    each = problem.n // max(problem.columns, 1)
    return slice(each * begin, each * end)


def lost_of(problem: GemmProblem, left: np.ndarray, right: np.ndarray) -> np.ndarray | float:
    """Return the error of the accumulators that tensor cores cut off; see `truncation`.

    ``left``, ``right``: op(A) and op(B) in float64, or (N, K) and (K, M) for a transposed product.
    """
    if problem.A.dtype not in FLOAT8:
        return 0.0
    return truncation(left, right, 0 if problem.compute == FAST_ACCUM else PROMOTED)


def truncation(left: np.ndarray, right: np.ndarray, promoted: int) -> np.ndarray:
    """Return the error bound of sums of 8-bit floats on Hopper's tensor cores.

    An instruction adds the products of 32 of k to the accumulator: all 33 are aligned to the
    greatest of them and cut off 13 bits below its leading one, and so is their sum, which may have
    a bit more; measured by DeepSeek-AI ("DeepSeek-V3 Technical Report", 2024, section 3.3.2: about
    14 bits) and others. So each of 34 numbers loses less than ``2^-13`` of the greatest, which is
    no greater than the greatest ``|a|`` times the greatest ``|b|`` of the 32, or what the
    accumulator held before or holds after.

    Parameters
    ----------
    left, right
        (..., M, K) and (..., K, N) in float64.
    promoted
        k after which the accumulator begins anew, with its error; 0: never. Slices of K then
        begin anywhere, and hold at most twice the greatest sum from the first k on.
    """
    total = np.zeros((*left.shape[:-1], right.shape[-1]))
    sums, off, greatest = (np.zeros_like(total) for _ in range(3))
    lost = _TIMES * _TRUNCATED
    for start in range(0, left.shape[-1], _INSTRUCTION):
        a, b = left[..., start : start + _INSTRUCTION], right[..., start : start + _INSTRUCTION, :]
        if promoted and start % promoted == 0:
            total += off
            off[...] = sums[...] = 0.0
        before = abs(sums)
        sums += a @ b
        held = np.maximum(before, abs(sums))
        if not promoted:
            greatest = np.maximum(greatest, held)
            held = 2 * greatest
        products = abs(a).max(axis=-1)[..., :, None] * abs(b).max(axis=-2)[..., None, :]
        # The accumulator holds the exact sum plus its error.
        off += lost / (1 - lost) * np.maximum(products, held + off)
    return total + off


def _widened(array: np.ndarray, wide: type[np.inexact], conj: bool) -> np.ndarray:
    array = array.astype(wide)
    return array.conj() if conj else array


def _compare_integers(
    products: np.ndarray, got: np.ndarray, arguments: EpilogueArguments
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return error, bound and verdict of each element, modulo 2**32."""
    old, alpha, beta, _ = arguments
    exact = np.int64(alpha.real) * products.astype(np.int64)
    if old is not None:
        exact = exact + np.int64(beta.real) * old.astype(np.int64)
    reference = exact.astype(np.int32)
    error = abs(got.astype(np.float64) - reference)
    return error, np.zeros_like(error), got == reference


def compare_floats(
    problem: GemmProblem, products: np.ndarray, sums: np.ndarray, got: np.ndarray,
    arguments: EpilogueArguments, further: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return error, bound and verdict of each element.

    ``further``: error of the accumulators in addition to roundings to their type.
    """
    out, accumulator, epilogue = problem.C.element, problem.accumulator, problem.epilogue
    if not accumulator.roundoff:
        # Integers are exact modulo 2**32, and then rounded to the type of alpha and beta.
        accumulator = problem.scalar
        products = products.astype(np.int64).astype(np.int32).astype(np.float64)
        sums = abs(products)
    # The error of a product includes rounding of its two factors, if they are rounded.
    factors = 0.0
    for element in (problem.A.element, problem.B.element):
        multiplied = factor(element.name, problem.compute)
        factors += multiplied.roundoff * (multiplied.roundoff > element.roundoff)
    error = (_roundings(problem) * accumulator.roundoff + factors) * sums + further
    reference = saturated(epilogue.apply(products, arguments), out.name)
    bound = epilogue.bound(products, error, sums, accumulator, arguments)
    # (1 + u): the final rounding acts on the computed value, not on the reference.
    bound = out.roundoff * abs(reference) + (1 + out.roundoff) * bound + out.underflow
    wide = got.astype(reference.dtype)
    error = abs(wide - reference)
    rounded = reference.astype(got.dtype)
    same = (got == rounded) | (np.isnan(reference) & np.isnan(wide))
    if out.is_complex:
        same |= ~np.isfinite(rounded) & ~np.isfinite(wide)
    return error, bound, np.where(np.isfinite(reference), error <= bound, False) | same
