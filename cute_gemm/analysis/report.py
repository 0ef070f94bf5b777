"""The report of a kernel: every memory access, what it costs, and what would mend it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from hashlib import blake2b
from math import prod
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm._text import plain
from cute_gemm.access import GlobalAccess, SharedAccess, TmaAccess
from cute_gemm.analysis.mends.gmem import Mend, mends
from cute_gemm.analysis.performance import Performance, performance
from cute_gemm.analysis.rows import AccessRow, findings, make_row, modes, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from cute_gemm.access import Access
    from cute_gemm.gpus.table import Gpu
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.toolchain.cubin import Resources
    from cute_gemm.toolchain.signature import Launch

#: Version of the keys of ``Report.to_dict``; raised when a key changes its meaning.
FORMAT = 1

#: Characters per line of ``str(report)``.
WIDTH = 112


@dataclass(frozen=True, slots=True)
class OperandView:
    """The accesses of one operand, as ``report["A"]`` gives them."""

    name: str
    rows: tuple[AccessRow, ...]

    @property
    def coalesced(self) -> bool:
        """Whether all its global accesses (of C: loads and stores) are coalesced.

        Judged are those with interior tiles, or all when none has one: a last k-tile that K does
        not fill decides as little as the edge of a matrix.
        """
        rows = [row for row in self.rows if row.space == "global"]
        return all(row.good for row in rows if not row.at_edges or all(r.at_edges for r in rows))

    @property
    def conflict_free(self) -> bool:
        """Whether all its shared-memory accesses take the fewest wavefronts possible."""
        return all(row.good for row in self.rows if row.space == "shared")


def _jsonable(value: Any) -> Any:
    """Return ``value`` in what JSON has; other objects as their text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_jsonable(v) for v in value]
    return str(value)


