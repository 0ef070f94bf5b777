"""``explain``: a kernel's one idea, its accesses per result counted two ways, and what bounds it.

Beside the figures stand those of the next kernel of the ladder, where they differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cute_gemm import select
from cute_gemm._text import duration, plain, si
from cute_gemm.analysis.ceiling import Ceiling, ceiling
from cute_gemm.analysis.ideas import KINDS, Count, counts, idea
from cute_gemm.analysis.performance import compulsory_bytes
from cute_gemm.analysis.rows import number, percent
from cute_gemm.errors import DTypeError, UnsupportedError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from cute_gemm.analysis.report import Report
    from cute_gemm.api import Plan
    from cute_gemm.problem.problem import GemmProblem

#: Characters per line of ``str(explanation)``.
WIDTH = 112


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of two kernels: what it is, of this one, of the next; as text."""

    what: str
    this: str
    next: str


@dataclass(frozen=True, slots=True)
class Next:
    """What the next kernel of the ladder changes.

    Attributes
    ----------
    kernel, idea
        Its name, its idea.
    refused
        Why it does not take the problem, or ``""``.
    changes
        The figures that differ; none where one of the two kernels has none.
    """

    kernel: str
    idea: str
    refused: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, eq=False)
class Explanation:
    """What there is to say of a kernel on a problem; ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    kernel, summary, idea
        Its name, one line on it, and what it does that the one before does not.
    plan
        The kernel configured for the problem.
    counts
        Accesses per result.
    intensity, requested_intensity
        Operations per compulsory byte, and per byte requested of L2 (None without a report).
    ceiling
        What bounds it on a GPU; None where that is not known.
    next
        The next kernel of the ladder, and those after it up to the first that takes the problem.
    report
        The report of the kernel; None of ``host`` and ``cublas``.
    """

    kernel: str
    summary: str
    idea: str
    plan: Plan
    counts: tuple[Count, ...]
    intensity: float
    requested_intensity: float | None
    ceiling: Ceiling | None
    next: tuple[Next, ...]
    report: Report | None

    @property
    def problem(self) -> GemmProblem:
        """Extents and descriptors."""
        return self.plan.problem

    def to_dict(self) -> dict[str, Any]:
        """Return the whole in strings, numbers, lists and dicts; None for what is not known.

        Examples
        --------
        ``explanation.to_dict()["ceiling"]["binding"]`` is ``"shared memory"`` of ``smem_tiled``.
        """
        problem = self.problem
        counts = [
            {**asdict(count), "formula": None if count.formula is None else str(count.formula)}
            for count in self.counts
        ]
        return {
            "kernel": self.kernel,
            "summary": self.summary,
            "idea": self.idea,
            "op": problem.op,
            "blas_op": problem.blas_op,
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "dtype": problem.inputs.name,
            "compute": problem.compute,
            "arch": self.plan.arch,
            "config": getattr(self.plan.config, "name", None),
            "per_result": counts,
            "intensity": self.intensity,
            "requested_intensity": self.requested_intensity,
            "ceiling": self.ceiling.to_dict() if self.ceiling else None,
            "next": [asdict(one) for one in self.next],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return ``to_dict()`` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        return plain(self, WIDTH)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.padding import Padding
        from rich.text import Text

        problem, config = self.problem, getattr(self.plan.config, "name", None)
        yield Text.assemble((self.kernel, "bold"), f": {self.summary}")
        yield Text(
            f"{problem.op} (BLAS-equivalent {problem.blas_op})  M={problem.m} N={problem.n} "
            f"K={problem.k}  {problem.types}"
        )
        if self.report is not None:
            yield Text(f"config {config}, {self.plan.arch}")
        yield from _section("The idea", Padding(Text(self.idea), (0, 1)))
        if self.counts:
            title = "Accesses per result (element of C), in elements: tutorials and model"
            yield from _section(title, _counts_table(self.counts, self.report is not None))
        said = f" {number(self.intensity)} FLOP per compulsory byte"
        if self.requested_intensity is not None:
            said += f", {self.requested_intensity:.3g} per byte requested of L2, if L1 keeps none"
        yield from _section("Intensity", Text(said))
        if self.ceiling is not None:
            yield from _section(f"What bounds it on {self.ceiling.gpu}", *_ceiling(self.ceiling))
        for one in self.next:
            text = Padding(Text(one.idea), (0, 1))
            yield from _section(f"The next kernel: {one.kernel}", text)
            if one.refused:
                yield Padding(Text(f"It does not take this problem: {one.refused}."), (0, 1))
            elif one.changes:
                yield from _section("What it changes", _changes_table(self.kernel, one))


# ---- making it ----------------------------------------------------------------------------------


def explain(
    kernel: str,
    op: str,
    *,
    m: int,
    n: int,
    k: int,
    dtype: Any,
    gpu: str | None = None,
    beta: complex = 0.0,
    **arguments: Any,
) -> Explanation:
    """Explain a kernel on a problem; nothing is compiled, and no GPU is needed.

    Parameters
    ----------
    kernel
        A name from :func:`cute_gemm.kernels`.
    op, m, n, k, dtype, **arguments
        As for :func:`cute_gemm.plan`: leading dimensions, ``arch``, fields of the config, ...
    gpu
        A GPU's name (``"H200"``), for what bounds it; by default one stands for the arch.
    beta
        With another than 0, C is read too.

    Returns
    -------
    Explanation

    Raises
    ------
    UnsupportedError
        When the kernel does not take the problem.
    GemmError
        Everything else that :func:`cute_gemm.plan` raises; ``OptionError`` for a GPU that is not
        known, or does not run kernels of the arch.

    Examples
    --------
    >>> found = explain("smem_tiled", "NN", m=4096, n=4096, k=4096, dtype="float32", arch="sm_90a")
    >>> [str(one.formula) for one in found.counts if one.operand == "AB"]
    ['K/bM + K/bN = K/16', 'K/bM + K/bN = K/16', 'K/TM + K/TN = 2K']
    >>> found.ceiling.binding.unit, [one.kernel for one in found.next]
    ('shared memory', ['register_rows'])
    """
    from cute_gemm.api import plan
    from cute_gemm.gpus.table import arch_for

    arguments["arch"] = arch_for(arguments.get("arch"), gpu)

    def explained(name: str, **options: Any) -> Explanation:
        given = {"m": m, "n": n, "k": k, "dtype": dtype, "backend": "cpu", **options}
        return _explained(plan(op, kernel=name, **given), gpu, beta)

    found = explained(kernel, **arguments)
    # Not the options: they are of this kernel's config.
    known = ("lda", "ldb", "ldc", "storage", "order", "out_dtype", "compute", "arch")
    same = {name: arguments[name] for name in known if name in arguments}
    following: list[Next] = []
    for name in select.LADDER[select.LADDER.index(found.kernel) + 1 :]:
        try:
            other = explained(name, **same)
        except (UnsupportedError, DTypeError) as error:
            following.append(Next(name, idea(name), str(error).rstrip("."), ()))
            continue
        following.append(Next(name, idea(name), "", _changes(found, other)))
        break
    return replace(found, next=tuple(following))


def _explained(made: Plan, gpu: str | None, beta: complex) -> Explanation:
    """Explain a plan, without the next kernel."""
    kernel, problem = select.get(made.kernel), made.problem
    report = made.report(gpu=gpu, beta=beta) if made.compiled else None
    if report is not None:
        intensity = report.performance.intensity
    else:  # no kernel of ours; the problem alone says what has to be moved
        moved = sum(compulsory_bytes(problem, beta != 0).values())
        intensity = problem.flops / moved if moved else 0.0
    return Explanation(
        kernel=made.kernel,
        summary=kernel.summary,
        idea=idea(made.kernel),
        plan=made,
        counts=tuple(counts(kernel, made.config, problem, report)),
        intensity=intensity,
        requested_intensity=report.performance.requested_intensity if report else None,
        ceiling=ceiling(kernel, report) if report else None,
        next=(),
        report=report,
    )


def _changes(this: Explanation, other: Explanation) -> tuple[Change, ...]:
    """The figures of two kernels that differ."""
    if this.report is None or other.report is None:
        return ()
    figures, others = dict(_figures(this)), dict(_figures(other))
    return tuple(
        Change(what, figures.get(what, "-"), others.get(what, "-"))
        for what in dict.fromkeys((*figures, *others))
        if figures.get(what) != others.get(what)
    )


def _figures(of: Explanation) -> Iterator[tuple[str, str]]:
    """What a kernel is compared by; of a kernel with a report."""
    report = of.report
    assert report is not None
    yield "CTA tile", " x ".join(map(str, report.config.tile))
    if own := getattr(report.config, "thread_tile", None):
        yield "results of a thread", " x ".join(map(str, own))
    yield "threads of a CTA", number(report.launch.block)
    yield "bytes of shared memory of a CTA", number(report.launch.smem)
    for count in of.counts:
        if count.elements is None or count.operand not in ("AB", "C"):
            continue
        what = KINDS[count.space, count.direction] + "s" + " of C" * (count.operand == "C")
        if count.operand == "AB":
            yield f"{what}, elements per result", _figure(count.elements)
        yield f"{what}, requests per result", _figure(count.requests)
        if count.sectors is not None:
            yield f"{what}, sectors per result", _figure(count.sectors)
        else:
            yield f"{what}, wavefronts per result", _figure(count.wavefronts)
    conflicts = sum(row.launch.conflicts or 0 for row in report.rows)
    yield "bank conflicts per result", _figure(conflicts / (of.problem.m * of.problem.n or 1))
    yield "FLOP per byte requested of L2", _figure(of.requested_intensity)
    if of.ceiling is not None:
        yield "bound by", of.ceiling.binding.unit
        if of.ceiling.peak is not None:
            yield f"ceiling, of the peak of {of.ceiling.peak.unit}", percent(of.ceiling.fraction)


# ---- printing it --------------------------------------------------------------------------------


def _figure(value: float | None) -> str:
    """Return a figure per result: whole ones in full, others with three digits or more.

    Examples
    --------
    >>> _figure(8192.0), _figure(256.25), _figure(0.0078125), _figure(None)
    ('8,192', '256.2', '0.00781', '-')
    """
    if value is None:
        return "-"
    return number(value) if value >= 100 or value == int(value) else f"{value:.3g}"


def _section(title: str, *content: Any) -> Iterator[Any]:
    from rich.text import Text

    yield Text()
    yield Text(title, style="bold")
    yield from content


def _table(*columns: str, left: tuple[int, ...] = (0,)) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, collapse_padding=True)
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index in left else "right", no_wrap=not index)
    return table


