"""A kernel's one idea, and its accesses per result: as the tutorials count them, and the model.

The ideas of the kernels whose template is ours stand in the header comments of the templates; of
the others they are here.

Notes
-----
The tutorials' counts (elements of A and B per element of C, for a tile of bM x bN x bK and TM x TN
results per thread) are those of S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like
Performance: a Worklog", https://siboehm.com/articles/22/CUDA-MMM, 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

from cute_gemm._paths import templates_path
from cute_gemm.analysis.performance import elements
from cute_gemm.cute.atoms import MMA_ATOMS
from cute_gemm.kernels.cutlass import config as cutlass_config
from cute_gemm.kernels.cutlass.shared import simt_grid
from cute_gemm.kernels.simt import structure as simt_structure
from cute_gemm.kernels.sm80 import structure as sm80_structure
from cute_gemm.problem.dtypes import dtype
from cute_gemm.select import names

if TYPE_CHECKING:
    from cute_gemm.analysis.report import Report
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.problem.problem import GemmProblem

#: What a paragraph of a template's header begins with.
_MARK = "The idea: "

_IDEAS = {
    "host": (
        "None: the definition. Every element of C is a sum over k, in that order, on the CPU; what "
        "every other kernel's results are compared with."
    ),
    "cublas": (
        "A library of kernels, of which heuristics choose one for the problem and the GPU. On "
        "Hopper they use what this ladder stops before, where the type has it: wgmma and TMA."
    ),
}


@cache
def idea(name: str) -> str:
    """Return the one idea of a kernel: what it does that the one before does not.

    Parameters
    ----------
    name
        A name of ``select.names()``.

    Raises
    ------
    LookupError
        When neither the template's header nor this module says it.

    Examples
    --------
    >>> idea("register_rows")[:46]
    'An element of B, once in a register, serves al'
    >>> idea("cublas")[:20]
    'A library of kernels'
    """
    if name in _IDEAS:
        return _IDEAS[name]
    header = []
    for line in template(name).splitlines():
        if not line.startswith("//"):
            break
        header.append(line[2:].strip())
    title, *paragraphs = "\n".join(header).split("\n\n")
    for paragraph in paragraphs:
        if paragraph.startswith(_MARK):
            text = " ".join(paragraph.split("\n"))[len(_MARK) :]
            named = text.split(",")[0] in names()  # the kernel that this one begins with
            return text if named else f"{text[0].upper()}{text[1:]}"
    raise LookupError(f"{name}.cuh has no paragraph {_MARK.strip()!r} in its header: {title}")


def template(name: str) -> str:
    """Return the text of a kernel's template in CUDA C++: ``NAME.cuh`` in its family's folder."""
    (path,) = templates_path().rglob(f"{name}.cuh")
    return path.read_text(encoding="utf-8")


# ---- as the tutorials count ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shares:
    """How many results share an element of A and of B on its way.

    Attributes
    ----------
    cta
        Rows and columns of C that what is loaded from global memory serves; (1, 1): one result.
    reader
        Rows and columns of C that what is read from shared memory serves: a thread's results or,
        with tensor cores, a warp's; None without shared memory.
    names
        What ``cta`` and ``reader`` are called.
    """

    cta: tuple[int, int]
    reader: tuple[int, int] | None
    names: tuple[tuple[str, str], tuple[str, str]] = (("bM", "bN"), ("TM", "TN"))


_WARP_NAMES = (("bM", "bN"), ("wM", "wN"))


def shares(kernel: Kernel, config: Any) -> Shares | None:
    """Return the sharing that a config makes; None where nothing is known of it.

    Examples
    --------
    For a CTA tile of 128 x 128 and 8 x 8 results per thread,
    ``Shares(cta=(128, 128), reader=(8, 8))``.
    """
    if kernel.runs_on != "gpu":
        return Shares((1, 1), None) if kernel.runs_on == "cpu" else None
    m, n = config.tile[:2]
    if isinstance(config, simt_structure.Config):
        staged = getattr(kernel, "staged", True)
        return Shares((m, n), config.thread_tile) if staged else Shares((1, 1), None)
    warp = (m // config.warps[0], n // config.warps[1])
    if isinstance(config, sm80_structure.Config):
        if MMA_ATOMS[config.mma].threads == 1:
            lanes = simt_structure.WARP_LANES[:: -1 if config.exchange else 1]
            return Shares((m, n), (warp[0] // lanes[0], warp[1] // lanes[1]))
    elif cutlass_config.MATH[config.math].opcode == "Simt":
        lanes = simt_grid(config)[:: -1 if config.exchange else 1]
        return Shares((m, n), (warp[0] // lanes[0], warp[1] // lanes[1]))
    return Shares((m, n), warp, _WARP_NAMES)


@dataclass(frozen=True, slots=True)
class Formula:
    """Elements per result, as a multiple of K.

    Attributes
    ----------
    symbols
        With the names of the extents: ``"K/bN"``.
    factor
        The multiple.

    Examples
    --------
    >>> str(Formula("K/TM + K/TN", Fraction(9, 8))), Formula("K/bN", Fraction(1, 32)).value(4096)
    ('K/TM + K/TN = 9K/8', 128.0)
    >>> str(Formula("K", Fraction(1)))
    'K'
    """

    symbols: str
    factor: Fraction

    def __str__(self) -> str:
        top, bottom = self.factor.as_integer_ratio()
        number = ("K" if top == 1 else f"{top}K") + ("" if bottom == 1 else f"/{bottom}")
        return number if self.symbols in ("", number) else f"{self.symbols} = {number}"

    def value(self, k: int) -> float:
        """Return the elements per result for a K."""
        return float(self.factor * k)


def formulas(found: Shares, space: str) -> dict[str, Formula]:
    """Return the elements of A, of B and of both (``"AB"``) per result, of one memory space.

    Parameters
    ----------
    space
        ``"global"``, or ``"shared"`` for what is read from it (it is written as often as global
        memory is loaded); nothing without it.

    Examples
    --------
    >>> tile = Shares((32, 32), (1, 1))
    >>> [str(formula) for formula in formulas(tile, "global").values()]
    ['K/bN = K/32', 'K/bM = K/32', 'K/bM + K/bN = K/16']
    """
    extents = found.cta if space == "global" else found.reader
    if extents is None:
        return {}
    rows, columns = (Fraction(1, extent) for extent in extents)
    if found.reader is None:
        return {
            "A": Formula("", columns),
            "B": Formula("", rows),
            "AB": Formula("", rows + columns),
        }
    m, n = found.names[space != "global"]
    return {
        "A": Formula(f"K/{n}", columns),
        "B": Formula(f"K/{m}", rows),
        "AB": Formula(f"K/{m} + K/{n}", rows + columns),
    }


# ---- and as the model does ----------------------------------------------------------------------

#: What the kinds of accesses are called, in the order in which data go.
KINDS = {
    ("global", "load"): "gmem load",
    ("shared", "store"): "smem store",
    ("shared", "load"): "smem load",
    ("global", "store"): "gmem store",
}


@dataclass(frozen=True, slots=True)
class Count:
    """Accesses per result (element of C) of one kind.

    Attributes
    ----------
    space, direction
        ``"global"`` or ``"shared"``, ``"load"`` or ``"store"``.
    operand
        ``"A"``, ``"B"``, ``"AB"`` (both) or ``"C"``.
    formula
        As the tutorials count it, in multiples of K; None where they do not.
    tutorial
        The same with K put in; of C, 1.
    elements, requests, sectors, wavefronts
        As the model counts them, over the whole launch: elements (lanes x width), warps'
        instructions, sectors (of global memory), wavefronts (of shared memory). None where the
        model says nothing of it.
    """

    space: str
    direction: str
    operand: str
    formula: Formula | None
    tutorial: float | None
    elements: float | None = None
    requests: float | None = None
    sectors: float | None = None
    wavefronts: float | None = None


def counts(
    kernel: Kernel, config: Any, problem: GemmProblem, report: Report | None
) -> Iterator[Count]:
    """Count the accesses per result both ways.

    Parameters
    ----------
    kernel, config, problem
        What is configured for what.
    report
        The model's; None of a kernel that has none.

    Yields
    ------
    Count
        In the order of ``KINDS``; of A, of B and of both.
    """
    found = shares(kernel, config)
    results = problem.m * problem.n
    if found is None or not results:
        return
    for space, direction in KINDS:
        if (space, direction) == ("global", "store"):
            told: dict[str, Formula | None] = {"C": None}
        elif space == "shared" and found.reader is None:
            continue
        else:
            # What is loaded from global memory is what is written to shared memory.
            reads = (space, direction) == ("shared", "load")
            told = dict(formulas(found, "shared" if reads else "global"))
            if _totals(report, "C", "global", "load", results) and space == "global":
                told["C"] = None  # beta is not 0
        for operand, formula in told.items():
            tutorial = 1.0 if formula is None else formula.value(problem.k)
            yield Count(
                space, direction, operand, formula, tutorial,
                **_totals(report, operand, space, direction, results),
            )  # fmt: skip


def _totals(
    report: Report | None, operand: str, space: str, direction: str, results: int
) -> dict[str, float]:
    """The model's figures of one kind of access, over the results; nothing it does not know."""
    chosen = [
        row
        for row in (report.rows if report else ())
        if row.operand in operand and (row.space, row.direction) == (space, direction)
    ]
    if not chosen or report is None:
        return {}
    sizes = {x.name: dtype(x.dtype).bytes for x in (report.problem.A, report.problem.B)}
    sizes["C"] = dtype(report.problem.C.dtype).bytes
    figures = {
        "elements": sum(elements(row, sizes[row.operand]) for row in chosen),
        "requests": sum(row.launch.requests - row.launch.off for row in chosen),
    }
    cost = "sectors" if space == "global" else "wavefronts"
    figures[cost] = sum(getattr(row.launch, cost) or 0 for row in chosen)
    return {name: total / results for name, total in figures.items()}
