"""Config of ``thin`` -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from itertools import product
from typing import Any

from cute_gemm.toolchain.unit import TYPES, Emitter, element_proofs, entry

_UNIT = (
    """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${types}, up to ${columns} wide
${include}#include "thin/thin.cuh"

"""
    + TYPES
    + """\
  enum : bool { kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b}, kMajorNC = ${major_n_c} };
  enum : bool { kConjA = ${conj_a}, kConjB = ${conj_b}, kThinM = ${thin_m} };
  enum : bool { kThinQueued = ${queued.1}, kSkewed = ${skewed} };
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

    def values(self) -> dict[str, Any]:
        config, atom, letters = self.config, self.config.atom, "AB"
        return {
            "include": f"#include <{atom.header}>\n" if atom else "",
            "thin_m": config.thin == "m",
            "skewed": config.large.major == "K",
            "large": config.large.cpp(f"Element{letters[1 - config.index]}"),
            "thin": config.few.cpp(f"Element{letters[config.index]}"),
            "mma": atom and atom.cpp,
            "entry": entry(
                config,
                "cute_gemm::thin(cute_gemm::Gemm<Config>(\n"
                "      A, B, C, m, n, k, lda, ldb, ldc, product, epilogue));",
            ),
        }

    def facts(self) -> list[tuple[str, str]]:
        """Return facts about the rows and the k of each lane."""
        facts = element_proofs(self.config)
        for name, part in (("Large", self.config.large), ("Thin", self.config.few)):
            for method, count, lanes in (("row", part.rows, part.lanes), ("column", part.depth, 4)):
                places = product(range(lanes), range(count))
                holds = " && ".join(
                    f"Config::{name}::{method}({lane}, {i}) == {getattr(part, method)(lane, i)}"
                    for lane, i in places
                )
                facts.append((holds, f"{name}: {method}s"))
        return facts
