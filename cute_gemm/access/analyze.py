"""The cost of any access, by the model of its memory space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cute_gemm.access import gmem, smem, tma
from cute_gemm.access.accesses import GlobalAccess, SharedAccess

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Access

#: What is found about an access; ``launch`` of each is what the whole launch does with it.
Analysis = gmem.GlobalAnalysis | smem.SharedAnalysis | tma.TmaAnalysis


def analyze(access: Access) -> Analysis:
    """Count what an access costs; ValueError when it does not describe an instruction."""
    if isinstance(access, GlobalAccess):
        return gmem.analyze(access)
    return smem.analyze(access) if isinstance(access, SharedAccess) else tma.analyze(access)
