"""Base class of the tutorial kernels: configs, legality, launch and accesses.

Each kernel is a template of the same name in ``templates/simt/`` and a small class in
``kernels/simt/ladder.py`` that sets its config's differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess, Option, SharedAccess, Shares, Work
from cute_gemm.arch import REGISTERS_PER_THREAD
from cute_gemm.cost_model.footprint import Updates
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.base import EmittedKernel
from cute_gemm.kernels.options import (
    access_bytes,
    launch_of_tiles,
    most_ctas,
    registers,
    tiles_of,
    with_options,
)
from cute_gemm.kernels.rules import (
    check_extents,
    first,
    memory_fits,
    names_known,
    positive,
    powers_of_two,
    refuse,
    tiles_filled,
)
from cute_gemm.kernels.simt.structure import WARP, WARP_LANES, SimtConfig
from cute_gemm.kernels.simt.unit import EmitSimt
from cute_gemm.kernels.staging import (
    by_last_tile,
    cut_vectors,
    load_by,
    loads_of_c,
    of_tile,
    read_ahead,
    scales_of_threads,
    shared,
    store_of_c,
    stored,
    unused_prefetch,
    with_cut_vectors,
)
from cute_gemm.problem.parts.scales import BLOCK, SCALES
from cute_gemm.toolchain.signature import Launch

if TYPE_CHECKING:
    from cute_gemm.arch import Arch
    from cute_gemm.cute.layout import Layout
    from cute_gemm.problem.problem import GemmProblem

#: Registers of a thread besides its accumulators: addresses, operands.
_OTHERS = 64


def _accumulators(config: SimtConfig) -> int:
    """Return the registers that a thread's accumulators take."""
    tm, tn = config.thread_tile
    sets = 2 if config.operation.block_scales else 1  # products of a k tile have a separate set
    return sets * tm * tn * config.operation.accumulator.bytes // 4


