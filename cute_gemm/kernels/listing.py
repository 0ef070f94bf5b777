"""The list of kernels, for users."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cute_gemm.kernels import registry


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The name of a kernel, and the types and options that it supports.

    Attributes
    ----------
    name
        The value of ``kernel=``.
    summary
        One line of text.
    minimum_cc
        The lowest compute capability, as an int: 80.
    dtypes
        The element types. ``"float32/tf32"`` is float32 with ``compute="tf32"``.
    options
        The keyword arguments of `cute_gemm.gemm` that set a field of the kernel's config.
    values
        The values of each option, in words: ``{"copy": "auto | mn_major", ...}``.
    runs_on
        ``"gpu"``, ``"cpu"`` for a loop on the host, or ``"library"`` for the GEMM of another
        library. Kernels of the last two kinds have no source, build or report.
    """

    name: str
    summary: str
    minimum_cc: int
    dtypes: tuple[str, ...]
    options: tuple[str, ...]
    runs_on: Literal["gpu", "cpu", "library"] = "gpu"
    values: dict[str, str] = field(default_factory=dict, hash=False)


def kernels() -> list[KernelInfo]:
    """Return the kernels of this package, in the order of the ladder.

    Returns
    -------
    list
        A `cute_gemm.KernelInfo` for each kernel.

    Examples
    --------
    >>> wgmma = next(kernel for kernel in kernels() if kernel.name == "sm90_wgmma")
    >>> wgmma.minimum_cc, wgmma.runs_on, "cluster" in wgmma.options
    (90, 'gpu', True)
    """
    return [
        KernelInfo(k.name, k.summary, k.minimum_cc, k.dtypes, k.options, k.runs_on, k.values())
        for k in map(registry.get, registry.names())
    ]
