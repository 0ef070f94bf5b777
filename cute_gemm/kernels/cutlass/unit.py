"""The C++ unit of one instance, by cutlass_library's own emitter.

The kernel is CUTLASS's; only the entry differs: it computes ``Params`` on the device from its
parameters (no host compiler) and maps a one-dimensional grid to tiles. The unit asserts the
threads, the access widths and the shared memory that Python assumes.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from cute_gemm.errors import HeaderError
from cute_gemm.kernels.cutlass.config import MATH, CutlassUniversalConfig
from cute_gemm.toolchain.headers import cutlass_version, templates_path
from cute_gemm.toolchain.unit import TranslationUnit, cpp_bool, entry

#: Bytes per thread. ptxas decides how many registers CUTLASS's loops get. For some types, majors
#: and archs it trades a few bytes of local memory for one more resident CTA. 128x128x32 with single
#: elements of 16 bits spills the most, 116, and is faster than smaller tiles without spills.
_SPILLS = 128
#: The version of CUTLASS whose headers ``templates/cutlass/stubs`` replaces. Without the stubs
#: NVRTC reads every 3.x kernel, the stream-K and the complex ones: a third of the build time.
_STUBS_OF = (4, 2)

_UNIT = """\
// CUTLASS 2.x GemmUniversal, emitted by cutlass_library (EmitGemmUniversalInstance). It writes a
// column-major C as the transpose of a row-major one: the type's operands are then B and A.
#include "cutlass/cutlass_universal.cuh"

${definition}

using Gemm = ${symbol}_gemm;
using ElementA = ${element};
using ElementB = ElementA;
using ElementC = ${output};
using Accumulator = ${scalar};
using Epilogue = cute_gemm::LinearCombination<Accumulator, ElementC>;

static_assert(Gemm::kThreadCount == ${threads});
static_assert(sizeof(Gemm::SharedStorage) <= ${smem});
static_assert(Gemm::Mma::IteratorA::AccessType::kElements == ${align_a});
static_assert(Gemm::Mma::IteratorB::AccessType::kElements == ${align_b});
static_assert(Gemm::kAlignmentC == ${align_c});

${entry}"""


def unit(config: CutlassUniversalConfig) -> TranslationUnit:
    """Return the C++ unit of ``config``."""
    from cutlass_library import DataTypeTag, SubstituteTemplate
    from cutlass_library.gemm_operation import EmitGemmUniversalInstance

    # The entry is named by the symbol, the emitted struct by the symbol and this suffix.
    emitter = EmitGemmUniversalInstance("_gemm")
    emitter.gemm_template = SubstituteTemplate(
        emitter.gemm_template,
        {"swizzling_functor": f"cute_gemm::LinearThreadblockSwizzle<{config.swizzle}>"},
    )
    operation = _operation(config)
    align_a, align_b = config.turned(config.alignments[:2])
    values = {
        "definition": emitter.emit(operation).strip(),
        "symbol": config.name,
        "threads": config.threads,
        "smem": config.smem,
        "entry": entry(
            config,
            f"cute_gemm::cutlass_universal<Gemm, /* SwapAB */ {cpp_bool(config.swap_ab)}, "
            "Accumulator>(\n"
            "      A, B, C, m, n, k, lda, ldb, ldc, epilogue);",
            prefix="",
            bounds=str(config.threads),
        ),
        "align_a": align_a,
        "align_b": align_b,
        "align_c": config.alignments[2],
        "element": DataTypeTag[operation.A.element],
        "output": DataTypeTag[operation.C.element],
        "scalar": DataTypeTag[operation.accumulator_type()],
    }
    text = SubstituteTemplate(_UNIT, {name: str(value) for name, value in values.items()})
    return TranslationUnit(text, config.name, folders=(_stubs(),), spills=_SPILLS)


@functools.cache
def _stubs() -> Path:
    """Return the folder of headers that replace those of unused kernels of one CUTLASS version."""
    version = cutlass_version()
    if version is not None and version[:2] != _STUBS_OF:
        raise HeaderError(
            f"the headers are those of CUTLASS {'.'.join(map(str, version))}, and kernel "
            "'cutlass_universal' has stubs for some of CUTLASS {}.{}: "
            'pip install "nvidia-cutlass=={}.{}.*"'.format(*_STUBS_OF, *_STUBS_OF)
        )
    return templates_path() / "cutlass" / "stubs"


def _operation(config: CutlassUniversalConfig) -> Any:
    """Return ``cutlass_library.GemmOperation`` of the problem with a column-major C.

    The emitter requires it. With a row-major C it is the transposed problem, whose first operand is
    B.
    """
    from cutlass_library import (
        ComplexTransform,
        DataType,
        GemmKind,
        LayoutType,
        MathInstruction,
        MathOperation,
        OpcodeClass,
        TensorDescription,
        TileDescription,
    )
    from cutlass_library.gemm_operation import GemmOperation

    class Named(GemmOperation):
        def procedural_name(self) -> str:
            """Return our symbol: CUTLASS's name leaves out C's layout and the warps."""
            return config.name

    row, operation = MATH[config.math], config.operation
    element, accumulator, out = (
        DataType[x.tag] for x in (operation.a, operation.accumulator, operation.c)
    )
    # CUTLASS's only int8 instruction saturates.
    kind = MathOperation.multiply_add
    if config.math == "int8":
        kind = MathOperation.multiply_add_saturate
    opcode = OpcodeClass[row.opcode]
    math = MathInstruction(list(row.instruction), element, element, accumulator, opcode, kind)
    # A(M,K) with a contiguous M, and B(N,K) with a contiguous K, are column-major BLAS operands.
    a, b, c = config.alignments
    first, second = (operation.majors[0], a), (operation.majors[1], b)
    if not config.swap_ab:
        first, second = second, first
    tensors = [
        TensorDescription(of, LayoutType[f"{major}Major"], width, ComplexTransform.none)
        for of, major, width in (
            (element, "Row" if first[0] == "K" else "Column", first[1]),
            (element, "Column" if second[0] == "K" else "Row", second[1]),
            (out, "Column", c),
        )
    ]
    warps = [*config.turned(config.warps), 1]
    tile = TileDescription(list(config.kernel_tile), config.stages, warps, math, 80, 1024)
    return Named(GemmKind.Universal, 80, tile, *tensors, accumulator)
