"""A row of a report: one memory instruction and its cost, in figures, words and tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cute_gemm._text import counted, named, number, percent
from cute_gemm.access import gmem, smem, tma
from cute_gemm.access.analyze import Analysis, analyze
from cute_gemm.rendering.tables import Cell, Table, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cute_gemm.access.accesses import Access, GlobalAccess
    from cute_gemm.access.fix import Fix

#: Verdict on an access in which a lane's address is not a multiple of its vector.
MISALIGNED = "misaligned"


@dataclass(frozen=True, slots=True)
class LaunchTotals:
    """Totals of one instruction over the launch; None for figures of the other memory space.

    ``GlobalCounts`` and ``SharedCounts`` define the figures. A bulk copy (TMA) has no lanes, and
    its bytes are those that arrive in every CTA.
    """

    requests: int
    off: int
    lanes: int
    bytes: int
    sectors: int | None
    ideal_sectors: int | None
    lines: int | None
    l2_sectors: int | None
    wavefronts: int | None
    ideal_wavefronts: int | None
    conflicts: int | None
    counted_wavefronts: int | None
    counted_conflicts: int | None


def _mean(name: str) -> property:
    """Return the mean per request of a count as a property; None if the memory space has none."""
    return property(lambda row: _per_request(row.counts, name))


def _per_request(counts: gmem.GlobalCounts | smem.SharedCounts, name: str) -> float | None:
    """Return the mean over requests, as an integer if it is one."""
    total = getattr(counts, name, None)
    if total is None or not counts.requests:
        return total
    whole, rest = divmod(total, counts.requests)
    return total / counts.requests if rest else float(whole)


@dataclass(frozen=True, eq=False)
class AccessRow:
    """One memory instruction of a kernel: the access, its analysis by the model, and its fixes.

    All other attributes are derived from these. ``operand``, ``direction``, ``instruction``,
    ``part``, ``bits`` (per lane; 0 for a bulk copy), ``unit`` (``"k-tile"`` or ``"CTA"``) and
    ``limit`` (what keeps the vector from being wider) are those of the access. Figures per request
    (``lanes``, ``bytes``, ``sectors``, ...) are means over the requests that the verdict is about:
    for global memory those of interior tiles (of all tiles if no tile is full), for shared memory
    all. ``sectors`` are counted by the hardware, ``l2_sectors`` requested from L2; they differ for
    16-byte ``cp.async`` off a sector (``gmem.analyze``). ``interior_tiles`` and ``edge_tiles`` are
    visits of full and of partial tiles; figures ``edge_...`` are those of partial tiles, if any.
    ``verdict`` is ``good`` in words, and ``why`` the reason if it is not good. A figure that the
    memory space does not have is None.
    """

    access: Access
    analysis: Analysis
    fixes: tuple[Fix, ...] = ()

    operand = property(attrgetter("access.operand"))
    direction = property(attrgetter("access.direction"))
    instruction = property(attrgetter("access.instruction"))
    part = property(attrgetter("access.part"))
    bits = property(attrgetter("access.bits"))
    unit = property(attrgetter("access.unit"))
    space = property(attrgetter("access.space"))

    lanes, bytes = _mean("lanes"), _mean("bytes")
    sectors, ideal_sectors = _mean("sectors"), _mean("ideal_sectors")
    l2_sectors, lines = _mean("l2_sectors"), _mean("lines")
    wavefronts, ideal_wavefronts = _mean("wavefronts"), _mean("ideal_wavefronts")
    conflicts = _mean("conflicts")

    @property
    def limit(self) -> str:
        """What keeps the vector from being wider, in words, or ""."""
        return str(self.access.limit)

    @property
    def counts(self) -> gmem.GlobalCounts | smem.SharedCounts:
        """Counts whose means are the figures per request."""
        analysis = self.analysis
        return analysis.once if isinstance(analysis, smem.SharedAnalysis) else analysis.judged

    @property
    def requests(self) -> int:
        """Requests of one ``unit``."""
        analysis = self.analysis
        once = analysis.once if isinstance(analysis, smem.SharedAnalysis) else analysis.tile
        return once.requests * self.access.times // self.access.tiles

    @property
    def efficiency(self) -> float | None:
        """Bytes used over bytes of the sectors requested from L2."""
        return getattr(self.counts, "efficiency", None)

    interior_tiles = property(lambda row: getattr(row.analysis.interior, "tiles", None))
    edge_tiles = property(lambda row: getattr(row.analysis.edge, "tiles", None))
    edge_sectors = property(lambda row: row._at_edge("sectors"))
    edge_l2_sectors = property(lambda row: row._at_edge("l2_sectors"))
    edge_efficiency = property(lambda row: row._at_edge("efficiency"))

    def _at_edge(self, name: str) -> float | None:
        if not self.edge_tiles:
            return None
        edge: Any = self.analysis.edge
        return edge.efficiency if name == "efficiency" else _per_request(edge, name)

    @property
    def at_edges(self) -> bool:
        """Whether the access belongs to edge tiles alone, such as a last k-tile."""
        return bool(self.part and self.edge_tiles and not self.interior_tiles)

    @cached_property
    def launch(self) -> LaunchTotals:
        """Totals of the whole launch."""
        analysis = self.analysis
        figures: Any = (getattr(analysis.launch, f.name, None) for f in fields(LaunchTotals))
        totals = LaunchTotals(*figures)
        if isinstance(analysis, tma.TmaAnalysis):
            arrives = (analysis.interior.bytes + analysis.edge.bytes) * self.access.sweeps  # type: ignore[union-attr]
            return replace(totals, bytes=arrives)
        return totals

    # -- in words -----------------------------------------------------------------------------

    @property
    def good(self) -> bool:
        """Whether the access is coalesced (and legal, for a bulk copy) or free of conflicts."""
        analysis = self.analysis
        if isinstance(analysis, smem.SharedAnalysis):
            return analysis.conflict_free
        return analysis.coalesced and analysis.legal

    verdict = property(lambda row: row._words[0])
    why = property(lambda row: row._words[1])

    @cached_property
    def _words(self) -> tuple[str, str]:
        analysis = self.analysis
        if isinstance(analysis, gmem.GlobalAnalysis):
            return _why_global(self.access, analysis)  # type: ignore[arg-type]
        if isinstance(analysis, tma.TmaAnalysis):
            verdict = "coalesced" if analysis.coalesced else "not coalesced"
            return (verdict if analysis.legal else "illegal"), ""
        if not analysis.aligned:
            bytes_ = 16 if smem.matrices(self.instruction) else self.bits // 8
            return MISALIGNED, f"some lane's address is not a multiple of its {bytes_} bytes"
        if analysis.conflict_free:
            return "conflict-free", ""
        worst, ideal = analysis.worst_wavefronts, analysis.worst_ideal
        why = f"a request takes {worst} wavefronts where {ideal} would do"
        if gmem.bypasses_l1(self.instruction, self.bits):
            why += " (hardware counters show none: 16-byte copies bypass the unit that counts)"
        return f"{analysis.ways}-way conflict", why

    @property
    def fix(self) -> str:
        """Fix of a bad access: the kernel's option for it, and the best of ``fixes``."""
        best, own = self.fixes[:1], str(self.access.fix)
        words = [own] * all(fix.what != own for fix in best)
        return "" if self.good else "; or ".join(filter(None, (*words, *map(str, best))))

    @property
    def notes(self) -> tuple[str, ...]:
        """Findings about a bulk copy, one sentence each."""
        return self.analysis.findings if isinstance(self.analysis, tma.TmaAnalysis) else ()

    @property
    def name(self) -> str:
        """Instruction and part: ``"cp.async (last k-tile)"``."""
        return f"{self.instruction} ({self.part})" if self.part else self.instruction

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccessRow) and self.to_dict() == other.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return every figure and text by name."""
        return named(self, *_KEYS) | {"launch": asdict(self.launch)}

    def findings(self) -> list[str]:
        """Return one sentence for each fault or inefficiency of the access."""
        kind = f"{self.operand}: {self.instruction}" + (f" of {self.bits} bits" * bool(self.bits))
        what = f"{kind} ({self.part})" if self.part else kind
        fix = f" Fix: {self.fix.rstrip('.')}." if self.fix else ""
        fault = f"{what} would fault: {self.why}.{fix}"
        if self.space == "shared":
            conflicts = f"{what} has bank conflicts ({self.verdict}): {self.why}.{fix}"
            return [] if self.good else [fault if self.verdict == MISALIGNED else conflicts]
        if isinstance(self.analysis, tma.TmaAnalysis):
            return [f"{note}{fix}" for note in self.notes] + self._of_edges(what)
        out = []
        if self.verdict == MISALIGNED:
            out.append(fault)
        elif not self.good and not self.at_edges:
            used = "fetched are used" if self.direction == "load" else "touched are written"
            more = f" ({number(self.l2_sectors)} of L2)" * (self.l2_sectors != self.sectors)
            out.append(
                f"{what} is not coalesced: {number(self.sectors)} sectors per request{more} where "
                f"{number(self.ideal_sectors)} would do, {percent(self.efficiency)} of the bytes "
                f"{used}; {self.why}.{fix}"
            )
        if self.limit and self.bits < 128:
            out.append(f"{kind}, not 128: {self.limit.rstrip('.')}.")
        return out + self._of_edges(what)

    def _of_edges(self, what: str) -> list[str]:
        """Return the finding about edge tiles if they are worse than interior tiles."""
        if self.edge_efficiency is None or self.efficiency is None:
            return []
        there = f"{percent(self.edge_efficiency)} efficiency there."
        if self.at_edges:
            return [] if self.good else [f"{what}: all its tiles are at an edge, with {there}"]
        if not self.interior_tiles:
            return [f"{what}: the matrix fills no tile, so all figures are of edge tiles."]
        if not self.good or self.edge_efficiency >= self.efficiency:
            return []
        tiles = self.interior_tiles + (self.edge_tiles or 0)
        return [f"{what}: {self.edge_tiles:,} of {tiles:,} tiles are at an edge, with {there}"]


#: The keys of ``AccessRow.to_dict``.
_KEYS = (
    "operand", "space", "direction", "instruction", "part", "bits", "lanes", "unit", "requests",
    "sectors", "ideal_sectors", "lines", "l2_sectors", "bytes", "efficiency", "wavefronts",
    "ideal_wavefronts", "conflicts", "good", "verdict", "why", "limit", "fix", "interior_tiles",
    "edge_tiles", "edge_sectors", "edge_efficiency", "launch", "notes",
)  # fmt: skip


def make_row(access: Access, fixes: tuple[Fix, ...] = ()) -> AccessRow:
    """Evaluate one access with the model of its memory space."""
    return AccessRow(access, analyze(access), fixes)


def findings(rows: Iterable[AccessRow]) -> tuple[str, ...]:
    """Return one sentence for each fault or inefficiency of the accesses."""
    return tuple(dict.fromkeys(sentence for row in rows for sentence in row.findings()))


def _why_global(access: GlobalAccess, analysis: gmem.GlobalAnalysis) -> tuple[str, str]:
    """Return verdict and reason of a global access; modes and ld are named for A, B and C only."""
    worst, matrix = analysis.worst, access.matrix
    a_matrix, size = matrix.name in "ABC", matrix.element.bytes
    if worst is None:
        return "no access", ""
    ld = f", leading dimension {matrix.ld}" if a_matrix else ""
    base = f"base address aligned to {matrix.alignment} bytes{ld}"
    if not analysis.aligned:
        its = "its " * (access.granule == access.bits // 8)
        bytes_ = f"a multiple of {its}{access.granule} bytes"
        return MISALIGNED, f"some lane's address is not {bytes_} ({base})"
    if analysis.coalesced:
        return "coalesced", ""
    if worst.cause == "offset":
        base += f" x {size} bytes" if a_matrix else ""
        return "off sector", f"its runs do not begin on a 32-byte boundary ({base})"
    mode = matrix.modes[matrix.unit]
    extent, tile = matrix.shape[matrix.unit], access.tile[matrix.unit]
    cause = f"the lanes do not run along {mode}, the mode of unit stride"
    for whole, count in (("tile", tile), ("matrix", extent)):
        if worst.run_bytes == count * size:
            elements = counted(count, "element")
            cause = f"the {whole} has only {elements} along {mode}, the mode of unit stride"
    pitch = f", {worst.pitch} bytes apart" if worst.pitch else ""
    many = f"{worst.runs} runs" if worst.runs > 1 else "1 run"
    why = f"a request is {many} of only {worst.run_bytes} bytes{pitch}"
    return "strided", f"{why}: {cause}" if a_matrix else why


# ---- in tables ----------------------------------------------------------------------------------

_Columns = dict[str, "Callable[[AccessRow], str | Cell]"]


def _numbers(**figures: str) -> _Columns:
    """Return columns of numbers: head (with underscores for spaces) -> figure of a row."""

    def column(figure: str) -> Callable[[AccessRow], str]:
        return lambda row: number(attrgetter(figure)(row))

    return {head.replace("_", " "): column(figure) for head, figure in figures.items()}


_FIRST: _Columns = {"": attrgetter("operand"), "access": lambda row: _name(row)}
#: The "lanes" column is left out if every request has all lanes.
_LANES: _Columns = {
    "bits": lambda row: str(row.bits or "-"),
    "lanes": lambda row: number(row.lanes if row.bits else None),
    "requests": lambda row: f"{number(row.requests)}/{row.unit}",
}
_VERDICT: _Columns = {"verdict": lambda row: Cell(_verdict(row), good=row.good)}
_SECTORS = _numbers(
    sectors="sectors", of_L2="l2_sectors", ideal="ideal_sectors", lines="lines", bytes="bytes"
) | {"efficiency": lambda row: _efficiency(row.counts)}
_WAVEFRONTS = _numbers(wavefronts="wavefronts", ideal="ideal_wavefronts", conflicts="conflicts")
_EDGES = _numbers(
    interior_tiles="interior_tiles", edge_tiles="edge_tiles", sectors="edge_sectors",
    of_L2="edge_l2_sectors",
) | {"efficiency": lambda row: _efficiency(row.analysis.edge)}  # fmt: skip
_LAUNCH = {
    **_FIRST,
    "access": lambda row: _name(row, "" if row.instruction.endswith(row.space) else row.space),
    **_numbers(
        requests="launch.requests", sectors="launch.sectors", of_L2="launch.l2_sectors",
        ideal="launch.ideal_sectors", wavefronts="launch.wavefronts", conflicts="launch.conflicts",
    ),
}  # fmt: skip


def _within_a_sector(counts: Any) -> bool:
    """Return whether coalesced requests use less than a sector, so that efficiency says nothing."""
    return counts.coalesced and 0 < counts.bytes < gmem.SECTOR * counts.requests


def _efficiency(counts: Any) -> str:
    return "-" if _within_a_sector(counts) else percent(counts.efficiency)


def _verdict(row: AccessRow) -> str:
    """Return the verdict, with the bytes of a request if they are less than a sector."""
    if row.space == "shared" or not row.good or not _within_a_sector(row.counts):
        return row.verdict
    return f"{row.verdict}, {number(row.bytes)} {'byte' if row.bytes == 1 else 'bytes'} used"


def _name(row: AccessRow, space: str = "") -> Cell:
    """Return the instruction, with the part of the launch on a second line."""
    return Cell(f"{row.instruction} ({space})" if space else row.instruction, row.part, code=True)


def _table(
    title: str, columns: _Columns, rows: Iterable[tuple[int, AccessRow]]
) -> tuple[Table, list[int | None]]:
    """Return a table of rows, and the index in ``rows`` of each line.

    If L2 gets more sectors than L1 counts, a separate line has them (there is no room for another
    column).
    """
    columns, rows = dict(columns), list(rows)
    if all(row.lanes == gmem.LANES for _, row in rows if row.bits):
        columns.pop("lanes", None)
    of_l2 = columns.pop("of L2", None)
    lines: list[list[str | Cell]] = []
    places: list[int | None] = []
    for place, row in rows:
        line = {head: of(row) for head, of in columns.items()}
        lines.append([*line.values()])
        places.append(place)
        if of_l2 is not None and of_l2(row) != line["sectors"]:
            below = {"access": "  of L2", "sectors": of_l2(row)}
            lines.append([below.get(head, "") for head in columns])
            places.append(None)
    return table(title, list(columns), lines, "", "access", "verdict"), places


def access_tables(rows: Sequence[AccessRow]) -> Iterable[tuple[Table, list[int | None]]]:
    """Yield the tables of a kernel's accesses, each with the index in ``rows`` of each line."""
    judged = "per request of the interior tiles (sectors of 32 bytes, lines of 128)"
    of_global = [(place, row) for place, row in enumerate(rows) if row.space == "global"]
    of_shared = [(place, row) for place, row in enumerate(rows) if row.space == "shared"]
    at_edges = [(place, row) for place, row in of_global if row.edge_tiles]
    for title, columns, chosen in (
        (f"Global memory, {judged}", _FIRST | _LANES | _SECTORS | _VERDICT, of_global),
        ("Global memory, per request of the edge tiles", _FIRST | _EDGES, at_edges),
        ("Shared memory, per request", _FIRST | _LANES | _WAVEFRONTS | _VERDICT, of_shared),
        ("The whole launch", _LAUNCH, [*enumerate(rows)]),
    ):
        if chosen:
            yield _table(title, columns, chosen)


def copy_table(row: AccessRow) -> Table:
    """Return the table of one side of the user's own copy, which is executed once."""
    title, columns = "Shared memory, per request", _LANES | _WAVEFRONTS
    if row.space == "global":
        title = "Global memory, per request (sectors of 32 bytes, lines of 128)"
        columns = _LANES | _SECTORS
    once: _Columns = {"requests": lambda row: number(row.requests)}
    return _table(title, {"access": _name} | columns | once | _VERDICT, [(0, row)])[0]