class SimtKernel(EmittedKernel):
    """A kernel of the ladder: FMA on CUDA cores, any op, size, leading dimension and alignment."""

    minimum_cc = 80
    dtypes: tuple[str, ...] = (
        "float32", "float16", "bfloat16", "float64", "complex64", "complex128",
    )  # fmt: skip
    options: tuple[str, ...] = ("tile", "thread_tile", "raster", "min_ctas")
    #: Whether gmem accesses of A and B are as wide as the matrices allow, instead of one element.
    wide: ClassVar[bool] = False
    #: Whether shared memory holds all of K.
    whole_k: ClassVar[bool] = False
    #: Fields of configs that differ from those of most kernels (`candidates`).
    fields: ClassVar[dict[str, Any]] = {}
    emitter: ClassVar = EmitSimt

    def rows(self, problem: GemmProblem, options: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """Return the fields that this kernel sets in each candidate, besides given options."""
        return [self.fields]

    def settle(self, config: SimtConfig) -> SimtConfig:
        """Return the config with the fields that its options determine."""
        return config

    def candidates(
        self, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[SimtConfig]:
        element = problem.A.element.bytes
        widths = (
            access_bytes(x, False)[0] if self.wide or x.name == "C" else element
            for x in (problem.A, problem.B, problem.C)
        )
        common = {
            "kernel": self.name,
            "warp_along": "m" if problem.C.unit == 0 else "n",
            "min_ctas": 2 if element <= 4 else 1,
            "operation": problem.operation(*widths),
        }
        for row in self.rows(problem, options):
            config = self.settle(with_options(SimtConfig(**{**common, **row}), options))
            own = {"tile", "thread_tile"}.isdisjoint(options) and not problem.scales
            legal = not first(powers_of_two(config, "tile", "thread_tile"))
            if "min_ctas" not in options and legal and not own:
                # The min_ctas of the kernel's own tile may not fit another tile.
                ctas = range(config.min_ctas, 1, -1)
                ctas_fit = most_ctas(ctas, config.threads, _accumulators(config) + _OTHERS)
                config = replace(config, min_ctas=ctas_fit)
            yield config

    def check(self, config: SimtConfig, problem: GemmProblem, arch: Arch) -> None:
        check_extents(self.name, problem, config.tile, (1, max(config.tile)))
        refuse(self._broken(config))
        need, limit = self.launch(config, problem).smem, arch.shared_limit
        if self.whole_k and need > limit:
            most = limit // (need // -(-problem.k // config.tile[2])) * config.tile[2]
            fits = self._fitting(config, problem, limit)
            fix = f"tile={fits}, or " if fits else ""
            raise UnsupportedError(
                f"k={problem.k} needs {need} bytes of shared memory in kernel {self.name!r}, "
                f"and {arch} has {limit}: k up to {most} fits with tile="
                f"{config.tile}; take {fix}kernel='smem_tiled'"
            )
        refuse(memory_fits(f"option tile={config.tile}", need, arch, "a smaller tile"))

    def _fitting(
        self, config: SimtConfig, problem: GemmProblem, limit: int
    ) -> tuple[int, int, int] | None:
        """Return the largest legal tile with which all of K fits, if any."""
        sides = (32, 16, 8, 4)
        for m, n in sorted(product(sides, sides), key=lambda side: -side[0] * side[1]):
            smaller = replace(config, tile=(m, n, config.tile[2]))
            if not first(self._broken(smaller)) and self.launch(smaller, problem).smem <= limit:
                return smaller.tile
        return None

    def _broken(self, config: SimtConfig) -> Iterator[str]:
        """Yield a sentence for each legality rule that a config breaks."""
        yield from names_known(config, self.choices)
        yield from powers_of_two(config, "tile", "thread_tile")
        yield from positive(config, "raster", "min_ctas")
        (bm, bn, bk), (tm, tn) = config.tile, config.thread_tile
        if tm > bm or tn > bn or not WARP <= config.threads <= 1024:
            yield (
                f"option tile={config.tile} with thread_tile={config.thread_tile} makes "
                f"{config.threads} threads; expected {WARP} to 1024"
            )
        accumulators, room = _accumulators(config), registers(config.threads, config.min_ctas)
        if accumulators >= room:
            fits = accumulators < REGISTERS_PER_THREAD  # in a CTA of fewer threads
            yield (
                f"option thread_tile={config.thread_tile} with min_ctas={config.min_ctas} needs "
                f"{accumulators} registers for the accumulators of a thread, which has "
                f"{room}; take a smaller {'tile or min_ctas' if fits else 'thread_tile'}"
            )
        if config.warps[0] and (bm, bn) != tuple(
            warps * lanes * results
            for warps, lanes, results in zip(config.warps, WARP_LANES, (tm, tn), strict=True)
        ):
            yield (
                f"option tile={config.tile} with thread_tile={config.thread_tile}: the CTA tile "
                f"must consist of warp tiles of {WARP_LANES[0] * tm} x {WARP_LANES[1] * tn}"
            )
        if not config.staged:
            lanes = WARP if config.warp_along == "k" else 1
            if bk != lanes:
                why = "computes each result by a warp" if lanes > 1 else "has no tile along k"
                yield (
                    f"option tile={config.tile}: kernel {self.name!r} with warp_along="
                    f"{config.warp_along!r} {why}; expected tile={(bm, bn, lanes)}"
                )
            return
        for rows, extent in zip(config.operation.scales, (bm, bn), strict=True):
            if rows == BLOCK < extent:
                yield (
                    f"option tile={config.tile} came with scales of {BLOCK} x {BLOCK} blocks, and "
                    f"a tile must lie within a block; expected extents up to {BLOCK}"
                )
        size = config.operation.a.bytes
        whole = "padding" if config.results == "together" else "xor"  # moves 128 bytes at a time
        if config.skew == whole and min(bm, bn) * size < 128:
            yield (
                f"option tile={config.tile} with skew={config.skew!r}: M and N must be "
                f"{128 // size} or more, so that a row of shared memory has every bank"
            )
        for extent, name in ((bm, "M"), (bn, "N")):
            if extent * bk < config.threads or extent > 256 or bk > 64:
                yield (
                    f"option tile={config.tile}: {name} x K must be {config.threads} elements (one "
                    "for each thread) or more, M and N at most 256, K at most 64"
                )
        copies = ((operand.name, operand.load, operand.extents) for operand in config.operands)
        yield from tiles_filled(config, copies, "a larger tile")

    def traits(self, problem: GemmProblem) -> Any:
        """Return k if all of it must fit in shared memory, else 0."""
        return problem.k if self.whole_k else 0

    def of_operand(self, config: SimtConfig, name: str) -> SimtConfig:
        """Return the config without the access widths of the other operands."""
        return replace(config, operation=config.operation.only(name))

    def updates(self, config: SimtConfig) -> Updates:
        results = config.thread_tile[0] * config.thread_tile[1]
        stores = results // config.vector_c
        return Updates(stores, stores, results)

    def launch(self, config: SimtConfig, problem: GemmProblem) -> Launch:
        smem = 0
        if config.staged:
            elements = sum(operand.elements for operand in config.operands)
            tiles = -(-problem.k // config.tile[2]) if self.whole_k else config.buffers
            smem = elements * config.operation.a.bytes * tiles
        return launch_of_tiles(problem, config.tile, config.threads, smem)

    def warps_of(self, config: SimtConfig, requests: int, warps: int) -> np.ndarray:
        """Return the warp of each request of C's stores: requests are ordered by warps."""
        return np.arange(requests) // (requests // warps)

    def accesses(
        self, config: SimtConfig, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return the accesses of a launch whose alpha is not 0."""
        out: list[Access] = []
        for index in (0, 1):
            if config.staged:
                out += _staged(config, problem, index, self.wide)
            else:
                out += _direct(config, problem, index)
        out += scales_of_threads(problem, config, _scales_of_lanes(config))
        return (*out, *_results(config, problem, reads_c))

    def work(self, config: SimtConfig, problem: GemmProblem) -> Work:
        """Return the products; half types are multiplied as float32."""
        work = Work.of_tiles(problem, config.tile, "CUDA cores", problem.products)
        if config.staged:
            return work
        # Threads past the edges are idle.
        inside = Work.of_tiles(problem, (1, 1, 1), "CUDA cores", problem.products)
        return replace(work, products=inside.products)

    def shares(self, config: SimtConfig) -> Shares:
        return super().shares(config) if config.staged else Shares((1, 1), None)


# ---- accesses -----------------------------------------------------------------------------------


def _first_results(config: SimtConfig) -> np.ndarray:
    """Return (m, n) of every thread's first result; int [threads, 2]."""
    place = config.first_results.table().ravel()
    first = np.stack([place % config.tile[0], place // config.tile[0]], axis=-1)
    if config.warp_along == "k":
        return np.repeat(first, WARP, axis=0)
    return first


def _direct(config: SimtConfig, problem: GemmProblem, index: int) -> list[Access]:
    """Return a thread's loads of A or B from global memory, one k (or a warp's 32) at a time.

    Threads without an element of C load nothing; CTAs at the end of the other mode have such
    threads.
    """
    first, matrix = _first_results(config), problem.matrices[index]
    other, extent = 1 - index, (problem.n, problem.m)[index]
    k = np.arange(len(first)) % WARP if config.tile[2] > 1 else np.zeros(len(first), int)
    coords = np.stack([first[:, index], k], axis=-1)
    whole, rest = divmod(extent, config.tile[other])
    visits = [(coords, whole, "")] if whole else []
    if rest:
        part = f"last CTAs along {'mn'[other]}" if whole else ""
        visits.append((np.where(first[:, [other]] < rest, coords, -1), 1, part))
    tile, bits = (config.tile[index], config.tile[2]), 8 * config.operation.a.bytes
    limit = "a thread takes one element at a time"
    fix = "" if config.kernel == "coalesced" else Option("kernel", "coalesced")
    return [
        GlobalAccess(
            matrix.name, "load", "ld.global", bits, matrix, tile, lanes.reshape(-1, WARP, 2),
            matrix.unit, sweeps, limit, fix, part=part,
        )
        for lanes, sweeps, part in visits
    ]  # fmt: skip


def _staged(config: SimtConfig, problem: GemmProblem, index: int, wide: bool) -> list[Access]:
    """Return the accesses of A or B through shared memory: the copies of tiles, and their reads."""
    operand, matrix = config.operands[index], problem.matrices[index]
    tiles, fix = tiles_of(problem, config.tile), _bank_fix(config)
    ctas = prod(tiles) * problem.l
    executions = ctas * -(-problem.k // config.tile[2])
    read = _fragments(config, index, executions)
    if not executions:
        return [read]
    store = shared(
        operand.name, "store", operand.store, operand.smem, operand.extents, executions=executions,
        fix=fix,
    )  # fmt: skip
    limit = access_bytes(matrix, False)[1] if wide else "a thread copies one element at a time"
    limit = limit if operand.load.atom.bits < 128 else ""
    load = load_by(
        operand.load, store, matrix, operand.extents, tiles[1 - index], limit, tail="full"
    )
    if config.staging == "none":
        return [load, *cut_vectors(load), store, read]
    # The last k-tile is loaded first.
    loads = by_last_tile(load)
    cuts = cut_vectors(loads[-1])
    # A tile in registers is stored at the end of each k-tile, including the last one.
    by_registers = [store, replace(store, **unused_prefetch(ctas))]
    stores = stored(store, loads, cuts) if operand.asynchronous else by_registers
    # Columns are prefetched: after the last, the first of the other buffer.
    return [*loads, *cuts, *stores, read, read_ahead(read, 1, ctas)]


def _fragments(config: SimtConfig, index: int, executions: int) -> SharedAccess:
    """Return a thread's reads of a tile: its rows of A, or its columns of B, for every k."""
    operand, values = config.operands[index], config.values[index]
    run, repeats = values.extents
    first = _first_results(config)[:, index].reshape(-1, 1, 1, WARP)
    k = np.arange(operand.extents[1])[:, None, None]
    step = values(0, np.arange(repeats))[:, None]
    rows = np.broadcast_to(first + step, (first.shape[0], operand.extents[1], repeats, WARP))
    coords = np.stack([rows, np.broadcast_to(k, rows.shape)], axis=-1).reshape(-1, WARP, 2)
    element = config.operation.a.bytes
    return of_tile(
        operand.name, "load", "ld.shared", 8 * element * int(run), operand.smem, coords, element,
        executions=executions, fix=_bank_fix(config),
    )  # fmt: skip


def _scales_of_lanes(config: SimtConfig) -> dict[str, np.ndarray]:
    """Return the rows of the tile whose block scales each thread loads for its results."""
    first, lanes = _first_results(config), {}
    for name, rows in config.operation.block_scales.items():
        side = SCALES.index(name)
        own = np.zeros((1, config.threads), np.int64)
        if rows == 1:
            values = config.values[side]
            own = values(np.arange(values.size))[:, None] + first[:, side]
        lanes[name] = own.reshape(-1, WARP)
    return lanes


def _bank_fix(config: SimtConfig) -> str | Option:
    """Return the fix of bank conflicts."""
    return Option("kernel", "bank_free") if config.kernel == "vectorized" else ""


def _results(config: SimtConfig, problem: GemmProblem, reads_c: bool) -> list[Access]:
    """Return the accesses of C."""
    first = _first_results(config)
    if config.warp_along == "k":
        first = np.where((np.arange(len(first)) % WARP == 0)[:, None], first, -1)
    axis = problem.C.unit
    vector = config.vector_c
    steps = [
        (row, column)
        for row in _steps(config.values[0], vector if axis == 0 else 1)
        for column in _steps(config.values[1], vector if axis == 1 else 1)
    ]
    lanes = first.reshape(-1, 1, WARP, 2)
    coords = np.where(lanes < 0, -1, lanes + np.array(steps)[None, :, None]).reshape(-1, WARP, 2)
    widest, limit = access_bytes(problem.C, False)
    bits = 8 * config.operation.c.bytes * vector
    if bits < 8 * widest:
        limit = "a thread's results are not neighbours"
        if vector > 1:
            limit = f"a thread has {vector} neighbouring results"
    store = store_of_c(problem.C, bits, config.tile[:2], coords, limit, tail="full")
    stores = with_cut_vectors(store)
    return [*loads_of_c(stores, reads_c), *stores]


def _steps(values: Layout, vector: int) -> list[int]:
    """Return the offsets at which accesses of a thread's results begin, from its first."""
    return [int(offset) for offset in values(np.arange(values.size))[::vector]]
