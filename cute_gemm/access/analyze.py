"""Cost of any access, by the model of its memory space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cute_gemm.access import gmem, smem, tma
from cute_gemm.access.accesses import GlobalAccess, SharedAccess

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Access

#: Analysis of an access; ``launch`` has the counts of the whole launch.
Analysis = gmem.GlobalAnalysis | smem.SharedAnalysis | tma.TmaAnalysis


def analyze(access: Access) -> Analysis:
    """Count the cost of an access; ValueError if it does not describe an instruction."""
    if isinstance(access, GlobalAccess):
        return gmem.analyze(access)
    return smem.analyze(access) if isinstance(access, SharedAccess) else tma.analyze(access)
