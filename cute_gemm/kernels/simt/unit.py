"""Config of a tutorial kernel -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cute_gemm.kernels.simt.structure import WARP
from cute_gemm.toolchain.unit import (
    TYPES,
    Emitter,
    cpp_bool,
    entry,
    scale_arguments,
)

if TYPE_CHECKING:
    from cute_gemm.cute.layout import Layout
    from cute_gemm.kernels.simt.structure import StagedOperand

_UNIT = (
    """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${types}
#include "simt/${kernel}.cuh"

"""
    + TYPES
    + """\
  using Element = ElementA;  // B's too, or one of as many bytes
  enum : bool { kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b}, kMajorNC = ${major_n_c} };
  enum : bool { kConjA = ${conj_a}, kConjB = ${conj_b} };
  enum : int { kRaster = ${raster} };

  using Tile = ${tile};  // (bM,bN,bK)
  using Threads = ${first_results};
  using ValuesM = ${values.0};
  using ValuesN = ${values.1};
  enum : int { kVectorC = ${vector_c}, kLanesK = ${lanes_k}, kChunk = ${chunk} };
${copies}};
"""
)


#: Bytes that ptxas may spill in ``vectorized``: it needs up to 135 registers to copy rows that are
#: not aligned to 16 bytes, and has 128 with two CTAs on a multiprocessor.
_SPILLS_OF_VECTORIZED = 32


class EmitSimt(Emitter):
    """Emitter of the tutorial kernels' templates."""

    template = _UNIT

    @property
    def spills(self) -> int:
        return _SPILLS_OF_VECTORIZED if self.config.kernel == "vectorized" else super().spills

    def values(self) -> dict[str, Any]:
        config = self.config
        return {
            "lanes_k": WARP if config.warp_along == "k" else 1,
            "copies": "".join(map(_operand, config.operands)),
            "entry": entry(
                config,
                f"cute_gemm::{config.kernel}(cute_gemm::Gemm<Config>(\n"
                "      A, B, C, m, n, k, lda, ldb, ldc, product, epilogue{})"
                f"{scale_arguments(config.operation, False)});",
            ),
        }

    def layouts(self) -> dict[str, Layout]:
        config = self.config
        values_m, values_n = config.values
        layouts = {"Threads": config.first_results, "ValuesM": values_m, "ValuesN": values_n}
        for operand in config.operands:
            layouts[f"Copy{operand.name}::Threads"] = operand.threads
            layouts[f"Smem{operand.name}"] = operand.smem
        return layouts


def _operand(operand: StagedOperand) -> str:
    (step_m, step_k), (block_m, block_k), name = operand.load.tile, operand.block, operand.name
    copy = f"{operand.threads.cpp()}, {step_m}, {step_k}, {block_m}, {block_k}"
    return f"""
  using Copy{name} = cute_gemm::Copy<{copy}>;
  using Smem{name} = {operand.smem.cpp()};
  enum : int {{ kSmem{name} = {operand.elements} }};
  enum : bool {{ kAsync{name} = {cpp_bool(operand.asynchronous)} }};
"""
