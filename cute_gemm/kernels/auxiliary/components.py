"""The packing kernel that copies float32 operands as three bfloat16 components each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cute_gemm.access.accesses import Access
from cute_gemm.dtypes import COMPONENT, COMPONENTS, DTYPES
from cute_gemm.kernels.auxiliary.packer import THREADS, Packer
from cute_gemm.kernels.options import access_bytes
from cute_gemm.kernels.staging import along_unit, load_of_rows

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.parts.packing import Packing

#: Warps of a CTA, rows of a warp, and lanes, each of which has a vector of each row.
WARPS, ROWS, LANES = THREADS // 32, 4, 32


class ComponentCopy(NamedTuple):
    """How one operand is copied."""

    vector: int = 0  #: Elements loaded at a time; 0: nothing is copied.

    def __str__(self) -> str:
        return f"v{self.vector}"

    @property
    def cpp(self) -> str:
        """The C++ type."""
        return f"cute_gemm::CopyComponents<{self.vector}>"


class ComponentTiling(NamedTuple):
    """Tiling of an operand: the fields of ``ComponentsOperand`` except strides."""

    extent: int  #: Elements of a row.
    rows: int
    along: int  #: Tiles along a row.
    tiles: int  #: Tiles of one matrix.
    matrices: int


def _vector(source: Matrix) -> int:
    return access_bytes(source, True)[0] // source.element.bytes


class Components(Packer):
    """The kernel that makes components of A, B or both: a CTA copies a tile of one of them."""

    name = "components"
    about = "Components of A, {A.vector} elements at a time, and of B, {B.vector}"
    form = ComponentCopy
    operand = "ComponentsOperand", "=6q3I2i4x"

    def copy(self, source: Matrix, target: Matrix) -> ComponentCopy:
        return ComponentCopy(_vector(source))

    def place(self, source: Matrix, target: Matrix) -> ComponentTiling:
        extent, rows = source.shape[source.unit], source.shape[1 - source.unit]
        along = -(-extent // (LANES * _vector(source)))
        tiles = along * -(-rows // (WARPS * ROWS))
        matrices = 1 if target.batch_stride == 0 else source.l
        return ComponentTiling(extent, rows, along, tiles, matrices)

    def numbers(self, source: Matrix, target: Matrix, offset: int) -> tuple[int, ...]:
        return target.slice_stride, offset, *self.place(source, target)

    def narrow(self, packing: Packing) -> bool:
        return any(_vector(source) == 1 for source in packing.sources)

    def copied(self, copy: ComponentCopy, source: Matrix, target: Matrix) -> Iterator[Access]:
        """Yield the load of an operand and the store of its components."""
        if target.batch_stride == 0:  # the batch shares one matrix, or there is no batch
            source = replace(source, l=1, batch_stride=0)
            target = replace(target, l=COMPONENTS)
        warp, row, lane = np.ogrid[:WARPS, :ROWS, :LANES]
        coords = along_unit(source, lane * copy.vector, warp * ROWS + row)
        width, limit = access_bytes(source, True)
        tile = LANES * copy.vector, WARPS * ROWS
        load = load_of_rows(source.name, 8 * width, source, tile, coords, tail="full", limit=limit)
        store = replace(
            load, operand="scratch", direction="store", instruction="st.global", matrix=target,
            bits=8 * copy.vector * DTYPES[COMPONENT].bytes, part=source.name,
        )  # fmt: skip
        yield load
        yield store
