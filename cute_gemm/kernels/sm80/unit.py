"""Config of a kernel on mma.sync -> translation unit, in cutlass_library's emitter protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cute_gemm.cute.layout import Layout, from_map
from cute_gemm.problem.dtypes import factor
from cute_gemm.toolchain.unit import (
    Emitter,
    TranslationUnit,
    asserted,
    cpp_bool,
    cpp_extents,
    cpp_shape,
    element_proofs,
    entry,
    layout_proofs,
)

if TYPE_CHECKING:
    from cute_gemm.cute.copies import TiledCopy
    from cute_gemm.kernels.sm80.structure import Config, Structure

_SM80_PIPELINE = """\
// C(M,N) = alpha * A(M,K) B(N,K)^T + beta * C: ${summary}
#include "sm80/${kernel}.cuh"

using namespace cute;

struct Config {
  using Element = ${element};
  using ElementC = ${element_c};
  using Accumulator = ${accumulator};
  using Epilogue = cute_gemm::LinearCombination<Accumulator, ElementC>;
  using CtaTiler = ${cta_tiler};  // (bM,bN,bK)
  using TiledMma = ${tiled_mma};
  static constexpr int kRasterGroup = ${raster};

  static constexpr bool kMajorKA = ${major_k_a}, kMajorKB = ${major_k_b};
  using GmemCopyA = ${gmem_copy_a};
  using GmemCopyB = ${gmem_copy_b};
  using SmemLayoutA = ${smem_layout_a};
  using SmemLayoutB = ${smem_layout_b};
  using SmemCopyA = ${smem_copy_a};
  using SmemCopyB = ${smem_copy_b};

  using EpilogueTile = ${epilogue_tile};
  using EpilogueLayout = ${epilogue_layout};
  using EpilogueStage = ${epilogue_stage};
  using EpilogueCopy = ${epilogue_copy};
};

// The layouts that Python computed are those that C++ CuTe computes.
${proofs}

