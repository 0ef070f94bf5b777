"""Accesses of a user's copy, with the widest instruction that fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cute_gemm.access.accesses import GlobalAccess, SharedAccess
from cute_gemm.copies.arguments import Copy
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.copies import TiledCopy, contiguous
from cute_gemm.cute.layout import Layout
from cute_gemm.fixes.tiles import global_access, shared_access


def evaluated(copy: Copy) -> tuple[list[GlobalAccess | SharedAccess], TiledCopy]:
    """Return the accesses, with the limits of their width, and their tiled copy."""
    atom, bits = copy.atom, 8 * copy.size
    limit = ""
    if atom.kind == "bulk":
        return [_global(copy.tiled, copy)], copy.tiled
    if atom.matrix is not None:
        rows = replace(copy.tiled, atom=atom.matrix)
        limit = _matrix_limit(copy, rows)
        if not limit:
            return [_shared(rows, copy.layout, copy.direction, copy.alignment)], rows
    width = asked = atom.asked(copy.size)
    while True:
        if copy.tiled.partition.shape[1] % width == 0:
            tiled = replace(copy.tiled, atom=universal("", width * bits))
            if width == 1 or _fits(tiled, copy, width == asked and atom.bits is not None):
                break
        width //= 2
    if atom.matrix is None and width < asked and atom.bits is not None:
        limit = (
            f"{atom.text} needs {asked} contiguous, aligned {copy.units}, and a thread has only "
            f"{width}{_within(copy)}; the widest instruction that fits is evaluated"
        )
    elif atom.matrix is None and width * bits < 128:
        limit = _narrow(copy, width)
    name = atom.instruction(copy.space, copy.direction, width * bits)
    is_async = name == "cp.async"
    tiled = replace(tiled, atom=choose.copy_atom(name, width * bits))
    if copy.space == "shared":
        first = _shared(tiled, copy.layout, copy.direction, copy.alignment)
        return [replace(first, limit=limit)], tiled
    load = replace(_global(tiled, copy), limit=limit)
    if copy.smem is None:
        return [load], tiled
    side = choose.shared_side(tiled)
    store = replace(_shared(side, copy.smem, "store", copy.smem_alignment), limit=limit)
    if copy.extents is not None:  # elements that are not loaded are not stored
        zeros = is_async and atom.zero_fills
        store = replace(store, executions=0, guard=_global(side, copy), zero_fill=zeros)
    legal = not (store.offsets[store.offsets >= 0] % (store.bits // 8)).any()
    if is_async and legal:  # the cost of each side depends on the other
        load = replace(load, targets=store.offsets)
        store = replace(store, source=load) if store.guard is None else store
    return [load, store], tiled


def _global(tiled: TiledCopy, copy: Copy) -> GlobalAccess:
    """Return the access of the tensor by ``tiled``."""
    return global_access(
        tiled, copy.layout, copy.direction, copy.size, copy.alignment, copy.extents
    )


def _shared(tiled: TiledCopy, layout: Layout, direction: str, alignment: int) -> SharedAccess:
    """Return the access of a tile whose address is a multiple of ``alignment``, not of more."""
    access = shared_access(tiled, layout, direction)  # type: ignore[arg-type]
    if alignment >= choose.VECTOR:
        return access
    at = access.offsets
    return replace(access, offsets=np.where(at < 0, -1, at + alignment))


def _fits(tiled: TiledCopy, copy: Copy, misaligned: bool) -> bool:
    """Return whether vectors are contiguous and, unless they may be ``misaligned``, legal.

    (The model reports misaligned vectors of the width that the atom specifies.)
    """
    return _inside(tiled, copy) and all(
        contiguous(at := tiled.offsets(layout))
        and (misaligned or _aligned(at, alignment, copy.size))
        for layout, alignment in copy.sides
    )


def _inside(tiled: TiledCopy, copy: Copy) -> bool:
    """Return whether vectors run along the unit-stride mode, and none ends outside the matrix.

    Vectors of cp.async may, because it has a source size.
    """
    if copy.extents is None or tiled.values == 1:
        return True
    axis = copy.axis
    if (np.diff(tiled.elements(copy.layout.extents)[..., 1 - axis]) != 0).any():
        return False
    may_end = copy.atom.instruction(copy.space, copy.direction, tiled.bits) == "cp.async"
    return may_end or copy.extents[axis] % tiled.values == 0


def _within(copy: Copy) -> str:
    """Return the extent of the matrix if it limits vectors, else ""."""
    if copy.extents is None or copy.extents[copy.axis] % copy.atom.asked(copy.size) == 0:
        return ""
    of_bytes = " bytes" if copy.packing else ""
    return f", of the {copy.extents[copy.axis]}{of_bytes} in mode {copy.axis}"


def _aligned(at: np.ndarray, alignment: int, size: int) -> bool:
    """Return whether every lane's address is a multiple of the size of its vector."""
    first, width = at[..., 0], at.shape[-1]
    return alignment % (width * size) == 0 and not (first[first >= 0] % width).any()


def _matrix_limit(copy: Copy, rows: TiledCopy) -> str:
    """Return why an ldmatrix or stmatrix does not fit, or ""."""
    count, values = rows.bits // rows.element_bits, rows.partition.shape[1]
    what = f"plain {copy.direction}s are evaluated"
    if values % count:
        return f"{rows.atom.name} moves {count} values of a thread, and there are {values}; {what}"
    if not contiguous(rows.offsets(copy.layout)):
        return (
            f"{rows.atom.name} takes rows of 16 contiguous bytes, and the tensor does not have the "
            f"threads' values in such rows; {what}"
        )
    return ""


def _narrow(copy: Copy, width: int) -> str:
    """Return the limit of a vector of ``width`` elements, or "" if the atom sets its width."""
    if copy.atom.kind == "reduce":
        return ""  # it always has one element
    if copy.atom.bits is not None:
        return f"the atom is {copy.atom.text}"
    if 2 * width * copy.size * 8 > copy.atom.most:
        return f"{copy.atom.text} assumes an alignment of {copy.atom.most} bits"
    values = copy.tiled.partition.shape[1]
    if values % (2 * width):
        unit = "byte" if copy.packing else "value"
        return f"a thread has {values} {unit}{'s' if values > 1 else ''}"
    if copy.extents is not None and copy.extents[copy.axis] % (2 * width):
        return f"the matrix has {copy.extents[copy.axis]} {copy.units} in mode {copy.axis}"
    if copy.alignment < 2 * width * copy.size:
        return f"base address aligned to {copy.alignment} bytes"
    return f"only {width} of a thread's values at a time are contiguous and aligned"
