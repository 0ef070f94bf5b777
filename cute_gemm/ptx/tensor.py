"""A matrix for TMA in plain numbers: a tensor map without the address."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """The modes of a tensor, the unit-stride one first.

    ``extents`` in elements; ``steps`` of the other modes in bytes; ``box``: the elements of a copy;
    ``swizzle``: bytes of the span in shared memory, 0 for none.
    """

    dtype: str
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
