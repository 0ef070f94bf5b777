"""Config of a tutorial kernel -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cute_gemm.kernels.simt.structure import WARP
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.toolchain.unit import (
    Emitter,
    TranslationUnit,
    asserted,
    cpp_bool,
    cpp_shape,
    element_proofs,
    entry,
    layout_proofs,
)

if TYPE_CHECKING:
    from cute_gemm.kernels.simt.structure import Config, Operand, Structure

_UNIT = """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${summary}
#include "simt/${kernel}.cuh"

using namespace cute;

struct Config {
  using Element = ${element};
  using ElementC = ${element_c};
  using Accumulator = ${accumulator};
  using Epilogue = cute_gemm::LinearCombination<Accumulator, ElementC>;
  static constexpr bool kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b}, kMajorNC = ${major_n_c};
  static constexpr bool kConjA = ${conj_a}, kConjB = ${conj_b};
  static constexpr int kRaster = ${raster};

  using Tile = ${tile};  // (bM,bN,bK)
  using Threads = ${threads};
  using ValuesM = ${values_m};
  using ValuesN = ${values_n};
  static constexpr int kVectorC = ${vector_c}, kLanesK = ${lanes_k}, kChunk = ${chunk};
${operands}};

// The layouts that Python computed are those that C++ CuTe computes.
${proofs}

${entry}"""

_OPERAND = """
  using Copy${name} = cute_gemm::Copy<${threads}, ${step}, ${block}>;
  using Smem${name} = ${smem};
  static constexpr int kSmem${name} = ${elements};
  static constexpr bool kAsync${name} = ${asynchronous};
"""


class EmitSimt(Emitter):
    """Emitter of the tutorial kernels' templates."""

    template = _UNIT

    def values(self) -> dict[str, str]:
        """See :meth:`Emitter.values`."""
        config, parts = self.config, self.structure
        majors = f"A {config.majors[0]}, B {config.majors[1]}, C {config.majors[2]}"
        return {
            "summary": f"{config.dtype}, majors {majors}",
            "major_k_a": cpp_bool(config.majors[0] == "K"),
            "major_k_b": cpp_bool(config.majors[1] == "K"),
            "major_n_c": cpp_bool(config.majors[2] == "N"),
            "conj_a": cpp_bool(config.conj[0]),
            "conj_b": cpp_bool(config.conj[1]),
            "tile": cpp_shape(config.tile),
            "threads": parts.threads.cpp(),
            "values_m": parts.values[0].cpp(),
            "values_n": parts.values[1].cpp(),
            "vector_c": str(parts.vector_c),
            "lanes_k": str(WARP if config.warp_along == "k" else 1),
            "chunk": str(parts.chunk),
            "operands": "".join(_operand(operand) for operand in parts.operands),
            "proofs": _proofs(config, parts),
            "entry": entry(
                config.name,
                f"{config.threads}, {config.min_ctas}",
                f"cute_gemm::{config.kernel}(cute_gemm::Gemm<Config>(\n"
                "      A, B, C, m, n, k, lda, ldb, ldc, cute_gemm::scalar(alpha, alpha_ptr),\n"
                "      cute_gemm::scalar(beta, beta_ptr)));",
            ),
        }


def emit_simt(config: Config, structure: Structure) -> TranslationUnit:
    """Emit the unit of one config."""
    return EmitSimt(config, structure).unit(
        DTYPES[config.dtype].tag,
        instruction=((1, 1, 1), "Simt", 80),
        stages=config.buffers,
        row_major=(config.majors[0] == "K", config.majors[1] != "K", config.majors[2] == "N"),
        conj=config.conj,
    )


def _operand(operand: Operand) -> str:
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


def _proofs(config: Config, parts: Structure) -> str:
    """What the report evaluates in Python, stated as what C++ CuTe must compute too."""
    layouts = {"Threads": parts.threads, "ValuesM": parts.values[0], "ValuesN": parts.values[1]}
    for operand in parts.operands:
        layouts[f"Copy{operand.name}::Threads"] = operand.threads
        layouts[f"Smem{operand.name}"] = operand.smem
    facts = element_proofs(config)
    for name, layout in layouts.items():
        facts += layout_proofs(name, layout, layout.extents)
    return asserted(facts)
