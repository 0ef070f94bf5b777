"""Config of a tutorial kernel -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cute_gemm.kernels.simt.structure import WARP
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.toolchain.unit import (
    TranslationUnit,
    cpp_bool,
    cpp_shape,
    entry,
    gemm_operation,
    layout_proofs,
)

if TYPE_CHECKING:
    from cute_gemm.cute.layout import Layout
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


class EmitSimt:
    """Emitter of the tutorial kernels' templates, in the protocol of cutlass_library."""

    def __init__(self, operation_suffix: str = "") -> None:
        self.operation_suffix = operation_suffix

    def emit(self, operation: Any) -> str:
        """Return the translation unit of an operation made by :func:`simt_operation`."""
        from cutlass_library import DataTypeTag, SubstituteTemplate

        config, parts = operation.config, operation.structure
        tile = operation.tile_description
        majors = f"A {config.majors[0]}, B {config.majors[1]}, C {config.majors[2]}"
        values = {
            "summary": f"{config.dtype}, majors {majors}",
            "kernel": config.kernel,
            "element": DataTypeTag[operation.A.element],
            "element_c": DataTypeTag[operation.C.element],
            "accumulator": DataTypeTag[tile.math_instruction.element_accumulator],
            "major_k_a": cpp_bool(config.majors[0] == "K"),
            "major_k_b": cpp_bool(config.majors[1] == "K"),
            "major_n_c": cpp_bool(config.majors[2] == "N"),
            "conj_a": cpp_bool(config.conj[0]),
            "conj_b": cpp_bool(config.conj[1]),
            "raster": str(config.raster),
            "tile": cpp_shape(config.tile),
            "threads": parts.threads.cpp(),
            "values_m": parts.values[0].cpp(),
            "values_n": parts.values[1].cpp(),
            "vector_c": str(parts.vector_c),
            "lanes_k": str(WARP if config.warp_along == "k" else 1),
            "chunk": str(parts.chunk),
            "operands": "".join(_operand(operand) for operand in parts.operands),
            "proofs": "\n".join(_proofs(config, parts)),
            "entry": entry(
                operation.procedural_name() + self.operation_suffix,
                f"{config.threads}, {config.min_ctas}",
                f"cute_gemm::{config.kernel}(cute_gemm::Gemm<Config>(\n"
                "      A, B, C, m, n, k, lda, ldb, ldc, cute_gemm::scalar(alpha, alpha_ptr),\n"
                "      cute_gemm::scalar(beta, beta_ptr)));",
            ),
        }
        return SubstituteTemplate(_UNIT, values)


def simt_operation(config: Config, structure: Structure) -> Any:
    """Describe a tutorial kernel for `EmitSimt`."""
    return gemm_operation(
        config,
        structure,
        element=DTYPES[config.dtype].tag,
        instruction=((1, 1, 1), "Simt", 80),
        stages=config.buffers,
        warps=config.warps,
        row_major=(config.majors[0] == "K", config.majors[1] != "K", config.majors[2] == "N"),
        conj=config.conj,
    )


def emit_simt(config: Config, structure: Structure) -> TranslationUnit:
    """Emit the unit of one config."""
    operation = simt_operation(config, structure)
    return TranslationUnit(EmitSimt().emit(operation), operation.procedural_name())


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


def _proofs(config: Config, parts: Structure) -> list[str]:
    """What the report evaluates in Python, stated as what C++ CuTe must compute too."""

    def layout(name: str, of: Layout) -> list[tuple[str, str]]:
        return layout_proofs(name, of, of.extents)

    facts = [
        (f"sizeof(Config::Element) == {DTYPES[config.dtype].bytes}", "Element"),
        (f"sizeof(Config::ElementC) == {DTYPES[config.out_dtype].bytes}", "ElementC"),
        *layout("Threads", parts.threads),
        *layout("ValuesM", parts.values[0]),
        *layout("ValuesN", parts.values[1]),
    ]
    for operand in parts.operands:
        facts += [
            *layout(f"Copy{operand.name}::Threads", operand.threads),
            *layout(f"Smem{operand.name}", operand.smem),
        ]
    return [f'static_assert({fact}, "{name}");' for fact, name in facts]
