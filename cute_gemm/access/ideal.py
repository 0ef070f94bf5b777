"""Counts of ideal accesses, with which the cost of the present ones is compared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.access.gmem import LINE
from cute_gemm.access.smem import SharedCounts

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Access

#: Bytes of a request with 16 bytes per lane.
REQUEST = 512


class Kind(NamedTuple):
    """What accesses of one instruction to one operand have in common, for all extents."""

    operand: str
    direction: str
    space: str  #: ``"global"`` or ``"shared"``.
    instruction: str


def kind_of(access: Access) -> Kind:
    """Return the kind of an access."""
    return Kind(access.operand, access.direction, access.space, access.instruction)


def ideal_counts(counts: Any) -> Any:
    """Return the counts of the same bytes in ideal requests.

    In global memory these have the ideal sectors, no partly touched lines and 16 bytes per lane, in
    shared memory the ideal wavefronts.
    """
    if isinstance(counts, SharedCounts):
        return replace(counts, wavefronts=counts.ideal_wavefronts)
    ideal = counts.ideal_sectors
    lines, requests = -(-counts.bytes // LINE), -(-counts.bytes // REQUEST)
    return replace(
        counts, sectors=ideal, l2_sectors=min(counts.l2_sectors, ideal),
        lines=min(counts.lines, lines), requests=min(counts.requests, requests),
    )  # fmt: skip
