"""Config of ``thin`` -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from itertools import product

from cute_gemm.toolchain.unit import (
    TYPES,
    Emitter,
    cpp_bool,
    cpp_shape,
    element_proofs,
    entry,
)

_UNIT = (
    """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${types}, up to ${columns} wide
${include}#include "thin/thin.cuh"

"""
    + TYPES
    + """\
  enum : bool { kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b}, kMajorNC = ${major_n_c} };
  enum : bool { kConjA = ${conj_a}, kConjB = ${conj_b}, kThinM = ${thin_m} };
  enum : bool { kThinQueued = ${thin_queued}, kSkewed = ${skewed} };
  enum : int { kColumns = ${columns}, kWarps = ${warps}, kStages = ${stages}, kPitch = ${pitch} };

  using Tile = ${tile};  // (bM,bN,bK)
  using Large = ${large};
  using Thin = ${thin};
  using Mma = ${mma};
};
"""
)


class EmitThin(Emitter):
    """Emitter of ``thin.cuh``."""

    template = _UNIT

    def values(self) -> dict[str, str]:
        config, parts, atom = self.config, self.structure, self.config.atom
        operation = config.operation
        return {
            "include": f"#include <{atom.header}>\n" if atom else "",
            "major_k_a": cpp_bool(operation.majors[0] == "K"),
            "major_k_b": cpp_bool(operation.majors[1] == "K"),
            "major_n_c": cpp_bool(operation.row_major),
            "thin_m": cpp_bool(config.thin == "m"),
            "skewed": cpp_bool(parts.large.major == "K"),
            "thin_queued": cpp_bool(parts.queued[1]),
            "columns": str(config.columns),
            "warps": str(config.warps),
            "stages": str(config.stages),
            "pitch": str(parts.pitch),
            "tile": cpp_shape(config.tile),
            "large": parts.large.cpp(f"Element{'BA'[config.index]}"),
            "thin": parts.thin.cpp(f"Element{'AB'[config.index]}"),
            "mma": atom.cpp if atom else "void",
            "entry": entry(
                config.name,
                f"{32 * config.warps}, {config.min_ctas}",
                "cute_gemm::thin(cute_gemm::Gemm<Config>(\n"
                "      A, B, C, m, n, k, lda, ldb, ldc, product, epilogue));",
                operation.epilogue,
            ),
        }

    def facts(self) -> list[tuple[str, str]]:
        """Return facts about the rows and the k of each lane."""
        facts = element_proofs(self.config)
        for name, part in (("Large", self.structure.large), ("Thin", self.structure.thin)):
            for method, count, lanes in (
                ("row", part.rows, part.lanes),
                ("column", part.depth, 4),
            ):
                places = product(range(lanes), range(count))
                holds = " && ".join(
                    f"Config::{name}::{method}({lane}, {i}) == {getattr(part, method)(lane, i)}"
                    for lane, i in places
                )
                facts.append((holds, f"{name}: {method}s"))
        return facts
