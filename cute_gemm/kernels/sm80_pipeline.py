"""``sm80_pipeline``: multistage cp.async, swizzled shared memory, ldmatrix, mma.sync.

One template (``templates/sm80_pipeline.cuh``) serves every element type and every layout; this
module says with which tiled copies, shared-memory layouts and MMA. The kernel writes a
column-major C; for a row-major one it computes the transposed problem, A and B exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.atoms import (
    DTYPES,
    LDMATRIX,
    LDMATRIX_TRANS,
    MMA_ATOMS,
    CopyAtom,
    MmaAtom,
    cp_async,
    universal,
)
from cute_gemm.copies import TiledCopy, TiledMma, gmem_tiled_copy, mma_tiled_copy
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.kernels.base import Access, GlobalAccess, Kernel, Launch, SharedAccess
from cute_gemm.layout import Layout, Swizzle, column_major, row_major, tile_to_shape

if TYPE_CHECKING:
    from cute_gemm.emitter import TranslationUnit
    from cute_gemm.problem import GemmProblem, Matrix

COPY_POLICIES = ("auto", "mn_major")

#: Shared memory that a CTA may have, in bytes, by compute capability (CUDA C Programming Guide,
#: "Technical Specifications per Compute Capability").
SHARED_LIMIT = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99}


@dataclass(frozen=True)
class Config:
    """Everything that shapes the code of one sm80_pipeline kernel.

    The fields up to ``min_ctas``, and ``mma``, may be set as kernel options; the others follow from
    the problem.

    Attributes
    ----------
    tile
        (bM, bN, bK): extents of the CTA tile.
    warps
        (m, n): warps along M and N.
    stages
        k tiles in shared memory at a time.
    copy
        ``"auto"``: thread layouts, swizzles and ldmatrix kinds follow each operand's major.
        ``"mn_major"``: the thread layout (16,T/16):(1,16) with vectors along M or N and MN-major
        shared memory, whatever the operand's major.
    raster
        Rows of tiles that share an L2 group.
    min_ctas
        CTAs per multiprocessor that the register count must leave room for.
    dtype, compute, out_dtype
        Element type, type of the products, type of C.
    mma
        Name of the MMA atom.
    majors
        ``"K"`` or ``"MN"`` for A and for B, in memory.
    exchange
        C is row-major: the kernel computes C^T with A and B exchanged.
    bytes
        Width in bytes of a gmem access of A, of B, and of C.
    """

    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    copy: str
    raster: int
    min_ctas: int
    dtype: str
    compute: str
    out_dtype: str
    mma: str
    majors: tuple[str, str]
    exchange: bool
    bytes: tuple[int, int, int]

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and tile, C's too."""
        inputs = DTYPES[self.dtype].tag if self.compute != "tf32" else "tf32"
        letters = "".join(
            ("t" if major == "K" else "n") if operand == "A" else ("n" if major == "K" else "t")
            for operand, major in zip("AB", self.majors, strict=True)
        )
        atom = MMA_ATOMS[self.mma]
        parts = (
            "sm80_pipeline",
            f"{inputs}_{DTYPES[DTYPES[self.dtype].accumulator].tag}_{DTYPES[self.out_dtype].tag}",
            f"{letters}_{'row' if self.exchange else 'col'}",
            "x".join(map(str, self.tile)),
            f"w{self.warps[0]}x{self.warps[1]}",
            f"mma{'x'.join(map(str, atom.shape_mnk))}",
            f"s{self.stages}",
            "v" + "_".join(str(8 * width) for width in self.bytes),
            self.copy,
            f"r{self.raster}",
            f"o{self.min_ctas}",
        )
        return "_".join(parts)


