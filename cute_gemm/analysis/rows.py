"""One row per memory instruction: its figures per request, its verdict, and that in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cute_gemm.access import GlobalAccess, TmaAccess
from cute_gemm.model import gmem, smem, tma
from cute_gemm.problem.dtypes import dtype

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cute_gemm.access import Access, SharedAccess
    from cute_gemm.problem.problem import Matrix

#: Verdict on an access with a lane whose address is not a multiple of its vector.
MISALIGNED = "misaligned"
#: What a bulk tensor copy is called as an instruction.
TMA = "TMA"


@dataclass(frozen=True, slots=True)
class LaunchTotals:
    """What the whole launch does with one instruction; counts, and None where it has no such thing.

    Attributes
    ----------
    requests, off
        Requests, and those whose lanes are all predicated off.
    lanes
        Lanes that take part; 0 for a bulk copy (TMA), which has none.
    bytes
        Distinct bytes of each request, summed; of a bulk copy, what arrives in every CTA.
    sectors, ideal_sectors, lines
        Of a global access.
    l2_sectors
        Of a global access, the sectors that L2 is asked for; more than ``sectors`` where 16-byte
        ``cp.async`` is off a sector (``gmem.analyze``).
    wavefronts, ideal_wavefronts, conflicts
        Of a shared access.
    counted_wavefronts, counted_conflicts
        What the hardware's counters show of it, which differs for ``cp.async`` (``SharedCounts``).
    """

    requests: int
    off: int
    lanes: int
    bytes: int
    sectors: int | None = None
    ideal_sectors: int | None = None
    lines: int | None = None
    l2_sectors: int | None = None
    wavefronts: int | None = None
    ideal_wavefronts: int | None = None
    conflicts: int | None = None
    counted_wavefronts: int | None = None
    counted_conflicts: int | None = None


@dataclass(frozen=True, slots=True)
class AccessRow:
    """One memory instruction of the kernel.

    Figures per request are means over the requests that the verdict is about: for global memory
    those of the interior tiles (of all tiles if the matrix fills none), for shared memory all.

    Attributes
    ----------
    operand, space, direction, instruction
        ``"A"``, ``"global"`` or ``"shared"``, ``"load"`` or ``"store"``, ``"cp.async"``.
    part
        Which part of the launch this is, when the instruction has several: ``"last k-tile"``.
    bits
        Bits that each lane moves; 0 for a bulk copy.
    lanes
        Lanes of a request that take part; 0 for a bulk copy.
    unit, requests
        ``"k-tile"`` or ``"CTA"``, and the requests of one.
    sectors, ideal_sectors, lines, l2_sectors
        Per request; None for shared memory.
    bytes
        Distinct bytes used per request.
    efficiency
        Bytes used over bytes of the sectors that L2 is asked for; None for shared memory.
    wavefronts, ideal_wavefronts, conflicts
        Per request; None for global memory.
    good
        Coalesced, or free of conflicts.
    verdict
        The same in words.
    why
        What the verdict comes from, when it is not good.
    limit
        What keeps the vector from being wider.
    mend
        What would fix a bad verdict.
    interior_tiles, edge_tiles
        Tiles that are full, and those that are not; None for shared memory.
    edge_sectors, edge_efficiency
        Sectors per request and efficiency in the edge tiles; None without one.
    launch
        Totals of the whole launch.
    notes
        What else is to be said about it: one sentence each.
    """

    operand: str
    space: Literal["global", "shared"]
    direction: Literal["load", "store"]
    instruction: str
    part: str
    bits: int
    lanes: float
    unit: str
    requests: int
    sectors: float | None
    ideal_sectors: float | None
    lines: float | None
    l2_sectors: float | None
    bytes: float
    efficiency: float | None
    wavefronts: float | None
    ideal_wavefronts: float | None
    conflicts: float | None
    good: bool
    verdict: str
    why: str
    limit: str
    mend: str
    interior_tiles: int | None
    edge_tiles: int | None
    edge_sectors: float | None
    edge_efficiency: float | None
    launch: LaunchTotals
    notes: tuple[str, ...] = ()

    @property
    def at_edges(self) -> bool:
        """Whether this is a part of the launch that has edge tiles alone, as a last k-tile may."""
        return bool(self.part and self.edge_tiles and not self.interior_tiles)


def _mean(total: int, count: int) -> float:
    """Return the mean, exactly an integer where it is one."""
    if not count:
        return 0.0
    return float(total // count) if total % count == 0 else total / count


def _why_global(access: GlobalAccess, found: gmem.GlobalAnalysis) -> tuple[str, str]:
    """Return verdict and reason of a global access."""
    worst, matrix = found.worst, access.matrix
    if worst is None:
        return "no access", ""
    if not found.aligned:
        return (
            MISALIGNED,
            f"some lane's address is not a multiple of its {access.bits // 8} bytes (base address "
            f"aligned to {matrix.alignment} bytes, leading dimension {matrix.ld})",
        )
    if found.coalesced:
        return "coalesced", ""
    size = dtype(matrix.dtype).bytes
    if worst.cause == "offset":
        return (
            "off sector",
            f"its runs do not begin on a 32-byte boundary (base address aligned to "
            f"{matrix.alignment} bytes, leading dimension {matrix.ld} x {size} bytes)",
        )
    mode = modes(matrix)[matrix.unit]
    extent, tile = matrix.shape[matrix.unit], access.tile[matrix.unit]
    if worst.run_bytes == extent * size:
        cause = f"the matrix has only {extent} elements along {mode}, the mode of unit stride"
    elif worst.run_bytes == tile * size:
        cause = f"the tile has only {tile} elements along {mode}, the mode of unit stride"
    else:
        cause = f"the lanes do not run along {mode}, the mode of unit stride"
    pitch = f", {worst.pitch} bytes apart" if worst.pitch else ""
    many = f"{worst.runs} runs" if worst.runs > 1 else "1 run"
    return "strided", f"a request is {many} of only {worst.run_bytes} bytes{pitch}: {cause}"


def modes(matrix: Matrix) -> tuple[str, str]:
    """Names of the modes of A(M,K), B(N,K), C(M,N)."""
    return {"A": ("M", "K"), "B": ("N", "K")}.get(matrix.name, ("M", "N"))


def _global_row(access: GlobalAccess) -> AccessRow:
    found = gmem.analyze(access)
    verdict, why = _why_global(access, found)
    judged, edge, launch = found.judged, found.edge, found.launch
    return AccessRow(
        operand=access.operand,
        space="global",
        direction=access.direction,
        instruction=access.instruction,
        part=access.part,
        bits=access.bits,
        lanes=_mean(judged.lanes, judged.requests),
        unit=access.unit,
        requests=found.tile.requests,
        sectors=_mean(judged.l2_sectors, judged.requests),
        ideal_sectors=_mean(judged.ideal_sectors, judged.requests),
        lines=_mean(judged.lines, judged.requests),
        l2_sectors=_mean(judged.l2_sectors, judged.requests),
        bytes=_mean(judged.bytes, judged.requests),
        efficiency=judged.efficiency,
        wavefronts=None,
        ideal_wavefronts=None,
        conflicts=None,
        good=found.coalesced,
        verdict=verdict,
        why=why,
        limit=access.limit,
        mend="" if found.coalesced else access.mend,
        interior_tiles=found.interior.tiles,
        edge_tiles=edge.tiles,
        edge_sectors=_mean(edge.l2_sectors, edge.requests) if edge.tiles else None,
        edge_efficiency=edge.efficiency if edge.tiles else None,
        launch=LaunchTotals(
            requests=launch.requests,
            off=launch.off,
            lanes=launch.lanes,
            bytes=launch.bytes,
            sectors=launch.sectors,
            ideal_sectors=launch.ideal_sectors,
            lines=launch.lines,
            l2_sectors=launch.l2_sectors,
        ),
    )


def _shared_row(access: SharedAccess) -> AccessRow:
    found = smem.analyze(access)
    once, launch = found.once, found.launch
    free = found.conflict_free
    why = ""
    if not free:
        why = f"a request takes {found.worst_wavefronts} wavefronts where {found.worst_ideal} "
        why += "would do"
        if gmem.bypasses_l1(access.instruction, access.bits):
            why += " (counters show none of them: 16-byte copies go past the unit that counts)"
    return AccessRow(
        operand=access.operand,
        space="shared",
        direction=access.direction,
        instruction=access.instruction,
        part=access.part,
        bits=access.bits,
        lanes=_mean(once.lanes, once.requests),
        unit=access.unit,
        requests=once.requests,
        sectors=None,
        ideal_sectors=None,
        lines=None,
        l2_sectors=None,
        bytes=_mean(once.bytes, once.requests),
        efficiency=None,
        wavefronts=_mean(once.wavefronts, once.requests),
        ideal_wavefronts=_mean(once.ideal_wavefronts, once.requests),
        conflicts=_mean(once.conflicts, once.requests),
        good=free,
        verdict="conflict-free" if free else f"{found.ways}-way conflict",
        why=why,
        limit="",
        mend="" if free else access.mend,
        interior_tiles=None,
        edge_tiles=None,
        edge_sectors=None,
        edge_efficiency=None,
        launch=LaunchTotals(
            requests=launch.requests,
            off=launch.off,
            lanes=launch.lanes,
            bytes=launch.bytes,
            wavefronts=launch.wavefronts,
            ideal_wavefronts=launch.ideal_wavefronts,
            conflicts=launch.conflicts,
            counted_wavefronts=launch.counted_wavefronts,
            counted_conflicts=launch.counted_conflicts,
        ),
    )


def _tma_row(access: TmaAccess) -> AccessRow:
    found = tma.analyze(access)
    judged, edge, launch = found.judged, found.edge, found.launch
    good = found.legal and found.coalesced
    verdict = "coalesced" if found.coalesced else "not coalesced"
    return AccessRow(
        operand=access.operand,
        space="global",
        direction=access.direction,
        instruction=TMA,
        part=access.part,
        bits=0,
        lanes=0,
        unit=access.unit,
        requests=found.tile.requests,
        sectors=_mean(judged.l2_sectors, judged.requests),
        ideal_sectors=_mean(judged.ideal_sectors, judged.requests),
        lines=_mean(judged.lines, judged.requests),
        l2_sectors=_mean(judged.l2_sectors, judged.requests),
        bytes=_mean(judged.bytes, judged.requests),
        efficiency=found.efficiency,
        wavefronts=None,
        ideal_wavefronts=None,
        conflicts=None,
        good=good,
        verdict=verdict if found.legal else "illegal",
        why="",
        limit="",
        mend="" if good else access.mend,
        interior_tiles=found.interior.tiles,
        edge_tiles=edge.tiles,
        edge_sectors=_mean(edge.l2_sectors, edge.requests) if edge.tiles else None,
        edge_efficiency=edge.efficiency if edge.tiles else None,
        launch=LaunchTotals(
            requests=launch.requests,
            off=0,
            lanes=0,
            bytes=(found.interior.bytes + edge.bytes) * access.sweeps,
            sectors=launch.sectors,
            ideal_sectors=launch.ideal_sectors,
            lines=launch.lines,
            l2_sectors=launch.l2_sectors,
        ),
        notes=found.findings,
    )


def make_row(access: Access) -> AccessRow:
    """Evaluate one access with the model of its memory space."""
    if isinstance(access, GlobalAccess):
        return _global_row(access)
    return _tma_row(access) if isinstance(access, TmaAccess) else _shared_row(access)


def findings(rows: Iterable[AccessRow]) -> tuple[str, ...]:
    """One plain sentence per thing worth knowing."""
    found: list[str] = []
    for row in rows:
        kind = f"{row.operand}: {row.instruction}" + (f" of {row.bits} bits" if row.bits else "")
        what = f"{kind} ({row.part})" if row.part else kind
        mend = f" Mend: {row.mend.rstrip('.')}." if row.mend else ""
        if row.space == "shared":
            if not row.good:
                found.append(f"{what} has bank conflicts ({row.verdict}): {row.why}.{mend}")
        elif row.instruction == TMA:
            found += [f"{note}{mend}" for note in row.notes]
        else:
            found += _global_findings(row, what, mend)
            if row.limit and row.bits < 128:
                found.append(f"{kind}, not 128: {row.limit.rstrip('.')}.")
        found += _edge_findings(row, what)
    return tuple(dict.fromkeys(found))


def _global_findings(row: AccessRow, what: str, mend: str) -> list[str]:
    if row.verdict == MISALIGNED:
        return [f"{what} would fault: {row.why}.{mend}"]
    if row.good or row.at_edges:
        return []
    used = "fetched are used" if row.direction == "load" else "touched are written"
    more = f" ({number(row.l2_sectors)} of L2)" if row.l2_sectors != row.sectors else ""
    return [
        f"{what} is not coalesced: {number(row.sectors)} sectors per request{more} where "
        f"{number(row.ideal_sectors)} would do, {percent(row.efficiency)} of the bytes "
        f"{used}; {row.why}.{mend}"
    ]


def _edge_findings(row: AccessRow, what: str) -> list[str]:
    """What is to be said of edge tiles, when they are worse than the verdict."""
    if not row.edge_tiles or row.edge_efficiency is None or row.efficiency is None:
        return []
    there = f"{percent(row.edge_efficiency)} efficiency there."
    if row.at_edges:
        return [] if row.good else [f"{what}: all its tiles are at an edge, with {there}"]
    if not row.interior_tiles:
        return [f"{what}: the matrix fills no tile, so its figures are of edge tiles."]
    if not row.good or row.edge_efficiency >= row.efficiency:
        return []
    tiles = row.interior_tiles + row.edge_tiles
    return [f"{what}: {row.edge_tiles:,} of {tiles:,} tiles are at an edge, with {there}"]


def number(value: float | None) -> str:
    """Return an integer as one, another number with one decimal, None as a dash.

    Examples
    --------
    >>> number(16.0), number(2.94), number(None), number(1234567)
    ('16', '2.9', '-', '1,234,567')
    >>> number(2**60)
    '1.1529e+18'
    """
    if value is None:
        return "-"
    if value >= 1e13:  # wider than a column of the tables; to_dict() has every digit
        return f"{value:.4e}"
    return f"{int(value):,}" if value == int(value) else f"{value:,.1f}"


def percent(fraction: float | None) -> str:
    """Return a fraction in percent with one decimal, 100 without; never rounded up to 100."""
    if fraction is None:
        return "-"
    return "100 %" if fraction == 1 else f"{min(fraction * 100, 99.9):.1f} %"
