"""``Config``: what the configs of all kernels have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cute_gemm.problem.operation import Operation


class Config:
    """How a kernel computes: what generic code reads of every config.

    Subclasses are frozen dataclasses with keywords. They have a ``name``, the symbol of the entry,
    which says all that the code depends on. Of what has a value here, a kernel that chooses it has
    a field.
    """

    operation: Operation  #: What the kernel computes.
    tile: tuple[int, ...] = ()  #: (bM, bN, bK) of a CTA.
    cluster: tuple[int, int] = (1, 1)  #: CTAs of a cluster along M and N.
    min_ctas: int = 1  #: CTAs per multiprocessor that the register count leaves room for.
    products: int = 1  #: Products of a batch that a CTA has.
    thread_tile: tuple[int, ...] = ()  #: Results of a thread along M and N.
    tma_c: bool = False  #: Whether C is stored by TMA.


@dataclass(frozen=True, slots=True)
class NothingToChoose(Config):
    """The config of a kernel that has one: its name."""

    name: str
