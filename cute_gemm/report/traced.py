"""``Trace``: the execution of a kernel, compared with its report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm._text import FORMAT, counted, named
from cute_gemm.access import gmem, smem
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError
from cute_gemm.problem.verify import Verdict
from cute_gemm.ptx.access import described
from cute_gemm.ptx.memory import GLOBAL
from cute_gemm.rendering.shown import Paged, differing, size_text, verdict_dict
from cute_gemm.rendering.tables import Figure, Pairs, Table, table
from cute_gemm.report.executed import Compared

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.ptx.launch import Execution
    from cute_gemm.rendering.html import Page
    from cute_gemm.rendering.rows import AccessRow


#: Opcode parts that the table of instructions distinguishes.
_SPACES = frozenset(("global", "shared", "shared::cta", "param", "local", "async"))


class Request(NamedTuple):
    """One memory instruction of one warp.

    Attributes
    ----------
    where
        The accessed array, ``"A"``, ``"B"``, ``"C"`` or another, or ``"shared"``.
    instruction, bits
        As in a report: ``"ld.shared"``, and the bits per lane.
    text
        The instruction, as in the PTX.
    line
        The line of the instruction in the PTX.
    offsets
        Bytes from the operand's element (0, 0), or into shared memory, int [32]; -1: lane off.
    elements
        (row, column) of each lane's first element of A, B or C, int [32, 2]; None otherwise.
    """

    where: str
    instruction: str
    bits: int
    text: str
    line: int
    offsets: np.ndarray
    elements: np.ndarray | None

    def table(self) -> Table:
        """Return a table of lanes: bytes, elements, and the sector or bank that serves them."""
        shared, elements = self.where == "shared", self.elements
        heads = ["lane", "byte", "bank" if shared else "sector"]
        if elements is not None:
            heads.insert(2, "element")
        rows = []
        for lane, offset in enumerate(self.offsets.tolist()):
            place = offset // smem.WORD % smem.BANKS if shared else offset // gmem.SECTOR
            cells = [str(lane), f"{offset:,}", f"{place:,}"]
            if elements is not None:
                cells.insert(2, f"{self.where}({','.join(map(str, elements[lane].tolist()))})")
            rows.append([cells[0], *["-"] * (len(heads) - 1)] if offset < 0 else cells)
        return table(f"line {self.line}: {self.text}", heads, rows, "element")

    def picture(self) -> str:
        """Return an SVG drawing of the sectors or banks that the request touches."""
        from cute_gemm.rendering.pictures import banks, request

        title = f"{self.where}: {self.text}"
        if self.where == "shared":
            return banks(self.instruction, self.bits, self.offsets, title)
        lengths = np.where(self.offsets < 0, 0, self.bits // 8)
        return request(self.offsets, lengths, 0, title)


@dataclass(frozen=True, eq=False)
class Trace(Paged):
    """A kernel that was executed without a GPU; ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    problem, symbol, arch
        The problem, and the kernel that was executed.
    execution
        The execution by the interpreter (`cute_gemm.ptx.Execution`).
    rows
        The rows of the kernel's report.
    figures
        Each figure of each kind of access, predicted and executed.
    result
        C.
    verdict
        The comparison of the result with float64.
    auxiliary
        The names and the figures of the launches before and after the kernel.
    shown
        A request to print and draw too.

    Examples
    --------
    >>> import numpy as np
    >>> from cute_gemm import plan
    >>> A, B = np.ones((40, 24), "f4"), np.ones((24, 33), "f4")
    >>> trace = plan("NN", A, B, kernel="naive", backend="cpu").trace(A, B)
    >>> trace.agrees, trace.result[39, 32]
    (True, np.float32(24.0))
    """

    problem: GemmProblem
    symbol: str
    arch: str
    execution: Execution
    rows: tuple[AccessRow, ...]
    figures: tuple[Compared, ...]
    result: np.ndarray
    verdict: Verdict
    auxiliary: tuple[tuple[str, tuple[Compared, ...]], ...] = ()
    shown: Request | None = None

    def __repr__(self) -> str:
        return f"<Trace: {self.symbol}: {len(self.differences)} figures differ>"

    @property
    def differences(self) -> tuple[Compared, ...]:
        """Figures that differ, of auxiliary kernels too; empty when the report is right."""
        return tuple(figure for figure in self._all_figures if figure.difference)

    @property
    def _all_figures(self) -> tuple[Compared, ...]:
        return sum((figures for _, figures in self.auxiliary), self.figures)

    @property
    def agrees(self) -> bool:
        """Whether the result is right and every access agrees with its prediction."""
        return self.verdict.ok and not self.differences

    @property
    def counts(self) -> dict[str, int]:
        """Instructions that warps executed, by opcode, the most frequent first."""
        return dict(Counter(self.execution.counts or {}).most_common())

    def requests(self, operand: str, cta: int = 0, warp: int = 0) -> list[Request]:
        """Return the requests of one warp in order of execution.

        Parameters
        ----------
        operand
            ``"A"``, ``"B"`` or ``"C"`` in global memory, or ``"shared"``.
        cta, warp
            The CTA, with x fastest, and the warp within it.

        Raises
        ------
        OptionError
            For an operand, CTA or warp that does not exist.
        """
        requests = requests_of(self.execution, operand, cta, warp, "ABC")
        if operand == "shared":
            return requests
        matrix = getattr(self.problem, operand)
        return [x._replace(elements=_elements(matrix, x.offsets)) for x in requests]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as strings, numbers, lists and dicts."""
        p = self.problem
        return {
            "format": FORMAT,
            **named(p, "op", "blas_op", "m", "n", "k", "l", "dtype"),
            "out_dtype": p.C.dtype, "compute": p.compute,
            **named(self, "symbol", "arch", "agrees"),
            "check": verdict_dict(self.verdict),
            "figures": [figure.to_dict() for figure in self.figures],
            "auxiliary": [
                {"kernel": name, "figures": [figure.to_dict() for figure in figures]}
                for name, figures in self.auxiliary
            ],
            "counts": self.counts,
        }  # fmt: skip

    # ---- in words -------------------------------------------------------------------------------

    def _checked(self) -> str:
        verdict = self.verdict
        elements = f"{counted(verdict.elements, 'element')} of C"
        if verdict.ok:
            error = f"largest error {verdict.max_error:.3g}"
            return f"{elements} within {verdict.bound} of float64; {error}"
        worst = f"worst at {verdict.worst}, off by {verdict.max_error:.3g}"
        return f"{verdict.wrong:,} of {elements} WRONG, {worst}"

    def _tables(self) -> list[Table]:
        title = "Predicted and executed"
        of_auxiliary = (_table(f"{title}, {name}", figures) for name, figures in self.auxiliary)
        return [_table(title, self.figures), *of_auxiliary, instructions_table(self.counts)]

    def _agreement(self) -> str:
        return differing(self.differences, len(self._all_figures))

    def _printed(self) -> Iterator[Any]:
        yield f"trace {self.problem.op}{size_text(self.problem)}"
        yield f"{self.symbol}, PTX for {self.arch}"
        for of_figures in self._tables():
            yield from ("", of_figures)
        yield from ("", self._agreement(), self._checked())
        if self.shown is not None:
            yield from ("", self.shown.table())

    def page(self) -> Page:
        """Return the page that ``to_html`` writes."""
        from cute_gemm.rendering.html import Page

        result = Pairs((("accesses", self._agreement()), ("result", self._checked())))
        sections: list[Any] = [("Result", (result,)), ("Executed", self._tables())]
        if self.shown is not None:
            sections.append(("Request", (Figure(self.shown.picture()), self.shown.table())))
        intro = f"{self.symbol}, compiled to PTX for {self.arch} and executed."
        content = {"intro": intro, "sections": sections, "rows": self.rows}
        return Page.of("trace", self.problem, self.symbol, **content)


