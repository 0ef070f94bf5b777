"""``thin``: m or n up to 32; the large operand is read once from global memory to registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess, Partition, SharedAccess, Work
from cute_gemm.cute.atoms import mma_atoms
from cute_gemm.dtypes import DTYPES, FLOAT8, DType, factor
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.base import EmittedKernel
from cute_gemm.kernels.options import access_bytes, most_ctas, registers, tiles_of, with_options
from cute_gemm.kernels.rules import (
    check_extents,
    first,
    in_range,
    memory_fits,
    positive,
    power_of_two,
    powers_of_two,
    refuse,
)
from cute_gemm.kernels.staging import by_last_tile, cut_vectors, loads_of_c, store_of_c, stored
from cute_gemm.kernels.thin.structure import (
    DEPTH_LANE,
    DEPTH_LANES,
    ROW_LANE,
    ROW_LANES,
    WARP,
    ThinConfig,
)
from cute_gemm.kernels.thin.unit import EmitThin
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION
from cute_gemm.problem.operation import Operation
from cute_gemm.toolchain.signature import Launch

if TYPE_CHECKING:
    from cute_gemm.arch import Arch
    from cute_gemm.cost_model.calibration import Calibration, Pace
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: Largest m or n.
MOST = 32
#: Registers of a thread besides its accumulators and stages: addresses, fragments.
_OTHERS = 56
#: Registers of a thread that its accumulators may take.
_ACCUMULATORS = 128
#: Vectors of a lane in flight for each warp of its CTA, and the most stages of them.
_AHEAD, _STAGES = 2, 8
#: Rows of the large operand that give each multiprocessor of a large GPU CTAs of four warps.
_MANY = 6144


class Thin(EmittedKernel):
    """Products of a thin operand, 1 to 32 wide, and a large one that is streamed."""

    name = "thin"
    summary = "m or n up to 32: the large operand read once, straight to registers, warps along k"
    minimum_cc = 80
    dtypes = (
        "float16", "bfloat16", "float32", "float32/tf32", "float64", "complex64", "complex128",
        "int8", *FLOAT8,
    )  # fmt: skip
    options = ("thin", "tile", "warps", "stages", "min_ctas")
    label_options: ClassVar = {"thin": "{}"}
    choices: ClassVar = {"thin": ("m", "n")}
    option_values: ClassVar = {
        "warps": "1, 2, 4, 8, 16 or 32 warps that divide k",
        "stages": "2 to 8 k-tiles in shared memory; 1: registers, for elements of 1 or 2 bytes",
    }
    emitter: ClassVar = EmitThin

    def pace(self, config: ThinConfig, calibration: Calibration) -> Pace:
        """Return the pace, with the k-tiles loaded ahead.

        A load to registers returns after the copies issued before it. So if the thin operand does
        not pass through shared memory, a k-tile ends only after the copies issued by the previous
        one have arrived, for any number in flight.
        """
        ahead = max(1, config.stages - 1) if config.queued[1] else 1
        return super().pace(config, calibration)._replace(ahead=ahead)

    def candidates(
        self, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[ThinConfig]:
        extents = {"m": problem.m, "n": problem.n}
        if "thin" in options:
            extents = {options["thin"]: extents.get(options["thin"], 0)}
        elif min(extents.values()) <= MOST:
            extents = {thin: extent for thin, extent in extents.items() if extent <= MOST}
        for thin, extent in extents.items():
            configs = list(self._configs(thin, extent, problem, arch, options))
            # Configs are in order of preference: if any config fills the GPU, take the first legal.
            many = _many(problem)[thin == "m"] and "tile" not in options
            fitting = [config for config in configs if not first(_broken(config))]
            yield from fitting[:1] if many and fitting else configs

    def _configs(
        self, thin: str, extent: int, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[ThinConfig]:
        """Yield the configs in which this mode is thin."""
        element, index = problem.A.element, int(thin == "n")
        tag = _factor(problem).tag
        atoms = () if element.is_complex else mma_atoms(tag, tag)
        atom = next((x for x in atoms if x.threads == WARP and x.minimum_cc <= arch.cc), None)
        A, B, C = (straight(x) for x in (problem.A, problem.B, problem.C))
        widths = access_bytes(A, False)[0], access_bytes(B, False)[0], C.element.bytes
        operation = Operation.of((A, B, C), problem.compute, widths, problem.epilogue)
        for rows, columns, depth, warps in _blocks(
            element.bytes, (A, B)[1 - index].major, atom is not None, _columns(extent),
            _many(problem)[1 - index],
        ):  # fmt: skip
            tile = [ROW_LANES * rows, ROW_LANES * rows, DEPTH_LANES * depth * warps]
            tile[index] = columns
            config = ThinConfig(
                thin=thin, tile=(tile[0], tile[1], tile[2]), warps=warps, stages=2, min_ctas=1,
                mma=atom.name if atom else "", operation=operation,
            )  # fmt: skip
            config = with_options(config, options)
            if "tile" not in options:
                tile[2] = DEPTH_LANES * depth * max(1, config.warps)
                config = replace(config, tile=(tile[0], tile[1], tile[2]))
            yield _settled(config, options, arch.shared_limit)

    def check(self, config: ThinConfig, problem: GemmProblem, arch: Arch) -> None:
        check_extents(self.name, problem, config.tile, (1, max(config.tile)))
        extent = (problem.m, problem.n)[config.index]
        if extent > MOST:
            raise UnsupportedError(
                f"m={problem.m}, n={problem.n}: kernel {self.name!r} takes m or n up to {MOST}; "
                "take kernel='auto'"
            )
        refuse(_broken(config))
        what = f"option tile={config.tile} with warps={config.warps}"
        need = self.launch(config, problem).smem
        refuse(memory_fits(what, need, arch, "a smaller tile or fewer warps"))

    def traits(self, problem: GemmProblem) -> Any:
        """Return classes of columns and rows, and the operand that is a vector."""
        vectors = (straight(x).major for x in (problem.A, problem.B, problem.C))
        return (_columns(problem.m), _columns(problem.n), *_many(problem), *vectors)

    def shapes(self, extent: int) -> Iterator[tuple[int, int]]:
        """Yield every class of columns, with few rows and with many."""
        for columns in (1, 2, 4, 8, 16, MOST):
            for rows in (extent, extent + 2 * _MANY):
                yield from ((columns, rows), (rows, columns))

    def of_operand(self, config: ThinConfig, name: str) -> ThinConfig:
        """Return the config without the fields that the accesses of one operand do not depend on.

        The vectors of both operands determine the distribution of k, the rows of MN-major operands
        the arrangement of accumulators.
        """
        operation = config.operation
        if name in ("A", "B", "C"):
            operation = replace(operation, epilogue=LINEAR_COMBINATION)
        if name != "C":
            return replace(config, operation=operation)
        (a, b, c), majors = operation.bytes, operation.majors
        widths = a * (majors[0] == "MN"), b * (majors[1] == "MN"), c
        return replace(config, operation=replace(operation, bytes=widths))

    def launch(self, config: ThinConfig, problem: GemmProblem) -> Launch:
        grid = prod(tiles_of(problem, config.tile))
        accumulators = config.columns * config.pitch * config.operation.accumulator.bytes
        queue = config.stage * config.stages if config.stages > 1 else 0
        return Launch(grid, config.threads, config.warps * max(accumulators, queue), problem.l)

    def accesses(
        self, config: ThinConfig, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return the accesses of a launch whose alpha is not 0."""
        tiles = tiles_of(problem, config.tile)
        ctas = prod(tiles) * problem.l
        out: list[Access] = []
        for index, operand in enumerate((problem.A, problem.B)):
            large = index != config.index
            matrix = straight(operand, config.operation.majors[index])
            load = _load(config, matrix, large, tiles[1 - index])
            loads = by_last_tile(load)
            cuts = cut_vectors(loads[-1])
            out += [*loads, *cuts]
            out += _queued(loads, cuts, ctas * -(-problem.k // config.tile[2]))
        C = straight(problem.C, config.operation.majors[2])
        return (*out, *_results(config, C, ctas, reads_c))

    def work(self, config: ThinConfig, problem: GemmProblem) -> Work:
        if config.mma:
            return Work.of_tiles(problem, config.tile, "tensor cores", _factor(problem).name)
        return Work.of_tiles(problem, config.tile, "CUDA cores", problem.products)

    def pictures(self, config: ThinConfig) -> tuple[Partition, ...]:
        """Return each thread's part of a k-tile of the large operand."""
        part = config.large
        i, e = (x.ravel() for x in np.indices((part.rows, part.depth)))
        row = part.row(ROW_LANE[:, None], i)
        column = part.column(DEPTH_LANE[:, None], e)
        warp = np.arange(config.warps)[:, None, None] * DEPTH_LANES * part.depth
        rows, columns = np.broadcast_arrays(row, column + warp)
        table = np.stack([rows, columns], axis=-1).reshape(-1, part.rows * part.depth, 2)
        name = "AB"[1 - config.index]
        extents = (config.tile[1 - config.index], config.tile[2])
        text = f"8 lanes along the rows, 4 along k, {config.warps} warps along k"
        return (Partition(name, "lanes' part of a k-tile", text, table, extents),)


# ---- candidates ---------------------------------------------------------------------------------


def _factor(problem: GemmProblem) -> DType:
    """Return the type in which elements are multiplied: float16 holds every 8-bit float."""
    if problem.A.dtype in FLOAT8:
        return DTYPES["float16"]
    return factor(problem.A.dtype, problem.compute)


def straight(matrix: Matrix, major: str = "") -> Matrix:
    """Return a matrix of one row with unit stride along the row, if its elements are contiguous.

    Descriptors treat such a row as a column of a matrix with leading dimension 1. ``major``: the
    major to return, for a sample with another leading dimension.
    """
    if matrix.shape[0] != 1 or matrix.unit == 1:
        return matrix
    if matrix.ld != 1 and major not in ("K", "N"):
        return matrix
    return replace(matrix, stride=(max(1, matrix.shape[1]), 1))


def _columns(extent: int) -> int:
    """Return the number of columns kept: a power of two; 0 for more than `MOST`."""
    return 0 if extent > MOST else 1 << max(0, extent - 1).bit_length()


def _many(problem: GemmProblem) -> tuple[bool, bool]:
    """Return whether M and N are rows of many CTAs, so that each needs few bytes in flight."""
    return problem.m * problem.l >= _MANY, problem.n * problem.l >= _MANY


def _blocks(
    size: int, major: str, tensor: bool, kept: int, many: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield rows of a lane, columns, k of a lane and warps of candidates, tuned on an H200.

    ``size``: bytes of an element; ``kept``: columns; ``many``: whether the large operand, with this
    ``major``, has rows for many CTAs. If not, each CTA has more bytes in flight.
    """
    vector = 16 // size
    # The vectors along k of a lane and its neighbours cover a line, or two halves of lines.
    line = vector * (2 if size > 1 else 1)
    if tensor:
        kept = max(ROW_LANES, kept)
        if major == "K" and many:
            yield from ((8, kept, line, 4), (4, kept, line, 4)) if kept > 16 else ()
            yield 4, kept, vector, 4
        elif major == "K":
            yield from ((rows, kept, line, 8) for rows in (4, 2))
        else:
            rows = min(8, 2 * vector)
            yield rows, kept, max(4, min(8, vector)), 8
            yield max(2, rows // 2), kept, max(4, vector // 2), 8
        yield 2, kept, max(4, vector), 4
        return
    # With more columns, reads of the thin operand exceed the bandwidth of L1, so the large operand
    # is read again, from L2.
    columns = min(max(1, kept), 8 if major == "K" else 4)
    depth = max(4, vector) if columns <= 4 else vector
    for rows in (8, 4, 2) if size == 4 else (4, 2):
        if rows * columns >= DEPTH_LANES:
            yield rows, columns, depth, 8


def _settled(config: ThinConfig, options: dict[str, Any], limit: int) -> ThinConfig:
    """Return the config with as many stages and CTAs as fit."""
    if first(_broken(replace(config, stages=1, min_ctas=1))):
        return config
    if "stages" not in options:
        ahead = _AHEAD * config.warps // len(config.large.vectors[0])
        stage, stages = replace(config, stages=2).stage, max(3, min(_STAGES, 1 + ahead))
        while stages > 2 and stages * stage * config.warps > limit:
            stages -= 1
        narrow = config.large.width * config.operation.a.bytes < 4
        config = replace(config, stages=1 if narrow else stages)
    if "min_ctas" not in options:
        ctas = most_ctas((4, 3, 2), config.threads, config.held + _OTHERS)
        config = replace(config, min_ctas=ctas)
    return config


def _broken(config: ThinConfig) -> Iterator[str]:
    """Yield a sentence for each legality rule that a config breaks."""
    if config.thin not in ("m", "n"):
        yield f"option thin={config.thin!r} is unknown; expected m or n"
    if not power_of_two(config.warps) or config.warps > 32:
        yield f"option warps={config.warps}; expected 1, 2, 4, 8, 16 or 32"
    yield from powers_of_two(config, "tile")
    yield from in_range(config, "stages", 1, _STAGES)
    yield from positive(config, "min_ctas")
    size, atom = config.operation.a.bytes, config.atom
    least = [ROW_LANES, 1, DEPTH_LANES * config.warps]
    if atom:
        m, n, k = atom.shape_mnk
        least = [m, n, k * config.warps]
    elif config.columns * config.rows < DEPTH_LANES:
        least[0] = max(ROW_LANES, ROW_LANES * DEPTH_LANES // config.columns)
    extents = (config.tile[1 - config.index], config.columns, config.tile[2])
    # The accumulators of complex128 leave no registers for a second k.
    deepest = 1 if size == 16 and config.columns * config.rows >= MOST else max(4, 64 // size)
    most = (256, MOST, DEPTH_LANES * config.warps * deepest)
    if any(not a <= x <= z for a, x, z in zip(least, extents, most, strict=True)):
        yield (
            f"option tile={config.tile}: kernel 'thin' with warps={config.warps} takes "
            f"{least[0]} to {most[0]} along {'nm'[config.index]}, {least[1]} to {most[1]} along "
            f"{config.thin} and {least[2]} to {most[2]} along k"
        )
    width = config.large.width * size
    if config.stages > 1 and width < 4:
        yield (
            f"option stages={config.stages}: vectors of {width} bytes of the large operand cannot "
            "wait in shared memory; expected stages=1"
        )
    need, room = config.held + _OTHERS, registers(config.threads, config.min_ctas)
    if need > room:
        yield (
            f"option tile={config.tile} with min_ctas={config.min_ctas} takes {need} registers of "
            f"a thread, which has {room}; take a smaller tile or min_ctas"
        )


# ---- accesses -----------------------------------------------------------------------------------


def _load(config: ThinConfig, matrix: Matrix, large: bool, sweeps: int) -> GlobalAccess:
    """Return the loads of a k-tile of the large or of the thin operand, warp by warp."""
    part = config.large if large else config.few
    lanes = ROW_LANE if large or config.mma else np.zeros(WARP, int)
    i, e = part.vectors
    row, column = part.row(lanes, i[:, None]), part.column(DEPTH_LANE, e[:, None])
    rows = config.tile[1 - config.index] if large else config.columns
    if not large and not config.mma:  # all columns, a few at a time
        chunk = np.arange(0, rows, part.rows)[:, None, None]
        row = (row + chunk).reshape(-1, WARP)
        column = np.broadcast_to(column, (len(chunk), *column.shape)).reshape(-1, WARP)
    warp = np.arange(config.warps)[:, None, None] * DEPTH_LANES * config.depth
    lane = np.stack(np.broadcast_arrays(row, column + warp), axis=-1)
    queued = config.queued[not large]
    bits = 8 * part.width * matrix.element.bytes
    widest, limit = access_bytes(matrix, False)
    if bits < 8 * widest:
        limit = "a lane's part is not wider"
    return GlobalAccess(
        matrix.name, "load", "cp.async" if queued else "ld.global", bits, matrix,
        (rows, config.tile[2]), lane.reshape(-1, WARP, 2), 1 if part.major == "K" else 0, sweeps,
        limit if bits < 128 else "", tail="full",
        targets=_places(config, large) if queued else None,
    )  # fmt: skip


def _places(config: ThinConfig, large: bool) -> np.ndarray:
    """Return the addresses of a k-tile's vectors in shared memory, in bytes; int [requests, 32]."""
    warp = np.arange(config.warps)[:, None, None] * config.stages * config.stage
    return (config.places[not large] + warp).reshape(-1, WARP)


def _queued(
    loads: list[GlobalAccess], cuts: list[GlobalAccess], executions: int
) -> list[SharedAccess]:
    """Return the accesses of an operand through shared memory: a lane reads its own copies."""
    first = loads[0]
    if first.targets is None or not executions:
        return []
    store = SharedAccess(first.operand, "store", first.instruction, first.bits, first.targets)
    read = replace(store, direction="load", instruction="ld.shared", executions=executions)
    # Elements outside the matrix are filled with 0 in every k-tile.
    return [*(replace(x, zero_fill=True) for x in stored(store, loads, cuts)), read]


def _results(config: ThinConfig, C: Matrix, ctas: int, reads_c: bool) -> list[Access]:
    """Return the accesses of the accumulators of all warps through shared memory, and of C."""
    size = config.operation.accumulator.bytes
    rows, columns = ROW_LANES * config.rows, config.columns
    at = np.arange(-(-rows * columns // config.threads) * config.threads)
    if C.unit == 1 - config.index:
        r, c = at % rows, at // rows
    else:
        r, c = at // columns, at % columns
    inside = at < rows * columns
    pair = (c, r) if config.thin == "m" else (r, c)
    coords = np.where(inside[:, None], np.stack(pair, axis=-1), -1).reshape(-1, WARP, 2)
    limit, bits = "a thread has one result", 8 * config.operation.c.bytes
    store = store_of_c(C, bits, config.tile[:2], coords, limit, tail="full")
    partial = columns * config.pitch
    warp = np.arange(config.warps)[:, None, None] * partial
    stored = SharedAccess(
        "C", "store", "st.shared", 8 * size,
        ((config.accumulators + warp) * size).reshape(-1, WARP), ctas, unit="CTA",
    )  # fmt: skip
    place = np.where(inside, c * config.pitch + r, 0).reshape(-1, WARP)
    offsets = ((place + warp) * size).reshape(-1, WARP)
    guard = replace(store, coords=np.tile(coords, (config.warps, 1, 1)))
    read = replace(
        stored, direction="load", instruction="ld.shared", offsets=offsets, executions=0,
        guard=guard,
    )  # fmt: skip
    return [stored, read, *loads_of_c([store], reads_c), store]
