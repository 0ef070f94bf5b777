"""Config of a tutorial kernel -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cute_gemm.kernels.simt.structure import WARP
from cute_gemm.toolchain.unit import (
    TYPES,
    Emitter,
    cpp_bool,
    cpp_shape,
    element_proofs,
    layout_proofs,
    tiled_entry,
)

if TYPE_CHECKING:
    from cute_gemm.kernels.simt.structure import SimtConfig, StagedOperand

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
${cta}
  using Tile = ${tile};  // (bM,bN,bK)
  using Threads = ${threads};
  using ValuesM = ${values_m};
  using ValuesN = ${values_n};
  enum : int { kVectorC = ${vector_c}, kLanesK = ${lanes_k}, kChunk = ${chunk} };
${operands}};
"""
)

_OPERAND = """
  using Copy${name} = cute_gemm::Copy<${threads}, ${step}, ${block}>;
  using Smem${name} = ${smem};
  enum : int { kSmem${name} = ${elements} };
  enum : bool { kAsync${name} = ${asynchronous} };
"""


class EmitSimt(Emitter):
    """Emitter of the tutorial kernels' templates."""

    template = _UNIT

    def values(self) -> dict[str, str]:
        config, parts = self.config, self.structure
        operation = config.operation
        return {
            "major_k_a": cpp_bool(operation.majors[0] == "K"),
            "major_k_b": cpp_bool(operation.majors[1] == "K"),
            "major_n_c": cpp_bool(operation.row_major),
            "tile": cpp_shape(config.tile),
            "cta": "  using Cta = int;\n" * bool(operation.groups),
            "threads": parts.threads.cpp(),
            "values_m": parts.values[0].cpp(),
            "values_n": parts.values[1].cpp(),
            "vector_c": str(parts.vector_c),
            "lanes_k": str(WARP if config.warp_along == "k" else 1),
            "chunk": str(parts.chunk),
            "operands": "".join(_operand(operand) for operand in parts.operands),
            "entry": _entry(config),
        }

    def facts(self) -> list[tuple[str, str]]:
        parts = self.structure
        layouts = {"Threads": parts.threads, "ValuesM": parts.values[0], "ValuesN": parts.values[1]}
        for operand in parts.operands:
            layouts[f"Copy{operand.name}::Threads"] = operand.threads
            layouts[f"Smem{operand.name}"] = operand.smem
        facts = element_proofs(self.config)
        for name, layout in layouts.items():
            facts += layout_proofs(name, layout, layout.extents)
        return facts


def _entry(config: SimtConfig) -> str:
    operation, bounds = config.operation, f"{config.threads}, {config.min_ctas}"
    call = (
        f"cute_gemm::{config.kernel}(cute_gemm::Gemm<Config>(\n"
        "      A, B, C, m, n, k, lda, ldb, ldc, product, epilogue{}));"
    )
    return tiled_entry(config.name, bounds, call, operation, config.tile)


def _operand(operand: StagedOperand) -> str:
    from cutlass_library import SubstituteTemplate

    return SubstituteTemplate(
        _OPERAND,
        {
            "name": operand.name,
            "threads": operand.threads.cpp(),
            "step": "{}, {}".format(*operand.load.tile),
            "block": "{}, {}".format(*operand.block),
            "smem": operand.smem.cpp(),
            "elements": str(operand.elements),
            "asynchronous": cpp_bool(operand.asynchronous),
        },
    )
