"""``sm80_pipeline``: multistage cp.async, swizzled shared memory, ldmatrix, mma.sync.

One template (``templates/sm80/sm80_pipeline.cuh``) supports all element types and layouts. This
module enumerates the configs and lists the accesses of the kernel of a config.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from cute_gemm.access.accesses import Access, Limit, LimitOfOption, Option, Partition, Shares, Work
from cute_gemm.cost_model.footprint import LOADED, Updates
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import MMA_ATOMS, MmaAtom, mma_atoms
from cute_gemm.cute.layout import Layout
from cute_gemm.dtypes import DTYPES, FAST_ACCUM, FLOAT8, factor
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.base import EmittedKernel
from cute_gemm.kernels.options import (
    access_bytes,
    launch_of_tiles,
    registers,
    tiles_of,
    with_options,
)
from cute_gemm.kernels.rules import (
    check_extents,
    in_range,
    memory_fits,
    positive,
    power_of_two,
    powers_of_two,
    refuse,
    tiles_filled,
)
from cute_gemm.kernels.sm80.structure import FMA_LANES, OperandPlan, Sm80Config
from cute_gemm.kernels.sm80.unit import EmitSm80Pipeline
from cute_gemm.kernels.staging import (
    by_last_tile,
    by_words,
    cut_vectors,
    in_place,
    load_by,
    loads_of_c,
    scales_of_threads,
    shared,
    store_of_c,
    stored,
    unused_prefetch,
)
from cute_gemm.problem.parts.scales import BLOCK, SCALES
from cute_gemm.toolchain.signature import Launch

if TYPE_CHECKING:
    from cute_gemm.arch import Arch
    from cute_gemm.cost_model.calibration import Calibration, Pace
    from cute_gemm.problem.operation import Operation
    from cute_gemm.problem.problem import GemmProblem

COPY_POLICIES = ("auto", "mn_major")

# ---- candidates ---------------------------------------------------------------------------------

#: Tile, warps, stages, and CTAs per multiprocessor that registers must suffice for.
Tile = tuple[tuple[int, int, int], tuple[int, int], int, int]


def _both(tile: tuple[int, int, int], warps: tuple[int, int], *more: int) -> tuple[Any, Any]:
    """Return a tile, and the tile with M and N swapped."""
    return (tile, warps, *more), ((tile[1], tile[0], tile[2]), warps[::-1], *more)


_HALF_TILES: tuple[Tile, ...] = (
    *_both((128, 256, 64), (2, 4), 3, 1),
    ((128, 128, 32), (2, 2), 4, 2),
    *_both((128, 64, 64), (2, 2), 3, 2),
    ((64, 64, 64), (2, 2), 4, 2),
    *_both((64, 32, 64), (2, 1), 5, 2),
    *_both((16, 128, 64), (1, 4), 4, 2),
    ((64, 64, 32), (2, 2), 4, 2),
)
_BYTE_TILES: tuple[Tile, ...] = (
    *_both((128, 256, 64), (2, 4), 3, 1),
    ((64, 64, 128), (2, 2), 3, 2),
    ((64, 64, 64), (2, 2), 4, 2),
    ((32, 32, 128), (2, 2), 4, 2),
)
#: (dtype, compute) -> candidates, tuned on an H200; some fit the 99 KiB of sm_86.
_TILES: dict[tuple[str, str], tuple[Tile, ...]] = {
    ("float16", "float32"): _HALF_TILES,
    ("bfloat16", "float32"): _HALF_TILES,
    ("float32", "tf32"): (
        *_both((256, 128, 16), (4, 2), 3, 1),
        ((128, 128, 32), (2, 4), 3, 1),
        ((64, 64, 32), (2, 2), 4, 2),
        *_both((32, 128, 32), (1, 4), 4, 2),
        *_both((32, 64, 32), (1, 2), 4, 2),
        ((32, 32, 32), (2, 2), 4, 2),
    ),
    ("float32", "float32"): (
        ((128, 128, 16), (2, 4), 3, 1),
        ((64, 64, 32), (2, 2), 3, 2),
        ((64, 64, 16), (2, 2), 4, 2),
        *_both((32, 32, 32), (1, 2), 3, 2),
    ),
    ("float64", "float64"): (
        ((128, 128, 16), (4, 2), 3, 1),
        *_both((128, 64, 16), (2, 2), 3, 1),
        ((64, 64, 16), (2, 2), 4, 2),
        ((64, 64, 8), (2, 2), 5, 4),
        *_both((64, 32, 16), (2, 2), 4, 4),
        *_both((64, 32, 32), (2, 2), 3, 2),
        ((32, 32, 16), (2, 1), 5, 4),
        ((32, 32, 32), (2, 2), 3, 2),
        ((32, 32, 32), (2, 2), 4, 3),
        *_both((32, 16, 32), (2, 1), 4, 4),
    ),
    ("complex128", "float64"): (
        ((64, 64, 8), (2, 2), 4, 2),
        ((64, 64, 8), (4, 2), 4, 1),
        *_both((64, 32, 8), (2, 2), 4, 3),
        *_both((64, 32, 8), (2, 1), 3, 4),
        ((32, 32, 8), (2, 2), 4, 4),
        ((32, 32, 16), (2, 2), 3, 4),
        ((16, 16, 16), (1, 2), 4, 4),
    ),
    ("int8", "int32"): (
        *_BYTE_TILES[:2],
        ((128, 128, 128), (2, 4), 3, 1),
        ((128, 128, 64), (2, 2), 3, 1),
        *_BYTE_TILES[2:],
    ),
    # Not tuned: no GPU with these instructions was available.
    ("float8", FAST_ACCUM): (
        *_BYTE_TILES[:2], ((128, 128, 64), (2, 4), 3, 1), *_BYTE_TILES[2:],
    ),
    ("float8", "float32"): (
        ((128, 128, 64), (2, 4), 3, 1),
        *_both((128, 64, 128), (2, 2), 3, 1),
        *_BYTE_TILES[2:],
    ),
}  # fmt: skip
#: Most copies of a thread and tile that are unrolled (`TileLoader`). Factors of a calibration:
#: ``rolled_wait``, the part of a load's latency that each copy in a loop adds; ``put_in_place`` and
#: ``by_words``, the slowdown of products, as a part of their clocks, by an operand whose rows are
#: put in place, and by each 4-byte copy along K of a thread and tile.
_UNROLLED = 16
#: The tile of the field reference, for 16-bit types (``copy="mn_major"``).
_REFERENCE = ((128, 128, 32), (2, 2), 3, 1)


class Sm80Pipeline(EmittedKernel):
    """Multistage cp.async pipeline with mma.sync: every dtype, op, order, size and alignment."""

    name = "sm80_pipeline"
    takes: ClassVar = frozenset(("epilogue", "groups", "scales"))
    batch_invariant: ClassVar = True
    summary = "cp.async pipeline, swizzled shared memory, ldmatrix and mma.sync (FMA for float32)"
    minimum_cc = 80
    dtypes: tuple[str, ...] = (
        "float16", "bfloat16", "float32", "float32/tf32", "float64", "complex128",
        "int8", *FLOAT8,
    )  # fmt: skip
    options: tuple[str, ...] = ("tile", "warps", "stages", "copy", "raster", "min_ctas", "mma")
    label_options: ClassVar = {"warps": "w{}", "stages": "s{}"}
    choices: ClassVar = {"copy": COPY_POLICIES, "mma": tuple(MMA_ATOMS)}
    option_values: ClassVar = {
        "warps": "warps along M and N, 1, 2 or 4 each: 2x2",
        "stages": "2 to 8",
    }
    #: Fewest and most stages.
    stages: ClassVar[tuple[int, int]] = (2, 8)
    emitter: ClassVar = EmitSm80Pipeline

    def least_cc(self, spelled: str) -> int:
        types, _, compute = spelled.partition("/")
        first, _, second = types.partition(" x ")
        pair = first, second or first
        a, b = (factor(name, compute or DTYPES[name].computes[0]).tag for name in pair)
        return min((atom.minimum_cc for atom in mma_atoms(a, b)), default=self.minimum_cc)

    def contends(self, problem: GemmProblem, arch: Arch) -> bool:
        """Return False for 8-bit floats with wgmma: there ptxas converts operands to float16."""
        return problem.A.dtype not in FLOAT8 or not arch.has("wgmma")

    def tiles(self, problem: GemmProblem, policy: str) -> Sequence[Tile]:
        """Return tile, warps, stages and min_ctas of the candidates, for large problems first."""
        if policy == "mn_major" and problem.A.element.bytes == 2:
            return (_REFERENCE,)
        kind = "float8" if problem.A.dtype in FLOAT8 else problem.A.dtype
        tiles = _TILES[kind, problem.compute]
        # The largest tiles leave few registers for copies of 1 and 2 bytes, which pass through
        # registers, and for int8 rows that are put in place.
        narrow = min(access_bytes(matrix, False)[0] for matrix in (problem.A, problem.B)) < 4
        narrow = narrow and (policy == "mn_major" or problem.A.element.bytes == 1)
        return [row for row in tiles if not narrow or row[0][0] * row[0][1] < 128 * 256]

    def kinds(self, config: Sm80Config) -> tuple[str, ...]:
        """Return types for the lookup of the pace; 8-bit floats use int8's until measured."""
        kinds = super().kinds(config)
        return (*kinds, "int8") if kinds == ("float8",) else kinds

    def pace(self, config: Sm80Config, calibration: Calibration) -> Pace:
        """Return the pace; narrow copies, one by one through registers, slow products down."""
        return self.ideal_pace(config, calibration, ())

    def ideal_pace(
        self, config: Sm80Config, calibration: Calibration, operands: Collection[str]
    ) -> Pace:
        """Return the pace without the slowdown from the copies of these operands."""
        waits, put, words = 0.0, 0, 0
        factors = calibration.factors[Sm80Pipeline.name]
        for plan in (plan for plan in config.operands if plan.source not in operands):
            if plan.place is not None:
                put += 1
                continue
            copies = prod(plan.extents) // (plan.gmem_copy.values * config.threads)
            narrow = plan.gmem_copy.atom.bits < 32
            if plan.gmem_copy.atom.bits == 32 and plan.major == "K":
                words = max(words, copies)
            rolled = factors["rolled_wait"] * (copies > _UNROLLED)
            waits += copies * (1.0 if narrow else rolled)
        pace = super().pace(config, calibration)
        slowdown = pace.slowdown * (1 + factors["put_in_place"] * put + factors["by_words"] * words)
        return pace._replace(slowdown=slowdown, waits=waits, ahead=config.stages - 1)

    def candidates(
        self, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[Sm80Config]:
        widths = (access_bytes(x, x.name == "C")[0] for x in (problem.A, problem.B, problem.C))
        operation = problem.operation(*widths)
        fitting = _fitting(operation)
        mma = next((atom for atom in fitting if atom.minimum_cc <= arch.cc), fitting[0]).name
        for tile, warps, stages, ctas in self.tiles(problem, options.get("copy", "auto")):
            config = Sm80Config(
                tile=tile, warps=warps, stages=stages, copy="auto", raster=8, min_ctas=ctas,
                mma=mma, operation=operation, kernel=self.name,
            )  # fmt: skip
            config = with_options(config, options)
            if "min_ctas" not in options and (config.tile, config.warps) != (tile, warps):
                config = replace(config, min_ctas=1)  # the row's min_ctas is for the row's tile
            yield config

    def check(self, config: Sm80Config, problem: GemmProblem, arch: Arch) -> None:
        check_extents(self.name, problem, config.tile, (256,))
        refuse(_broken(config, arch, self.stages))

    def of_operand(self, config: Sm80Config, name: str) -> Any:
        """Return the MMA and its warps, the operand's part of the tile, and its staging."""
        operation, atom = config.operation, MMA_ATOMS[config.mma]
        majors = config.smem_majors if atom.threads == 1 else ()  # they determine thread layouts
        mma = atom.shape_mnk, config.warps, config.swap_ab, config.copy, operation.a.bytes, majors
        if name in ("A", "B"):
            index = "AB".index(name)
            extents, ring = (config.tile[index], config.tile[2]), config.ring * config.realigns
            major, width = operation.majors[index], operation.bytes[index]
            return mma, extents, major, width, config.stages > 1, ring
        staged = config.staged.tile, operation.accumulator.bytes
        if name == "C":
            c = operation.bytes[2], operation.c.bytes, operation.majors[2]
            return mma, config.tile[:2], staged, c
        return mma, config.tile[:2], staged, operation

    def launch(self, config: Sm80Config, problem: GemmProblem) -> Launch:
        return launch_of_tiles(problem, config.tile, config.threads, config.smem)

    def accesses(
        self, config: Sm80Config, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return the accesses of a launch whose alpha is not 0."""
        out: list[Access] = []
        for plan in config.operands:
            out += _operand_accesses(config, problem, plan)
        out += scales_of_threads(problem, config, _scales_of_lanes(config))
        return (*out, *_epilogue_accesses(config, problem, reads_c))

    def updates(self, config: Sm80Config) -> Updates:
        results = config.tile[0] * config.tile[1] // config.threads
        groups = -(-results // (config.staged.read.values * LOADED))
        return Updates(2 * groups, groups, results)  # twice the time of one load, as measured

    def summation(self, config: Sm80Config) -> str:
        atom = MMA_ATOMS[config.mma]
        mma = next(
            x.name for x in mma_atoms(*config.turned(atom.takes)) if x.shape_mnk == atom.shape_mnk
        )
        # With an operand that is put in place two k tiles are loaded before the loop (`kEnds`).
        first = (
            f"the last {'two k tiles' if config.realigns else 'k tile'} of {config.tile[2]} first"
        )
        apart = ", whose products are added in float32" * config.operation.promoted
        return f"{mma} along K, {first}{apart}"

    def work(self, config: Sm80Config, problem: GemmProblem) -> Work:
        return Work.of_tiles(problem, config.tile, _unit(config), problem.factor.name)

    def shares(self, config: Sm80Config) -> Shares:
        lanes = config.turned(FMA_LANES) if _unit(config) == "CUDA cores" else None
        return Shares.of_warps(config.tile, config.warps, lanes)

    def pictures(self, config: Sm80Config) -> tuple[Partition, ...]:
        return tuple(
            Partition(
                plan.source,
                "gmem tiled copy",
                "threads {}, values {}".format(*plan.gmem_copy.layouts),
                plan.gmem_copy.partition,
                plan.gmem_copy.tile,
            )
            for plan in config.operands
        )


def _unit(config: Sm80Config) -> Literal["tensor cores", "CUDA cores"]:
    """Return the unit that multiplies."""
    return "CUDA cores" if MMA_ATOMS[config.mma].threads == 1 else "tensor cores"


def _broken(config: Sm80Config, arch: Arch, stages: tuple[int, int]) -> Iterator[str]:
    """Yield a sentence for each legality rule that a config breaks.

    Raise UnsupportedError for an MMA that the arch does not have.
    """
    if config.copy not in COPY_POLICIES:
        yield f"option copy={config.copy!r} is unknown; expected one of {COPY_POLICIES}"
    fitting = [atom.name for atom in _fitting(config.operation)]
    if config.mma not in fitting:
        yield (
            f"option mma={config.mma!r} does not multiply {config.operation.a.name}; "
            f"expected one of {', '.join(fitting)}"
        )
    atom = MMA_ATOMS[config.mma]
    if atom.minimum_cc > arch.cc:
        raise UnsupportedError(f"{atom.name} needs sm_{atom.minimum_cc}; arch is {arch!r}")
    if config.operation.block_scales and BLOCK % config.tile[2]:
        yield (
            f"option tile={config.tile}: k tiles of {config.tile[2]} do not divide the {BLOCK} of "
            f"k that share a block scale; expected 32, 64 or {BLOCK}"
        )
    yield from in_range(config, "stages", *stages)
    yield from positive(config, "raster", "min_ctas")
    if not all(power_of_two(n) and n <= 4 for n in config.warps) or (
        atom.threads == 1 and config.warps[0] > 2
    ):
        yield f"option warps={config.warps} is not supported; expected 1, 2 or 4 each"
    yield from powers_of_two(config, "tile")
    tile, mma = config.kernel_tile, config.tiled_mma
    for mode, name in enumerate("MNK"):
        least = mma.extent(mode) * (2 if name == "K" and config.stages > 1 else 1)
        if tile[mode] < least or tile[mode] > 256:
            yield (
                f"option tile={config.tile}: with warps={config.warps} and {atom.name} the "
                f"kernel's {name} extent must be {least} to 256; it is {tile[mode]}"
            )
    if config.operation.a.name == "float64" and tile[:2] == (mma.extent(0), mma.extent(1)):
        yield (
            f"option tile={config.tile} with warps={config.warps} leaves each warp one "
            f"{atom.name}, for whose accumulators ptxas does not wait (docs/testing.md); take a "
            "larger tile or fewer warps"
        )
    if config.copy == "mn_major":
        least = 32 if config.operation.a.bytes == 2 else 16  # rows of its copies, or its swizzle
        if min(tile[:2]) < least:
            yield f"option tile={config.tile}: with copy='mn_major' M and N must be {least} or more"
    accumulators = tile[0] * tile[1] // mma.size * config.operation.accumulator.bytes // 4
    accumulators *= 1 + config.operation.promoted  # a k tile has a separate set
    # Half of a thread's registers; of its 128 with 16 warps, a pipeline takes more than 64.
    room = 128 if mma.size <= 256 else 64 if config.stages == 1 else 32
    if accumulators > room:
        yield (
            f"option tile={config.tile} with warps={config.warps} needs more accumulators than a "
            f"thread has registers: {accumulators} and {room}; take a smaller tile, or "
            f"{'more' if mma.size <= 256 else 'fewer'} warps"
        )
    left = registers(mma.size, config.min_ctas)
    if accumulators >= left:
        yield (
            f"option min_ctas={config.min_ctas} leaves each of {mma.size} threads {left} "
            f"registers, and its accumulators alone take {accumulators}; take a smaller one, or a "
            "smaller tile"
        )
    copies = ((plan.source, plan.gmem_copy, plan.extents) for plan in config.operands)
    yield from tiles_filled(config, copies, "a larger tile or fewer warps")
    what = f"tile={config.tile} with stages={config.stages}"
    yield from memory_fits(what, config.smem, arch, "fewer stages or a smaller tile")


def _fitting(operation: Operation) -> tuple[MmaAtom, ...]:
    """Return the atoms that multiply the factors as the kernel sees them, best first."""
    product = operation.transposed if operation.row_major else operation
    return mma_atoms(*(factor(dtype, operation.compute).tag for dtype in product.dtypes[:2]))


# ---- accesses -----------------------------------------------------------------------------------


def _operand_accesses(config: Sm80Config, problem: GemmProblem, plan: OperandPlan) -> list[Access]:
    """Return the accesses of A or B; elements outside the matrix are filled with zeros."""
    index, copy, tiles = "AB".index(plan.source), plan.gmem_copy, tiles_of(problem, config.tile)
    matrix, ctas = problem.matrices[index], prod(tiles) * problem.l
    executions = ctas * -(-matrix.shape[1] // plan.extents[1])
    if not executions:
        return []
    widest, of_matrix = access_bytes(matrix, False)
    limit: Limit = of_matrix
    # The thread layout is the field reference's, for every matrix.
    shared_fix = Option("copy", "auto") if config.copy == "mn_major" else ""
    fix = shared_fix if copy.atom.bits < 128 else ""
    if copy.atom.bits < 8 * widest:
        option = Option("copy", config.copy)
        limit = LimitOfOption(option, "copies along M or N", f"{matrix.name} is K-major")
    one_stage = Layout(
        plan.smem_layout.shape[:2],  # type: ignore[index]
        plan.smem_layout.stride[:2],  # type: ignore[index]
        plan.smem_layout.swizzle,
    )
    store = shared(
        plan.source, "store", choose.shared_side(copy), one_stage, plan.extents, fix=shared_fix
    )
    load = load_by(copy, store, matrix, plan.extents, tiles[1 - index], limit, fix)
    ahead = unused_prefetch(ctas)
    accesses: list[Access]
    if plan.place is None:
        loads = by_last_tile(load)
        cuts = cut_vectors(loads[-1], "last k-tile, cut vectors")
        accesses = [*loads, *cuts, *stored(store, loads, cuts)]
    else:
        pitch = plan.stage // plan.extents[1 - load.axis] * copy.element_bits // 8
        place: tuple[Any, ...] = (plan.source, plan.place, one_stage, plan.extents, load.axis)
        accesses = by_words(replace(load, limit=""), store, copy, pitch)
        accesses += in_place(*place, executions=executions, part="put in place")
        if config.stages > 1:  # a tile ahead
            accesses += in_place(*place, **ahead)
    reader = plan.smem_copy
    accesses.append(
        shared(
            plan.source, "load", reader, one_stage, plan.extents, executions=executions,
            fix=shared_fix,
        )
    )  # fmt: skip
    if config.stages > 1:
        # Fragments are loaded one block ahead; the block after the last k tile is not used.
        block = (plan.extents[0], reader.tile[1])
        read = shared(plan.source, "load", reader, one_stage, block, fix=shared_fix, **ahead)
        accesses.append(read)
    return accesses


def _scales_of_lanes(config: Sm80Config) -> dict[str, np.ndarray]:
    """Return the rows of the tile whose block scales each thread loads."""
    mma, names, lanes = config.tiled_mma, config.turned(SCALES), {}
    held = mma.partition("C")  # (threads, values, 2): rows and columns
    for side, rows in enumerate(config.product.scales):
        if rows == 1:  # of an m16n8 two rows and two columns
            values = [0, 2] if side == 0 else [v for v in range(held.shape[1]) if not v & 2]
            own, step = held[:, values, side].T, mma.extent(side)
        else:
            own, step = np.zeros((1, mma.size), np.int64), rows
        if rows:
            first = np.arange(0, config.kernel_tile[side], step)[:, None, None]
            lanes[names[side]] = (first + own).reshape(-1, 32)
    return lanes


def _epilogue_accesses(config: Sm80Config, problem: GemmProblem, reads_c: bool) -> list[Access]:
    ctas = prod(tiles_of(problem, config.tile)) * problem.l
    stage, copy = config.staged, config.staged.read
    chunks = config.kernel_tile[1] // stage.tile[1]
    kernel_coords = copy.requests(config.kernel_tile[:2])
    bits = copy.values * 8 * config.operation.c.bytes
    widest, limit = access_bytes(problem.C, True)
    if bits < 8 * widest:
        limit = f"{copy.atom.bits}-bit reads of the staged accumulators"
    coords = kernel_coords[..., :: -1 if config.swap_ab else 1]
    store = store_of_c(problem.C, bits, config.tile[:2], coords, limit)
    staged = shared(
        "C", "store", stage.write, stage.layout, stage.tile, executions=ctas * chunks, unit="CTA",
        times=chunks,
    )  # fmt: skip
    in_chunk = kernel_coords % np.array(stage.tile)
    offsets = stage.layout(in_chunk[..., 0], in_chunk[..., 1]) * (copy.element_bits // 8)
    read = replace(
        staged, direction="load", instruction=copy.atom.name, bits=copy.atom.bits,
        offsets=offsets, coords=in_chunk, executions=0, times=1, guard=store,
    )  # fmt: skip
    return [*loads_of_c([store], reads_c), staged, read, store]
