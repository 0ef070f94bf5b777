"""A user's bulk tensor copy (TMA): its tensor, box and layout in shared memory."""

from __future__ import annotations

from typing import Any

from cute_gemm.access import tma
from cute_gemm.access.accesses import TmaAccess
from cute_gemm.copies.arguments import begun, read_let, read_tensor, tensor_alignment
from cute_gemm.copies.atoms import AtomName
from cute_gemm.copies.elements import element
from cute_gemm.copies.packed import Packing
from cute_gemm.copies.partition import extents_of
from cute_gemm.cute.layout import Layout
from cute_gemm.cute.notation import as_printed, parse
from cute_gemm.errors import OptionError
from cute_gemm.fixes.tiles import OF_SIZE, plain_strides
from cute_gemm.problem.matrix import Matrix


def bulk_access(
    name: AtomName, tensor: Any, tile: Any, smem: Any, dtype: Any, base_alignment: int | None,
    let: Any, matrix: Any,
) -> tuple[TmaAccess, Packing | None]:  # fmt: skip
    """Return the access that copies every box of a tensor once, in bytes if elements share bytes.

    Raise OptionError for arguments that TMA does not support.
    """
    kind, bits = element(dtype)
    size = max(1, bits // 8)
    if size > 8:
        raise OptionError(f"atom {name.text!r} moves elements of 1 to 8 bytes; {kind} has {size}")
    if bits == 6:
        raise OptionError(
            f"atom {name.text!r} stores each {kind} in a separate byte of shared memory; "
            "expected a type of 4 bits or of whole bytes"
        )
    values = read_let(let)
    if matrix is not None and (whole := parse(matrix, values)).leaves[0][1] != 1:
        raise OptionError(
            f"matrix {whole} has no unit stride in mode 0, which is a tensor map's first "
            "coordinate; expected its modes in the order of the map, (4096,4096):(1,4096)"
        )
    printed, start = read_tensor(tensor, matrix, values)
    layout = printed.layout
    packing = Packing.of(kind, bits, layout)
    layout = packing.layout("tensor", layout) if packing else layout
    stride = plain_strides(layout)
    if not stride:
        raise OptionError(
            f"tensor {layout} has no tensor map here; expected the whole tensor in two "
            "plain modes, one of stride 1"
        )
    if tile is None and matrix is not None:
        tile = printed.layout.extents
    if tile is None:
        raise OptionError(f"tile is missing; expected the box of atom {name.text!r}: (128, 64)")
    alignment = tensor_alignment("tensor", printed, "global", kind, size, base_alignment)
    first = begun(alignment, start, bits)
    if first < min(alignment, tma.ALIGNMENT):
        raise OptionError(
            f"tensor begins at element {start} of the matrix; expected coordinates of a "
            f"multiple of {tma.ALIGNMENT} bytes"
        )
    extents = layout.extents[0], layout.extents[1]
    place = Matrix("tensor", extents, (stride[0], stride[1]), OF_SIZE[size], first)
    target = None if smem is None else as_printed(smem, values).layout
    box = extents_of(tile)
    if packing:
        box = packing.extents("tile", box)
        target = target and packing.layout("smem", target)
    access = TmaAccess("tensor", name.direction or "load", place, box, 1, _span(target, size))
    layout = tma.shared_layout(access)
    if target is not None and (
        target.extents != layout.extents or (target.table() != layout.table()).any()
    ):
        raise OptionError(
            f"smem {target} is not the layout of a box of {box} by atom {name.text!r}; expected "
            f"{layout}"
        )
    return access, packing


def _span(layout: Layout | None, size: int) -> int:
    """Return the bytes of the swizzle's span in a layout of elements."""
    if layout is None or layout.swizzle is None:
        return 0
    swizzle = layout.swizzle
    span = tma.ALIGNMENT << swizzle.bits
    if swizzle.shift != 3 or size << swizzle.base != tma.ALIGNMENT or span not in tma.SPANS:
        base = (tma.ALIGNMENT // size).bit_length() - 1
        known = [f"Sw<{bits},{base},3>" for bits in (1, 2, 3)]
        near = known[min(swizzle.bits, 3) - 1 :][:1] if swizzle.bits else known
        raise OptionError(
            f"smem {layout} has a swizzle that TMA does not have; write {' or '.join(near)} for "
            f"{size}-byte elements"
        )
    return span