@dataclass(frozen=True, eq=False)
class Report:
    """What a kernel does to memory for one problem; ``print`` it, or take ``to_dict()``.

    Attributes
    ----------
    problem
        The problem, with the descriptors of A(M,K), B(N,K) and C(M,N).
    kernel, config, arch
        Which kernel, how configured, for which architecture.
    launch
        CTAs, threads per CTA, dynamic shared memory (bytes).
    resources
        Registers, shared memory and spills of the build, or None when nothing was built.
    rows
        One ``AccessRow`` per memory instruction.
    accesses
        What each row evaluates, in the same order.
    findings
        One sentence for each thing that is not as good as it could be.
    mends
        What would mend each access, the mend of fewest changes first.
    performance
        Bytes, intensity, roofline, occupancy, waves.
    """

    problem: GemmProblem
    kernel: str
    config: Any
    arch: str
    launch: Launch
    resources: Resources | None
    rows: tuple[AccessRow, ...]
    accesses: tuple[Access, ...]
    findings: tuple[str, ...]
    mends: tuple[tuple[Mend, ...], ...]
    performance: Performance

    def __getitem__(self, operand: str) -> OperandView:
        """Return the accesses of ``"A"``, ``"B"`` or ``"C"``.

        Raises
        ------
        KeyError
            For another name; the message lists those there are.

        Examples
        --------
        ``report["A"].coalesced`` is True or False.
        """
        names = tuple(dict.fromkeys(("A", "B", "C", *(row.operand for row in self.rows))))
        if operand not in names:
            raise KeyError(f"operand {operand!r} is not in the report; expected one of {names}")
        return OperandView(operand, tuple(row for row in self.rows if row.operand == operand))

    @property
    def operands(self) -> tuple[OperandView, ...]:
        """The views of A, B and C."""
        return tuple(self[name] for name in "ABC")

    # -- machine-readable ---------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report in strings, numbers, lists and dicts, with keys that stay.

        Examples
        --------
        ``report.to_dict()["operands"]["A"]`` is ``{"coalesced": True, "conflict_free": True}``.
        """
        problem = self.problem
        return {
            "format": FORMAT,
            "op": problem.op,
            "blas_op": problem.blas_op,
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "l": problem.l,
            "compute": problem.compute,
            "matrices": {
                matrix.name: {
                    "descriptor": str(matrix),
                    "modes": list(modes(matrix)),
                    "shape": list(matrix.shape),
                    "stride": list(matrix.stride),
                    "ld": matrix.ld,
                    "major": matrix.major,
                    "dtype": matrix.dtype,
                    "alignment": matrix.alignment,
                    "conj": matrix.conj,
                    "l": matrix.l,
                    "batch_stride": matrix.batch_stride,
                }
                for matrix in (problem.A, problem.B, problem.C)
            },
            "kernel": self.kernel,
            "config": _jsonable(self.config),
            "config_name": getattr(self.config, "name", None),
            "arch": self.arch,
            "launch": {
                "grid": self.launch.grid,
                "block": self.launch.block,
                "smem": self.launch.smem,
            },
            "resources": _jsonable(self.resources),
            "operands": {
                view.name: {"coalesced": view.coalesced, "conflict_free": view.conflict_free}
                for view in self.operands
            },
            "accesses": [asdict(row) for row in self.rows],
            "findings": list(self.findings),
            "mends": [[asdict(mend) for mend in found] for found in self.mends],
            "performance": self.performance.to_dict(),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return ``to_dict()`` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    # -- readable -----------------------------------------------------------------------------

    def to_html(self) -> str:
        """Return the report with its pictures as one HTML file, which needs nothing beside it.

        Examples
        --------
        ``Path("report.html").write_text(report.to_html(), encoding="utf-8")``
        """
        from cute_gemm.analysis.html import report_html

        return report_html(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from cute_gemm.analysis.html import fragment_html

        return fragment_html(self)

    def __str__(self) -> str:
        return plain(self, WIDTH)

    def show(self, console: Console | None = None) -> None:
        """Print with colours to ``console``, by default to a new one on standard output."""
        if console is None:
            from rich.console import Console

            console = Console()
        console.print(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield from self._header()
        tables = (self._global_table(), self._edge_table(), self._shared_table())
        for table in (*tables, self._launch_table(), self._performance_table()):
            if table is not None:
                yield Text()
                yield table
        if self.findings:
            yield Text()
        for finding in self.findings:
            yield _bullet(finding)

    def _header(self) -> Iterable[Any]:
        from rich.text import Text

        problem = self.problem
        types = f"{problem.A.dtype} -> {problem.C.dtype}, compute {problem.compute}"
        yield Text.assemble(
            ("gemm ", ""),
            (problem.op, "bold"),
            f" (BLAS-equivalent {problem.blas_op})  M={problem.m} N={problem.n} K={problem.k}"
            + ("" if problem.l == 1 else f" L={problem.l}")
            + f"  {types}",
        )
        matrices = (problem.A, problem.B, problem.C)
        width = max(len(str(matrix)) for matrix in matrices)
        for matrix in matrices:
            third = ("L",) if matrix.l != 1 else ()
            name = f"{matrix.name}({','.join((*modes(matrix), *third))})"
            yield Text.assemble(
                (name, "bold"),
                f"  {matrix!s:<{width}}  {matrix.major}-major, ld{matrix.name.lower()} "
                f"{matrix.ld}, {matrix.dtype}, base aligned to {matrix.alignment} bytes"
                + (", conjugated" if matrix.conj else ""),
            )
        yield Text(f"kernel {self.kernel}, {self.arch}")
        if self.config is not None:
            yield Text(f"config {getattr(self.config, 'name', None) or self.config}")
        launch = f"launch {self.launch.grid:,} CTAs x {self.launch.block} threads, "
        launch += f"{self.launch.smem:,} bytes of dynamic shared memory"
        built = self.resources
        if built is not None:
            spilled = built.spill_stores + built.spill_loads
            launch += f"; {built.registers} registers, {built.shared_static:,} bytes static, "
            launch += f"{spilled} bytes spilled" if spilled else "no spills"
        yield Text(launch)

    def _global_table(self) -> Table | None:
        rows = [row for row in self.rows if row.space == "global"]
        if not rows:
            return None
        table = _table(
            "Global memory, per request of the interior tiles (sectors of 32 bytes, lines of 128)",
            ("", "access", "bits", "lanes", "requests", "sectors", "ideal", "lines", "bytes")
            + ("efficiency", "verdict"),
            left=(0, 1, 10),
        )
        for row in rows:
            table.add_row(
                row.operand,
                _name(row),
                str(row.bits or "-"),
                number(row.lanes) if row.bits else "-",
                f"{number(row.requests)}/{row.unit}",
                number(row.sectors),
                number(row.ideal_sectors),
                number(row.lines),
                number(row.bytes),
                percent(row.efficiency),
                _verdict(row),
            )
        return table

    def _edge_table(self) -> Table | None:
        rows = [row for row in self.rows if row.edge_tiles]
        if not rows:
            return None
        table = _table(
            "Global memory, per request of the edge tiles",
            ("", "access", "interior tiles", "edge tiles", "sectors", "efficiency"),
            left=(0, 1),
        )
        for row in rows:
            table.add_row(
                row.operand,
                _name(row),
                number(row.interior_tiles),
                number(row.edge_tiles),
                number(row.edge_sectors),
                percent(row.edge_efficiency),
            )
        return table

    def _shared_table(self) -> Table | None:
        rows = [row for row in self.rows if row.space == "shared"]
        if not rows:
            return None
        table = _table(
            "Shared memory, per request",
            ("", "access", "bits", "lanes", "requests", "wavefronts", "ideal", "conflicts")
            + ("verdict",),
            left=(0, 1, 8),
        )
        for row in rows:
            table.add_row(
                row.operand,
                _name(row),
                str(row.bits),
                number(row.lanes),
                f"{number(row.requests)}/{row.unit}",
                number(row.wavefronts),
                number(row.ideal_wavefronts),
                number(row.conflicts),
                _verdict(row),
            )
        return table

    def _launch_table(self) -> Table | None:
        if not self.rows:
            return None
        table = _table(
            "The whole launch",
            ("", "access", "requests", "sectors", "ideal", "wavefronts", "conflicts"),
            left=(0, 1),
        )
        for row in self.rows:
            totals = row.launch
            table.add_row(
                row.operand,
                _name(row, "" if row.instruction.endswith(row.space) else f" ({row.space})"),
                number(totals.requests),
                number(totals.sectors),
                number(totals.ideal_sectors),
                number(totals.wavefronts),
                number(totals.conflicts),
            )
        return table

    def _performance_table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2, 0, 1))
        table.title, table.title_justify, table.title_style = "Performance", "left", "bold"
        for label, text in self.performance.lines():
            table.add_row(label, Text(text))
        return table


def _name(row: AccessRow, more: str = "") -> str:
    """The instruction, and under it the part of the launch that the row is about."""
    part = wrap(row.part, 16)
    return "\n ".join([f"{row.instruction}{more}", *part])


def _verdict(row: AccessRow) -> Any:
    from rich.text import Text

    return Text(row.verdict, style="green" if row.good else "bold red")


def _bullet(sentence: str) -> Any:
    """Return a sentence whose further lines are indented under its first."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 0))
    # Text, not str: rich would read the brackets of a config or a layout as markup.
    grid.add_row("-", Text(sentence))
    return grid


