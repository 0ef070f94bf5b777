"""Config of a kernel on mma.sync -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.cute.layout import from_map
from cute_gemm.dtypes import FLOAT8
from cute_gemm.toolchain.unit import (
    TYPES,
    Emitter,
    cpp_extents,
    cpp_shape,
    element_proofs,
    entry,
    layout_proofs,
    scale_arguments,
)

if TYPE_CHECKING:
    from cute_gemm.cute.copies import TiledCopy

_SM80_PIPELINE = (
    """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${types}, copy=${copy}
#include <${tiled_mma.atom.header}>
#include "sm80/${kernel}.cuh"

"""
    + TYPES
    + """\
  using Element = ElementA;  // B's have the same size
  using CtaTiler = ${kernel_tile};  // (bM,bN,bK)
  using Mma = ${tiled_mma.atom.cpp};
  enum : int { kThreads = ${threads}, kRasterGroup = ${raster} };
  enum : int { kStageA = ${operands.0.stage}, kStageB = ${operands.1.stage} };
  enum : bool { kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b} };
  enum : bool { kSwapAB = ${swap_ab} };
  enum : bool { kPromoted = ${operation.promoted} };
  enum : bool { kConjA = ${conj_a}, kConjB = ${conj_b} };

  using GmemCopyA = ${gmem_copy_a};
  using GmemCopyB = ${gmem_copy_b};
  using PlaceA = ${place_a};
  using PlaceB = ${place_b};
  using SmemLayoutA = ${operands.0.smem_layout};
  using SmemLayoutB = ${operands.1.smem_layout};
  using SmemCopyA = ${smem_copy_a};
  using SmemCopyB = ${smem_copy_b};
  using FragmentA = ${fragment_a};
  using FragmentB = ${fragment_b};
  using FragmentC = ${fragment_c};

  using EpilogueTile = ${staged.tile};
  using EpilogueLayout = ${staged.layout};
  using EpilogueStage = ${epilogue_stage};
  using EpilogueCopy = ${epilogue_copy};
};
"""
)

_CUTE = """
// The same by C++ CuTe: the copies and fragments of a tiled MMA, raked products, repeated atoms.
struct Cute : cute_gemm::Partitions<Config, ${tiled_mma}> {
  using GmemCopyA = ${gmem_product_a};
  using GmemCopyB = ${gmem_product_b};
  using PlaceA = ${place_product_a};
  using PlaceB = ${place_product_b};
  using EpilogueCopy = ${epilogue_product};
  using SmemLayoutA = ${smem_tiled_a};
  using SmemLayoutB = ${smem_tiled_b};
};
"""

#: The TV layouts that the kernel reads: of a copy by make_tiled_copy, and of one that follows the
#: MMA, whose instruction may pass values to other threads.
_TILED, _HELD = "TiledLayout_TV{}", "get_layoutS_TV()"

#: Bytes of shared memory of the kernel: the k tiles, then the staged accumulators in their place.
_SHARED_BYTES = (
    "cute::max(sizeof(Config::Element) * (size<2>(Config::SmemLayoutA{}) * Config::kStageA + "
    "size<2>(Config::SmemLayoutB{}) * Config::kStageB), sizeof(Config::Accumulator) * "
    "back(flatten(shape<1>(Config::EpilogueLayout{}))) * "
    "back(flatten(stride<1>(Config::EpilogueLayout{}))))"
)

#: The entry's arguments as the kernel takes them: a row-major C is a column-major C^T = B A^T.
_PLAIN, _SWAPPED = "A, B, C, m, n, k, lda, ldb, ldc", "B, A, C, n, m, k, ldb, lda, ldc"


#: Bytes that ptxas may spill in kernels that put rows in place, and in kernels that convert 8-bit
#: floats: values that the loop seldom reads.
_SPILLS, _SPILLS_OF_FLOAT8 = 64, 256


class EmitSm80Pipeline(Emitter):
    """Emitter of ``sm80_pipeline.cuh`` and ``tensor_core.cuh``."""

    template = _SM80_PIPELINE
    header = "sm80/proof.cuh"
    cute = _CUTE

    @property
    def spills(self) -> int:
        """Bytes that ptxas may spill: more if realigned or converted words need registers."""
        if self.config.operation.a.name in FLOAT8:
            return _SPILLS_OF_FLOAT8
        return _SPILLS if self.config.realigns else super().spills

    def values(self) -> dict[str, Any]:
        config, product = self.config, self.config.product
        mma, (rows, columns, _), staged = config.tiled_mma, config.kernel_tile, config.staged
        values = {
            "fragment_c": mma.fragment("C", (rows, columns)),
            "epilogue_stage": _copy(staged.write),
            "epilogue_copy": _copy(staged.read),
            "epilogue_product": _product("EpilogueCopy", "Accumulator", staged.read),
            "entry": entry(
                config,
                f"cute_gemm::{config.kernel}<Config>({_SWAPPED if config.swap_ab else _PLAIN},\n"
                f"      product, epilogue{{}}{scale_arguments(config.operation, config.swap_ab)});",
            ),
        }
        for letter, plan, conj in zip("AB", config.operands, product.conj, strict=True):
            lower, place, layout = letter.lower(), plan.place, plan.smem_layout
            tiled = cpp_shape((*plan.extents, config.ring))
            cute_layout = f"decltype(tile_to_shape({plan.smem_atom.cpp()}{{}}, {tiled}{{}}))"
            values |= {
                f"major_k_{lower}": plan.major == "K",
                f"conj_{lower}": conj,
                f"place_{lower}": place and _copy(place),
                f"place_product_{lower}": place and _product(f"Place{letter}", "Element", place),
                f"gmem_copy_{lower}": _copy(plan.gmem_copy),
                f"gmem_product_{lower}": _product(f"GmemCopy{letter}", "Element", plan.gmem_copy),
                f"smem_tiled_{lower}": layout if place else cute_layout,
                f"smem_copy_{lower}": _copy(plan.smem_copy),
                f"fragment_{lower}": mma.fragment(letter, plan.extents),
            }
        return values

    def facts(self) -> list[tuple[str, str]]:
        config, mma, staged = self.config, self.config.tiled_mma, self.config.staged
        threads, (a, b) = mma.size, config.operands
        facts = [
            (f"size(Cute::TiledMma{{}}) == {threads}", "threads"),
            *element_proofs(config),
            (cpp_extents("Config::CtaTiler{}", (a.extents[0], *b.extents)), "CtaTiler"),
            (f"{_SHARED_BYTES} == {config.smem}", "shared memory"),
            *layout_proofs("EpilogueLayout", staged.layout, staged.tile),
            *_copy_proofs("EpilogueStage", _HELD, staged.write, threads),
            *_copy_proofs("EpilogueCopy", _TILED, staged.read, threads),
        ]
        for letter, plan in zip("AB", config.operands, strict=True):
            name = f"SmemLayout{letter}"
            facts += [
                *_copy_proofs(f"GmemCopy{letter}", _TILED, plan.gmem_copy, threads),
                *_copy_proofs(f"SmemCopy{letter}", _HELD, plan.smem_copy, threads),
                (_same(f"{name}{{}}", f"Config::{name}"), name),
                *layout_proofs(name, plan.smem_layout, (*plan.extents, config.ring)),
                (f"Config::{name}{{}}(0, 0, 1) % Config::kStage{letter} == 0", f"{name}: stage"),
            ]
            if plan.place:
                facts += _copy_proofs(f"Place{letter}", _TILED, plan.place, threads)
        for letter, mode in zip("ABC", (0, 1, 0), strict=True):
            rows, columns = np.moveaxis(mma.partition(letter), -1, 0)
            held = from_map(rows + mma.extent(mode) * columns)
            facts += [
                (_same(f"TiledMma{{}}.get_layout{letter}_TV()", held.cpp()), f"TiledMma: {letter}"),
                (_same(f"Fragment{letter}{{}}", f"Config::Fragment{letter}"), f"Fragment{letter}"),
            ]
        return facts


def _copy_proofs(name: str, tv: str, copy: TiledCopy, threads: int) -> list[tuple[str, str]]:
    tile = (f"size<{mode}>(Cute::{name}::Tiler_MN{{}}) == Config::{name}::k{extent}"
            for mode, extent in enumerate(("Rows", "Columns")))  # fmt: skip
    return [
        (f"Cute::{name}::TiledNumThr::value == {threads}", f"{name}: threads"),
        (" && ".join(tile), f"{name}: tile"),
        (f"Cute::{name}::NumValSrc == Config::{name}::kVector", f"{name}: vector"),
        (f"sizeof_bits_v<Cute::{name}::ValType> == {copy.element_bits}", f"{name}: element"),
        (_same(f"{name}::{tv}", f"Config::{name}::TV"), name),
    ]


def _same(cute: str, finished: str) -> str:
    return f"cute_gemm::same_layout(Cute::{cute}, {finished}{{}})"


def _copy(copy: TiledCopy) -> str:
    rows, columns = copy.tile
    return (
        f"cute_gemm::Copy<{copy.atom.cpp}, {copy.source_tv().cpp()}, "
        f"{rows}, {columns}, {copy.values}>"
    )


def _product(name: str, element: str, copy: TiledCopy) -> str:
    threads, values = copy.layouts
    return (
        f"decltype(make_tiled_copy(Copy_Atom<Config::{name}::Instruction, Config::{element}>{{}}, "
        f"{threads.cpp()}{{}}, {values.cpp()}{{}}))"
    )
