"""``sm80_pipeline``: multistage cp.async, swizzled shared memory, ldmatrix, mma.sync.

One template (``templates/sm80/sm80_pipeline.cuh``) serves every element type and every layout; this
module chooses the config, and lists the accesses of the kernel that the config makes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cute_gemm.access import Access, GlobalAccess, SharedAccess
from cute_gemm.arch import compute_capability, shared_limit
from cute_gemm.cute.atoms import MMA_ATOMS
from cute_gemm.cute.layout import Layout
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels.base import Kernel, Launch
from cute_gemm.kernels.options import access_bytes, check_names, power_of_two, with_options
from cute_gemm.kernels.sm80.structure import (
    Config,
    OperandPlan,
    Structure,
    kernel_tile,
    structure,
    tiled_mma,
)
from cute_gemm.kernels.staging import IN_VAIN, by_last_tile, cut_vectors, stored
from cute_gemm.problem.dtypes import DTYPES

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem, Matrix
    from cute_gemm.toolchain.unit import TranslationUnit

COPY_POLICIES = ("auto", "mn_major")

# ---- choice of config ---------------------------------------------------------------------------

_MMA = {
    ("float16", "float32"): "SM80_16x8x16_F32F16F16F32_TN",
    ("bfloat16", "float32"): "SM80_16x8x16_F32BF16BF16F32_TN",
    ("float32", "tf32"): "SM80_16x8x8_F32TF32TF32F32_TN",
    ("float32", "float32"): "UniversalFMA<float>",
    ("float64", "float64"): "SM90_16x8x4_F64F64F64F64_TN",
    ("int8", "int32"): "SM80_16x8x32_S32S8S8S32_TN",
}

_HALF_TILES = (
    ((128, 256, 64), (2, 4), 3, 1),
    ((128, 128, 32), (2, 2), 4, 2),
    ((128, 128, 32), (2, 2), 3, 2),
)
#: dtype/compute -> (tile, warps, stages, min_ctas) for large problems, best first; the last also
#: fits the 99 KiB of sm_86.
_TILES = {
    "float16/float32": _HALF_TILES,
    "bfloat16/float32": _HALF_TILES,
    "float32/tf32": (((128, 128, 32), (2, 4), 3, 1), ((128, 64, 32), (2, 2), 3, 1)),
    "float32/float32": (((128, 128, 16), (2, 4), 3, 1),),
    "float64/float64": (((128, 128, 16), (2, 4), 4, 1), ((64, 64, 16), (2, 2), 3, 1)),
    "int8/int32": (((128, 128, 64), (2, 2), 3, 1),),
}
_REFERENCE_TILE = {"float16": (128, 128, 32), "bfloat16": (128, 128, 32)}
_SMALL = ((64, 64), (2, 2), 4, 2)


def _default_tile(problem: GemmProblem, cc: int, policy: str) -> tuple[Any, ...]:
    candidates = _TILES[f"{problem.A.dtype}/{problem.compute}"]
    if policy == "mn_major" and problem.A.dtype in _REFERENCE_TILE:
        return _REFERENCE_TILE[problem.A.dtype], (2, 2), 3, 1
    limit = shared_limit(cc)
    element = DTYPES[problem.A.dtype].bytes
    # Copies of 1 and 2 bytes go through registers, of which the largest tile has none to spare.
    narrow = min(access_bytes(matrix, False)[0] for matrix in (problem.A, problem.B)) < 4
    for tile, warps, stages, ctas in candidates[narrow and len(candidates) > 1 :]:
        if (tile[0] + tile[1]) * tile[2] * element * stages * ctas > limit:
            continue
        if -(-problem.m // tile[0]) * -(-problem.n // tile[1]) >= 64:
            return tile, warps, stages, ctas
    (bm, bn), warps, stages, ctas = _SMALL
    bk = min(candidates[-1][0][2], 128 // element)
    return (bm, bn, bk), warps, stages, ctas


class Sm80Pipeline(Kernel):
    """Multistage cp.async pipeline on mma.sync: every dtype, op, order, size and alignment."""

    name = "sm80_pipeline"
    summary = "cp.async pipeline, swizzled shared memory, ldmatrix and mma.sync (FMA for float32)"
    minimum_cc = 80
    dtypes: tuple[str, ...] = (
        "float16", "bfloat16", "float32", "float32/tf32", "float64", "int8",
    )  # fmt: skip
    options: tuple[str, ...] = ("tile", "warps", "stages", "copy", "raster", "min_ctas", "mma")
    #: Fewest and most stages.
    stages: ClassVar[tuple[int, int]] = (2, 8)

    def default_tile(self, problem: GemmProblem, cc: int, policy: str) -> tuple[Any, ...]:
        """Return tile, warps, stages and min_ctas for a problem."""
        return _default_tile(problem, cc, policy)

    def configure(self, problem: GemmProblem, arch: str, **options: Any) -> Config:
        """See :meth:`Kernel.configure`; options are the fields that ``options`` names."""
        cc = compute_capability(arch)
        if cc < self.minimum_cc:
            raise UnsupportedError(f"kernel {self.name!r} needs sm_80 or newer; arch is {arch!r}")
        mma = _MMA.get((problem.A.dtype, problem.compute))
        name = problem.A.dtype + "/tf32" * (problem.compute == "tf32")
        if mma is None or name not in self.dtypes:
            raise UnsupportedError(
                f"kernel {self.name!r} does not take {problem.A.dtype} with compute="
                f"{problem.compute!r}; expected one of {', '.join(self.dtypes)}"
            )
        check_names(self, options)
        if MMA_ATOMS[mma].minimum_cc > cc:
            mma = "SM80_8x8x4_F64F64F64F64_TN"
        if max(problem.m, problem.n, problem.k) > 2**31 - 256:
            raise UnsupportedError(
                f"m={problem.m}, n={problem.n}, k={problem.k}: kernel {self.name!r} counts in "
                "32-bit integers and takes extents up to 2**31 - 256"
            )
        policy = options.get("copy", "auto")
        tile, warps, stages, ctas = self.default_tile(problem, cc, policy)
        exchange = problem.C.major == "N"
        config = Config(
            tile=tile,
            warps=warps,
            stages=stages,
            copy="auto",
            raster=8,
            min_ctas=ctas,
            dtype=problem.A.dtype,
            compute=problem.compute,
            out_dtype=problem.C.dtype,
            mma=mma,
            majors=(problem.A.major, problem.B.major),
            exchange=exchange,
            bytes=(
                access_bytes(problem.A, False)[0],
                access_bytes(problem.B, False)[0],
                access_bytes(problem.C, True)[0],
            ),
            kernel=self.name,
        )
        config = with_options(config, options)
        _check(config, cc, arch, self.stages)
        return config

    def emit(self, config: Config) -> TranslationUnit:
        """See :meth:`Kernel.emit`."""
        from cute_gemm.toolchain.unit import emit_sm80_pipeline

        return emit_sm80_pipeline(config, structure(config))

    def launch(self, config: Config, problem: GemmProblem) -> Launch:
        """See :meth:`Kernel.launch`."""
        grid = -(-problem.m // config.tile[0]) * -(-problem.n // config.tile[1])
        parts = structure(config)
        return Launch(grid, parts.mma.size, parts.smem)

    def accesses(
        self, config: Config, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """See :meth:`Kernel.accesses`; alpha is taken not to be 0."""
        parts = structure(config)
        tiles = (-(-problem.m // config.tile[0]), -(-problem.n // config.tile[1]))
        out: list[Access] = []
        for plan in parts.operands:
            matrix = problem.A if plan.source == "A" else problem.B
            sweeps = tiles[1] if plan.source == "A" else tiles[0]
            out += _operand_accesses(config, plan, matrix, sweeps, tiles[0] * tiles[1])
        return (*out, *_epilogue_accesses(config, parts, problem, reads_c))


def _check(config: Config, cc: int, arch: str, stages: tuple[int, int]) -> None:
    """Every legality rule of a config; the first that is broken is named."""
    if config.copy not in COPY_POLICIES:
        raise OptionError(
            f"option copy={config.copy!r} is unknown; expected one of {COPY_POLICIES}"
        )
    if config.mma not in MMA_ATOMS or _mma_kind(config.mma) != _mma_kind(
        _MMA[config.dtype, config.compute]
    ):
        fitting = [
            n for n in MMA_ATOMS if _mma_kind(n) == _mma_kind(_MMA[config.dtype, config.compute])
        ]
        raise OptionError(
            f"option mma={config.mma!r} does not multiply {config.dtype}; "
            f"expected one of {', '.join(fitting)}"
        )
    atom = MMA_ATOMS[config.mma]
    if atom.minimum_cc > cc:
        raise UnsupportedError(f"{atom.name} needs sm_{atom.minimum_cc}; arch is {arch!r}")
    least, most = stages
    if not least <= config.stages <= most:
        raise OptionError(
            f"option stages={config.stages} is out of range; expected {least} to {most}"
        )
    if config.raster < 1 or config.min_ctas < 1:
        raise OptionError("options raster and min_ctas must be 1 or more")
    if not all(power_of_two(n) and n <= 4 for n in config.warps) or (
        atom.threads == 1 and config.warps[0] > 2
    ):
        raise OptionError(f"option warps={config.warps} is not supported; expected 1, 2 or 4 each")
    tile = kernel_tile(config)
    if not all(power_of_two(extent) for extent in tile):
        raise OptionError(f"option tile={config.tile}: each extent must be a power of two")
    mma = tiled_mma(config)
    for mode, name in enumerate("MNK"):
        least = mma.extent(mode) * (2 if name == "K" and config.stages > 1 else 1)
        if tile[mode] < least or tile[mode] > 256:
            raise OptionError(
                f"option tile={config.tile}: with warps={config.warps} and {atom.name} the "
                f"kernel's {name} extent must be {least} to 256; it is {tile[mode]}"
            )
    if (tile[0] * tile[1]) // mma.size * DTYPES[DTYPES[config.dtype].accumulator].bytes > 512:
        raise OptionError(
            f"option tile={config.tile} with warps={config.warps} needs more accumulators than a "
            "thread has registers; take more warps or a smaller tile"
        )
    smem = structure(config).smem
    limit = shared_limit(cc)
    if smem > limit:
        raise OptionError(
            f"tile={config.tile} with stages={config.stages} needs {smem} bytes of shared memory; "
            f"{arch} has {limit}: take fewer stages or a smaller tile"
        )


def _mma_kind(name: str) -> str:
    """What an atom multiplies: F64F64F64F64, ..."""
    return name.split("_")[2] if name.startswith("SM") else name


# ---- accesses -----------------------------------------------------------------------------------


def _operand_accesses(
    config: Config, plan: OperandPlan, matrix: Matrix, sweeps: int, ctas: int
) -> list[Access]:
    """The accesses of A or B; what lies outside is filled with zeros."""
    copy = plan.gmem_copy
    executions = ctas * -(-matrix.shape[1] // plan.extents[1])
    widest, limit = access_bytes(matrix, False)
    mend = ""
    if copy.atom.bits < 8 * widest:
        limit = (
            f"copy={config.copy!r} moves vectors along {matrix.name}'s M or N mode; it is K-major"
        )
        mend = 'copy="auto"'
    shared_mend = 'copy="auto"' if config.copy == "mn_major" else ""
    one_stage = Layout(
        plan.smem_layout.shape[:2],  # type: ignore[index]
        plan.smem_layout.stride[:2],  # type: ignore[index]
        plan.smem_layout.swizzle,
    )
    asynchronous = copy.atom.name == "cp.async"
    coords, offsets = copy.requests(plan.extents), copy.vector_offsets(one_stage, plan.extents)
    load = GlobalAccess(
        operand=plan.source,
        direction="load",
        instruction=copy.atom.name,
        bits=copy.atom.bits,
        matrix=matrix,
        tile=plan.extents,
        coords=coords,
        axis=0 if plan.major == "MN" else 1,
        sweeps=sweeps,
        limit=limit,
        mend=mend,
        targets=offsets if asynchronous else None,
    )
    store = SharedAccess(
        operand=plan.source,
        direction="store",
        instruction="cp.async" if asynchronous else "st.shared",
        bits=copy.atom.bits,
        offsets=offsets,
        mend=shared_mend,
        layout=one_stage,
        coords=coords,
        element_bits=copy.element_bits,
    )
    loads = by_last_tile(load) if executions else []
    cuts = [cut for last in loads[-1:] for cut in cut_vectors(last, "last k-tile, cut vectors")]
    reader = plan.smem_copy
    blocks = SharedAccess(
        operand=plan.source,
        direction="load",
        instruction=reader.atom.name,
        bits=reader.atom.bits,
        offsets=reader.vector_offsets(one_stage, plan.extents),
        executions=executions,
        mend=shared_mend,
        layout=one_stage,
        coords=reader.requests(plan.extents),
        element_bits=reader.element_bits,
    )
    # Fragments are loaded a block ahead: after the last k tile too, one block in vain.
    block = (plan.extents[0], reader.tile[1])
    beyond = replace(
        blocks,
        offsets=reader.vector_offsets(one_stage, block),
        coords=reader.requests(block),
        executions=ctas,
        unit="CTA",
        part=IN_VAIN,
    )
    readers = [blocks, beyond] if config.stages > 1 else [blocks]
    copied: list[Access] = [*loads, *cuts, *stored(store, loads, cuts)]
    return [*copied, *(readers if executions else [])]


def _epilogue_accesses(
    config: Config, parts: Structure, problem: GemmProblem, reads_c: bool
) -> list[Access]:
    ctas = -(-problem.m // config.tile[0]) * -(-problem.n // config.tile[1])
    chunks = parts.tile[1] // parts.epilogue_tile[1]
    stage, copy, tile = parts.epilogue_stage, parts.epilogue_copy, parts.epilogue_tile
    own = copy.requests((parts.tile[0], parts.tile[1]))  # as the kernel sees C
    extents = (parts.tile[0], parts.tile[1])
    coords, axis = own, 0
    if config.exchange:
        coords, extents, axis = own[..., ::-1], extents[::-1], 1
    bits = copy.values * 8 * DTYPES[config.out_dtype].bytes
    widest, limit = access_bytes(problem.C, True)
    if bits < 8 * widest:
        limit = f"{copy.atom.bits}-bit reads of the staged sums"
    store = GlobalAccess(
        operand="C",
        direction="store",
        instruction="st.global",
        bits=bits,
        matrix=problem.C,
        tile=extents,
        coords=coords,
        axis=axis,
        sweeps=1,
        limit=limit,
        unit="CTA",
    )
    staged = SharedAccess(
        operand="C",
        direction="store",
        instruction=stage.atom.name,
        bits=stage.atom.bits,
        offsets=stage.vector_offsets(parts.epilogue_layout, tile),
        executions=ctas * chunks,
        unit="CTA",
        layout=parts.epilogue_layout,
        coords=stage.requests(tile),
        element_bits=stage.element_bits,
    )
    in_chunk = own % np.array(tile)
    read = replace(
        staged,
        direction="load",
        instruction=copy.atom.name,
        bits=copy.atom.bits,
        offsets=parts.epilogue_layout(in_chunk[..., 0], in_chunk[..., 1])
        * (copy.element_bits // 8),
        coords=in_chunk,
        executions=0,
        guard=store,
    )
    loads = [replace(store, direction="load", instruction="ld.global")] if reads_c else []
    return [*loads, staged, read, store]
