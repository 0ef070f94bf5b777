"""CUTLASS's own 2.x ``GemmUniversal``, emitted by cutlass_library for sm_80: configs, legality."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cute_gemm.access.accesses import Access, Shares, Work
from cute_gemm.arch import Arch
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels.base import CompiledKernel
from cute_gemm.kernels.cutlass.accesses import accesses, elements_per_access
from cute_gemm.kernels.cutlass.config import CP_ASYNC, MATH, CutlassUniversalConfig, Tile
from cute_gemm.kernels.cutlass.unit import unit
from cute_gemm.kernels.options import launch_of_tiles, parsed, spelled
from cute_gemm.toolchain.signature import Launch
from cute_gemm.toolchain.unit import TranslationUnit

if TYPE_CHECKING:
    from cute_gemm.cost_model.footprint import Footprint
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.problem import GemmProblem

#: Least k at which a sum of int8 products can overflow int32.
_INT8_EXACT_K = 2**31 // 2**14


class CutlassUniversal(CompiledKernel):
    """CUTLASS's 2.x ``GemmUniversal`` for sm_80 and newer."""

    name = "cutlass_universal"
    summary = "CUTLASS's own 2.x GemmUniversal, emitted by cutlass_library for sm_80"
    minimum_cc = 80
    dtypes = ("float16", "bfloat16", "float32", "float32/tf32", "float64", "int8")
    takes = frozenset()
    options = ("tile", "stages", "swizzle")
    nvcc = False  # host functions of CUTLASS fill its Params
    option_values: ClassVar = {
        "tile": "bM x bN x bK of a CTA, one of a few for each type: 128x128x32",
        "stages": "2 to 12, depending on the type",
        "swizzle": "1 | 2 | 4 | 8",
    }

    def candidates(
        self, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[CutlassUniversalConfig]:
        """Yield a large tile and a small one."""
        math = self._math(problem)
        row = MATH[math]
        align_a, align_b, align_c = (
            elements_per_access(matrix, row.vector) for matrix in (problem.A, problem.B, problem.C)
        )
        if math == "dp4a":
            align_a = align_b = 4
        if row.opcode == "Simt":
            align_c = 1
        size, size_c = problem.A.element.bytes, problem.C.element.bytes
        usual = CutlassUniversalConfig(
            tile=row.tiles[0].extents, warps=row.tiles[0].warps, stages=row.tiles[0].stages,
            swizzle=8, math=math,
            operation=problem.operation(align_a * size, align_b * size, align_c * size_c),
        )  # fmt: skip
        given = parsed(usual, {name: x for name, x in options.items() if x is not None})
        narrowest = min(align_a, align_b) * size
        for tile in _tiles(math, narrowest, given.get("tile")):
            stages = 2 if narrowest < CP_ASYNC else tile.stages
            how = {"tile": tile.extents, "warps": tile.warps, "stages": stages}
            yield replace(usual, **{**how, **given})

    def traits(self, problem: GemmProblem) -> Any:
        """Return the problem: the tile depends on its extents."""
        return problem

    def shapes(self, extent: int) -> tuple[tuple[int, int], ...]:
        """Return extents of few tiles and of many."""
        return (extent, extent), (extent + 2**14, extent + 2**14)

    def footprints(
        self, problem: GemmProblem, arch: str, options: dict[str, Any], gpu: Gpu
    ) -> list[tuple[Any, Footprint | None]]:
        """Return the first candidate that has a CTA for each multiprocessor, else the last.

        The footprint is None: accesses are known only once the kernel is compiled.
        """
        legal = self.legal(problem, Arch(arch), options)
        full = (x for x in legal if self.launch(x, problem).ctas >= gpu.sms)
        return [(next(full, legal[-1]), None)]

    def check(self, config: CutlassUniversalConfig, problem: GemmProblem, arch: Arch) -> None:
        _check(config, arch)
        # CUTLASS's coordinates are 32-bit and run up to the end of the last tile.
        longest = 2**31 - 1 - max(config.tile)
        for name, extent in (("m", problem.m), ("n", problem.n), ("k", problem.k)):
            if extent > longest:
                raise UnsupportedError(
                    f"{name} is {extent}; kernel {self.name!r} takes up to {longest} with this tile"
                )

    def _math(self, problem: GemmProblem) -> str:
        """Return the key of ``MATH`` for the problem."""
        kind = problem.factor.name
        if kind != "int8":
            return kind if kind in MATH else "half"
        # The tensor core kernel saturates; below this k no sum can overflow int32.
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
        return unit(config)

    def launch(self, config: CutlassUniversalConfig, problem: GemmProblem) -> Launch:
        """Return a launch of a CTA for each tile of C."""
        return launch_of_tiles(problem, config.tile, config.threads, config.smem)

    def accesses(
        self, config: CutlassUniversalConfig, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return the accesses of one tile as recorded, for all tiles."""
        return accesses(config, problem, reads_c)

    def work(self, config: CutlassUniversalConfig, problem: GemmProblem) -> Work:
        unit: Literal["tensor cores", "CUDA cores"]
        unit = "CUDA cores" if config.is_simt else "tensor cores"
        rate = problem.factor.name
        return Work.of_tiles(problem, config.tile, unit, rate)

    def shares(self, config: CutlassUniversalConfig) -> Shares:
        lanes = config.turned(config.simt_grid) if config.is_simt else None
        return Shares.of_warps(config.tile, config.warps, lanes)


def _tiles(math: str, narrowest: int, given: Any) -> list[Tile]:
    """Return the given tile, or a large tile that allows such narrow accesses and a small one."""
    tiles = MATH[math].tiles
    if given is None:
        return [next(tile for tile in tiles if tile.narrowest <= narrowest), tiles[-1]]
    fitting = [tile for tile in tiles if tile.extents == given]
    if not fitting:
        expected = ", ".join(spelled(tile.extents) for tile in tiles)
        raise OptionError(f"tile is {given}; expected one of {expected} for {math}")
    return fitting


def _check(config: CutlassUniversalConfig, arch: Arch) -> None:
    """Raise ``OptionError`` for a config that CUTLASS cannot build or that would not run."""
    fewest, most = MATH[config.math].stages
    if config.swizzle not in (1, 2, 4, 8):
        raise OptionError(f"swizzle is {config.swizzle}; expected 1, 2, 4 or 8")
    if not fewest <= config.stages <= most:
        expected = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise OptionError(f"stages is {config.stages}; expected {expected} for {config.math}")
    for operand in "AB":
        width = config.operation.bytes["AB".index(operand)]
        if config.stages > 2 and width < CP_ASYNC:
            raise OptionError(
                f"stages is {config.stages}, but {operand} allows only accesses of {width} bytes "
                f"and cp.async copies at least {CP_ASYNC}; expected stages=2"
            )
    if config.smem > arch.shared_limit:
        raise OptionError(
            f"tile is {config.tile}, stages is {config.stages}: {config.smem} bytes of shared "
            f"memory; expected at most {arch.shared_limit} on sm_{arch.cc}"
        )
