"""What of a kernel's own options would fix accesses that no other copy does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cute_gemm.access import Access, GlobalAccess
from cute_gemm.analysis.fixes.gmem import global_fix
from cute_gemm.analysis.rows import MISALIGNED, AccessRow, make_row
from cute_gemm.model import gmem

#: Yields other values of options, each with the accesses that the kernel then has.
Others = Callable[[], Iterable[tuple[dict[str, Any], Iterable[Access]]]]


def with_options(rows: Sequence[AccessRow], others: Others) -> tuple[AccessRow, ...]:
    """The rows, those of bad global accesses with the options that fix them before other fixes.

    An option is offered where the whole launch has fewer sectors then, no more wavefronts, and all
    accesses of that operand and direction are coalesced, with no more bytes in vain.
    """
    bad = [row for row in rows if row.space == "global" and not row.good]
    if not bad:
        return tuple(rows)
    now = _paid(rows)
    found: dict[int, list[Any]] = {id(row): [] for row in bad}
    for change, accesses in others():
        new = [make_row(access) for access in accesses]
        paid = _paid(new)
        faults = any(row.verdict == MISALIGNED for row in new)
        if faults or paid[0] >= now[0] or paid[1] > now[1]:
            continue
        what = ", ".join(f"{name}={value!r}".replace("'", '"') for name, value in change.items())
        for row in bad:
            same = [one for one in new if _kind(one) == _kind(row)]
            if not same or not all(one.good for one in same):
                continue
            then = next((one for one in same if one.part == row.part), same[0])
            if (then.efficiency or 0) < (row.efficiency or 0):
                continue
            access, counts = then.access, then.found
            if isinstance(access, GlobalAccess) and isinstance(counts, gmem.GlobalAnalysis):
                found[id(row)].append(replace(global_fix(what, access, counts), change=change))
    return tuple(replace(row, fixes=(*found.get(id(row), ()), *row.fixes)) for row in rows)


def _kind(row: AccessRow) -> tuple[str, str, str]:
    return row.operand, row.direction, row.space


def _paid(rows: Iterable[AccessRow]) -> tuple[int, int]:
    """Sectors of L1 and L2, and wavefronts, of the whole launch."""
    totals = [row.launch for row in rows]
    sectors = sum((one.sectors or 0) + (one.l2_sectors or 0) for one in totals)
    return sectors, sum(one.wavefronts or 0 for one in totals)
