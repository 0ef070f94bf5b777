"""The config of the tutorial kernels, and the thread maps, copies and layouts that it determines.

These kernels multiply with FMA; each thread computes some results of C. C may be column- or
row-major; tiles of A and B lie in shared memory with the M or N mode contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from cute_gemm.cute import choose
from cute_gemm.cute.choose import VECTOR
from cute_gemm.cute.copies import TiledCopy
from cute_gemm.cute.layout import Layout, from_map
from cute_gemm.kernels.config import Config, symbol
from cute_gemm.kernels.derived import derived
from cute_gemm.kernels.options import spelled
from cute_gemm.problem.operation import Operation

WARP = 32
#: Lanes of a warp tile along M and N.
WARP_LANES = (8, 4)
#: Products that are unrolled: more would not fit the instruction cache.
_UNROLLED = 1024
#: Kernels without shared memory.
_DIRECT = ("naive", "coalesced")
#: Arrangement of a thread's results: side by side, a stride of all threads apart, or 16-byte
#: vectors that alternate between neighbouring lanes.
Results = Literal["together", "apart", "quads"]
#: Layout of tiles in shared memory: rows without gaps; padded rows of a transposed operand; padded
#: rows of both operands; or 16-byte chunks of a column XORed with the row.
Skew = Literal["none", "transposed", "padding", "xor"]


@dataclass(frozen=True, eq=False)
class StagedOperand:
    """The copy of a tile of A or B, with ``extents`` (bMN, bK), to the threads that multiply it.

    ``load`` and ``store`` have the same threads and blocks, in vectors of global and of shared
    memory. ``threads`` is thread -> first element of its ``block``, linear in the copy's tile.
    ``smem`` is (bMN, bK) -> element of shared memory; a tile takes ``elements`` of it.
    """

    name: str
    major: str
    extents: tuple[int, int]
    load: TiledCopy
    store: TiledCopy
    threads: Layout
    block: tuple[int, int]
    smem: Layout
    elements: int

    @property
    def asynchronous(self) -> bool:
        """Whether cp.async moves it."""
        return self.load.atom.name == "cp.async"


@dataclass(frozen=True, kw_only=True)
class SimtConfig(Config):
    """Everything that shapes the code of one tutorial kernel.

    Each kernel has some of the fields up to ``min_ctas`` as options; the others follow from the
    problem.
    """

    kernel: str
    tile: tuple[int, int, int]  #: (bM, bN, bK): extents of the CTA tile.
    thread_tile: tuple[int, int] = (1, 1)  #: (TM, TN): results of a thread.
    #: (m, n): warps along M and N; (0, 0) if threads are distributed in order.
    warps: tuple[int, int] = (0, 0)
    #: ``"m"``, ``"n"`` or ``"k"``: the mode along which lanes lie, without ``warps``.
    warp_along: str
    skew: Skew = "transposed"  #: Where a tile lies in shared memory.
    #: ``"none"``: no copy overlaps the products. ``"registers"``: the next tile is loaded into
    #: registers. ``"cp.async"``: it is copied to shared memory asynchronously, if not transposed.
    staging: str = "none"
    raster: int = 8  #: Rows of tiles that share an L2 group.
    min_ctas: int  #: CTAs per multiprocessor that the register count must leave room for.
    results: Results = "together"  #: How a thread's results lie in the tile.
    operation: Operation

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and tile."""
        distributed = f"w{spelled(self.warps)}" if self.warps[0] else f"along_{self.warp_along}"
        return symbol(
            self.kernel, self.operation.name, self.tile, self.thread_tile, distributed,
            f"{self.skew}_{self.staging.replace('.', '_')}", self.operation.access_name,
            f"r{self.raster}", f"o{self.min_ctas}",
        )  # fmt: skip

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        (bm, bn, _), (tm, tn) = self.tile, self.thread_tile
        return bm // tm * (bn // tn) * (WARP if self.warp_along == "k" else 1)

    @property
    def buffers(self) -> int:
        """Tiles of each operand in shared memory."""
        return 1 if self.staging == "none" else 2

    @property
    def vector(self) -> int:
        """Elements of the widest access to shared memory."""
        return max(1, VECTOR // self.operation.a.bytes)

    @derived
    def values(self) -> tuple[Layout, Layout]:
        """The results of a thread: (run, repeat) -> m, and -> n, from its first."""
        return self._values(0), self._values(1)

    def _values(self, mode: int) -> Layout:
        count = self.thread_tile[mode]
        if self.results == "apart":
            return Layout((1, count), (0, self.tile[mode] // count))
        run = min(count, self.vector)
        step = run * (WARP_LANES[mode] if self.results == "quads" else 1)
        return Layout((run, count // run), (1, step if count > run else 0))

    @derived
    def first_results(self) -> Layout:
        """Thread (or the warp that shares a result) -> m + bM * n of its first result."""
        bm = self.tile[0]
        counts = [self.tile[mode] // self.thread_tile[mode] for mode in (0, 1)]
        steps = [self.thread_tile[mode] if self.results == "together" else 1 for mode in (0, 1)]
        thread = np.arange(counts[0] * counts[1])
        if not self.warps[0]:
            fast, slow = (1, 0) if self.warp_along == "n" else (0, 1)
            place = {fast: thread % counts[fast], slow: thread // counts[fast]}
            return from_map(place[0] * steps[0] + bm * place[1] * steps[1])
        lane, warp = thread % WARP, thread // WARP
        # Lane bits: n m m m n. Lanes 0 and 1 share their rows, lanes 0 and 2 their columns.
        lanes = (lane >> 1 & 7, (lane & 1) + (lane >> 4) * 2)
        first = []
        for mode, place_of_warp in enumerate((warp % self.warps[0], warp // self.warps[0])):
            run = min(self.thread_tile[mode], self.vector)
            first.append(place_of_warp * (self.tile[mode] // self.warps[mode]) + lanes[mode] * run)
        return from_map(first[0] + bm * first[1])

    @property
    def vector_c(self) -> int:
        """Results that one access of C moves."""
        run = int(self.values[self.operation.row_major].extents[0])
        return min(run, max(1, self.operation.bytes[2] // self.operation.c.bytes))

    @property
    def chunk(self) -> int:
        """Columns whose products are unrolled."""
        tm, tn = self.thread_tile
        products = tm * tn * (4 if self.operation.a.is_complex else 1)
        return min(self.tile[2], max(_UNROLLED // products, self._whole_rows))

    @property
    def _whole_rows(self) -> int:
        """The columns after which a tile's swizzle repeats: such a step only adds an offset."""
        operation = self.operation
        element, columns = operation.a.bytes, self.tile[2]
        sides = zip(operation.bytes[:2], operation.majors[:2], strict=True)
        widths = [width // element for width, major in sides if major == "K"]
        rows = (width * min(8, choose.lanes_along_k(element, columns, width)) for width in widths)
        return max([8, *rows])

    @property
    def staged(self) -> bool:
        """Whether tiles of A and B go through shared memory."""
        return self.kernel not in _DIRECT

    @derived
    def operands(self) -> tuple[StagedOperand, ...]:
        """The copies of A and B to shared memory; none in kernels without it."""
        return (self._operand(0), self._operand(1)) if self.staged else ()

    def _operand(self, index: int) -> StagedOperand:
        operation, name = self.operation, "AB"[index]
        element, major = operation.a.bytes, operation.majors[index]
        rows, columns = extents = (self.tile[index], self.tile[2])
        threads = self.threads
        width = operation.bytes[index] // element
        if major == "MN":
            block = (min(width, rows), 1)
            wide = self.staging == "cp.async" and block[0] * element >= 4
            instruction = "cp.async" if wide else "ld.global"
            load = choose.vector_copy(instruction, element, extents, 0, block[0], threads)
            store = choose.shared_side(load)
        else:
            # The rows of a single thread are stored in one access.
            own_rows = 1
            if self.staging != "none" and width > 1:
                own_rows = max(1, min(rows * columns // (threads * width), VECTOR // element))
            block = (own_rows, width)
            load, store = choose.turning_copy(element, extents, width, own_rows, threads)
        first = load.partition[:, 0]
        smem, elements = choose.skewed_tile(
            element, extents, self.skew, self.results == "together", width * (major == "K")
        )
        return StagedOperand(
            name=name, major=major, extents=extents, load=load, store=store,
            threads=from_map(first[:, 0] + load.tile[0] * first[:, 1]), block=block, smem=smem,
            elements=elements,
        )  # fmt: skip
