"""``explain``: the idea of a kernel, its accesses per result, and its predicted time.

Accesses are counted in two ways. The figures are compared with those of the ladder's next kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm._text import FORMAT, duration, named, number
from cute_gemm.cost_model.roofline import compulsory_bytes, ratio
from cute_gemm.dtypes import DTYPES
from cute_gemm.problem.parts.groups import evenly
from cute_gemm.rendering.shown import Shown, size_text
from cute_gemm.rendering.tables import Column, Paragraph, Table, styled, table
from cute_gemm.report.ideas import idea
from cute_gemm.report.per_result import KINDS, Count, counts, results_of

if TYPE_CHECKING:
    from cute_gemm.cost_model.prediction import Prediction
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.report.report import Report


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a kernel and of the next kernel, as text: a line of a table."""

    what: str
    this: str
    next: str


@dataclass(frozen=True, slots=True)
class Next:
    """What the next kernel of the ladder changes, or why it refuses the problem.

    ``changes`` are the figures that differ; empty if one of the two kernels has no report.
    """

    kernel: str
    idea: str
    refused: str = ""
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, eq=False)
class Explanation(Shown):
    """The explanation of a kernel on a problem; ``print`` it, or call ``to_dict()``.

    ``idea`` is what the kernel adds to the previous one, ``plan`` a ``cute_gemm.plan.plan.Plan``,
    ``counts`` the accesses per result. The intensities are operations per compulsory byte and per
    requested byte (`Traffic`; None without a report). ``report`` is None for ``host`` and
    ``cublas``. ``next`` has the next kernels of the ladder, up to the first that accepts the
    problem.
    """

    kernel: str
    summary: str
    idea: str
    plan: Any
    counts: tuple[Count, ...]
    intensity: float
    requested_intensity: float | None
    report: Report | None
    next: tuple[Next, ...] = ()

    def __repr__(self) -> str:
        return f"<Explanation: {self.kernel}, {self.plan!r}>"

    @property
    def problem(self) -> GemmProblem:
        """Extents and descriptors."""
        problem: GemmProblem = self.plan.problem
        return problem

    @property
    def prediction(self) -> Prediction | None:
        """Predicted time and its terms, or None."""
        return None if self.report is None else self.report.predicted

    def to_dict(self) -> dict[str, Any]:
        """Return everything as strings, numbers, lists and dicts; None for unknown values."""
        counts = [
            {**asdict(count), "formula": None if count.formula is None else str(count.formula)}
            for count in self.counts
        ]
        return {
            "format": FORMAT,
            **named(self, "kernel", "summary", "idea"),
            **named(self.problem, "op", "blas_op", "m", "n", "k", "dtype", "compute"),
            "arch": self.plan.arch,
            "config": self.plan.config.name,
            "per_result": counts,
            **named(self, "intensity", "requested_intensity"),
            "predicted_seconds": self.prediction.seconds if self.prediction else None,
            "terms": self.prediction.terms if self.prediction else {},
            "next": [asdict(kernel) for kernel in self.next],
        }

    def _printed(self) -> Iterator[Any]:
        yield styled((self.kernel, "bold"), f": {self.summary}")
        yield self.problem.op + size_text(self.problem)
        if self.report is not None:
            yield f"config {self.plan.config.name}, {self.plan.arch}"
        yield from _section("The idea", self._worded(self.idea))
        if self.counts:
            title = "Accesses per result (element of C), in elements: tutorials and model"
            yield from _section(title, _counts_table(self.counts, self.report is not None))
        text = f"{number(self.intensity)} FLOP per compulsory byte"
        if self.requested_intensity is not None:
            text += f", {self.requested_intensity:.3g} per byte requested of L1 and L2"
        yield from _section("Intensity", text)
        if self.prediction is not None:
            content = self._predicted(self.prediction)
            yield from _section(f"Predicted time on {self.plan.gpu.name}", *content)
        for kernel in self.next:
            yield from _section(f"The next kernel: {kernel.kernel}", self._worded(kernel.idea))
            if kernel.refused:
                yield Paragraph(f"It does not take this problem: {kernel.refused}.", 1)
            elif kernel.changes:
                heads, changes = ("", self.kernel, kernel.kernel), map(astuple, kernel.changes)
                yield from _section("What it changes", table("", heads, [*changes], ""))

    def _predicted(self, prediction: Prediction) -> Iterator[Any]:
        seconds, terms = prediction.seconds, prediction.largest(len(prediction.terms))
        yield table("", ("", "alone"), [(unit, duration(x)) for unit, x in terms if x], "")
        yield ""
        yield f"{duration(seconds)}, {self.problem.flops / seconds / 1e12:.3g} TFLOP/s."
        yield "Units work in parallel: their times do not add up to the predicted time."

    def _worded(self, idea: str) -> str:
        """Return an idea, with a note if it is about words and an element is not one word."""
        element = DTYPES[self.problem.A.dtype]
        if element.bytes == 4 or "word" not in idea:
            return idea
        return (
            f"{idea} (This describes float32, whose elements are words of 4 bytes; those of "
            f"{element.name} have {element.bytes}.)"
        )

    def before(self, other: Explanation) -> tuple[Change, ...]:
        """Return the figures that differ from those of another kernel."""
        figures, others = self.figures, other.figures
        if not figures or not others:
            return ()
        return tuple(
            Change(what, figures.get(what, "-"), others.get(what, "-"))
            for what in {**figures, **others}
            if figures.get(what) != others.get(what)
        )

    @property
    def figures(self) -> dict[str, str]:
        """Compared figures of the kernel as text; empty without a report."""
        return dict(self._figures())

    def _figures(self) -> Iterator[tuple[str, str]]:
        report = self.report
        if report is None:
            return
        config = report.config
        tiles = {"CTA tile": config.tile, "results of a thread": config.thread_tile}
        yield from ((what, " x ".join(map(str, tile))) for what, tile in tiles.items() if tile)
        yield "threads of a CTA", number(report.launch.block)
        yield "bytes of shared memory of a CTA", number(report.launch.smem)
        for count in self.counts:
            if count.elements is None or count.operand not in ("AB", "C"):
                continue
            what = KINDS[count.space, count.direction] + "s" + " of C" * (count.operand == "C")
            if count.operand == "AB":
                yield f"{what}, elements per result", _figure(count.elements)
            yield f"{what}, requests per result", _figure(count.requests)
            cost = "wavefronts" if count.sectors is None else "sectors"
            yield f"{what}, {cost} per result", _figure(getattr(count, cost))
        conflicts = sum(row.launch.conflicts or 0 for row in report.rows)
        yield "bank conflicts per result", _figure(ratio(conflicts, results_of(self.problem)))
        yield "FLOP per requested byte", _figure(self.requested_intensity)
        if self.prediction is not None:
            yield "predicted time", duration(self.prediction.seconds)