@dataclass(frozen=True, eq=False)
class OperandPlan:
    """How A or B (as the kernel sees them) gets from global memory to the tensor cores."""

    source: str
    major: str
    smem_major: str
    gmem_copy: TiledCopy
    gmem_threads: Layout
    gmem_values: Layout
    smem_atom: Layout
    smem_layout: Layout
    smem_copy: TiledCopy
    extents: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Structure:
    """A config worked out: tiled MMA, tiled copies and layouts, as the kernel sees them."""

    tile: tuple[int, int, int]
    mma: TiledMma
    operands: tuple[OperandPlan, OperandPlan]
    epilogue_tile: tuple[int, int]
    epilogue_layout: Layout
    epilogue_stage: TiledCopy
    epilogue_copy: TiledCopy
    epilogue_threads: Layout
    epilogue_values: Layout
    smem: int


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


def _capability(arch: str) -> int:
    return int("".join(filter(str.isdigit, arch)))


def access_bytes(matrix: Matrix, extent_counts: bool) -> tuple[int, str]:
    """Widest power-of-two access, 16 bytes at most, that a matrix in memory allows, and its limit.

    Parameters
    ----------
    extent_counts
        Whether vectors must not straddle the end of a row (stores) or may be cut short (loads).
    """
    element = DTYPES[matrix.dtype].bytes
    limits = [(matrix.alignment, f"base address aligned to {matrix.alignment} B")]
    if matrix.shape[1 - matrix.unit] > 1:
        pitch = matrix.ld * element
        limits.append((pitch & -pitch, f"ld{matrix.name.lower()}={matrix.ld} ({pitch} B)"))
    if extent_counts:
        row = matrix.shape[matrix.unit] * element
        limits.append((row & -row, f"extent {matrix.shape[matrix.unit]} ({row} B)"))
    width, limit = min(limits, key=lambda pair: pair[0])
    return (16, "") if width >= 16 or width == 0 else (max(width, element), limit)


