"""A matrix as TMA is told of it, in plain numbers: what a tensor map says but for the address."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's modes, the unit-stride one first.

    ``extents`` in elements, ``steps`` of the other modes in bytes, ``box``: what a copy moves, in
    elements; ``swizzle``: bytes of the span in shared memory, 0 for none.
    """

    dtype: str
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
