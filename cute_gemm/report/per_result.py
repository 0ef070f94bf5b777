"""Accesses per result (element of C), by tutorials' formulas and by the model.

The tutorials' counts (elements of A and B per element of C, for a tile of bM x bN x bK and TM x TN
results per thread) are those of S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like
Performance: a Worklog", https://siboehm.com/articles/22/CUDA-MMM, 2022.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from cute_gemm._text import named
from cute_gemm.cost_model.roofline import ratio
from cute_gemm.problem.parts.groups import evenly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cute_gemm.access.accesses import Shares
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.rendering.rows import AccessRow

#: Names of the kinds of accesses, in the order of data movement.
KINDS = {
    ("global", "load"): "gmem load",
    ("shared", "store"): "smem store",
    ("shared", "load"): "smem load",
    ("global", "store"): "gmem store",
}


def per_result(
    problem: GemmProblem, rows: Iterable[AccessRow], operands: str, space: str, direction: str
) -> dict[str, float]:
    """Return figures of the launch's accesses of one kind over m * n; {} without such an access.

    They are ``elements``, ``requests``, and ``sectors`` or ``wavefronts``. Elements are lanes x
    width: a lane that loads a vector counts all its elements, even those beyond the end of the
    matrix, and every row address of ldmatrix counts 16 bytes. A bulk copy has no lanes and counts
    the elements that arrive.
    """
    sizes = {x.name: x.element.bytes for x in problem.matrices}
    cost = "sectors" if space == "global" else "wavefronts"
    by_tma = "load", "shared", "store"  # stores to shared memory by a row of global memory
    totals: Counter[str] = Counter()
    for row in rows:
        if row.operand not in operands:
            continue
        launch, size = row.launch, sizes[row.operand]
        if (row.space, row.direction) == (space, direction):
            moved = launch.lanes * row.bits // 8 if launch.lanes else launch.bytes
            totals.update(elements=moved // size, **named(launch, "requests", cost))
        elif row.instruction == "TMA" and (row.direction, space, direction) == by_tma:
            totals["elements"] += launch.bytes // size
    results = results_of(problem)
    return {name: ratio(total, results) for name, total in totals.items()}


def results_of(problem: GemmProblem) -> int:
    """Return the number of results: elements of C, of groups of equal sizes."""
    each = evenly(problem)
    return each.m * each.columns * each.l


@dataclass(frozen=True, slots=True)
class Formula:
    """Elements per result, as a multiple of K and with names of extents: ``"K/bN"``."""

    symbols: str
    factor: Fraction

    def __str__(self) -> str:
        top, bottom = self.factor.as_integer_ratio()
        number = ("K" if top == 1 else f"{top}K") + ("" if bottom == 1 else f"/{bottom}")
        return number if self.symbols in ("", number) else f"{self.symbols} = {number}"


def formulas(shares: Shares, reads: bool, products: int = 1) -> dict[str, Formula]:
    """Return the elements of A, of B and of both (``"AB"``) per result.

    With ``reads`` these are reads from shared memory; otherwise loads from global memory, whose
    number equals that of writes to shared memory. ``products``: columns of the product per result.
    """
    extents = (shares.reader if reads else None) or shares.cta
    rows, columns = (Fraction(products, extent) for extent in extents)
    (m, n), k = shares.names[reads], "K" if products == 1 else f"{products}K"
    symbols = (f"{k}/{n}", f"{k}/{m}", f"{k}/{m} + {k}/{n}") if shares.reader else ("",) * 3
    factors = (columns, rows, rows + columns)
    return dict(zip(("A", "B", "AB"), map(Formula, symbols, factors), strict=True))


@dataclass(frozen=True, slots=True)
class Count:
    """Accesses per result of one kind.

    ``operand`` is ``"A"``, ``"B"``, ``"AB"`` (both) or ``"C"``. ``formula`` and ``tutorial`` are
    the tutorials' count as a formula and as a number (None and 1 for C). The other fields are the
    model's counts over the launch (``per_result``), or None.
    """

    space: str
    direction: str
    operand: str
    formula: Formula | None
    tutorial: float
    elements: float | None = None
    requests: float | None = None
    sectors: float | None = None
    wavefronts: float | None = None


def counts(
    shares: Shares | None, problem: GemmProblem, rows: Iterable[AccessRow]
) -> Iterator[Count]:
    """Count the accesses per result of A, B and both in both ways, in the order of ``KINDS``."""
    if shares is None or not problem.m * problem.n * problem.l:
        return
    rows = tuple(rows)
    for kind in KINDS:
        space, direction = kind
        if space == "shared" and shares.reader is None:
            continue
        by_operand: dict[str, Formula | None] = {}
        if kind != ("global", "store"):
            products = problem.n // problem.columns
            by_operand.update(formulas(shares, kind == ("shared", "load"), products))
        if space == "global" and (direction == "store" or per_result(problem, rows, "C", *kind)):
            by_operand["C"] = None  # loaded if beta is not 0
        for operand, formula in by_operand.items():
            model = per_result(problem, rows, operand, *kind)
            tutorial = 1.0 if formula is None else float(formula.factor * problem.k)
            yield Count(space, direction, operand, formula, tutorial, **model)
