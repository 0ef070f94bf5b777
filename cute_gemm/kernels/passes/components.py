"""The pass that copies float32 operands as three components of bfloat16 each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess
from cute_gemm.arch import Arch
from cute_gemm.dtypes import COMPONENT, COMPONENTS, DTYPES
from cute_gemm.kernels.base import Compiled
from cute_gemm.kernels.config import Config
from cute_gemm.kernels.options import access_bytes
from cute_gemm.kernels.passes.seconds import seconds
from cute_gemm.toolchain.signature import Launch, Numbers, Pointer, Signature
from cute_gemm.toolchain.unit import TranslationUnit

if TYPE_CHECKING:
    from cute_gemm.cost_model.calibration import Constants
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.parts.packing import Packing

#: Warps of a CTA, rows of a warp, and lanes, which have a vector of each row.
WARPS, ROWS, LANES = 8, 4, 32


@dataclass(frozen=True)
class ComponentsConfig(Config):
    """How many elements of A and of B are loaded at a time; 0: none are copied."""

    A: int
    B: int
    dependent: bool = False  #: Whether launches of the arch may start before the one ahead ends.

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        return f"components_v{self.A}_v{self.B}"


def _vector(source: Matrix) -> int:
    return access_bytes(source, True)[0] // source.element.bytes


def _place(source: Matrix, target: Matrix) -> tuple[int, int, int, int, int]:
    """Return elements of a row, rows, tiles along a row, tiles of a matrix, and matrices."""
    extent, rows = source.shape[source.unit], source.shape[1 - source.unit]
    along = -(-extent // (LANES * _vector(source)))
    tiles = along * -(-rows // (WARPS * ROWS))
    return extent, rows, along, tiles, 1 if target.batch_stride == 0 else source.l


def _numbers(name: str) -> Any:
    def numbers(packing: Packing) -> tuple[int, ...]:
        for source, target, offset in packing.copies:
            if source.name == name:
                strides = source.ld, source.batch_stride, target.ld, target.batch_stride
                return *strides, target.slice_stride, offset, *_place(source, target)
        return (0,) * 11

    return numbers


class Components(Compiled):
    """The kernel that makes components of A, B or both: a CTA copies a tile of one of them."""

    name = "components"
    _signature = Signature(
        (
            Pointer("A", "void const*"),
            Pointer("B", "void const*"),
            Pointer("scratch", "void*"),
            *(
                Numbers(
                    name.lower(), "cute_gemm::ComponentsOperand", 72, "=6q3I2i4x", _numbers(name)
                )
                for name in "AB"
            ),
        )
    )

    def signature(self, config: ComponentsConfig) -> Signature:
        """Return the parameters of its entry."""
        return self._signature

    def configure(self, packing: Packing, arch: str = "sm_80") -> ComponentsConfig:
        """Return the config, which follows from how the operands lie, and from the arch."""
        vectors = {source.name: _vector(source) for source in packing.sources}
        dependent = Arch(arch).has("griddepcontrol")
        return ComponentsConfig(vectors.get("A", 0), vectors.get("B", 0), dependent)

    def unit(self, config: ComponentsConfig) -> TranslationUnit:
        source = f"""\
// Components of A, {config.A} elements at a time, and of B, {config.B}
#include "passes/components.cuh"

struct Config {{
  using A = cute_gemm::CopyComponents<{config.A}>;
  using B = cute_gemm::CopyComponents<{config.B}>;
}};

extern "C" __global__ void __launch_bounds__({LANES * WARPS})
{config.name}(
    {self._signature.cpp("")}) {{
  cute_gemm::components<Config>(A, B, scratch, a, b);
}}
"""
        return TranslationUnit(source, config.name)

    def launch(self, config: ComponentsConfig, packing: Packing) -> Launch:
        places = [_place(source, target) for source, target, _ in packing.copies]
        tiles, matrices = sum(place[3] for place in places), max(place[4] for place in places)
        return Launch(tiles, LANES * WARPS, 0, matrices, dependent=config.dependent)

    def accesses(
        self, config: ComponentsConfig, packing: Packing, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        accesses: list[Access] = []
        for source, target, _ in packing.copies:
            accesses += _accesses(source, target)
        return tuple(accesses)

    def seconds(self, packing: Packing, gpu: Gpu, constants: Constants) -> float:
        """Return the predicted time."""
        moved = sum(matrix.nbytes for matrix in (*packing.sources, *packing.targets))
        narrow = any(_vector(source) == 1 for source in packing.sources)
        return float(seconds(moved, gpu, constants, constants.ahead_us, narrow))


def _accesses(source: Matrix, target: Matrix) -> tuple[GlobalAccess, GlobalAccess]:
    """Return the load of an operand, and the store of its components."""
    unit, vector = source.unit, _vector(source)
    if target.batch_stride == 0:  # the batch shares one matrix, or there is no batch
        source = replace(source, l=1, batch_stride=0)
        target = replace(target, l=COMPONENTS)
    warp, row, lane = np.ogrid[:WARPS, :ROWS, :LANES]
    pair = np.broadcast_arrays(lane * vector, warp * ROWS + row)
    coords = np.stack(pair if unit == 0 else pair[::-1], axis=-1).reshape(-1, LANES, 2)
    tile = LANES * vector, WARPS * ROWS
    width, limit = access_bytes(source, True)
    load = GlobalAccess(
        operand=source.name, direction="load", instruction="ld.global", bits=8 * width,
        matrix=source, tile=tile if unit == 0 else tile[::-1], coords=coords, axis=unit, sweeps=1,
        tail="full", limit=limit, unit="CTA",
    )  # fmt: skip
    store = replace(
        load, operand="scratch", direction="store", instruction="st.global", matrix=target,
        bits=8 * vector * DTYPES[COMPONENT].bytes, part=source.name,
    )  # fmt: skip
    return load, store
