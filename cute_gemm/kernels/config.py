"""``Config``: base class of the configs of all kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm.kernels.options import spelled

if TYPE_CHECKING:
    from cute_gemm.problem.operation import Operation


def symbol(*parts: Any) -> str:
    """Return a kernel's symbol: the parts that are not empty, with extents as ``128x64``."""
    return "_".join(filter(None, map(spelled, parts)))


class Config:
    """How a kernel computes: the fields that generic code reads.

    Subclasses are frozen dataclasses with keywords. Their ``name``, the symbol of the entry,
    encodes all that the code depends on. A subclass has a field for each value that its kernel can
    select.
    """

    operation: Operation  #: What the kernel computes.
    tile: tuple[int, ...] = ()  #: (bM, bN, bK) of a CTA.
    cluster: tuple[int, int] = (1, 1)  #: CTAs of a cluster along M and N.
    min_ctas: int = 1  #: CTAs per multiprocessor that the register count leaves room for.
    products: int = 1  #: Products of a batch that a CTA computes.
    thread_tile: tuple[int, ...] = ()  #: Results of a thread along M and N.
    tma_c: bool = False  #: Whether C is stored by TMA.


@dataclass(frozen=True, slots=True)
class NothingToChoose(Config):
    """The config of a kernel that has only one: its name."""

    name: str
