"""Config of ``batched`` -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cute_gemm.kernels.options import spelled
from cute_gemm.toolchain.unit import TYPES, Emitter, entry

if TYPE_CHECKING:
    from cute_gemm.cute.layout import Layout
    from cute_gemm.kernels.batched.structure import BatchedOperand

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
  using Parts = ${parts_by_order};
  using ValuesM = ${values.0};
  using ValuesN = ${values.1};
  using RowsA = ${rows.0};
  using RowsB = ${rows.1};
  using Mma = ${mma};
${copies}
  enum : int { kReadA = ${operands.0.read}, kReadB = ${operands.1.read}, \
kWriteC = ${operands.2.read}, kBeginB = ${begins.1} };
};
"""
)

#: FMAs that are unrolled: more would not fit the instruction cache.
_UNROLLED = 1024


class EmitBatched(Emitter):
    """Emitter of ``batched.cuh``."""

    template = _UNIT

    def values(self) -> dict[str, Any]:
        config, atom = self.config, self.config.atom
        tm, tn = config.thread_tile
        products = tm * tn * config.depth * (4 if config.operation.a.is_complex else 1)
        return {
            "include": f"#include <{atom.header}>\n" if atom else "",
            "mma": atom and atom.cpp,
            "extents": spelled(config.tile),
            "runs_c": config.orders[2] in ("run", "matrices"),
            "unroll": max(1, _UNROLLED // products),
            "copies": "".join(map(_operand, config.operands)),
            "entry": entry(
                config,
                "cute_gemm::batched<Config>(A, B, C, k, l, lda, ldb, ldc, batch_a, batch_b, "
                "batch_c, epilogue);",
                begin="",
            ),
        }

    def layouts(self) -> dict[str, Layout]:
        config = self.config
        names = ("ValuesM", "ValuesN", "RowsA", "RowsB")
        layouts = dict(zip(names, (*config.values, *config.rows), strict=True))
        for operand in config.operands:
            layouts[f"Copy{operand.name}::Smem"] = operand.copy
            layouts[f"Smem{operand.name}"] = operand.modes
        return layouts


def _operand(operand: BatchedOperand) -> str:
    copy = f"{operand.width}, {operand.copy.cpp()}, {operand.product_mode}"
    return f"""
  using Copy{operand.name} = cute_gemm::ProductCopy<{copy}>;
  using Smem{operand.name} = {operand.modes.cpp()};
"""
