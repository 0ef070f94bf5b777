"""Config of ``batched`` -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cute_gemm.toolchain.signature import gemm_signature
from cute_gemm.toolchain.unit import (
    TYPES,
    Emitter,
    cpp_bool,
    cpp_extents,
    cpp_shape,
    element_proofs,
    epilogue_params,
)

if TYPE_CHECKING:
    from cute_gemm.cute.layout import Layout
    from cute_gemm.kernels.batched.structure import BatchedConfig, BatchedOperand

_UNIT = (
    """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C of many ${extents}: ${types}
${include}#include "batched/batched.cuh"

"""
    + TYPES
    + """\
  using Element = ElementA;  // B's too, or one of as many bytes
  enum : bool { kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b}, kMajorNC = ${major_n_c} };
  enum : bool { kConjA = ${conj_a}, kConjB = ${conj_b} };
  enum : bool { kRunsC = ${runs_c} };
  enum : int { kProducts = ${products}, kThreads = ${threads} };
  enum : int { kDepth = ${depth}, kUnroll = ${unroll} };

  using Tile = ${tile};  // (M,N,K)
  using Parts = ${parts};
  using ValuesM = ${values_m};
  using ValuesN = ${values_n};
  using RowsA = ${rows_a};
  using RowsB = ${rows_b};
  using Mma = ${mma};
${operands}
  enum : int { kReadA = ${read_a}, kReadB = ${read_b}, kWriteC = ${write_c}, kBeginB = ${begin_b} };
};
"""
)

_OPERAND = """
  using Copy${name} = cute_gemm::ProductCopy<${width}, ${copy}, ${product_mode}>;
  using Smem${name} = ${smem};
"""

#: FMAs that are unrolled: more would not fit the instruction cache.
_UNROLLED = 1024

_ENTRY = """\
extern "C" __global__ void __launch_bounds__({bounds})
{name}(
    {parameters}) {{
  {epilogue}
  cute_gemm::batched<Config>(A, B, C, k, l, lda, ldb, ldc, batch_a, batch_b, batch_c, epilogue);
}}
"""


class EmitBatched(Emitter):
    """Emitter of ``batched.cuh``."""

    template = _UNIT

    def values(self) -> dict[str, str]:
        config, parts = self.config, self.structure
        operation = config.operation
        a, b, c = parts.operands
        tm, tn = config.thread_tile
        atom = config.atom
        products = tm * tn * parts.depth * (4 if operation.a.is_complex else 1)
        return {
            "include": f"#include <{atom.header}>\n" if atom else "",
            "mma": atom.cpp if atom else "void",
            "extents": "x".join(map(str, config.tile)),
            "major_k_a": cpp_bool(operation.majors[0] == "K"),
            "major_k_b": cpp_bool(operation.majors[1] == "K"),
            "major_n_c": cpp_bool(operation.row_major),
            "runs_c": cpp_bool(config.orders[2] in ("run", "matrices")),
            "products": str(config.products),
            "threads": str(config.threads),
            "depth": str(parts.depth),
            "unroll": str(max(1, _UNROLLED // products)),
            "tile": cpp_shape(config.tile),
            "parts": cpp_shape(parts.parts),
            "values_m": parts.values[0].cpp(),
            "values_n": parts.values[1].cpp(),
            "rows_a": parts.rows[0].cpp(),
            "rows_b": parts.rows[1].cpp(),
            "operands": "".join(map(_operand, parts.operands)),
            "read_a": str(a.read),
            "read_b": str(b.read),
            "write_c": str(c.read),
            "begin_b": str(parts.begins[1]),
            "entry": _entry(config),
        }

    def facts(self) -> list[tuple[str, str]]:
        """Return the facts that layouts have these extents and Python's offsets."""
        parts = self.structure
        layouts = {"ValuesM": parts.values[0], "ValuesN": parts.values[1]}
        layouts |= {"RowsA": parts.rows[0], "RowsB": parts.rows[1]}
        for operand in parts.operands:
            layouts[f"Copy{operand.name}::Smem"] = operand.copy
            layouts[f"Smem{operand.name}"] = operand.modes
        facts = element_proofs(self.config)
        for name, layout in layouts.items():
            facts += _layout_facts(name, layout)
        return facts


def _layout_facts(name: str, layout: Layout) -> list[tuple[str, str]]:
    """Facts that hold when ``Config::name`` has these extents, and offsets at the end of modes."""
    cpp = f"Config::{name}{{}}"
    ends = [tuple(x - 1 if i == mode else 0 for i, x in enumerate(layout.extents))
            for mode in range(layout.rank)]  # fmt: skip
    offsets = " && ".join(
        f"int({cpp}({', '.join(map(str, end))})) == {int(layout(*end))}" for end in ends
    )
    last = f"int({cpp}({layout.size - 1})) == {int(layout(layout.size - 1))}"
    return [
        (cpp_extents(cpp, layout.extents), f"{name}: extents"),
        (f"{offsets} && {last}", f"{name}: offsets"),
    ]


def _entry(config: BatchedConfig) -> str:
    epilogue = config.operation.epilogue
    return _ENTRY.format(
        bounds=f"{config.threads}, {config.min_ctas}",
        name=config.name,
        parameters=gemm_signature(epilogue).cpp("Config::"),
        epilogue=epilogue_params(epilogue),
    )


def _operand(operand: BatchedOperand) -> str:
    from cutlass_library import SubstituteTemplate

    return SubstituteTemplate(
        _OPERAND,
        {
            "name": operand.name,
            "width": str(operand.width),
            "copy": operand.copy.cpp(),
            "product_mode": str(operand.product_mode),
            "smem": operand.modes.cpp(),
        },
    )
