"""Pictures as SVG: thread-value layouts, swizzles, the sectors and the banks of a request."""

from cute_gemm.analysis.pictures.accesses import (
    access_picture,
    access_title,
    worst,
    worst_banks,
    worst_request,
)
from cute_gemm.analysis.pictures.requests import banks, request, spans
from cute_gemm.analysis.pictures.tiles import shared_layout, tv_layout

__all__ = [
    "access_picture", "access_title", "banks", "request", "shared_layout", "spans", "tv_layout",
    "worst", "worst_banks", "worst_request",
]  # fmt: skip
