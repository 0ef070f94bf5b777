"""CUTLASS's own 2.x ``GemmUniversal``, emitted by cutlass_library's own emitter for sm_80.

The kernel is stock; only the way in differs: its ``Params`` are computed on the device from the
entry's parameters (no host compiler), and a one-dimensional grid is mapped to tiles.

CUTLASS writes row-major outputs. The emitter serves a column-major C by the transposed problem
(it exchanges A and B and flips every layout), so a row-major C is handed to it transposed. What is
called *instance* here is the problem that the emitted C++ type solves: with a column-major C its
rows are n and its columns m, with a row-major C its rows are m and its columns n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cute_gemm.access import Access
from cute_gemm.arch import compute_capability
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels.base import Kernel, Launch
from cute_gemm.kernels.cutlass import epilogue
from cute_gemm.kernels.cutlass.accesses import accesses, elements_per_access
from cute_gemm.kernels.cutlass.config import (
    CP_ASYNC,
    MATH,
    WIDEST,
    CutlassUniversalConfig,
    check,
    extents_of,
    integer,
)
from cute_gemm.kernels.cutlass.epilogue import compact_map
from cute_gemm.kernels.cutlass.shared import (
    is_simt,
    shared_tile,
    simt_elements,
    simt_grid,
    simt_interleave,
    warp_tile,
)
from cute_gemm.problem.dtypes import dtype
from cute_gemm.toolchain.unit import TranslationUnit

if TYPE_CHECKING:
    from cute_gemm.kernels.cutlass.maps import StoreMap
    from cute_gemm.problem.problem import GemmProblem

#: Below this many CTAs the small tile is taken: about the number of SMs of the large chips.
_ENOUGH_CTAS = 96

#: Narrow accesses are many, and so are their predicates: below this width in bytes the large tile
#: is another one, for which the registers suffice.
_NARROW = {
    "half": (CP_ASYNC, ((128, 64, 32), (2, 2), 2)),
    "tf32": (WIDEST, ((128, 128, 16), (2, 2), 4)),
    "int8": (CP_ASYNC, ((128, 64, 64), (2, 2), 2)),
}

#: From this k on a sum of int8 products can leave int32.
_INT8_EXACT_K = 2**31 // 2**14


class CutlassUniversal(Kernel):
    """CUTLASS's 2.x ``GemmUniversal`` for sm_80 and newer.

    Examples
    --------
    >>> sorted(CutlassUniversal.options)
    ['stages', 'swizzle', 'tile', 'warps']
    """

    name = "cutlass_universal"
    summary = "CUTLASS's own 2.x GemmUniversal, emitted by cutlass_library for sm_80"
    minimum_cc = 80
    dtypes = ("float16", "bfloat16", "float32", "float32/tf32", "float64", "int8")
    #: Fields of the config that a user may set.
    options = ("tile", "warps", "stages", "swizzle")

    def configure(self, problem: GemmProblem, arch: str, **options: Any) -> CutlassUniversalConfig:
        """Return the config for ``problem`` on ``arch``.

        Parameters
        ----------
        problem
            Any op, any leading dimensions and alignments.
        arch
            ``"sm_80"`` or newer.
        **options
            ``tile`` (bM, bN, bK) and ``warps`` (M, N) as tuples or as text like ``"128x128x32"``,
            ``stages`` and ``swizzle``.

        Raises
        ------
        UnsupportedError
            For an arch before sm_80, extents beyond 2**31 - 1 - max(tile), and int8 operands that
            neither CUTLASS's tensor core kernel (op TN) nor its dp4a kernel (multiples of 4) takes.
        OptionError
            For an unknown option, or a value that CUTLASS cannot build.
        """
        cc = compute_capability(arch)
        if cc < self.minimum_cc:
            raise UnsupportedError(f"arch is {arch!r}; kernel {self.name!r} needs sm_80 or newer")
        for option in options:
            if option not in self.options:
                known = ", ".join(self.options)
                raise OptionError(f"kernel {self.name!r} has no option {option!r}; it has {known}")

        math = self._math(problem)
        row = MATH[math]
        align_a, align_b, align_c = (
            elements_per_access(matrix, row.vector) for matrix in (problem.A, problem.B, problem.C)
        )
        if math == "dp4a":
            align_a = align_b = 4
        if row.opcode == "Simt":
            align_c = 1
        narrowest = min(align_a, align_b) * dtype(problem.A.dtype).bytes

        given = {option: value for option, value in options.items() if value is not None}
        tile, warps, stages = row.large
        if not {"tile", "warps"} & given.keys():
            if _ctas(problem, tile) < _ENOUGH_CTAS:
                tile, warps, stages = row.small
            elif math in _NARROW and narrowest < _NARROW[math][0]:
                tile, warps, stages = _NARROW[math][1]
        tile = extents_of("tile", given["tile"], 3) if "tile" in given else tile
        warps = extents_of("warps", given["warps"], 2) if "warps" in given else warps
        if narrowest < CP_ASYNC:
            stages = 2
        stages = integer("stages", given.get("stages", stages))
        swizzle = integer("swizzle", given.get("swizzle", 8))

        config = CutlassUniversalConfig(
            tile=tile,
            warps=warps,
            stages=stages,
            swizzle=swizzle,
            math=math,
            dtype=problem.A.dtype,
            out_dtype=problem.C.dtype,
            major_a="K" if problem.A.unit == 1 else "M",
            major_b="K" if problem.B.unit == 1 else "N",
            major_c="M" if problem.C.unit == 0 else "N",
            align_a=align_a,
            align_b=align_b,
            align_c=align_c,
        )
        check(config, cc)
        # CUTLASS's coordinates are 32-bit and run up to the end of the last tile.
        longest = 2**31 - 1 - max(tile)
        for name, extent in (("m", problem.m), ("n", problem.n), ("k", problem.k)):
            if extent > longest:
                raise UnsupportedError(
                    f"{name} is {extent}; kernel {self.name!r} takes up to {longest} with this tile"
                )
        return config

    def _math(self, problem: GemmProblem) -> str:
        """Key of ``MATH`` for the problem."""
        kind = problem.A.dtype
        if kind in ("float16", "bfloat16"):
            return "half"
        if kind == "float32":
            return "tf32" if problem.compute == "tf32" else "float32"
        if kind == "float64":
            return "float64"
        if kind != "int8":
            known = ", ".join(self.dtypes)
            raise UnsupportedError(f"dtype is {kind!r}; kernel {self.name!r} takes {known}")
        # The tensor core kernel saturates its sums; below this k none can leave int32.
        tensor_cores = problem.A.unit == 1 and problem.B.unit == 1
        if tensor_cores and problem.k < _INT8_EXACT_K:
            return "int8"
        for matrix in (problem.A, problem.B):
            if elements_per_access(matrix, True) < 4:
                why = f"saturates from k = {_INT8_EXACT_K}" if tensor_cores else "is for BLAS op TN"
                raise UnsupportedError(
                    f"int8 {matrix.name} is {matrix}, aligned to {matrix.alignment} bytes, but "
                    f"CUTLASS's tensor core kernel {why} and its dp4a kernel loads 4 elements at a "
                    f'time; use kernel="sm80_pipeline"'
                )
        return "dp4a"

    def emit(self, config: CutlassUniversalConfig) -> TranslationUnit:
        """Return the C++ unit of ``config``."""
        from cutlass_library import DataTypeTag, SubstituteTemplate
        from cutlass_library.gemm_operation import EmitGemmUniversalInstance

        # The entry has the symbol's name, the emitted struct that name and this suffix.
        emitter = EmitGemmUniversalInstance("_gemm")
        emitter.includes = ["cutlass/cutlass_universal.cuh"]
        emitter.gemm_template = SubstituteTemplate(
            emitter.gemm_template,
            {"swizzling_functor": f"cute_gemm::LinearThreadblockSwizzle<{config.swizzle}>"},
        )
        operation = _operation(config)
        exchange = config.exchange
        values = {
            "includes": "\n".join(f'#include "{path}"' for path in emitter.includes),
            "definition": emitter.emit(operation).strip(),
            "symbol": config.name,
            "threads": str(config.threads),
            "smem": str(config.smem),
            "exchange": "true" if exchange else "false",
            "load_a": _load_map_arguments(config, "B" if exchange else "A"),
            "load_b": _load_map_arguments(config, "A" if exchange else "B"),
            "store": _store_map_arguments(config.store_map()),
            "shared": _shared_arguments(config),
            "warp": _warp_assertion(config),
            "staged": _staged_arguments(config),
            "compact": _store_map_arguments(compact_map(config)),
            "align_a": str(config.align_b if exchange else config.align_a),
            "align_b": str(config.align_a if exchange else config.align_b),
            "align_c": str(config.align_c),
            "element": DataTypeTag[operation.A.element],
            "output": DataTypeTag[operation.C.element],
            "scalar": DataTypeTag[operation.accumulator_type()],
        }
        return TranslationUnit(SubstituteTemplate(_UNIT, values), config.name)

    def launch(self, config: CutlassUniversalConfig, problem: GemmProblem) -> Launch:
        """Return the launch: one CTA for each tile of C."""
        return Launch(_ctas(problem, config.tile), config.threads, config.smem)

    def accesses(
        self, config: CutlassUniversalConfig, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """See :meth:`Kernel.accesses`, and ``cutlass_accesses`` for what is assumed."""
        return accesses(config, problem, reads_c)


_UNIT = """\
// CUTLASS 2.x GemmUniversal, emitted by cutlass_library (EmitGemmUniversalInstance). It writes a
// column-major C as the transpose of a row-major one: the type's operands are then B and A.
${includes}

