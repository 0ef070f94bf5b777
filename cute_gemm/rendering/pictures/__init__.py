"""SVG pictures: thread-value layouts, swizzles, and the sectors and banks of a request."""

from cute_gemm.rendering.pictures.accesses import (
    access_picture,
    access_title,
    worst,
    worst_banks,
    worst_request,
)
from cute_gemm.rendering.pictures.requests import banks, request, spans
from cute_gemm.rendering.pictures.tiles import shared_layout, tv_layout

__all__ = [
    "access_picture", "access_title", "banks", "request",
    "shared_layout", "spans", "tv_layout", "worst", "worst_banks", "worst_request",
]  # fmt: skip
