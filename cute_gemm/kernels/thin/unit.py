"""Config of ``thin`` -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from itertools import product
from typing import Any

from cute_gemm.problem.dtypes import DTYPES, factor
from cute_gemm.toolchain.unit import (
    TYPES,
    Emitter,
    cpp_bool,
    cpp_shape,
    cutlass_operation,
    element_proofs,
    entry,
)

_UNIT = (
    """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${summary}
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
        """See :meth:`Emitter.values`."""
        config, parts, atom = self.config, self.structure, self.config.atom
        majors = "A {}, B {}, C {}".format(*config.majors)
        return {
            "summary": f"{config.dtype}, {config.thin} up to {config.columns}, majors {majors}",
            "include": f"#include <{atom.header}>\n" if atom else "",
            "major_k_a": cpp_bool(config.majors[0] == "K"),
            "major_k_b": cpp_bool(config.majors[1] == "K"),
            "major_n_c": cpp_bool(config.majors[2] == "N"),
            "conj_a": cpp_bool(config.conj[0]),
            "conj_b": cpp_bool(config.conj[1]),
            "thin_m": cpp_bool(config.thin == "m"),
            "skewed": cpp_bool(parts.large.major == "K"),
            "thin_queued": cpp_bool(parts.queued[1]),
            "columns": str(config.columns),
            "warps": str(config.warps),
            "stages": str(config.stages),
            "pitch": str(parts.pitch),
            "tile": cpp_shape(config.tile),
            "large": parts.large.cpp(),
            "thin": parts.thin.cpp(),
            "mma": atom.cpp if atom else "void",
            "entry": entry(
                config.name,
                f"{32 * config.warps}, {config.min_ctas}",
                "cute_gemm::thin(cute_gemm::Gemm<Config>(\n"
                "      A, B, C, m, n, k, lda, ldb, ldc, product, epilogue));",
            ),
        }

    def operation(self) -> Any:
        """See :meth:`Emitter.operation`."""
        config, atom = self.config, self.config.atom
        element, out = DTYPES[config.dtype], DTYPES[config.out_dtype]
        a, b, c = config.bytes
        return cutlass_operation(
            config.name,
            types=(
                factor(config.dtype, config.compute).tag if atom else element.tag,
                DTYPES[element.accumulator].tag,
                out.tag,
            ),
            instruction=(
                (atom.shape_mnk, atom.opcode_class, atom.minimum_cc)
                if atom
                else ((1, 1, 1), "Simt", 80)
            ),
            tile=config.tile,
            stages=config.stages,
            warps=(1, 1),
            row_major=(config.majors[0] == "K", config.majors[1] != "K", config.majors[2] == "N"),
            aligned=(a // element.bytes, b // element.bytes, c // out.bytes),
            conj=config.conj,
        )

    def facts(self) -> list[tuple[str, str]]:
        """See :meth:`Emitter.facts`: where the lanes' rows and k are."""
        facts = element_proofs(self.config)
        for name, part in (("Large", self.structure.large), ("Thin", self.structure.thin)):
            for which, count, lanes in (
                ("row", part.rows, part.lanes),
                ("column", part.depth, 4),
            ):
                places = product(range(lanes), range(count))
                holds = " && ".join(
                    f"Config::{name}::{which}({lane}, {i}) == {getattr(part, which)(lane, i)}"
                    for lane, i in places
                )
                facts.append((holds, f"{name}: {which}s"))
        return facts
