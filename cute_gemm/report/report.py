"""The report of a kernel: every memory access, its cost and its fix."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from cute_gemm._kept import Kept
from cute_gemm._text import FORMAT, counted, duration, named, percent, short
from cute_gemm.access.accesses import GlobalAccess, SharedAccess, TmaAccess
from cute_gemm.access.fix import Fix
from cute_gemm.fixes.search import contents
from cute_gemm.rendering.rows import AccessRow, access_tables, findings, make_row
from cute_gemm.rendering.shown import Paged, size_text, spilled
from cute_gemm.rendering.tables import Cell, Figures, Pairs, Table, styled, table
from cute_gemm.report.auxiliary import launched
from cute_gemm.report.candidates import candidates_dict, candidates_table
from cute_gemm.report.causes import FAR, NO_PREDICTOR, Cause, Causes, Predictor, causes, headline
from cute_gemm.report.fixes import fixes, of_part
from cute_gemm.report.options import Others, with_options
from cute_gemm.report.performance import Performance, performance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cute_gemm.access.accesses import Access, Partition
    from cute_gemm.cost_model.prediction import Prediction
    from cute_gemm.gpus.table import GpuLike
    from cute_gemm.kernels.candidate import Candidate, Measured
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.rendering.html import Page
    from cute_gemm.rendering.tables import Part
    from cute_gemm.report.auxiliary import AuxiliaryReport
    from cute_gemm.toolchain.cubin import Resources
    from cute_gemm.toolchain.signature import Launch

_OF_MATRIX = (
    "modes", "shape", "stride", "ld", "major", "dtype", "alignment", "conj", "l", "batch_stride",
)  # fmt: skip

#: Length in characters from which a config's value has its own line.
COMPACT = 40


@dataclass(frozen=True, slots=True)
class OperandView:
    """The accesses of one operand, as ``report["A"]`` returns them."""

    name: str
    rows: tuple[AccessRow, ...]

    def of(self, space: str) -> list[AccessRow]:
        """Return the accesses to ``"global"`` or ``"shared"`` memory."""
        return [row for row in self.rows if row.space == space]

    @property
    def coalesced(self) -> bool:
        """Whether all global accesses (for C, loads and stores) are coalesced.

        Accesses without interior tiles, such as that of a partial last k-tile, count only if no
        access has interior tiles.
        """
        rows = self.of("global")
        return all(row.good for row in rows if not row.at_edges or all(r.at_edges for r in rows))

    @property
    def conflict_free(self) -> bool:
        """Whether all shared-memory accesses take the fewest possible wavefronts."""
        return all(row.good for row in self.of("shared"))

    def summary(self) -> list[str | Cell]:
        """Return the verdicts on global and shared memory: a line of a table."""
        of_global, of_shared = self.of("global"), self.of("shared")
        bad = [row.efficiency for row in of_global if not row.good and row.efficiency is not None]
        coalesced = "coalesced" if self.coalesced else "not coalesced"
        if bad:
            coalesced += f": {percent(min(bad))} of the bytes are used"
        verdicts = ", ".join(dict.fromkeys(row.verdict for row in of_shared if not row.good))
        conflicts = f"bank conflicts: {verdicts}" if verdicts else "conflict-free"
        return [
            Cell(self.name, bold=True),
            Cell(coalesced, good=self.coalesced) if of_global else "-",
            Cell(conflicts, good=self.conflict_free) if of_shared else "-",
        ]


def _jsonable(value: Any) -> Any:
    """Return ``value`` in JSON types: dataclasses as dicts, other objects as text."""
    return json.loads(json.dumps(value, default=lambda x: _fields(x) or str(x)))


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that its repr has; {} for other objects."""
    names = (f.name for f in fields(value) if f.repr) if is_dataclass(value) else ()
    return named(value, *names)


def _shown(value: Any) -> str:
    """Return the value of an option as text: ``"128 x 128 x 32"``, ``"yes"``."""
    if isinstance(value, tuple):
        return (", " if bool in map(type, value) else " x ").join(map(_shown, value))
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