def _table(title: str, figures: Sequence[Compared]) -> Table:
    heads = ("access", "bits", "figure", "predicted", "executed", "difference")
    lines = []
    for figure in figures:
        kind = figure.kind
        access, name = f"{kind.operand or 'shared'} {kind.instruction}", figure.figure
        numbers = (f"{x:,}" for x in (figure.predicted, figure.executed, figure.difference))
        lines.append((access, str(kind.bits), name.replace("_", " "), *numbers))
    return table(title, heads, lines, "access", "figure")


def requests_of(
    execution: Execution, where: str, cta: int, warp: int, names: Sequence[str]
) -> list[Request]:
    """Return the requests of one warp to an array in ``names``, or to ``"shared"``.

    ``OptionError`` if the array, CTA or warp does not exist.
    """
    accesses = execution.accesses
    assert accesses is not None
    regions = {region.name: region for region in execution.regions if region.name in names}
    if where != "shared" and where not in regions:
        expected = f"{', '.join(regions)} or shared" if regions else "shared"
        raise OptionError(f"an access to {where!r} is unknown; expected {expected}")
    chosen = (accesses.cta == cta) & (accesses.warp == warp)
    if not chosen.any():
        raise OptionError(
            f"cta={cta}, warp={warp} accessed nothing; expected CTAs 0 to "
            f"{accesses.cta.max(initial=0)} and warps 0 to {accesses.warp.max(initial=0)}"
        )
    begin = 0
    if where == "shared":
        chosen &= accesses.shared
    else:
        last = accesses.addresses.max(axis=1, initial=-1)
        begin = GLOBAL + regions[where].begin
        chosen &= (last >= begin) & (last < GLOBAL + regions[where].end)
    requests = []
    for number, lanes in zip(accesses.instruction[chosen], accesses.addresses[chosen], strict=True):
        instruction = execution.kernel.instructions[number]
        name, _, bits = described(instruction)
        name = name.format("shared" if where == "shared" else "global")
        offsets = np.where(lanes < 0, -1, lanes - begin)
        text, line = instruction.text, instruction.line
        requests.append(Request(where, name, bits, text, line, offsets, None))
    return requests


def _elements(matrix: Matrix, offsets: np.ndarray) -> np.ndarray:
    """Return (row, column) of the elements at these bytes of a matrix; -1 for inactive lanes."""
    at = np.where(offsets < 0, 0, offsets) // DTYPES[matrix.dtype].bytes
    if matrix.l > 1 and matrix.batch_stride:
        at %= matrix.batch_stride
    along, across = at % matrix.ld, at // matrix.ld
    pair = (along, across) if matrix.unit == 0 else (across, along)
    return np.where(offsets[:, None] < 0, -1, np.stack(pair, axis=1))


def instructions_table(counts: Mapping[str, int]) -> Table:
    """Count instructions of warps by kind: opcodes with the space, without types and rounding."""
    kinds: Counter[str] = Counter()
    for opcode, count in counts.items():
        first, *rest = opcode.split(".")
        space = next((part for part in rest if part in _SPACES), "")
        kinds[f"{first}.{space}" if space else first] += count
    rows = [(kind, f"{n:,}") for kind, n in kinds.most_common()]
    return table("Instructions", ("instruction", "executed by warps"), rows, "instruction")