${entry}"""


#: The thread-value layouts that the kernel reads: of a copy by make_tiled_copy, and of one that
#: follows the MMA, whose instruction may hand values to other threads.
_TILED, _HELD = "TiledLayout_TV{}", "get_layoutS_TV()"

#: What the kernel keeps in shared memory: the k tiles, then the staged sums in their place.
_SHARED_BYTES = (
    "cute::max(sizeof(Config::Element) * "
    "(size(Config::SmemLayoutA{}) + size(Config::SmemLayoutB{})), sizeof(Config::Accumulator) * "
    "size<1>(Config::EpilogueLayout{}) * stride<1>(Config::EpilogueLayout{}))"
)

#: The entry's arguments as the kernel takes them: a row-major C is a column-major C^T = B A^T.
_PLAIN, _EXCHANGED = "A, B, C, m, n, k, lda, ldb, ldc", "B, A, C, n, m, k, ldb, lda, ldc"


class EmitSm80Pipeline(Emitter):
    """Emitter of ``sm80_pipeline.cuh`` and ``tensor_core.cuh``."""

    template = _SM80_PIPELINE

    def values(self) -> dict[str, str]:
        """See :meth:`Emitter.values`."""
        config, parts = self.config, self.structure
        values = {
            "summary": f"{config.dtype}, majors A {config.majors[0]}, B {config.majors[1]}, "
            f"C {'row' if config.exchange else 'column'}-major, copy={config.copy}",
            "cta_tiler": cpp_shape(parts.tile),
            "tiled_mma": parts.mma.cpp(),
            "epilogue_tile": cpp_shape(parts.epilogue_tile),
            "epilogue_layout": parts.epilogue_layout.cpp(),
            "epilogue_stage": _mma_copy(parts.epilogue_stage, "Accumulator", "C"),
            "epilogue_copy": _gmem_copy(parts.epilogue_copy, "Accumulator"),
            "proofs": _proofs(config, parts),
            "entry": entry(
                config.name,
                f"{parts.mma.size}, {config.min_ctas}",
                f"cute_gemm::{config.kernel}<Config>({_EXCHANGED if config.exchange else _PLAIN},\n"
                "      cute_gemm::scalar(alpha, alpha_ptr), cute_gemm::scalar(beta, beta_ptr));",
            ),
        }
        for letter, plan in zip("ab", parts.operands, strict=True):
            upper = letter.upper()
            values |= {
                f"major_k_{letter}": cpp_bool(plan.major == "K"),
                f"gmem_copy_{letter}": _gmem_copy(plan.gmem_copy, "Element"),
                f"smem_layout_{letter}": f"decltype(tile_to_shape({plan.smem_atom.cpp()}{{}}, "
                f"{cpp_shape(plan.smem_layout.extents)}{{}}))",
                f"smem_copy_{letter}": _mma_copy(plan.smem_copy, "Element", upper),
            }
        return values


def emit_sm80_pipeline(config: Config, structure: Structure) -> TranslationUnit:
    """Emit the unit of one sm80_pipeline config."""
    atom = structure.mma.atom
    return EmitSm80Pipeline(config, structure).unit(
        factor(config.dtype, config.compute).tag,
        instruction=(atom.shape_mnk, atom.opcode_class, atom.minimum_cc),
        stages=config.stages,
        row_major=(config.majors[0] == "K", config.majors[1] != "K", config.exchange),
    )


def _proofs(config: Config, parts: Structure) -> str:
    """Everything that the report evaluates in Python, stated as what C++ CuTe must compute too."""
    threads, (a, b) = parts.mma.size, parts.operands
    facts = [
        (f"size(Config::TiledMma{{}}) == {threads}", "threads"),
        *element_proofs(config),
        (cpp_extents("Config::CtaTiler{}", (a.extents[0], *b.extents)), "CtaTiler"),
        (f"{_SHARED_BYTES} == {parts.smem}", "shared memory"),
        *layout_proofs("EpilogueLayout", parts.epilogue_layout, parts.epilogue_tile),
        *_copy_proofs("EpilogueStage", _HELD, parts.epilogue_stage, threads),
        *_copy_proofs("EpilogueCopy", _TILED, parts.epilogue_copy, threads),
    ]
    for letter, plan in zip("AB", parts.operands, strict=True):
        facts += [
            *_copy_proofs(f"GmemCopy{letter}", _TILED, plan.gmem_copy, threads),
            (
                _same(f"Config::SmemLayout{letter}{{}}", plan.smem_layout.coalesced()),
                f"SmemLayout{letter}",
            ),
            *layout_proofs(f"SmemLayout{letter}", plan.smem_layout, (*plan.extents, config.stages)),
            *_copy_proofs(f"SmemCopy{letter}", _HELD, plan.smem_copy, threads),
        ]
    for letter, mode in zip("ABC", (0, 1, 0), strict=True):
        rows, columns = np.moveaxis(parts.mma.partition(letter), -1, 0)
        held = from_map(rows + parts.mma.extent(mode) * columns)
        facts.append(
            (_same(f"Config::TiledMma{{}}.get_layout{letter}_TV()", held), f"TiledMma: {letter}")
        )
    return asserted(facts)


def _copy_proofs(name: str, tv: str, copy: TiledCopy, threads: int) -> list[tuple[str, str]]:
    cpp = f"Config::{name}"
    return [
        (f"{cpp}::TiledNumThr::value == {threads}", f"{name}: threads"),
        (cpp_extents(f"{cpp}::Tiler_MN{{}}", copy.tile), f"{name}: tile"),
        (f"{cpp}::NumValSrc == {copy.values}", f"{name}: vector"),
        (f"sizeof_bits_v<{cpp}::ValType> == {copy.element_bits}", f"{name}: element"),
        (_same(f"{cpp}::{tv}", copy.source_tv()), name),
    ]


def _same(cpp: str, layout: Layout) -> str:
    return f"cute_gemm::same_layout({cpp}, {layout.cpp()}{{}})"


def _gmem_copy(copy: TiledCopy, element: str) -> str:
    threads, values = copy.layouts
    return (
        f"decltype(make_tiled_copy(Copy_Atom<{copy.atom.cpp}, {element}>{{}}, "
        f"{threads.cpp()}{{}}, {values.cpp()}{{}}))"
    )


def _mma_copy(copy: TiledCopy, element: str, operand: str) -> str:
    atom = f"Copy_Atom<{copy.atom.cpp}, {element}>{{}}"
    return f"decltype(make_tiled_copy_{operand}({atom}, TiledMma{{}}))"
