"""``Trace``: a kernel executed instruction by instruction, beside what its report says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm._text import FORMAT, counted, named
from cute_gemm.analysis.executed import Compared
from cute_gemm.analysis.shown import Paged, size_text
from cute_gemm.analysis.tables import Column, Figure, Pairs, Table
from cute_gemm.errors import OptionError
from cute_gemm.model import gmem
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.problem.verify import Verdict
from cute_gemm.ptx.access import described
from cute_gemm.ptx.memory import GLOBAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from cute_gemm.analysis.html import Page
    from cute_gemm.analysis.rows import AccessRow
    from cute_gemm.problem.problem import GemmProblem, Matrix
    from cute_gemm.ptx.launch import Execution


#: Parts of opcodes that are told apart in the table of instructions.
_SPACES = frozenset(("global", "shared", "shared::cta", "param", "local", "async"))


class Request(NamedTuple):
    """One memory instruction of one warp.

    Attributes
    ----------
    where
        What it accessed: ``"A"``, ``"B"``, ``"C"``, another array or ``"shared"``.
    instruction, bits
        As a report has them: ``"ld.shared"``, and what a lane moves.
    text
        The instruction, as in the PTX.
    line
        Its line there.
    offsets
        Bytes from the operand's element (0, 0), or into shared memory, int [32]; -1: lane off.
    elements
        (row, column) of each lane's first element of A, B or C, int [32, 2]; None elsewhere.
    """

    where: str
    instruction: str
    bits: int
    text: str
    line: int
    offsets: np.ndarray
    elements: np.ndarray | None

    def table(self) -> Table:
        """Lane by lane: bytes, elements, and the sector or bank that serves them."""
        shared = self.where == "shared"
        heads = ["lane", "byte", "bank" if shared else "sector"]
        if self.elements is not None:
            heads.insert(2, "element")
        rows: list[Sequence[str]] = []
        for lane, offset in enumerate(self.offsets.tolist()):
            if offset < 0:
                rows.append([str(lane), *["-"] * (len(heads) - 1)])
                continue
            cells = [str(lane), f"{offset:,}"]
            if self.elements is not None:
                cells.append(f"{self.where}({','.join(map(str, self.elements[lane].tolist()))})")
            cells.append(str(offset // 4 % 32) if shared else f"{offset // gmem.SECTOR:,}")
            rows.append(cells)
        title = f"line {self.line}: {self.text}"
        return Table(title, tuple(Column(head, left=head == "element") for head in heads), rows)

    def picture(self) -> str:
        """Return it drawn, as SVG: the sectors that it touches, or the banks."""
        from cute_gemm.analysis.pictures import banks, request

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
        What was computed, and by which kernel.
    execution
        What the interpreter did (`cute_gemm.ptx.Execution`).
    rows
        Those of the kernel's report.
    figures
        Each figure of each kind of access, predicted and executed.
    result
        C.
    verdict
        The result against float64.
    passes
        The names and the figures of the launches before and behind it.
    shown
        A request that is printed and drawn too.

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
    passes: tuple[tuple[str, tuple[Compared, ...]], ...] = ()
    shown: Request | None = None

    def __repr__(self) -> str:
        return f"<Trace: {self.symbol}: {len(self.differences)} figures differ>"

    @property
    def differences(self) -> tuple[Compared, ...]:
        """The figures that differ, of passes too; none when the report is right."""
        return tuple(figure for figure in self._all_figures if figure.difference)

    @property
    def _all_figures(self) -> tuple[Compared, ...]:
        return sum((figures for _, figures in self.passes), self.figures)

    @property
    def agrees(self) -> bool:
        """Whether the result is right and all was accessed as predicted."""
        return self.verdict.ok and not self.differences

    @property
    def counts(self) -> dict[str, int]:
        """Instructions that warps executed, by opcode, the most frequent first."""
        found = self.execution.counts or {}
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def requests(self, operand: str, cta: int = 0, warp: int = 0) -> list[Request]:
        """Return the requests of one warp in the order of execution.

        Parameters
        ----------
        operand
            ``"A"``, ``"B"`` or ``"C"`` in global memory, or ``"shared"``.
        cta, warp
            The CTA, x fastest, and the warp in it.

        Raises
        ------
        OptionError
            For an operand, CTA or warp that there is not.
        """
        found = requests_of(self.execution, operand, cta, warp, "ABC")
        matrix = None if operand == "shared" else getattr(self.problem, operand)
        return [
            one if matrix is None else one._replace(elements=_elements(matrix, one.offsets))
            for one in found
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the whole in strings, numbers, lists and dicts."""
        p = self.problem
        ratio = self.verdict.max_ratio
        return {
            "format": FORMAT,
            **named(p, "op", "blas_op", "m", "n", "k", "l"),
            "dtype": p.dtype, "out_dtype": p.C.dtype, "compute": p.compute,
            **named(self, "symbol", "arch", "agrees"),
            "check": {
                **named(self.verdict, "ok", "elements", "wrong", "max_error"),
                "max_error_over_bound": ratio if ratio < float("inf") else None,
                **named(self.verdict, "worst", "bound"),
            },
            "figures": [one.to_dict() for one in self.figures],
            "passes": [
                {"kernel": name, "figures": [one.to_dict() for one in figures]}
                for name, figures in self.passes
            ],
            "counts": self.counts,
        }  # fmt: skip

    # ---- in words -------------------------------------------------------------------------------

    def _checked(self) -> str:
        found = self.verdict
        if found.ok:
            return (
                f"{counted(found.elements, 'element')} of C within {found.bound} of float64; "
                f"largest error {found.max_error:.3g}"
            )
        return (
            f"{found.wrong:,} of {counted(found.elements, 'element')} of C WRONG, worst at "
            f"{found.worst}, off by {found.max_error:.3g}"
        )

    def _tables(self) -> list[Table]:
        own = [self._table("Predicted and executed", self.figures)]
        return own + [
            self._table(f"Predicted and executed, {name}", figures) for name, figures in self.passes
        ]

    def _table(self, title: str, figures: Sequence[Compared]) -> Table:
        heads = ("access", "bits", "figure", "predicted", "executed", "difference")
        columns = [Column(head, left=head in ("access", "figure")) for head in heads]
        lines = []
        for one in figures:
            kind = one.kind
            where = kind.operand or "shared"
            numbers = (f"{x:,}" for x in (one.predicted, one.executed, one.difference))
            figure = one.figure.replace("_", " ")
            lines.append((f"{where} {kind.instruction}", str(kind.bits), figure, *numbers))
        return Table(title, tuple(columns), lines)

    def _executed(self) -> Table:
        return instructions_table(self.counts)

    def _agreement(self) -> str:
        count, all_of_them = len(self.differences), len(self._all_figures)
        return f"{count} of {all_of_them} figures differ" if count else "no difference"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(f"trace {self.problem.op}{size_text(self.problem)}")
        yield Text(f"{self.symbol}, PTX for {self.arch}")
        for table in self._tables():
            yield from (Text(), table)
        yield from (
            Text(),
            self._executed(),
            Text(),
            Text(self._agreement()),
            Text(self._checked()),
        )
        if self.shown is not None:
            yield from (Text(), self.shown.table())

    def page(self) -> Page:
        """Return what ``to_html`` says."""
        from cute_gemm.analysis.html import Page

        p = self.problem
        size = " x ".join(f"{x:,}" for x in (p.m, p.n, p.k))
        result = Pairs((("accesses", self._agreement()), ("result", self._checked())))
        sections: list[Any] = [
            ("Result", (result,)), ("Executed", (*self._tables(), self._executed())),
        ]  # fmt: skip
        if self.shown is not None:
            sections.append(("Request", (Figure(self.shown.picture()), self.shown.table())))
        return Page(
            title=f"trace {p.op} {p.m}x{p.n}x{p.k} {p.dtype}, {self.symbol}",
            heading=f"trace {p.op}, {size}, {p.dtype}",
            intro=f"{self.symbol}, compiled to PTX for {self.arch} and executed.",
            sections=sections,
            rows=self.rows,
        )