def explanation(
    kernel: Kernel, plan: Any, report: Report | None, reads_c: bool = False
) -> Explanation:
    """Explain a plan of a kernel by its report; kernels of other libraries have none."""
    problem: GemmProblem = plan.problem
    rows = report.rows if report is not None else ()
    per_result = tuple(counts(kernel.shares(plan.config), evenly(problem), rows))
    intensity = ratio(problem.flops, sum(compulsory_bytes(problem, reads_c).values()))
    requested = report.performance.requested_intensity if report else None
    texts = kernel.name, kernel.summary, idea(kernel)
    return Explanation(*texts, plan, per_result, intensity, requested, report)


# ---- printing -----------------------------------------------------------------------------------


def _figure(value: float | None) -> str:
    """Return a figure per result: integers in full, other numbers with at least three digits."""
    if value is None:
        return "-"
    return number(value) if value >= 100 or value == int(value) else f"{value:.3g}"


def _section(title: str, *content: Any) -> Iterator[Any]:
    yield from ("", styled((title, "bold")))
    yield from (Paragraph(part, 1) if isinstance(part, str) else part for part in content)


def _counts_table(counts: tuple[Count, ...], modelled: bool) -> Table:
    model = ("model", "requests", "sectors", "wavefronts") if modelled else ()
    rows, kind = [], None
    for count in counts:
        what = KINDS[count.space, count.direction]
        figures = (count.elements, count.requests, count.sectors, count.wavefronts) * modelled
        tutorial = "1" if count.formula is None else str(count.formula)
        first = ("" if what == kind else what, " + ".join(count.operand), tutorial)
        rows.append((*first, *map(_figure, (count.tutorial, *figures))))
        kind = what
    words = (Column(head, left=True) for head in ("", "", "tutorials"))
    return Table("", (*words, *map(Column, ("", *model))), rows)
