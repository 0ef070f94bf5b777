"""The memory instructions of ``sm90_wgmma``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess, OfMatrix, SharedAccess, TmaAccess
from cute_gemm.access.smem import MATRIX_ROW_BYTES
from cute_gemm.cute.copies import LANES
from cute_gemm.kernels.base import EmittedKernel
from cute_gemm.kernels.greatest import with_results
from cute_gemm.kernels.options import access_bytes
from cute_gemm.kernels.sm90.structure import DEEP, ROWS, OperandPlan, Sm90Config
from cute_gemm.kernels.staging import (
    Block,
    loads_of_c,
    loads_of_scales,
    of_tile,
    read_ahead,
    store_of_c,
)
from cute_gemm.problem.matrix import Matrix, alignments, residue
from cute_gemm.problem.parts.scales import BLOCK, SCALES
from cute_gemm.problem.parts.slices import of_pairs
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.toolchain.signature import Launch

#: Condition for stores of C by TMA.
_FOR_TMA = OfMatrix("C", "base", 16, "rows of C aligned to 16 bytes, for TMA")


class Sm90Accesses(EmittedKernel):
    """The part of ``sm90_wgmma`` that lists its memory instructions."""

    def accesses(
        self, config: Sm90Config, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return all memory instructions of the kernel; alpha is assumed not to be 0."""
        m, n = config.turned((problem.m, problem.n))
        # The last tiles of a cluster may lie outside C: their CTAs load the first tile instead.
        cluster_m, cluster_n = config.kernel_cluster
        inside = -(-m // config.kernel_tile[0]), -(-n // config.kernel_tile[1])
        rows, columns = (
            -(-inside[0] // cluster_m) * cluster_m,
            -(-inside[1] // cluster_n) * cluster_n,
        )
        if config.operation.groups:
            inside = rows, columns
        listed: list[Access] = []
        first_tiles: list[Access] = []
        ctas = rows * columns * problem.l
        if problem.k:
            first, matrices = 0, {"A": problem.A, "B": problem.B}
            if config.zero_fills:
                first, matrices = _from_multiple_of_16(problem, config)
            k_tiles = -(-(first + problem.k) // config.kernel_tile[2])
            products = config.operation.component_products
            # B is read for each block of 64 rows, A by each warp group that has columns of it.
            groups = config.kernel_tile[1] // config.columns
            for plan, tiles, all_tiles, sweeps, reads in zip(
                config.operands, inside, (rows, columns), (columns, rows), (groups, config.blocks),
                strict=True,
            ):  # fmt: skip
                matrix, modes, step = matrices[plan.source], 3, plan.extents[0]
                if problem.epilogue.pairs and plan.source == "B":
                    matrix, modes, step = of_pairs(matrix, problem.epilogue.pairs), 4, step // 2
                region = tiles * step, k_tiles * config.kernel_tile[2]
                load = TmaAccess(
                    plan.source, "load", matrix, plan.box, sweeps * products, plan.span,
                    plan.sharers, region, modes=modes, pitch=plan.pitch,
                    times=plan.layout.size // prod(plan.box) // plan.sharers,
                )  # fmt: skip
                if tiles < all_tiles:
                    stored = plan.layout.extents[0] if plan.pitch else step
                    first_tiles.append(_first_tile(load, stored, all_tiles - tiles))
                by_threads = plan is config.operands[0] and config.register_a
                executions = ctas * k_tiles * products * reads
                read = (_rows if by_threads else _read)(plan, config, executions)
                read = replace(read, times=reads)
                listed += [load, read]
                if by_threads and config.reads_ahead:
                    step = DEEP // config.operation.a.bytes
                    listed.append(read_ahead(read, step, ctas * reads))
                if config.zero_fills:
                    listed += _zeros(plan, config, (first, first + problem.k), k_tiles, ctas)
            listed += first_tiles
            listed += _scales(config, problem, inside, (rows, columns), ctas * k_tiles)
        if not (config.tma_c and problem.k):
            return (*listed, *elements(config, problem, reads_c))
        tile, (bm, bn) = config.epilogue_tile, config.tile_c
        extents = config.turned((rows * bm, columns * bn))
        store = TmaAccess(
            "C", "store", problem.C, tile.box, 1, tile.span, extents=extents, unit="CTA", modes=3,
            times=bm * bn // prod(tile.box),
        )  # fmt: skip
        staged = _staged(config, ctas)
        listed += [staged, store]
        if reads_c:
            listed.append(_brought_up_to_date(staged))
            listed.append(replace(store, direction="load"))
        return tuple(listed)

    def epilogue_blocks(
        self, config: Sm90Config, problem: GemmProblem
    ) -> list[tuple[GlobalAccess, Block]]:
        """Return the units of work of the epilogue: stores of C and their blocks."""
        (store,) = elements(config, problem, reads_c=False)
        if not (config.tma_c and problem.k):
            return [(store, Block((1, 1)))]
        steps = config.turned((_below(config), 1))
        first = np.asarray(store.coords)[::4]  # of four values: two rows of two columns
        return [(replace(store, coords=first), Block((2, 2), steps))]

    def persistent_results(
        self, config: Sm90Config, problem: GemmProblem, launch: Launch
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the consumer threads of a CTA with results, [warps, 32], and the number of CTAs.

        ``TileScheduler`` assigns tiles to CTAs (``templates/tma/tile_scheduler.cuh``).
        """
        (store, _), *_ = self.epilogue_blocks(config, problem)
        (m, n), (bm, bn), (cm, cn) = map(config.turned, (store.region, store.tile, config.cluster))
        clusters_m, clusters_n = -(-m // (cm * bm)), -(-n // (cn * bn))
        group = -(-config.raster // cm)
        index = np.arange(clusters_m * clusters_n * problem.l)
        place, step = index % (clusters_m * clusters_n), launch.grid // launch.cluster
        above = place // (group * clusters_n) * group
        height, inside = np.minimum(clusters_m - above, group), place % (group * clusters_n)
        row, column = above + inside % height, inside // height
        warp = _warps_of_results(config, problem, len(store.coords))
        whole: dict[tuple[tuple[int, int, int], ...], int] = {}
        for rank in range(cm * cn):
            rows = np.clip(m - (row * cm + rank % cm) * bm, 0, bm)
            columns = np.clip(n - (column * cn + rank // cm) * bn, 0, bn)
            for first in range(step):
                mine = slice(first, None, step)
                turns = np.arange(len(index[mine])) % (2 if config.ping_pong else 1)
                tiles = zip(
                    turns.tolist(), rows[mine].tolist(), columns[mine].tolist(), strict=True
                )
                key = tuple(sorted(set(tiles)))
                whole[key] = whole.get(key, 0) + 1
        each = 4 * config.sharers_of_tile
        for key, count in whole.items():
            threads = np.zeros((4 * config.warp_groups, LANES), bool)
            for turn, inside_m, inside_n in key:
                mine = slice(turn * each, (turn + 1) * each)
                threads[mine] |= with_results(
                    store, config.turned((inside_m, inside_n)), each, warp
                )
            yield threads, count


def _read(plan: OperandPlan, config: Sm90Config, executions: int) -> SharedAccess:
    """Return wgmma's reads of a stage: 8 rows of 16 bytes at a time, as in ldmatrix."""
    size, unit = config.operation.a.bytes, int(plan.major == "K")
    width = MATRIX_ROW_BYTES // size
    across, along = np.mgrid[: plan.extents[1 - unit], : plan.extents[unit] : width]
    # Lanes address consecutive rows; a request is four matrices of eight rows.
    rows = [x.T.reshape(-1, 32) for x in (across, along)]
    coords = np.stack(rows if unit else rows[::-1], -1)
    return of_tile(
        plan.source, "load", "wgmma", 128, plan.layout, coords, size, executions=executions
    )


def _rows(plan: OperandPlan, config: Sm90Config, executions: int) -> SharedAccess:
    """Return the threads' loads of a stage for wgmma: two rows of a column of k at a time.

    A lane has 4 of each 16 bytes of k. If these are four columns, half of the lanes read every two
    of them in reverse order.
    """
    rows, k = plan.extents
    size = config.operation.a.bytes
    each = 4 // size  # columns of k in a register
    block, step, turn, warp, lane = np.ogrid[: rows // ROWS, : k // (4 * each), :each, :4, :32]
    row = block * ROWS + _first_row(config, warp, lane)
    column = step * 4 * each + lane % 4 * each + (turn ^ (lane // 2 % 2 * (size == 1)))
    coords = np.stack(np.broadcast_arrays(row, column), -1).reshape(-1, 32, 2)
    return of_tile(
        plan.source, "load", "ld.shared", 16 * size, plan.layout, coords, size,
        executions=executions,
    )  # fmt: skip


def _from_multiple_of_16(problem: GemmProblem, config: Sm90Config) -> tuple[int, dict[str, Matrix]]:
    """Return a group's offset along K from a multiple of 16 bytes, and A and B from there.

    A and B end with the group's last k tile, or with the last group.
    """
    size, deep = config.operation.a.bytes, config.tile[2]
    both = problem.A, problem.B
    begins = {x.name: max(x.alignment, x.first_alignment) for x in both}
    (before, *_) = (begins[x.name] % MATRIX_ROW_BYTES // size for x in both if x.unit == 1)
    matrices, end = {}, -(-(before + problem.k) // deep) * deep
    for x in both:
        begin = residue(begins[x.name] - before * x.stride[1] * size)
        shape = x.shape[0], min(x.shape[1] + before, end)
        matrices[x.name] = replace(x, shape=shape, **alignments(begin))
    return before, matrices


def _zeros(
    plan: OperandPlan, config: Sm90Config, group: tuple[int, int], k_tiles: int, executions: int
) -> Iterator[SharedAccess]:
    """Return the stores of zeros in the first and last k tile, outside a group.

    ``group``: its begin and end. A vector along K that is partly in the group is read, changed and
    written.
    """
    deep = plan.extents[1]
    width = MATRIX_ROW_BYTES // config.operation.a.bytes if plan.major == "K" else 1
    k = np.arange(0, deep, width)
    for k_tile in sorted({0, k_tiles - 1}):
        first, last = (end - k_tile * deep for end in group)
        none = (k + width <= first) | (k >= last)
        some = ~none & ((k < first) | (k + width > last))
        if some.any():
            load = _vectors(plan, config, k[some], executions)
            yield load
            yield replace(load, direction="store", instruction="st.shared")
        if none.any():
            load = _vectors(plan, config, k[none], executions)
            yield replace(load, direction="store", instruction="st.shared")


def _vectors(
    plan: OperandPlan, config: Sm90Config, places: np.ndarray, executions: int
) -> SharedAccess:
    """Return 16-byte loads at places of k: along K one row per lane, else along the rows."""
    size = config.operation.a.bytes
    rows = plan.layout.extents[0]
    if plan.major == "K":
        row, k = np.meshgrid(np.arange(-(-rows // LANES) * LANES), places)
    else:
        row, k = np.meshgrid(np.arange(0, rows, MATRIX_ROW_BYTES // size), places)
    pairs = np.stack((row, k), -1).reshape(-1, 2)
    none = np.full((-len(pairs) % LANES, 2), (rows, 0))  # for the lanes after the last vector
    coords = np.concatenate((pairs, none)).reshape(-1, LANES, 2)
    offsets = np.asarray(plan.layout(coords[..., 0] % rows, coords[..., 1])) * size
    offsets = np.where(coords[..., 0] < rows, offsets, -1)
    return SharedAccess(
        plan.source, "load", "ld.shared", 8 * MATRIX_ROW_BYTES, offsets, executions=executions,
        unit="CTA", layout=plan.layout, coords=coords, element_bits=8 * size,
    )  # fmt: skip


def _scales(
    config: Sm90Config,
    problem: GemmProblem,
    inside: tuple[int, int],
    tiles: tuple[int, int],
    executions: int,
) -> list[Access]:
    """Return the accesses of block scales: copies to a stage by TMA or a warp, loads by consumers.

    ``tiles``: tiles of the launch along the kernel's M and N; ``inside``: tiles with rows of C;
    ``executions``: k tiles of all tiles.
    """
    matrices, names = {x.name: x for x in problem.scales}, config.turned(SCALES)
    accesses: list[Access] = []
    numbers, first = config.scales_of_stage, (0, config.places_of_scales[0])
    for side, rows in enumerate(config.product.scales):
        if not rows:
            continue
        name, step, words = names[side], config.scale_steps[side], config.scale_words[side]
        places = np.arange(-(-numbers[side] // LANES) * LANES).reshape(-1, LANES)
        places = np.where(places < numbers[side], places, -1)
        sweeps = tiles[1 - side]
        if config.scale_boxes[side]:
            matrix, tile = matrices[name], config.kernel_tile[side]
            extents, outside = (inside[side] * tile, matrix.shape[1]), tiles[side] - inside[side]
            boxes = TmaAccess(name, "load", matrix, (tile, 1), sweeps, modes=3, extents=extents)
            accesses.append(boxes)
            if outside:
                accesses.append(_first_tile(boxes, tile, outside))
        else:
            lanes = np.where(places < 0, -1, step * places)
            loads = list(loads_of_scales(problem, config, name, "cp.async", lanes, sweeps))
            stored = np.where(places < 0, -1, 4 * (first[side] + places * words))
            store = SharedAccess(name, "store", "cp.async", 32, stored, executions)
            accesses += loads
            if rows == 1:  # its lanes' addresses in global memory determine the wavefronts
                outside = executions // tiles[side] * (tiles[side] - inside[side])
                zeros = replace(store, executions=outside, part="zeros of tiles outside of C")
                accesses += [zeros] * bool(outside)
                store = replace(store, executions=0, guard=loads[0], zero_fill=True)
            accesses.append(store)
        read, bits = (_scales_of_rows, _scales_of_columns)[side](config)
        read = 4 * (first[side] + read.reshape(-1, LANES) * words)
        accesses.append(SharedAccess(name, "load", "ld.shared", bits, read, executions))
    return accesses


def _first_tile(load: TmaAccess, rows: int, outside: int) -> TmaAccess:
    """Return the loads of the first tile, of so many rows, in place of tiles outside of C."""
    (extent, k), (_, depth) = load.matrix.shape, load.extents or load.matrix.shape
    return replace(
        load, matrix=replace(load.matrix, shape=(min(rows, extent), k)), pitch=0,
        sweeps=load.sweeps * outside, extents=(rows, depth), part="in place of tiles outside of C",
    )  # fmt: skip


def _scales_of_rows(config: Sm90Config) -> tuple[np.ndarray, int]:
    """Return the scales of a stage that threads read for rows, [..., 32], and bits of a vector."""
    across = config.kernel_tile[1] // config.columns
    _, block, warp, lane = np.ogrid[:across, : config.blocks, :4, :LANES]
    if config.product.scales[0] == BLOCK:
        return np.broadcast_to(block, (across, config.blocks, 4, LANES)), 32
    row = block * ROWS + _first_row(config, warp, lane)
    adjacent = _below(config) == 1  # a vector of two
    both = np.stack([row] if adjacent else [row, row + _below(config)], -2)
    return np.broadcast_to(both, (across, *both.shape[1:])), 64 if adjacent else 32


def _scales_of_columns(config: Sm90Config) -> tuple[np.ndarray, int]:
    """Return the scales of a stage that threads read for columns, by warp groups and warps."""
    warps = 4 * config.blocks // config.blocks_of_group
    _, step = config.scale_steps
    if config.product.scales[1] == BLOCK:
        column = np.arange(config.kernel_tile[1] // step)[:, None]
        return np.broadcast_to(column, (warps, len(column), LANES)), 32
    eighth, lane = np.ogrid[: config.kernel_tile[1] // 8, :LANES]
    column = eighth * 8 + lane % 4 * 2
    return np.broadcast_to(column, (warps, *column.shape)), 64


def _first_row(config: Sm90Config, warp: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """Return the first of a thread's two rows of a block of 64; the second is `_below` it."""
    eighth = lane // 4
    if not config.register_a:
        return np.asarray(warp * 16 + eighth)
    if config.operation.a.bytes == 1:
        return np.asarray(warp * 16 + eighth * 2)
    return np.asarray(warp // 2 * 32 + eighth % 2 * 16 + warp % 2 * 8 + eighth // 2 * 2)


def _below(config: Sm90Config) -> int:
    return 1 if config.register_a else 8


def held(config: Sm90Config) -> np.ndarray:
    """Return (row, column) of each thread's results in a block of 64 rows: int [128, values, 2].

    They lie as the thread's accumulators, which are twice as many with an epilogue of pairs.
    """
    thread, value = np.ogrid[:128, : config.results // 2]
    row = _first_row(config, thread // 32, thread % 32) + value // 2 % 2 * _below(config)
    column = thread % 4 * 2 + value // 4 * 8 + value % 2
    return np.stack(np.broadcast_arrays(row, column), -1)


def _staged(config: Sm90Config, ctas: int) -> SharedAccess:
    """Return the stores of a CTA's accumulators to shared memory, by parts of warp groups."""
    out, columns = config.operation.c.bytes, config.epilogue_tile.layout.extents[1]
    each = config.blocks * config.tile_c[1] // columns
    warp, lane = np.ogrid[:4, :32]
    if out == 2 and not config.register_a:
        row, column = warp * 16 + lane // 8 % 2 * 8, lane // 16 * 8
        row, column = (row, column + lane % 8) if config.column_major else (row + lane % 8, column)
        name, bits = "stmatrix.x4.trans" if config.column_major else "stmatrix.x4", 128
        steps = [(0, step) for step in range(0, columns, 16)]
    else:
        row, column = _first_row(config, warp, lane), lane % 4 * 2
        # Two neighbours along the unit-stride mode are stored together: columns, or rows.
        pairs = config.column_major and config.register_a
        down = (0,) if pairs else (0, _below(config))
        right = (0, 1) if config.column_major else (0,)
        name, bits = "st.shared", 32 * out // len(down) // len(right)
        steps = [(d, step + r) for step in range(0, columns, 8) for d in down for r in right]
    row, column = np.broadcast_arrays(row, column)
    coords = np.stack(
        [np.stack([row + below, column + right], -1) for below, right in steps]
    ).reshape(-1, 32, 2)
    return of_tile(
        "C", "store", name, bits, config.epilogue_tile.layout, coords, out,
        executions=ctas * each, unit="CTA", times=each,
    )  # fmt: skip


def _brought_up_to_date(staged: SharedAccess) -> SharedAccess:
    """Return the loads of C from the places where the accumulators are then stored."""
    name = staged.instruction.replace("stmatrix", "ldmatrix").replace("st.", "ld.")
    return replace(staged, direction="load", instruction=name)


def elements(config: Sm90Config, problem: GemmProblem, reads_c: bool) -> list[GlobalAccess]:
    """Return accesses of C element by element: from registers or, without products, in order."""
    tile = config.tile_c
    if problem.k:
        own = held(config)  # a request: one value of each thread of a warp
        block = own.reshape(4, 32, -1, 2).swapaxes(1, 2).reshape(-1, 32, 2)
        down, across = np.ogrid[: config.blocks, : tile[1] // config.results]
        corner = np.stack(np.broadcast_arrays(down * ROWS, across * config.results), -1)
        coords = corner[:, :, None, None] + block
    else:
        unit = int(not config.column_major)
        places = divmod(np.arange(prod(tile)), tile[unit])
        coords = np.stack(places if unit else places[::-1], -1)
    coords = coords.reshape(-1, 32, 2)[..., :: -1 if config.swap_ab else 1]
    _, limit = access_bytes(problem.C, False)
    fix = "" if config.tma_c else _FOR_TMA
    bits = 8 * config.operation.c.bytes
    store = store_of_c(problem.C, bits, config.turned(tile), coords, limit, fix=fix)
    return [*loads_of_c([store], reads_c), store]


def _warps_of_results(config: Sm90Config, problem: GemmProblem, count: int) -> np.ndarray:
    """Return the consumer warp of each request of `epilogue_blocks`, for the requests of a tile."""
    warps = 4 * config.sharers_of_tile
    if not problem.k:  # threads take turns
        return np.arange(count) % warps
    across = config.tile_c[1] // config.results
    block, column, warp, _ = np.indices(
        (config.blocks, across, 4, count // (config.blocks * across * 4))
    )
    return np.asarray((4 * (block // config.blocks_of_group + column) + warp).reshape(-1))