def requests_of(
    execution: Execution, where: str, cta: int, warp: int, names: Sequence[str]
) -> list[Request]:
    """Return the requests of one warp to an array, of these names, or to ``"shared"``.

    ``OptionError`` for an array, a CTA or a warp that there is not.
    """
    found = execution.accesses
    assert found is not None
    regions = {region.name: region for region in execution.regions if region.name in names}
    if where != "shared" and where not in regions:
        expected = f"{', '.join(regions)} or shared" if regions else "shared"
        raise OptionError(f"an access to {where!r} is unknown; expected {expected}")
    mine = (found.cta == cta) & (found.warp == warp)
    if not mine.any():
        raise OptionError(
            f"cta={cta}, warp={warp} accessed nothing; expected CTAs 0 to "
            f"{found.cta.max(initial=0)} and warps 0 to {found.warp.max(initial=0)}"
        )
    begin = 0
    if where == "shared":
        mine &= found.shared
    else:
        first = found.addresses.max(axis=1, initial=-1)
        begin = GLOBAL + regions[where].begin
        mine &= (first >= begin) & (first < GLOBAL + regions[where].end)
    out = []
    for row in np.flatnonzero(mine).tolist():
        one, lanes = execution.kernel.instructions[found.instruction[row]], found.addresses[row]
        name, _, bits = described(one)
        name = name.format("shared" if where == "shared" else "global")
        offsets = np.where(lanes < 0, -1, lanes - begin)
        out.append(Request(where, name, bits, one.text, one.line, offsets, None))
    return out


def _elements(matrix: Matrix, offsets: np.ndarray) -> np.ndarray:
    """(row, column) of the elements at these bytes of a matrix, -1 of a lane that is off."""
    at = np.where(offsets < 0, 0, offsets) // DTYPES[matrix.dtype].bytes
    if matrix.l > 1 and matrix.batch_stride:
        at %= matrix.batch_stride
    along, across = at % matrix.ld, at // matrix.ld
    pair = (along, across) if matrix.unit == 0 else (across, along)
    return np.where(offsets[:, None] < 0, -1, np.stack(pair, axis=1))


def instructions_table(counts: Mapping[str, int]) -> Table:
    """Instructions of warps by kind: without types and rounding, memory by its space."""
    kinds: Counter[str] = Counter()
    for opcode, count in counts.items():
        first, *rest = opcode.split(".")
        space = next((part for part in rest if part in _SPACES), "")
        kinds[f"{first}.{space}" if space else first] += count
    columns = (Column("instruction", left=True), Column("executed by warps"))
    return Table("Instructions", columns, [(one, f"{n:,}") for one, n in kinds.most_common()])
