"""CUTLASS's own 2.x ``GemmUniversal``, emitted by cutlass_library for sm_80: choice, legality."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from cute_gemm.access import Access, Shares, Work
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels.base import CompiledKernel
from cute_gemm.kernels.cutlass.accesses import accesses, elements_per_access
from cute_gemm.kernels.cutlass.config import CP_ASYNC, MATH, CutlassUniversalConfig, ctas
from cute_gemm.kernels.cutlass.epilogue import check_staging
from cute_gemm.kernels.cutlass.shared import shared_tile
from cute_gemm.kernels.cutlass.unit import unit
from cute_gemm.model.price import Pace
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.toolchain.signature import Launch
from cute_gemm.toolchain.unit import TranslationUnit

if TYPE_CHECKING:
    from cute_gemm.arch import Arch
    from cute_gemm.problem.problem import GemmProblem

#: From this k on a sum of int8 products can leave int32.
_INT8_EXACT_K = 2**31 // 2**14

#: Instructions of a load through registers: its address, predicate and place in a vector.
_ISSUE = {"half": 21.0, "int8": 33.0}


class CutlassUniversal(CompiledKernel):
    """CUTLASS's 2.x ``GemmUniversal`` for sm_80 and newer."""

    name = "cutlass_universal"
    summary = "CUTLASS's own 2.x GemmUniversal, emitted by cutlass_library for sm_80"
    minimum_cc = 80
    dtypes = ("float16", "bfloat16", "float32", "float32/tf32", "float64", "int8")
    fuses = False
    options = ("tile", "warps", "stages", "swizzle")
    nvcc = False  # CUTLASS fills its Params by functions of the host
    takes: ClassVar = {
        "tile": "bM x bN x bK of a CTA, up to 512 each, multiples of the warps' tiles: 128x128x32",
        "warps": "warps along M and N, 32 at most: 2x2",
        "stages": "2 to 12, by type",
        "swizzle": "1 | 2 | 4 | 8",
    }

    def candidates(
        self, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[CutlassUniversalConfig]:
        """See :meth:`CompiledKernel.candidates`."""
        math = self._math(problem)
        row = MATH[math]
        align_a, align_b, align_c = (
            elements_per_access(matrix, row.vector) for matrix in (problem.A, problem.B, problem.C)
        )
        if math == "dp4a":
            align_a = align_b = 4
        if row.opcode == "Simt":
            align_c = 1
        narrowest = min(align_a, align_b) * DTYPES[problem.A.dtype].bytes
        large = row.narrow[1] if row.narrow and narrowest < row.narrow[0] else (row.large,)
        given = {option: value for option, value in options.items() if value is not None}
        rows = (row.large,) if {"tile", "warps"} & given.keys() else (*large, row.small)
        for tile, warps, stages in rows:
            chosen = 2 if narrowest < CP_ASYNC else stages
            yield CutlassUniversalConfig(
                tile=_extents("tile", given.get("tile", tile), 3),
                warps=_extents("warps", given.get("warps", warps), 2),
                stages=_integer("stages", given.get("stages", chosen)),
                swizzle=_integer("swizzle", given.get("swizzle", 8)),
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

    def check(self, config: CutlassUniversalConfig, problem: GemmProblem, arch: Arch) -> None:
        """See :meth:`CompiledKernel.check`."""
        _check(config, arch)
        # CUTLASS's coordinates are 32-bit and run up to the end of the last tile.
        longest = 2**31 - 1 - max(config.tile)
        for name, extent in (("m", problem.m), ("n", problem.n), ("k", problem.k)):
            if extent > longest:
                raise UnsupportedError(
                    f"{name} is {extent}; kernel {self.name!r} takes up to {longest} with this tile"
                )

    def traits(self, problem: GemmProblem) -> Any:
        """See :meth:`CompiledKernel.traits`: widths depend on extents too, and int8 on K."""
        matrices = (problem.A, problem.B, problem.C)
        widths = (elements_per_access(matrix, True) for matrix in matrices)
        return *widths, problem.k < _INT8_EXACT_K

    def of_operand(self, config: CutlassUniversalConfig, name: str) -> CutlassUniversalConfig:
        """See :meth:`CompiledKernel.of_operand`: other operands may be as wide as they like."""
        widths = {x: getattr(config, f"align_{x.lower()}") * (x == name) for x in "ABC"}
        return replace(config, align_a=widths["A"], align_b=widths["B"], align_c=widths["C"])

    def _math(self, problem: GemmProblem) -> str:
        """Key of ``MATH`` for the problem."""
        kind = problem.factor.name
        if kind != "int8":
            return kind if kind in MATH else "half"
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

    def unit(self, config: CutlassUniversalConfig) -> TranslationUnit:
        """See :meth:`CompiledKernel.unit`."""
        return unit(config)

    def launch(self, config: CutlassUniversalConfig, problem: GemmProblem) -> Launch:
        """See :meth:`CompiledKernel.launch`: one CTA for each tile of C."""
        return Launch(ctas(problem, config.tile), config.threads, config.smem, problem.l)

    def accesses(
        self, config: CutlassUniversalConfig, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """See :meth:`CompiledKernel.accesses`, and ``accesses.py`` for what is assumed."""
        return accesses(config, problem, reads_c)

    paces: ClassVar = {
        "half": Pace(1.14, 112, 0.21),
        "tf32": Pace(1.43, 155, 0.36),
        "float32": Pace(1.16, 187, 0.61),
        "float64": Pace(2.09, 258, 0.29),
        "int8": Pace(1.17, 193, 0.38),
    }

    def pace(self, config: CutlassUniversalConfig) -> Pace:
        """See :meth:`CompiledKernel.pace`; two stages pass each element through registers."""
        issue = _ISSUE.get(config.math, 1.0) if config.stages == 2 else 1.0
        return super().pace(config)._replace(ahead=config.stages - 1, issue=issue)

    def work(self, config: CutlassUniversalConfig, problem: GemmProblem) -> Work:
        """See :meth:`Kernel.work`."""
        unit: Literal["tensor cores", "CUDA cores"]
        unit = "CUDA cores" if config.is_simt else "tensor cores"
        rate = problem.factor.name
        return Work.of_tiles(problem, config.tile, unit, rate)

    def shares(self, config: CutlassUniversalConfig) -> Shares:
        """See :meth:`Kernel.shares`."""
        rows, columns = config.simt_grid
        lanes = (columns, rows) if config.swap_ab else (rows, columns)
        return Shares.of_warps(config.tile, config.warps, lanes if config.is_simt else None)


def _check(config: CutlassUniversalConfig, arch: Arch) -> None:
    """Raise ``OptionError`` for what CUTLASS cannot build, or what would not run."""
    row = MATH[config.math]
    tile, warps = config.tile, config.warps
    fewest, most = row.stages
    if config.swizzle not in (1, 2, 4, 8):
        raise OptionError(f"swizzle is {config.swizzle}; expected 1, 2, 4 or 8")
    if not fewest <= config.stages <= most:
        expected = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise OptionError(f"stages is {config.stages}; expected {expected} for {config.math}")
    for operand in "AB":
        width = config.side(operand).alignment * config.element.bytes
        if config.stages > 2 and width < CP_ASYNC:
            raise OptionError(
                f"stages is {config.stages}, but {operand} allows accesses of {width} bytes only "
                f"and cp.async copies at least {CP_ASYNC}; expected stages=2"
            )
    if max(tile) > 512 or max(warps) > 32 or not 1 <= warps[0] * warps[1] <= 32:
        raise OptionError(
            f"tile is {tile}, warps is {warps}; expected extents up to 512, and up to 32 warps"
        )
    warp = []
    for mode in (0, 1):
        extent, rest = divmod(tile[mode], warps[mode])
        # A SIMT warp is 4 or 8 lanes wide in either direction; the instance may be transposed.
        step = 8 if config.is_simt else max(row.instruction[:2])
        if rest or extent % step:
            raise OptionError(
                f"tile is {tile}, warps is {warps}; expected the {'MN'[mode]} extent of a warp to "
                f"be a multiple of {step}"
            )
        warp.append(extent)
    step = 2 * row.instruction[2]
    if tile[2] % step:
        raise OptionError(f"tile is {tile}; expected bK to be a multiple of {step}")
    registers = warp[0] * warp[1] * config.sums.bytes // 4 // 32
    if registers > 128:
        raise OptionError(
            f"tile is {tile}, warps is {warps}: {registers} accumulator registers per thread; "
            f"expected at most 128 (take more warps or a smaller tile)"
        )
    try:
        for operand in "AB":
            found = config.load_map(operand)
            vectors = found.iterations[0] * found.iterations[1] * found.rows
            if (steps := vectors * found.vector // config.side(operand).alignment) > 64:
                raise ValueError(f"{operand} takes {steps} accesses per thread, CUTLASS at most 64")
            shared_tile(config, operand)
        config.store_map().check()
        check_staging(config)
    except ValueError as error:
        raise OptionError(f"tile is {tile}, warps is {warps}: {error}") from None
    if config.smem > arch.shared_limit:
        raise OptionError(
            f"tile is {tile}, stages is {config.stages}: {config.smem} bytes of shared memory; "
            f"expected at most {arch.shared_limit} on sm_{arch.cc}"
        )


def _integer(option: str, value: Any) -> int:
    """Return ``value``, an integer or its text, as an int; ``OptionError`` for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,4}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise OptionError(f"{option} is {value!r}; expected an integer")
    return int(value)


def _extents(option: str, value: Any, count: int) -> Any:
    """Return ``count`` positive extents, from a sequence or from text like ``"128x128x32"``."""
    parts = re.split(r"\s*[x,]\s*", value.strip(" ()")) if isinstance(value, str) else value
    expected = f"{count} positive integers, like {(128, 128, 32) if count == 3 else (2, 2)}"
    if not isinstance(parts, (tuple, list)) or len(parts) != count:
        raise OptionError(f"{option} is {value!r}; expected {expected}")
    try:
        extents = tuple(_integer(option, part) for part in parts)
    except OptionError:
        raise OptionError(f"{option} is {value!r}; expected {expected}") from None
    if min(extents) < 1:
        raise OptionError(f"{option} is {value!r}; expected {expected}")
    return extents
