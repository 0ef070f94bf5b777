"""Pictures of accesses: the worst request of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.access import gmem, smem
from cute_gemm.access.accesses import Access, GlobalAccess, SharedAccess, is_bulk
from cute_gemm.rendering.pictures.requests import banks, request


def worst_request(access: GlobalAccess) -> tuple[int, np.ndarray, np.ndarray] | None:
    """Return the request of the first tile with most sectors above its ideal; None without lanes.

    The result is its number and two int64 [32]: bytes from the start of the matrix, -1 for inactive
    lanes, and lengths.
    """
    axis, region, matrix = access.axis, access.region, access.matrix
    corner = [0, 0]
    if access.tail == "elements" and region[axis]:
        # Vectors straddle the end of a row in its last tile only.
        corner[axis] = (region[axis] - 1) // access.tile[axis] * access.tile[axis]
    rows, columns = (min(access.tile[mode], region[mode] - corner[mode]) for mode in (0, 1))
    starts, lengths = access.lanes((rows, columns))
    active = lengths > 0
    if not active.any():
        return None
    first = np.dot(np.add(access.origin, corner), matrix.stride) * matrix.element.bytes
    starts = np.where(active, starts + first, -1)
    # Lanes without work repeat an active one, which does not change counts.
    lanes = np.where(active, np.arange(gmem.LANES), active.argmax(axis=-1)[:, None])
    order = np.argsort(np.take_along_axis(starts, lanes, -1), axis=-1, kind="stable")
    lanes = np.take_along_axis(lanes, order, -1)
    begin = np.take_along_axis(starts, lanes, -1) + gmem.base_residue(matrix)
    many = np.maximum(np.take_along_axis(lengths, lanes, -1), 1)
    ideal = -(-gmem.covered(begin, many, 1) // gmem.SECTOR)
    excess = np.where(active.any(axis=-1), gmem.covered(begin, many, gmem.SECTOR) - ideal, -1)
    worst = int(excess.argmax())
    return worst, starts[worst], lengths[worst]


def worst_banks(access: SharedAccess) -> tuple[int, np.ndarray] | None:
    """Return the request with most wavefronts above its ideal; None without lanes.

    The result is its number and int64 [32], byte offsets.
    """
    offsets = np.asarray(access.offsets, np.int64).reshape(-1, smem.LANES)
    some = (offsets >= 0).any(axis=-1)
    if not some.any():
        return None
    words = smem.phase_words(access.instruction, access.bits, offsets)
    wavefronts, distinct = smem.phase_wavefronts(words)
    excess = (wavefronts - -(-distinct // smem.BANKS)).sum(axis=-1)
    worst = int(np.where(some, excess, -1).argmax())
    return worst, offsets[worst]


def worst(access: Access) -> tuple[Any, ...] | None:
    """Return `worst_request` or `worst_banks`; None for bulk copies, which have no lanes."""
    if isinstance(access, GlobalAccess):
        return None if is_bulk(access.instruction) else worst_request(access)
    return worst_banks(access) if isinstance(access, SharedAccess) else None


def access_picture(access: Access, title: str = "") -> str | None:
    """Draw the worst request of an access; None for bulk copies, or without a request."""
    drawn = worst(access)
    if drawn is None:
        return None
    title = f"{title or access_title(access)}, request #{drawn[0]} of "
    if isinstance(access, GlobalAccess):
        title += str(len(access.coords) * (access.width if access.tail == "elements" else 1))
        return request(drawn[1], drawn[2], gmem.base_residue(access.matrix), title)
    assert isinstance(access, SharedAccess)
    title += str(np.asarray(access.offsets).size // smem.LANES)
    return banks(access.instruction, access.bits, drawn[1], title)


def access_title(access: Access) -> str:
    """Return a title: ``"A: cp.async of 128 bits, load from global memory (last k-tile)"``."""
    part = f" ({access.part})" if access.part else ""
    if not isinstance(access, GlobalAccess | SharedAccess):
        box = "x".join(map(str, access.box))
        return f"{access.operand}: TMA {access.direction} of boxes of {box}{part}"
    way = "load from" if access.direction == "load" else "store to"
    what = f"{access.instruction} of {access.bits} bits"
    return f"{access.operand}: {what}, {way} {access.space} memory{part}"
