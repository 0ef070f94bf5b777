"""Config -> translation unit, in the emitter protocol of ``cutlass_library``.

An operation object describes the kernel in CUTLASS's own terms (tile, math instruction, tensors);
an emitter turns an operation into C++ text with ``emit(operation)``. Only
integers, enum tags and layout types reach that text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.cute.layout import Layout, from_map
from cute_gemm.problem.dtypes import DTYPES

if TYPE_CHECKING:
    from cute_gemm.cute.copies import TiledCopy
    from cute_gemm.kernels.sm80.structure import Config, Structure


@dataclass(frozen=True, slots=True)
class TranslationUnit:
    """C++ text with one ``extern "C" __global__`` entry named ``symbol``."""

    source: str
    symbol: str


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

extern "C" __global__ void __launch_bounds__(${threads}, ${min_ctas})
${symbol}(
    Config::Element const* A, Config::Element const* B, Config::ElementC* C, int m, int n, int k,
    int64_t lda, int64_t ldb, int64_t ldc, Config::Accumulator alpha, Config::Accumulator beta,
    Config::Accumulator const* alpha_ptr, Config::Accumulator const* beta_ptr) {
  cute_gemm::${kernel}<Config>(${arguments},
                                   cute_gemm::scalar(alpha, alpha_ptr),
                                   cute_gemm::scalar(beta, beta_ptr));
}
"""


#: The thread-value layouts that the kernel reads: of a copy by make_tiled_copy, and of one that
#: follows the MMA, whose instruction may hand values to other threads.
_TILED, _HELD = "TiledLayout_TV{}", "get_layoutS_TV()"

#: What the kernel keeps in shared memory: the k tiles, then the staged sums in their place.
_SHARED_BYTES = (
    "cute::max(sizeof(Config::Element) * "
    "(size(Config::SmemLayoutA{}) + size(Config::SmemLayoutB{})), sizeof(Config::Accumulator) * "
    "size<1>(Config::EpilogueLayout{}) * stride<1>(Config::EpilogueLayout{}))"
)


class EmitSm80Pipeline:
    """Emitter of the templates in ``sm80/``, in cutlass_library's protocol."""

    def __init__(self, operation_suffix: str = "") -> None:
        self.operation_suffix = operation_suffix

    def emit(self, operation: Any) -> str:
        """Return the translation unit of an operation made by :func:`sm80_pipeline_operation`."""
        from cutlass_library import DataTypeTag, SubstituteTemplate

        config, parts = operation.config, operation.structure
        tile = operation.tile_description
        values = {
            "summary": f"{config.dtype}, majors A {config.majors[0]}, B {config.majors[1]}, "
            f"C {'row' if config.exchange else 'column'}-major, copy={config.copy}",
            "kernel": config.kernel,
            "element": DataTypeTag[tile.math_instruction.element_a],
            "element_c": DataTypeTag[operation.C.element],
            "accumulator": DataTypeTag[tile.math_instruction.element_accumulator],
            "cta_tiler": cpp_shape(parts.tile),
            "tiled_mma": parts.mma.cpp(),
            "raster": str(config.raster),
            "epilogue_tile": cpp_shape(parts.epilogue_tile),
            "epilogue_layout": parts.epilogue_layout.cpp(),
            "epilogue_stage": _mma_copy(parts.epilogue_stage, "Accumulator", "C"),
            "epilogue_copy": _gmem_copy(
                parts.epilogue_copy, "Accumulator", parts.epilogue_threads, parts.epilogue_values
            ),
            "proofs": "\n".join(_proofs(config, parts)),
            "threads": str(parts.mma.size),
            "min_ctas": str(config.min_ctas),
            "symbol": operation.procedural_name() + self.operation_suffix,
            # A row-major C is a column-major C^T = B A^T.
            "arguments": "B, A, C, n, m, k, ldb, lda, ldc"
            if config.exchange
            else "A, B, C, m, n, k, lda, ldb, ldc",
        }
        for letter, plan in zip("ab", parts.operands, strict=True):
            upper = letter.upper()
            values |= {
                f"major_k_{letter}": cpp_bool(plan.major == "K"),
                f"gmem_copy_{letter}": _gmem_copy(
                    plan.gmem_copy, "Element", plan.gmem_threads, plan.gmem_values
                ),
                f"smem_layout_{letter}": f"decltype(tile_to_shape({plan.smem_atom.cpp()}{{}}, "
                f"{cpp_shape(plan.smem_layout.extents)}{{}}))",
                f"smem_copy_{letter}": _mma_copy(plan.smem_copy, "Element", upper),
            }
        return SubstituteTemplate(_SM80_PIPELINE, values)