@dataclass(frozen=True, eq=False)
class Report(Paged):
    """The memory accesses of a kernel for one problem; ``print`` it, or call ``to_dict()``.

    Attributes
    ----------
    problem
        The `GemmProblem`, with the descriptors of A(M,K), B(N,K) and C(M,N).
    kernel, config, arch
        The name of the kernel, its config, and the architecture.
    launch
        The CTAs, threads per CTA and bytes of dynamic shared memory.
    resources
        Registers, shared memory and spills of the build; None if nothing is built.
    rows
        An ``AccessRow`` for each memory instruction. After a packing kernel, it describes the
        packed operand.
    performance
        Bytes, arithmetic intensity, roofline, occupancy and waves.
    pictures
        How the threads of the kernel divide tiles.
    candidates
        The configs that kernel selection compared.
    auxiliary
        An ``AuxiliaryReport`` for each packing, reduction or conversion kernel.
    measured
        The measured time of the config, and the date; None for a predicted config.
    predictor
        The cost model, which computes the predicted times of causes at their first use.
    groups
        For a grouped GEMM a sentence on its tiles and waves; otherwise ``""``.

    Examples
    --------
    >>> from cute_gemm import analyze
    >>> report = analyze("TN", m=4096, n=4096, k=4096, dtype="float16", kernel="coalesced")
    >>> list(report), report["A"].coalesced
    (['A', 'B', 'C'], True)
    """

    problem: GemmProblem
    kernel: str
    config: Any
    arch: str
    launch: Launch
    resources: Resources | None
    rows: tuple[AccessRow, ...]
    performance: Performance
    pictures: tuple[Partition, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    auxiliary: tuple[AuxiliaryReport, ...] = ()
    measured: Measured | None = None
    predictor: Predictor = NO_PREDICTOR
    groups: str = ""

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """One sentence for each access that is not ideal."""
        others = (f"{x.kernel}: {line}" for x in self.auxiliary for line in findings(x.rows))
        return (*findings(self.rows), *others)

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """Causes of lost time, the costliest first; each explains one or more accesses."""
        return causes(self)

    @cached_property
    def headline(self) -> str:
        """Predicted time, bound, costliest cause and the time with its fix, in one line."""
        return headline(self)

    @property
    def predicted(self) -> Prediction | None:
        """Prediction of the config, or None."""
        return self.predictor.prediction

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Parts of the predicted time without measured times; () if all are measured."""
        return tuple(self.predictor.unmeasured) if self.predicted else ()

    def __repr__(self) -> str:
        p = self.problem
        sizes = f"m={p.m} n={p.n} k={p.k}" + f" l={p.l}" * (p.l != 1)
        return f"<Report: gemm {p.op} {sizes} {p.types}, {self._configured}, {self.arch}>"

    def __getitem__(self, operand: str) -> OperandView:
        """Return the accesses of ``"A"``, ``"B"`` or ``"C"``: ``report["A"].coalesced``.

        Raises
        ------
        KeyError
            For another name. The message lists the names.
        """
        names = tuple(self)
        if operand not in names:
            raise KeyError(f"operand {operand!r} is not in the report; expected one of {names}")
        return OperandView(operand, tuple(row for row in self.rows if row.operand == operand))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that ``report[name]`` accepts."""
        names = (matrix.name for matrix in self.problem.matrices)
        return iter(dict.fromkeys((*names, *(row.operand for row in self.rows))))

    @property
    def operands(self) -> tuple[OperandView, ...]:
        """Views of A, B, C and the epilogue's operands."""
        return tuple(self[matrix.name] for matrix in self.problem.matrices)

    # -- machine-readable ---------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report in strings, numbers, lists and dicts, with stable keys.

        Examples
        --------
        ``report.to_dict()["operands"]["A"]`` is ``{"coalesced": True, "conflict_free": True}``.
        """
        problem = self.problem
        return {
            "format": FORMAT,
            "headline": self.headline,
            "predicted_seconds": self.predicted.seconds if self.predicted else None,
            "unmeasured": list(self.unmeasured),
            "causes": [cause.to_dict() for cause in self.causes],
            **named(problem, "op", "blas_op", "m", "n", "k", "l", "compute"),
            "matrices": {
                matrix.name: {"descriptor": str(matrix), **_jsonable(named(matrix, *_OF_MATRIX))}
                for matrix in self._matrices.values()
            },
            "groups": self.groups or None,
            "kernel": self.kernel,
            "config": _jsonable(self.config),
            "config_name": self.config.name if self.config else None,
            "arch": self.arch,
            "launch": named(self.launch, "grid", "block", "smem"),
            "resources": _jsonable(self.resources),
            "operands": {
                view.name: named(view, "coalesced", "conflict_free") for view in self.operands
            },
            "accesses": [row.to_dict() for row in self.rows],
            "findings": list(self.findings),
            "fixes": [[fix.to_dict() for fix in of_row] for of_row in self.fixes],
            "auxiliary": [each.to_dict() for each in self.auxiliary],
            "performance": self.performance.to_dict(),
            "candidates": candidates_dict(self.candidates),
            "measured": self.measured._asdict() if self.measured else None,
        }

    # -- readable -----------------------------------------------------------------------------

    @property
    def _matrices(self) -> dict[str, Any]:
        """Matrices by name and modes: ``"A(M,K)"``."""
        return {f"{x.name}({','.join(x.modes)})".replace("offsets(M,N)", "offsets(L)"): x
                for x in self.problem.matrices}  # fmt: skip

    @property
    def _launched(self) -> str:
        memory = f"{counted(self.launch.smem, 'byte')} of dynamic shared memory"
        return f"{launched(self.launch)}, {memory}"

    @property
    def _configured(self) -> str:
        return str(self.config and self.config.name)

    def _printed(self) -> Iterator[Any]:
        yield from self._header()
        if self.causes:
            yield from ("", Causes(self.causes))
        for each in self.auxiliary:
            yield from ("", *each.shown())
        if self.auxiliary:
            yield from ("", styled((self.kernel, "bold")))
        tables = (shown for shown, _ in access_tables(self.rows))
        compared = candidates_table(self.candidates, self.predictor.gpu)
        for part in (*tables, Pairs(self._performance_lines(), "Performance"), *compared):
            yield from ("", part)

    def _header(self) -> Iterator[Any]:
        if self.headline:
            yield from (styled((self.headline, "bold")), "")
        yield styled("gemm ", (self.problem.op, "bold"), size_text(self.problem))
        width = max(len(str(matrix)) for matrix in self._matrices.values())
        for name, matrix in self._matrices.items():
            yield styled(
                (name, "bold"),
                f"  {matrix!s:<{width}}  {_laid_out(matrix)}{matrix.dtype}, base aligned to "
                f"{matrix.alignment} bytes" + ", conjugated" * matrix.conj,
            )
        if self.groups:
            yield self.groups
        yield f"kernel {self.kernel}, {self.arch}"
        if self.config is not None:
            yield f"config {self._configured}"
        if self.measured is not None:
            yield f"selection {self.measured}"
        launch, built = f"launch {self._launched}", self.resources
        if built is not None:
            used = f"{built.registers} registers, {built.shared_static:,} bytes static"
            launch += f"; {used}, {spilled(built)}"
        yield launch

    def _performance_lines(self) -> list[tuple[str, str]]:
        """Return the bounds of the kernel, and parts of the prediction without measurements."""
        lines = self.performance.lines()
        if self.unmeasured:
            *others, last = self.unmeasured
            of = f"{', '.join(others)} and {last}" if others else last
            lines.append(("prediction", f"derived: there are no measured times of {of}"))
        return lines

    def page(self) -> Page:
        """Return the page that ``to_html`` writes."""
        from cute_gemm.rendering.html import Page

        heads = ("operand", "global memory", "shared memory")
        summary = table("", heads, [view.summary() for view in self.operands], *heads)
        performance: list[Part] = [self._drawn(), Pairs(self._performance_lines())]
        performance += candidates_table(self.candidates, self.predictor.gpu)
        return Page.of(
            "gemm", self.problem, self.kernel,
            intro=f"Kernel {self.kernel} for {self.arch}: what its memory accesses cost.",
            sections=(
                ("Verdict", (Causes(self.causes), summary)),
                ("Performance", performance),
                ("Problem", self._problem_page()),
                ("Kernel", self._kernel_page()),
            ),
            rows=self.rows,
            pictures=self.pictures,
            lead=self.headline,
            figures=self._figures(),
        )  # fmt: skip

    def _figures(self) -> list[tuple[str, str]]:
        """Return the times of the headline, each with a label."""
        prediction, roof = self.predicted, self.performance.roofline
        figures = [("predicted", duration(prediction.seconds))] if prediction else []
        if roof is not None:
            figures.append((f"bound: {roof.limit}", duration(roof.seconds)))
        if prediction and roof and prediction.seconds < FAR * roof.seconds:
            figures.append(("times its bound", short(prediction.seconds / roof.seconds)))
        fixed = [x for x in self.causes[:1] if x.fixed_seconds is not None and not x.little]
        figures += [(f"with {x.fix}", duration(x.fixed_seconds or 0.0)) for x in fixed]
        return figures

    def _drawn(self) -> Figures:
        """Return the roofline and the terms of the prediction, if known."""
        from cute_gemm.report.times import predicted_terms, roofline

        prediction, bounds = self.predicted, self.performance
        svgs = []
        if bounds.roofline is not None and bounds.flops and bounds.intensity:
            svgs.append(roofline(bounds, prediction.seconds if prediction else None))
        if prediction is not None:
            svgs.append(predicted_terms(prediction))
        return Figures(svgs)

    def _problem_page(self) -> tuple[Pairs, Table]:
        problem = self.problem
        pairs = (
            *((("groups", self.groups),) if self.groups else ()),
            ("op", f"{problem.op} (BLAS-equivalent of the storage: {problem.blas_op})"),
            ("M, N, K", f"{problem.m:,}, {problem.n:,}, {problem.k:,}"),
            ("types", problem.types),
        )
        heads = ("matrix", "shape : stride", "major", "ld", "dtype", "base aligned to", "bytes")
        lines = [
            [Cell(name, bold=True), Cell(str(matrix), code=True), matrix.major, f"{matrix.ld:,}",
             matrix.dtype + ", conjugated" * matrix.conj, f"{matrix.alignment} bytes",
             f"{matrix.nbytes:,}"]
            for name, matrix in self._matrices.items()
        ]  # fmt: skip
        return Pairs(pairs), table(
            "Descriptors", heads, lines, "matrix", "shape : stride", "major", "dtype"
        )

    def _kernel_page(self) -> tuple[Pairs, ...]:
        built, config = self.resources, self.config
        pairs: list[tuple[str, str | Cell]] = [
            ("kernel", Cell(self.kernel, code=True)),
            ("arch", Cell(self.arch, code=True)),
            ("launch", self._launched),
        ]
        if built is not None:
            used = f"{built.registers} registers per thread, {built.shared_static:,} bytes of"
            pairs.append(("build", f"{used} static shared memory, {spilled(built)}"))
        if config is not None:
            pairs.append(("config", Cell(self._configured, code=True)))
        if self.measured is not None:
            pairs.append(("selection", str(self.measured)))
        # The operation, a dataclass, is shown in the section of the problem.
        codes = [
            (name, Cell(_shown(value), code=True))
            for name, value in _fields(config).items()
            if name != "kernel" and not is_dataclass(value)
        ]
        short_ones = [pair for pair in codes if len(pair[1].text) <= COMPACT]
        pairs += (pair for pair in codes if pair not in short_ones)
        return Pairs(pairs), Pairs(short_ones, compact=True)


#: Fixes by everything they depend on: the search takes half a second for some kernels.
_looked_for: Kept[Any, tuple[tuple[Fix, ...], ...]] = Kept(64)


def _fixes(accesses: tuple[Access, ...], threads: int) -> tuple[tuple[Fix, ...], ...]:
    """Return the fixes of every access; each copy is searched once for all its parts.

    Edge tiles are left out if there are interior tiles, which the verdict is about.
    """
    copies: dict[Any, Access] = {}
    keys = [_copy_key(access) for access in accesses]
    for key, access in zip(keys, map(_of_full_tiles, accesses), strict=True):
        # The first of equal ones.
        copies[key] = max(copies.get(key, access), access, key=_full_tiles)
    question = (threads, *(_content(*item) for item in copies.items()))
    answer = _looked_for.get(question)
    if answer is None:
        answer = _looked_for[question] = tuple(fixes(tuple(copies.values()), threads))
    of_copy = dict(zip(copies, answer, strict=True))
    return tuple(
        of_part(of_copy[key], access) if isinstance(access, GlobalAccess) else of_copy[key]
        for key, access in zip(keys, accesses, strict=True)
    )


def _copy_key(access: Access) -> Any:
    """Return what the parts of one copy have in common."""
    if isinstance(access, TmaAccess):
        return access
    key = named(access, "operand", "direction", "instruction", "bits").values()
    if isinstance(access, GlobalAccess):
        # Straddling vectors are copied element by element and have no fixes.
        return *key, access.tail == "elements", *contents(access.coords)
    return *key, access.layout, *contents(access.offsets)


def _content(key: Any, access: Access) -> Any:
    """Return everything that the fixes of a copy depend on."""
    if isinstance(access, GlobalAccess):
        names = "matrix", "unit", "tile", "axis", "region", "origin"
        return key, *named(access, *names).values()
    if isinstance(access, SharedAccess):
        return key, access.element_bits, *contents(access.coords)
    return key


def _full_tiles(access: Access) -> int:
    """Return the number of full tiles of a global access, 0 of others."""
    if not isinstance(access, GlobalAccess):
        return 0
    return prod(e // t for e, t in zip(access.region, access.tile, strict=True))


def _of_full_tiles(access: Access) -> Access:
    """Return the access without edge tiles, unless it has no other tiles.

    Stores to a part of a matrix keep their region, since its end limits the width of vectors. The
    targets in shared memory and the handling of straddling vectors are removed: they belong to the
    present vectors only.
    """
    if not isinstance(access, GlobalAccess) or access.tail == "elements":
        return access
    access = replace(access, tail="cut", targets=None)
    part = access.direction == "store" and access.region != access.matrix.shape
    if part or not _full_tiles(access):
        return access
    rows, columns = (e - e % t for e, t in zip(access.region, access.tile, strict=True))
    return replace(access, extents=(rows, columns))


def make_report(
    problem: GemmProblem, kernel_name: str, config: Any, arch: str, accesses: Iterable[Access],
    launch: Launch, resources: Resources | None = None, *, gpu: GpuLike | None = None,
    reads_c: bool = False, others: Others | None = None,
    auxiliary: Iterable[AuxiliaryReport] = (), **fields: Any,
) -> Report:  # fmt: skip
    """Evaluate every access of a kernel and return a ``Report``.

    ``resources`` are those of a build, or None. ``gpu`` is the GPU of the roofline, by default the
    one that stands for the arch; OptionError if it is not known or does not run kernels of
    ``arch``. ``reads_c``: whether beta is not 0. ``others`` yields the accesses for other values of
    the kernel's options. ``auxiliary`` are the launches of auxiliary kernels. ``fields`` are the
    other fields of the report.
    """
    accesses = tuple(accesses)
    rows = tuple(map(make_row, accesses, _fixes(accesses, launch.block)))
    rows = with_options(rows, others) if others else rows
    auxiliary = tuple(auxiliary)
    bounds = performance(problem, launch, arch, rows, resources, gpu, reads_c, auxiliary)
    return Report(
        problem, kernel_name, config, arch, launch, resources, rows, bounds,
        auxiliary=auxiliary, **fields,
    )  # fmt: skip


def _laid_out(matrix: Matrix) -> str:
    """Return the major and leading dimension; for an epilogue's operand, the modes it is along."""
    if matrix.name == "offsets":
        return "where each group ends, "
    if matrix.name in ("A", "B", "C"):
        return f"{matrix.major}-major, ld{matrix.name.lower()} {matrix.ld}, "
    along = [mode for mode, stride in zip(matrix.modes, matrix.stride, strict=False) if stride]
    return f"along {' and '.join(along)}, " if along else "one number, "
