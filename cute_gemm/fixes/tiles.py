"""Accesses of a tiled copy of one tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.access.accesses import Direction, GlobalAccess, SharedAccess
from cute_gemm.cute import choose
from cute_gemm.cute.copies import LANES, TiledCopy, contiguous
from cute_gemm.problem.matrix import Matrix

if TYPE_CHECKING:
    from cute_gemm.cute.layout import Layout

#: A type of each size: the cost of a copy depends on the size alone.
OF_SIZE = {1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}


def plain_strides(layout: Layout) -> tuple[int, ...]:
    """Return the strides of a layout of two plain modes, one of stride 1; () for others."""
    if layout.swizzle is not None or layout.rank != 2:
        return ()
    given: Any = layout.stride
    merged: Any = layout.coalesced().stride  # (0 for a mode of one element)
    stride = tuple(a if isinstance(a, int) else b for a, b in zip(given, merged, strict=True))
    return stride if 1 in stride and {*map(type, stride)} == {int} else ()


def global_access(
    copy: TiledCopy, layout: Layout, direction: Direction, size: int, alignment: int,
    extents: tuple[int, int] | None = None,
) -> GlobalAccess:  # fmt: skip
    """Return the copy of one tile of a tensor in global memory.

    ``alignment``: alignment of element (0, 0) in bytes. Memory is described as one run of elements,
    in which a coordinate is an offset. With ``extents``, return the copy of every tile of a matrix
    of these extents, whose modes are the tile's.
    """
    if extents is not None:
        rows, columns = plain_strides(layout)
        matrix = Matrix("tensor", extents, (rows, columns), OF_SIZE[size], alignment)
        tile, coords = (layout.extents[0], layout.extents[1]), copy.requests(layout.extents)
    else:
        first = copy.offsets(layout)[..., 0]
        count = int(first.max()) + copy.values
        matrix = Matrix("tensor", (count, 1), (1, count), OF_SIZE[size], alignment)
        tile, coords = matrix.shape, np.stack([first, np.where(first < 0, -1, 0)], axis=-1)
    return GlobalAccess(
        operand="tensor", direction=direction, instruction=copy.atom.name, bits=copy.bits,
        matrix=matrix, tile=tile, axis=0 if extents is None else matrix.unit, sweeps=1, unit="CTA",
        coords=coords,
    )  # fmt: skip


def shared_access(copy: TiledCopy, layout: Layout, direction: Direction) -> SharedAccess:
    """Return the copy of one tile in shared memory."""
    return SharedAccess(
        operand="tensor", direction=direction, instruction=copy.atom.name, bits=copy.bits,
        offsets=copy.vector_offsets(layout), executions=1, unit="CTA", layout=layout,
        coords=copy.requests(layout.extents), element_bits=copy.element_bits,
    )  # fmt: skip


class Partner(NamedTuple):
    """An assumed access that loads from or stores to a tile in shared memory."""

    copy: TiledCopy
    direction: Direction

    def access(self, layout: Layout) -> SharedAccess | None:
        """Return its access of a tile in ``layout``; None if it does not fit."""
        if not self.copy.covers(layout.extents) or not contiguous(self.copy.offsets(layout)):
            return None
        return shared_access(self.copy, layout, self.direction)


def assumed_partner(layout: Layout, size: int, known: Direction, threads: int) -> Partner | None:
    """Return the ldmatrix that reads a stored tile, or the 16-byte stores before ldmatrix.

    ``known`` is the direction of the known accesses. Return None if no such copy fits.
    """
    axis = choose.contiguous_axis(layout)
    if axis is None:
        return None
    if known == "store":
        atom = choose.reader(size, axis)
        load = choose.matrix_copy(atom, size, layout.extents, axis) if atom.destination else None
        return Partner(load, "load") if load else None
    width = choose.VECTOR // size
    for count in (threads, LANES):
        store = choose.vector_copy("cp.async", size, layout.extents, axis, width, count)
        if store.covers(layout.extents):
            return Partner(store, "store")
    return None