def gemm_operation(
    config: Any,
    structure: Any,
    *,
    element: str,
    instruction: tuple[tuple[int, int, int], str, int],
    stages: int,
    warps: tuple[int, int],
    row_major: tuple[bool, bool, bool],
    conj: tuple[bool, bool] = (False, False),
) -> Any:
    """Describe a kernel as cutlass_library does: a ``GemmOperation`` with the config beside it.

    Parameters
    ----------
    config, structure
        Of this package; ``config`` has ``name``, ``tile``, ``dtype``, ``out_dtype`` and ``bytes``.
    element
        Member of ``cutlass_library.DataType`` that A and B are multiplied as.
    instruction
        Extents of the math instruction, member of ``OpcodeClass``, lowest compute capability.
    stages, warps
        k tiles in shared memory at a time; warps along M and N, (0, 0) for none in particular.
    row_major, conj
        Of A (M, K), B (K, N) and C (M, N); of A and B.
    """
    from cutlass_library import (
        ComplexTransform,
        DataType,
        GemmKind,
        LayoutType,
        MathInstruction,
        OpcodeClass,
        TensorDescription,
        TileDescription,
    )
    from cutlass_library.gemm_operation import GemmOperation

    class Operation(GemmOperation):
        def __init__(self) -> None:
            row, out = DTYPES[config.dtype], DTYPES[config.out_dtype]
            sums = DataType[DTYPES[row.accumulator].tag]
            shape, opcode, minimum_cc = instruction
            math = MathInstruction(
                list(shape), DataType[element], DataType[element], sums, OpcodeClass[opcode]
            )
            count = [*warps, 1] if warps[0] else None
            tile = TileDescription(list(config.tile), stages, count, math, minimum_cc, 1024)
            layouts = [
                LayoutType.RowMajor if rows else LayoutType.ColumnMajor for rows in row_major
            ]
            transforms = [ComplexTransform.conj if flag else ComplexTransform.none for flag in conj]
            a, b = (
                TensorDescription(DataType[element], layout, width // row.bytes, transform)
                for layout, width, transform in zip(layouts, config.bytes, transforms, strict=False)
            )
            c = TensorDescription(DataType[out.tag], layouts[2], config.bytes[2] // out.bytes)
            super().__init__(GemmKind.Universal, minimum_cc, tile, a, b, c, sums)
            self.config, self.structure = config, structure

        def procedural_name(self) -> str:
            name: str = config.name
            return name

    return Operation()


def sm80_pipeline_operation(config: Config, structure: Structure) -> Any:
    """Describe a kernel of the ``sm80_pipeline`` family for `EmitSm80Pipeline`."""
    atom = structure.mma.atom
    return gemm_operation(
        config,
        structure,
        element="tf32" if config.compute == "tf32" else DTYPES[config.dtype].tag,
        instruction=(atom.shape_mnk, atom.opcode_class, atom.minimum_cc),
        stages=config.stages,
        warps=config.warps,
        row_major=(config.majors[0] == "K", config.majors[1] != "K", config.exchange),
    )


def emit_sm80_pipeline(config: Config, structure: Structure) -> TranslationUnit:
    """Emit the unit of one sm80_pipeline config."""
    operation = sm80_pipeline_operation(config, structure)
    return TranslationUnit(EmitSm80Pipeline().emit(operation), operation.procedural_name())


def _proofs(config: Config, parts: Structure) -> list[str]:
    """Everything that the report evaluates in Python, stated as what C++ CuTe must compute too."""
    threads, (a, b) = parts.mma.size, parts.operands
    facts = [
        (f"size(Config::TiledMma{{}}) == {threads}", "threads"),
        (f"sizeof(Config::Element) == {DTYPES[config.dtype].bytes}", "Element"),
        (f"sizeof(Config::ElementC) == {DTYPES[config.out_dtype].bytes}", "ElementC"),
        (_extents("Config::CtaTiler{}", (a.extents[0], *b.extents)), "CtaTiler"),
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
    return [f'static_assert({fact}, "{name}");' for fact, name in facts]


def layout_proofs(name: str, layout: Layout, extents: tuple[int, ...]) -> list[tuple[str, str]]:
    """Facts that hold when ``Config::name`` has these extents and Python's offsets."""
    cpp = f"Config::{name}{{}}"
    # Both sides evaluate: types that are spelled alike do not say what Python makes of them.
    offsets = (int(layout(1 << bit)) for bit in range((layout.size - 1).bit_length()))
    return [
        (_extents(cpp, extents), f"{name}: extents"),
        (f"cute_gemm::has_offsets({', '.join((cpp, *map(str, offsets)))})", f"{name}: offsets"),
    ]


def _copy_proofs(name: str, tv: str, copy: TiledCopy, threads: int) -> list[tuple[str, str]]:
    cpp = f"Config::{name}"
    return [
        (f"{cpp}::TiledNumThr::value == {threads}", f"{name}: threads"),
        (_extents(f"{cpp}::Tiler_MN{{}}", copy.tile), f"{name}: tile"),
        (f"{cpp}::NumValSrc == {copy.values}", f"{name}: vector"),
        (f"sizeof_bits_v<{cpp}::ValType> == {copy.element_bits}", f"{name}: element"),
        (_same(f"{cpp}::{tv}", copy.source_tv()), name),
    ]


def _same(cpp: str, layout: Layout) -> str:
    return f"cute_gemm::same_layout({cpp}, {layout.cpp()}{{}})"


def _extents(cpp: str, extents: tuple[int, ...]) -> str:
    return " && ".join(f"size<{mode}>({cpp}) == {extent}" for mode, extent in enumerate(extents))


def _gmem_copy(copy: TiledCopy, element: str, threads: Any, values: Any) -> str:
    return (
        f"decltype(make_tiled_copy(Copy_Atom<{copy.atom.cpp}, {element}>{{}}, "
        f"{threads.cpp()}{{}}, {values.cpp()}{{}}))"
    )


def _mma_copy(copy: TiledCopy, element: str, operand: str) -> str:
    atom = f"Copy_Atom<{copy.atom.cpp}, {element}>{{}}"
    return f"decltype(make_tiled_copy_{operand}({atom}, TiledMma{{}}))"


def cpp_shape(extents: tuple[int, ...]) -> str:
    """Return a static shape as a C++ type."""
    text = Layout(tuple(extents), (0,) * len(extents)).cpp()
    return text[len("Layout<") : text.index(",Stride")]


def cpp_bool(value: bool) -> str:
    """Return a C++ literal."""
    return "true" if value else "false"
