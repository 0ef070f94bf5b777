"""Pictures as SVG: thread-value layouts, swizzles, a request's sectors and banks, and times."""

from cute_gemm.analysis.pictures.accesses import (
    access_picture,
    access_title,
    worst,
    worst_banks,
    worst_request,
)
from cute_gemm.analysis.pictures.requests import banks, request, spans
from cute_gemm.analysis.pictures.tiles import shared_layout, tv_layout
from cute_gemm.analysis.pictures.times import price_terms, roofline

__all__ = [
    "access_picture", "access_title", "banks", "price_terms", "request", "roofline",
    "shared_layout", "spans", "tv_layout", "worst", "worst_banks", "worst_request",
]  # fmt: skip