def _table(title: str, columns: tuple[str, ...], left: tuple[int, ...]) -> Table:
    """Return an empty table; the columns in ``left`` are text, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.show_edge = False
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index in left else "right", no_wrap=index in left)
    return table


#: Mends that were looked for, by all that they depend on: some kernels' take half a second.
_looked_for: dict[Any, tuple[tuple[Mend, ...], ...]] = {}
_LOOKED_FOR_KEPT = 64


def _mends(accesses: tuple[Access, ...], threads: int) -> tuple[tuple[Mend, ...], ...]:
    """Find the mends of every access, once for each copy: the parts of a launch have the same.

    Edge tiles are left out where there are others, whose verdict it is.
    """
    copies: dict[Any, Access] = {}
    keys = [_copy_key(access) for access in accesses]
    for key, access in zip(keys, accesses, strict=True):
        access = _of_full_tiles(access)
        known = copies.setdefault(key, access)
        if isinstance(known, GlobalAccess) and isinstance(access, GlobalAccess):
            copies[key] = max(known, access, key=_full_tiles)  # the first of equals
    question = (threads, *(_content(*item) for item in copies.items()))
    answer = _looked_for.get(question)
    if answer is None:
        if len(_looked_for) >= _LOOKED_FOR_KEPT:
            _looked_for.clear()
        answer = _looked_for[question] = tuple(mends(tuple(copies.values()), threads))
    found = dict(zip(copies, answer, strict=True))
    return tuple(found[key] for key in keys)


def _copy_key(access: Access) -> Any:
    """What the parts of one copy have in common."""
    if isinstance(access, TmaAccess):
        return access  # itself and no other
    key = (access.operand, access.direction, access.instruction, access.bits)
    if isinstance(access, GlobalAccess):
        # Of straddling vectors, element by element, nothing is mended.
        return *key, access.tail == "elements", _digest(access.coords)
    return *key, str(access.layout), _digest(access.offsets)


def _digest(array: np.ndarray) -> bytes:
    return blake2b(np.asarray(array, np.int64).tobytes(), digest_size=16).digest()


def _content(key: Any, access: Access) -> Any:
    """What mends of a copy depend on."""
    if isinstance(access, GlobalAccess):
        return (
            key,
            access.matrix,
            access.tile,
            access.axis,
            access.unit,
            access.region,
            access.origin,
        )
    if isinstance(access, SharedAccess) and access.coords is not None:
        return key, access.element_bits, _digest(access.coords)
    return key


def _full_tiles(access: GlobalAccess) -> int:
    return prod(e // t for e, t in zip(access.region, access.tile, strict=True))


def _of_full_tiles(access: Access) -> Access:
    """The access without edge tiles, unless it has no others.

    Stores to a part of a matrix keep their region: whether vectors may be wider depends on where
    it ends. Where the vectors of today go in shared memory, and what becomes of those that straddle
    the end, says nothing of other vectors.
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
    problem: GemmProblem,
    kernel_name: str,
    config: Any,
    arch: str,
    accesses: Iterable[Access],
    launch: Launch,
    resources: Resources | None = None,
    *,
    gpu: Gpu | str | None = None,
    reads_c: bool = False,
) -> Report:
    """Evaluate every access of a kernel and put the result in a ``Report``.

    Parameters
    ----------
    problem
        The problem.
    kernel_name, config, arch
        What was configured, for which architecture (``"sm_80"``).
    accesses
        Every memory instruction of the kernel, in the order they are to be listed.
    launch
        Its launch shape.
    resources
        Registers, shared memory and spills of a build, if there was one.
    gpu
        A row of ``gpus.GPUS`` or its name, for the roofline; by default the one that stands for
        the arch.
    reads_c
        Whether C is read (beta is not 0).

    Returns
    -------
    Report

    Raises
    ------
    OptionError
        For a GPU that is not known, or that does not run kernels of ``arch``.
    ValueError
        When an access does not describe an instruction.

    Examples
    --------
    ``make_report(problem, "sm80_pipeline", config, "sm_80", accesses, launch)["A"].coalesced``
    is True or False.
    """
    accesses = tuple(accesses)
    found = _mends(accesses, launch.block)
    rows = tuple(_mended(make_row(access), of) for access, of in zip(accesses, found, strict=True))
    return Report(
        problem=problem,
        kernel=kernel_name,
        config=config,
        arch=arch,
        launch=launch,
        resources=resources,
        rows=rows,
        accesses=accesses,
        findings=findings(rows),
        mends=found,
        performance=performance(problem, launch, arch, rows, resources, gpu, reads_c),
    )


def _mended(row: AccessRow, found: tuple[Mend, ...]) -> AccessRow:
    """The row with its best mend: after the kernel's own name for it, if there is one."""
    if row.good or not found:
        return row
    return replace(row, mend=f"{row.mend}; or {found[0]}" if row.mend else str(found[0]))
