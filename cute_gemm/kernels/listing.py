"""The public list of kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cute_gemm.kernels import registry


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """Name, description and supported types and options of a kernel.

    Attributes
    ----------
    name, summary
        The value of ``kernel=``; a one-line description.
    minimum_cc
        Lowest compute capability, as an int: 80.
    dtypes
        Element types; ``"float32/tf32"`` is float32 with ``compute="tf32"``.
    options
        Keyword arguments of `gemm` that set a field of the kernel's config.
    values
        The values of each option, in words: ``{"copy": "auto | mn_major", ...}``.
    runs_on
        ``"gpu"``; ``"cpu"`` for a loop on the host, ``"library"`` for another library's GEMM. The
        last two have no source, build or report.
    """

    name: str
    summary: str
    minimum_cc: int
    dtypes: tuple[str, ...]
    options: tuple[str, ...]
    runs_on: Literal["gpu", "cpu", "library"] = "gpu"
    values: dict[str, str] = field(default_factory=dict, hash=False)


def kernels() -> list[KernelInfo]:
    """Return the kernels."""
    return [
        KernelInfo(k.name, k.summary, k.minimum_cc, k.dtypes, k.options, k.runs_on, k.values())
        for k in map(registry.get, registry.names())
    ]