def _default_tile(problem: GemmProblem, cc: int, policy: str) -> tuple[Any, ...]:
    candidates = _TILES[f"{problem.A.dtype}/{problem.compute}"]
    if policy == "mn_major" and problem.A.dtype in _REFERENCE_TILE:
        return _REFERENCE_TILE[problem.A.dtype], (2, 2), 3, 1
    limit = SHARED_LIMIT.get(cc, 99) * 1024
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
    dtypes = ("float16", "bfloat16", "float32", "float32/tf32", "float64", "int8")
    options = ("tile", "warps", "stages", "copy", "raster", "min_ctas", "mma")

    def configure(self, problem: GemmProblem, arch: str, **options: Any) -> Config:
        """See :meth:`Kernel.configure`; options are the fields that ``options`` names."""
        cc = _capability(arch)
        if cc < self.minimum_cc:
            raise UnsupportedError(f"kernel {self.name!r} needs sm_80 or newer; arch is {arch!r}")
        mma = _MMA.get((problem.A.dtype, problem.compute))
        if mma is None:
            raise UnsupportedError(
                f"kernel {self.name!r} does not take {problem.A.dtype} with compute="
                f"{problem.compute!r}; expected one of {', '.join(self.dtypes)}"
            )
        for option in options:
            if option not in self.options:
                raise OptionError(
                    f"option {option!r} is not one of kernel {self.name!r}; "
                    f"expected {', '.join(self.options)}"
                )
        if MMA_ATOMS[mma].minimum_cc > cc:
            mma = "SM80_8x8x4_F64F64F64F64_TN"
        if max(problem.m, problem.n, problem.k) > 2**31 - 256:
            raise UnsupportedError(
                f"m={problem.m}, n={problem.n}, k={problem.k}: kernel {self.name!r} counts in "
                "32-bit integers and takes extents up to 2**31 - 256"
            )
        policy = options.get("copy", "auto")
        tile, warps, stages, ctas = _default_tile(problem, cc, policy)
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
        )
        config = replace(config, **{key: _option(config, key, options[key]) for key in options})
        _check(config, cc, arch)
        return config

    def emit(self, config: Config) -> TranslationUnit:
        """See :meth:`Kernel.emit`."""
        from cute_gemm.emitter import emit_sm80_pipeline

        return emit_sm80_pipeline(config, structure(config))

    def launch(self, config: Config, problem: GemmProblem) -> Launch:
        """See :meth:`Kernel.launch`."""
        grid = -(-problem.m // config.tile[0]) * -(-problem.n // config.tile[1])
        parts = structure(config)
        return Launch(grid, parts.mma.size, parts.smem)

    def accesses(self, config: Config, problem: GemmProblem) -> tuple[Access, ...]:
        """See :meth:`Kernel.accesses`."""
        parts = structure(config)
        tiles = (-(-problem.m // config.tile[0]), -(-problem.n // config.tile[1]))
        k_tiles = -(-problem.k // config.tile[2])
        ctas = tiles[0] * tiles[1]
        out: list[Access] = []
        for plan in parts.operands:
            matrix = problem.A if plan.source == "A" else problem.B
            sweeps = tiles[1] if plan.source == "A" else tiles[0]
            out += _operand_accesses(config, plan, matrix, sweeps, ctas, k_tiles)
        return (*out, *_epilogue_accesses(config, parts, problem, ctas))


def _option(config: Config, key: str, value: Any) -> Any:
    """An option's value as the config holds it; text as on the command line is understood."""
    default = getattr(config, key)
    try:
        if isinstance(default, tuple):
            numbers = value.replace("x", ",").split(",") if isinstance(value, str) else value
            numbers = tuple(int(number) for number in numbers)
            if len(numbers) != len(default):
                raise ValueError
            return numbers
        if isinstance(default, int):
            return int(value)
    except (TypeError, ValueError):
        kind = f"{len(default)} integers" if isinstance(default, tuple) else "an integer"
        raise OptionError(f"option {key}={value!r} does not fit; expected {kind}") from None
    return value


def _check(config: Config, cc: int, arch: str) -> None:
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
    if not 2 <= config.stages <= 8:
        raise OptionError(f"option stages={config.stages} is out of range; expected 2 to 8")
    if config.raster < 1 or config.min_ctas < 1:
        raise OptionError("options raster and min_ctas must be 1 or more")
    if not all(_power_of_two(n) and n <= 4 for n in config.warps) or (
        atom.threads == 1 and config.warps[0] > 2
    ):
        raise OptionError(f"option warps={config.warps} is not supported; expected 1, 2 or 4 each")
    tile = _kernel_tile(config)
    if not all(_power_of_two(extent) for extent in tile):
        raise OptionError(f"option tile={config.tile}: each extent must be a power of two")
    mma = _tiled_mma(config)
    for mode, name in enumerate("MNK"):
        least = mma.extent(mode) * (2 if name == "K" else 1)
        if tile[mode] < least or tile[mode] > 256:
            raise OptionError(
                f"option tile={config.tile}: with warps={config.warps} and {atom.name} the "
                f"kernel's {name} extent must be {least} to 256; it is {tile[mode]}"
            )
    if (tile[0] * tile[1]) // mma.size * DTYPES[DTYPES[config.dtype].accumulator].bytes > 1024:
        raise OptionError(
            f"option tile={config.tile} with warps={config.warps} needs more accumulators than a "
            "thread has registers; take more warps or a smaller tile"
        )
    smem = structure(config).smem
    limit = SHARED_LIMIT.get(cc, 99) * 1024
    if smem > limit:
        raise OptionError(
            f"tile={config.tile} with stages={config.stages} needs {smem} bytes of shared memory; "
            f"{arch} has {limit}: take fewer stages or a smaller tile"
        )


def _power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _mma_kind(name: str) -> str:
    """What an atom multiplies: F64F64F64F64, ..."""
    return name.split("_")[2] if name.startswith("SM") else name


# ---- structure ----------------------------------------------------------------------------------


def _kernel_tile(config: Config) -> tuple[int, int, int]:
    bm, bn, bk = config.tile
    return (bn, bm, bk) if config.exchange else (bm, bn, bk)


def _smem_majors(config: Config) -> tuple[str, str]:
    """Majors in shared memory of the kernel's A and B."""
    if config.copy == "mn_major":
        return "MN", "MN"
    a, b = config.majors
    return (b, a) if config.exchange else (a, b)


def _tiled_mma(config: Config) -> TiledMma:
    atom = MMA_ATOMS[config.mma]
    wm, wn = config.warps[::-1] if config.exchange else config.warps
    if atom.threads == 32:
        m, n, k = atom.shape_mnk
        # Two atoms along N make one ldmatrix.x4 of B; DMMA operands are loaded one by one.
        n_atoms = 1 if config.dtype == "float64" else 2
        tile = (Layout(m * wm, 1), Layout(n * wn * n_atoms, 1), Layout(k, 1))
        return TiledMma(atom, Layout((wm, wn, 1), (1, wm, 0)), tile)
    # FMA: 8 x 4 lanes, so that a warp reads as few distinct words as it can. An MN-major operand is
    # read four rows at a time, a K-major one four columns.
    threads = Layout(((8, wm), (4, wn), 1), ((1, 32), (8, 32 * wm), 0))
    rows, columns = (
        Layout((extent, 4), (4, 1)) if major == "MN" else Layout(extent, 1)
        for extent, major in zip((8 * wm, 4 * wn), _smem_majors(config), strict=True)
    )
    return TiledMma(
        atom, threads, (rows, columns, Layout(4 if "K" in _smem_majors(config) else 1, 1))
    )


def _smem_copy_atom(config: Config, atom: MmaAtom, major: str) -> CopyAtom:
    """The instruction that brings an operand from shared memory to the MMA's registers."""
    element = DTYPES[config.dtype].bytes
    if atom.threads == 1:
        return universal("ld.shared", 128)
    if element == 8 or (major == "MN" and element != 2):
        return universal("ld.shared", 8 * element)  # ldmatrix transposes 16-bit elements only
    return LDMATRIX if major == "K" else LDMATRIX_TRANS


def _smem_atom(config: Config, reader: CopyAtom, major: str, extents: tuple[int, int]) -> Layout:
    """The swizzled atom that makes both the 16-byte stores and ``reader`` free of conflicts.

    Rows are 128 bytes, or the tile's extent if that is less. ldmatrix and 16-byte loads take one
    16-byte chunk of each of 8 rows: the row number is XORed into the chunk's. 4- and 8-byte MMA
    loads take 32 bytes of each of 4 rows: it is XORed into the 32-byte chunk's. Byte loads take 8
    bytes of every fourth row.
    """
    element = DTYPES[config.dtype].bytes
    if config.copy == "mn_major" and element == 2:
        return Layout((32, 8), (1, 32), Swizzle(3, 3, 4))  # the field reference's
    row = min(extents[0 if major == "MN" else 1], 128 // element)
    row_bits = int(log2(row))
    if reader.bits == 128:
        base, chunk_bits = int(log2(16 // element)), row_bits - int(log2(16 // element))
        # (FMA on an MN-major operand reads consecutive 16-byte words.)
        swizzle = None if reader.threads == 1 and major == "MN" else Swizzle(chunk_bits, base, 3)
    elif element > 1:
        base = int(log2(32 // element))
        swizzle = Swizzle(row_bits - base, base, row_bits - base)
    else:
        base = 4
        swizzle = Swizzle(min(2, row_bits - base), base, row_bits + 2 - base)
    rows = 16 if element == 1 and major == "MN" else 8
    if major == "K":
        return Layout((rows, row), (row, 1), swizzle)
    return Layout((row, rows), (1, row), swizzle)


def _gmem_copy(
    config: Config, major: str, width: int, extents: tuple[int, int], threads: int
) -> tuple[TiledCopy, Layout, Layout]:
    """The tiled copy from global to shared memory, with its thread and value layouts."""
    element = DTYPES[config.dtype].bytes
    vector = width // element
    if config.copy == "mn_major":
        rows = min(16 // element, extents[0] // 16)
        vector = min(vector, rows) if major == "MN" else 1
        thread_layout, value_layout = column_major(16, threads // 16), column_major(rows, 1)
    else:
        contiguous = extents[0 if major == "MN" else 1]
        across = extents[1 if major == "MN" else 0]
        lanes = max(min(contiguous // vector, threads), threads // across)
        if major == "MN":
            thread_layout, value_layout = (
                column_major(lanes, threads // lanes),
                column_major(vector, 1),
            )
        else:
            thread_layout, value_layout = row_major(threads // lanes, lanes), row_major(1, vector)
    bits = 8 * vector * element
    atom = cp_async(bits) if bits >= 32 else universal("ld.global", bits)
    copy = gmem_tiled_copy(atom, 8 * element, thread_layout, value_layout)
    return copy, thread_layout, value_layout


@cache
def structure(config: Config) -> Structure:
    """Work a config out."""
    tile = _kernel_tile(config)
    mma = _tiled_mma(config)
    element = DTYPES[config.dtype].bytes
    sources = "BA" if config.exchange else "AB"
    plans = []
    for operand, source, smem_major in zip("AB", sources, _smem_majors(config), strict=True):
        major = config.majors["AB".index(source)]
        extents = (tile["AB".index(operand)], tile[2])
        copy, threads, values = _gmem_copy(
            config, major, config.bytes["AB".index(source)], extents, mma.size
        )
        reader = _smem_copy_atom(config, mma.atom, smem_major)
        atom = _smem_atom(config, reader, smem_major, extents)
        plans.append(
            OperandPlan(
                source=source,
                major=major,
                smem_major=smem_major,
                gmem_copy=copy,
                gmem_threads=threads,
                gmem_values=values,
                smem_atom=atom,
                smem_layout=tile_to_shape(atom, (*extents, config.stages)),
                smem_copy=mma_tiled_copy(reader, 8 * element, mma, operand),
                extents=extents,
            )
        )
    mainloop = sum(plan.smem_layout.size for plan in plans) * element

    # The epilogue stages as many columns of the accumulators as fit where the k tiles were.
    sums = DTYPES[DTYPES[config.dtype].accumulator].bytes
    stage_bits = 128 if mma.atom.threads == 1 and mma.tile[0].stride != 1 else 8 * sums
    pitch = tile[0] + 16 // sums
    columns = tile[1]
    while columns > mma.extent(1) and columns * pitch * sums > mainloop:
        columns //= 2
    vector = min(16 // sums, config.bytes[2] // DTYPES[config.out_dtype].bytes)
    lanes = min(tile[0] // vector, mma.size)
    threads = column_major(lanes, mma.size // lanes)
    values = column_major(vector, 1)
    return Structure(
        tile=tile,
        mma=mma,
        operands=(plans[0], plans[1]),
        epilogue_tile=(tile[0], columns),
        epilogue_layout=Layout((tile[0], columns), (1, pitch)),
        epilogue_stage=mma_tiled_copy(universal("st.shared", stage_bits), 8 * sums, mma, "C"),
        epilogue_copy=gmem_tiled_copy(
            universal("ld.shared", 8 * sums * vector), 8 * sums, threads, values
        ),
        epilogue_threads=threads,
        epilogue_values=values,
        smem=max(mainloop, columns * pitch * sums),
    )


# ---- accesses -----------------------------------------------------------------------------------


def _operand_accesses(
    config: Config, plan: OperandPlan, matrix: Matrix, sweeps: int, ctas: int, k_tiles: int
) -> list[Access]:
    element, executions = DTYPES[config.dtype].bytes, ctas * k_tiles
    copy, axis = plan.gmem_copy, 0 if plan.major == "MN" else 1
    widest, limit = access_bytes(matrix, False)
    mend = ""
    if copy.atom.bits < 8 * widest:
        limit = (
            f"copy={config.copy!r} moves vectors along {matrix.name}'s M or N mode; it is K-major"
        )
        mend = 'copy="auto"'
    one_stage = Layout(
        plan.smem_layout.shape[:2],  # type: ignore[index]
        plan.smem_layout.stride[:2],  # type: ignore[index]
        plan.smem_layout.swizzle,
    )
    synchronous = copy.atom.name != "cp.async"
    out: list[Access] = [
        GlobalAccess(
            operand=plan.source,
            direction="load",
            instruction=copy.atom.name,
            bits=copy.atom.bits,
            matrix=matrix,
            tile=plan.extents,
            coords=copy.requests(plan.extents),
            axis=axis,
            sweeps=sweeps,
            limit=limit,
            mend=mend,
        )
    ]
    shared_mend = 'copy="auto"' if config.copy == "mn_major" else ""
    out.append(
        SharedAccess(
            operand=plan.source,
            direction="store",
            instruction="st.shared" if synchronous else "cp.async",
            bits=copy.atom.bits,
            offsets=_vector_offsets(copy, one_stage, plan.extents, element),
            executions=executions,
            mend=shared_mend,
        )
    )
    reader = plan.smem_copy
    blocks = SharedAccess(
        operand=plan.source,
        direction="load",
        instruction=reader.atom.name,
        bits=reader.atom.bits,
        offsets=reader.vector_offsets(one_stage, plan.extents),
        executions=executions,
        mend=shared_mend,
    )
    out.append(blocks)
    if executions:
        # Fragments are loaded a block ahead: after the last k tile too, one block in vain.
        first = reader.vector_offsets(one_stage, (plan.extents[0], reader.tile[1]))
        out.append(replace(blocks, offsets=first, executions=ctas, unit="CTA"))
    return out


def _vector_offsets(
    copy: TiledCopy, layout: Layout, extents: tuple[int, int], element: int
) -> np.ndarray:
    first = copy.requests(extents)
    return np.asarray(layout(first[..., 0], first[..., 1]) * element)


def _epilogue_accesses(
    config: Config, parts: Structure, problem: GemmProblem, ctas: int
) -> list[Access]:
    chunks = ctas * (parts.tile[1] // parts.epilogue_tile[1])
    stage, copy, tile = parts.epilogue_stage, parts.epilogue_copy, parts.epilogue_tile
    coords = copy.requests((parts.tile[0], parts.tile[1]))
    extents = (parts.tile[0], parts.tile[1])
    axis = 0
    if config.exchange:
        coords, extents, axis = coords[..., ::-1], extents[::-1], 1
    bits = copy.values * 8 * DTYPES[config.out_dtype].bytes
    widest, limit = access_bytes(problem.C, True)
    if bits < 8 * widest:
        limit = f"{copy.atom.bits}-bit reads of the staged sums"

    def gmem(direction: str) -> GlobalAccess:
        return GlobalAccess(
            operand="C",
            direction=direction,  # type: ignore[arg-type]
            instruction="ld.global" if direction == "load" else "st.global",
            bits=bits,
            matrix=problem.C,
            tile=extents,
            coords=coords,
            axis=axis,
            sweeps=1,
            limit=limit,
        )

    def smem(direction: str, tiled: TiledCopy) -> SharedAccess:
        return SharedAccess(
            operand="C",
            direction=direction,  # type: ignore[arg-type]
            instruction=tiled.atom.name,
            bits=tiled.atom.bits,
            offsets=tiled.vector_offsets(parts.epilogue_layout, tile),
            executions=chunks,
            unit="CTA",
        )

    return [smem("store", stage), smem("load", copy), gmem("store")]
