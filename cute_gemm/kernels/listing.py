"""What kernels there are, as users are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cute_gemm.kernels import registry


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What a kernel is called, what it is, and what it takes.

    Attributes
    ----------
    name, summary
        The value of ``kernel=``; one line.
    minimum_cc
        Lowest compute capability, as an int: 80.
    dtypes
        Element types; ``"float32/tf32"`` is float32 with ``compute="tf32"``.
    options
        Keyword arguments of `gemm` that set a field of the kernel's config.
    values
        What each option takes, in words: ``{"copy": "auto | mn_major", ...}``.
    runs_on
        ``"gpu"``; ``"cpu"`` for a loop on the host, ``"library"`` for another library's GEMM: of
        these two nothing is emitted, compiled or reported.
    """

    name: str
    summary: str
    minimum_cc: int
    dtypes: tuple[str, ...]
    options: tuple[str, ...]
    runs_on: Literal["gpu", "cpu", "library"] = "gpu"
    values: dict[str, str] = field(default_factory=dict, hash=False)


def kernels() -> list[KernelInfo]:
    """Return what kernels there are."""
    return [
        KernelInfo(k.name, k.summary, k.minimum_cc, k.dtypes, k.options, k.runs_on, k.values())
        for k in map(registry.get, registry.names())
    ]
