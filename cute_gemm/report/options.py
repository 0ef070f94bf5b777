"""Options of a kernel that fix accesses for which no other copy is a fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cute_gemm.access.accesses import Access, GlobalAccess
from cute_gemm.access.fix import Fix
from cute_gemm.fixes.search import fix_to
from cute_gemm.rendering.rows import MISALIGNED, AccessRow, make_row

#: Yields other values of options, each with the resulting accesses.
Others = Callable[[], Iterable[tuple[dict[str, Any], Iterable[Access]]]]


def with_options(rows: Sequence[AccessRow], others: Others) -> tuple[AccessRow, ...]:
    """Return the rows; bad global accesses have fixing options before other fixes.

    An option is suggested if the whole launch has fewer sectors and no more wavefronts, and all
    accesses of that operand and direction are coalesced with no more unused bytes.
    """
    bad = [row for row in rows if row.space == "global" and not row.good]
    fixes: dict[int, list[Fix]] = {id(row): [] for row in bad}
    sectors, wavefronts = _cost(rows)
    for change, accesses in others() if bad else ():
        new = [make_row(access) for access in accesses]
        new_sectors, new_wavefronts = _cost(new)
        faults = any(row.verdict == MISALIGNED for row in new)
        if faults or new_sectors >= sectors or new_wavefronts > wavefronts:
            continue
        what = ", ".join(f"{name}={value!r}".replace("'", '"') for name, value in change.items())
        for row in bad:
            same = [x for x in new if _kind(x) == _kind(row)]
            if not same or not all(x.good for x in same):
                continue
            then = next((x for x in same if x.part == row.part), same[0])
            if isinstance(then.access, GlobalAccess) and (then.efficiency or 0) >= (
                row.efficiency or 0
            ):
                fixes[id(row)].append(fix_to(what, then, change=change))
    return tuple(replace(row, fixes=(*fixes.get(id(row), ()), *row.fixes)) for row in rows)


def _kind(row: AccessRow) -> tuple[str, str, str]:
    return row.operand, row.direction, row.space


def _cost(rows: Iterable[AccessRow]) -> tuple[int, int]:
    """Sum sectors of L1 and L2, and wavefronts, over the launch."""
    totals = [row.launch for row in rows]
    sectors = sum((x.sectors or 0) + (x.l2_sectors or 0) for x in totals)
    return sectors, sum(x.wavefronts or 0 for x in totals)