def _counts_table(counts: tuple[Count, ...], modelled: bool) -> Any:
    model = ("model", "requests", "sectors", "wavefronts") if modelled else ()
    table = _table("", "", "tutorials", "", *model, left=(0, 1, 2))
    kind = None
    for count in counts:
        what = KINDS[count.space, count.direction]
        figures = (count.elements, count.requests, count.sectors, count.wavefronts)
        table.add_row(
            "" if what == kind else what,
            " + ".join(count.operand),
            "1" if count.formula is None else str(count.formula),
            _figure(count.tutorial),
            *(map(_figure, figures) if modelled else ()),
        )
        kind = what
    return table


def _ceiling(found: Ceiling) -> Iterator[Any]:
    from rich.padding import Padding
    from rich.text import Text

    of = "allows" if found.peak is None else f"allows, of {found.peak.tflops:g} TFLOP/s"
    table = _table("unit", "work", "rate", "time", of)
    for bound in found.bounds:
        per = f"{bound.rate:,.4g}" if bound.per == "SM and clock" else si(bound.rate).rstrip()
        table.add_row(
            bound.unit,
            f"{si(bound.work).rstrip()} {bound.of}",
            f"{per} per {bound.per}",
            duration(bound.seconds),
            _share(bound.fraction),
        )
    yield table
    most = found.binding
    what = f"{found.tflops:.3g} TFLOP/s"
    if found.peak is not None:
        what = f"{percent(found.fraction)} of the peak of {found.peak.unit}, {what}"
    yield Text()
    yield Padding(
        Text(f"Bound by {most.unit}: at most {what}. A ceiling, not a prediction."), (0, 1)
    )
    yield Padding(
        Text(
            f"Assumed: {found.clock_ghz:g} GHz; every unit busy in every clock, none waiting for "
            f"another; of the SM with most work, which has {found.ctas:,} "
            f"CTA{'s' * (found.ctas > 1)} where the mean is {found.mean_ctas:,.4g} "
            f"({percent(found.mean_ctas / found.ctas)} of the SMs' time is used). Left out: "
            "latency, barriers, address arithmetic, conversions, and L2, whose rate is not "
            "published."
        ),
        (0, 1),
    )
    for bound in found.bounds:
        yield Padding(Text(f"{bound.unit}: {bound.source}"), (0, 1, 0, 3))


def _share(fraction: float | None) -> str:
    """A unit may allow more than the peak."""
    if fraction is None:
        return "-"
    return percent(fraction) if fraction <= 1 else f"{fraction * 100:,.0f} %"


def _changes_table(kernel: str, one: Next) -> Any:
    table = _table("", kernel, one.kernel)
    for change in one.changes:
        table.add_row(change.what, change.this, change.next)
    return table