${definition}

using Gemm = ${symbol}_gemm;
using MapA = Gemm::Mma::IteratorA::ThreadMap;
using MapB = Gemm::Mma::IteratorB::ThreadMap;
using MapC = Gemm::Epilogue::OutputTileIterator::ThreadMap;

static_assert(Gemm::kThreadCount == ${threads});
static_assert(sizeof(Gemm::SharedStorage) <= ${smem});
static_assert(Gemm::Mma::IteratorA::AccessType::kElements == ${align_a});
static_assert(Gemm::Mma::IteratorB::AccessType::kElements == ${align_b});
static_assert(Gemm::kAlignmentC == ${align_c});
static_assert(cute_gemm::is_load_map<MapA, ${load_a}>);
static_assert(cute_gemm::is_load_map<MapB, ${load_b}>);
static_assert(cute_gemm::is_store_map<MapC, ${store}>);
static_assert(cute_gemm::is_shared<Gemm::Mma, ${shared}>);
static_assert(cute_gemm::${warp});
static_assert(cute_gemm::is_staged<Gemm::Epilogue, ${staged}>);
static_assert(cute_gemm::is_store_map<Gemm::Epilogue::SharedLoadIterator::ThreadMap, ${compact}>);

extern "C" __global__ void __launch_bounds__(${threads})
${symbol}(${element} const* A, ${element} const* B, ${output}* C, int m, int n, int k,
    int64_t lda, int64_t ldb, int64_t ldc, ${scalar} alpha, ${scalar} beta,
    ${scalar} const* alpha_ptr, ${scalar} const* beta_ptr) {
  cute_gemm::cutlass_universal<Gemm, /* Exchange */ ${exchange}>(
      A, B, C, m, n, k, lda, ldb, ldc, alpha, beta, alpha_ptr, beta_ptr);
}
"""


def _operation(config: CutlassUniversalConfig) -> Any:
    """``cutlass_library.GemmOperation`` of the problem with a column-major C.

    With a row-major C that is the transposed problem, whose first operand is B.
    """
    from cutlass_library import (
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

    class Operation(GemmOperation):
        def procedural_name(self) -> str:
            """Our symbol: CUTLASS's name leaves out C's layout and the warps."""
            return config.name

    row = MATH[config.math]
    element = DataType[dtype(config.dtype).tag]
    accumulator = DataType[dtype(dtype(config.dtype).accumulator).tag]
    math = MathInstruction(
        list(row.instruction),
        element,
        element,
        accumulator,
        OpcodeClass[row.opcode],
        # CUTLASS has no other int8 instruction for tensor cores.
        MathOperation.multiply_add_saturate
        if config.math == "int8"
        else MathOperation.multiply_add,
    )
    tile = TileDescription(
        list(config.instance_tile), config.stages, [*config.instance_warps, 1], math, 80, 1024
    )
    # A(M,K) with a contiguous M, and B(N,K) with a contiguous K, are column-major BLAS operands.
    column, row_major = LayoutType.ColumnMajor, LayoutType.RowMajor
    first, second = (config.major_a, config.align_a), (config.major_b, config.align_b)
    if not config.exchange:
        first, second = second, first
    return Operation(
        GemmKind.Universal,
        80,
        tile,
        TensorDescription(element, row_major if first[0] == "K" else column, first[1]),
        TensorDescription(element, column if second[0] == "K" else row_major, second[1]),
        TensorDescription(DataType[dtype(config.out_dtype).tag], column, config.align_c),
        accumulator,
    )


def _load_map_arguments(config: CutlassUniversalConfig, operand: str) -> str:
    """Template arguments of ``is_load_map`` after the map."""
    found = config.load_map(operand)
    numbers = (config.threads, found.vector, *found.iterations, *found.delta)
    return ", ".join(map(str, numbers))


def _store_map_arguments(found: StoreMap) -> str:
    """Template arguments of ``is_store_map`` after the map."""
    numbers = (found.threads, found.vector, *found.iterations, *found.delta)
    return ", ".join(map(str, numbers))


def _shared_arguments(config: CutlassUniversalConfig) -> str:
    """Template arguments of ``is_shared`` after the type."""
    operands = ("B", "A") if config.exchange else ("A", "B")
    layouts, extents = [], []
    for operand, major in zip(operands, ("ColumnMajor", "RowMajor"), strict=True):
        tile = shared_tile(config, operand)
        layouts.append(f"cutlass::layout::{tile.cpp(major)}")
        extents.append(str(tile.extent))
    _, _, k = config.tile
    return ", ".join((*layouts, *extents, str(k * config.stages), str(k // config.k_step)))


def _warp_assertion(config: CutlassUniversalConfig) -> str:
    """``is_tensor_op`` or ``is_simt`` with its template arguments."""
    warp = warp_tile(config)
    if not is_simt(config):
        numbers = ", ".join(map(str, (*warp, *MATH[config.math].instruction)))
        return f"is_tensor_op<Gemm::Mma::Operator, {numbers}>"
    order = "ColumnMajor" if config.math == "dp4a" else "RowMajor"
    lanes = f"cutlass::layout::{order}Interleaved<{simt_interleave(config)}>"
    arguments = (*warp, lanes, *simt_grid(config), *simt_elements(config))
    return f"is_simt<Gemm::Mma::Operator, {', '.join(map(str, arguments))}>"


def _staged_arguments(config: CutlassUniversalConfig) -> str:
    """Template arguments of ``is_staged`` after the type."""
    numbers = (
        epilogue.iterations(config),
        epilogue.staged_rows(config),
        epilogue.row_elements(config),
        epilogue.load_elements(config),
    )
    mixed = "true" if epilogue.is_mixed(config) else "false"
    return ", ".join((*map(str, numbers), mixed))


def _ctas(problem: GemmProblem, tile: tuple[int, int, int]) -> int:
    return -(-problem.m // tile[0]) * -(-problem.n // tile[1])
