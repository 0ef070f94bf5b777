"""Accesses of a CTA of CUTLASS's kernel, recorded while its PTX is executed (`cute_gemm.ptx`).

The launch has 2 x 2 tiles of C with one k-tile. The first tile is whole, and its CTA is recorded;
the other tiles end after one vector, and show which loads a CTA at an edge leaves out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cute_gemm.kernels.cutlass.config import MATH, WARP, CutlassUniversalConfig
from cute_gemm.kernels.cutlass.unit import unit
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scalars import ONE, ZERO
from cute_gemm.ptx.access import described
from cute_gemm.ptx.launch import Argument, Buffer, Execution, parsed, run
from cute_gemm.ptx.memory import GLOBAL
from cute_gemm.toolchain.signature import gemm_signature


class Requests(NamedTuple):
    """Requests of one instruction: those of all warps for a step, then those for the next."""

    instruction: str
    bits: int  # of each lane
    #: int array [requests, 32]: the address of each lane in shared memory, in bytes, or
    #: [requests, 32, 2]: the (row, column) in the operand. -1 for a lane that takes no part.
    places: np.ndarray
    #: For reads of accumulators: int array [requests, 32, 2], the (row, column) that must lie in C
    #: for a lane to read, 0 if that is not tested; None if nothing is tested.
    tested: np.ndarray | None = None


class Recording(NamedTuple):
    """The requests of a CTA by purpose and instruction."""

    loads: dict[str, list[Requests]]  # of a k-tile of A and of B, and of C, from global memory
    stores: dict[str, list[Requests]]  # of a k-tile to shared memory
    fragments: dict[str, list[Requests]]  # of a k-tile from there
    ahead: dict[str, list[Requests]]  # of the step after the last k-tile
    staged: list[Requests]  # accumulators to shared memory
    accumulators: list[Requests]  # accumulators from there
    results: list[Requests]  # to C


@lru_cache(maxsize=32)
def recording(config: CutlassUniversalConfig, products: bool, reads_c: bool) -> Recording:
    """Return the accesses of a CTA; ``products``: k is not 0, ``reads_c``: beta is not 0."""
    return _Launch(config, products, reads_c).recording()


@lru_cache(maxsize=16)
def _ptx(config: CutlassUniversalConfig) -> str:
    from cute_gemm.toolchain.nvrtc import ptx

    return ptx(unit(config), "sm_80")


def _problem(config: CutlassUniversalConfig, k: int) -> GemmProblem:
    """Return the problem that is executed."""
    operation, (a, b, c) = config.operation, config.alignments
    op = operation.letters.upper()
    of_c = (c, 1) if config.swap_ab else (1, c)
    m = config.tile[0] + max(of_c[0], a if op[0] == "N" else 1)
    n = config.tile[1] + max(of_c[1], b if op[1] == "T" else 1)
    return from_sizes(
        op, m=m, n=n, k=k, dtype=operation.a.name, out_dtype=operation.c.name,
        compute=operation.compute, order="C" if operation.row_major else "F",
    )  # fmt: skip


def _execute(config: CutlassUniversalConfig, problem: GemmProblem, reads_c: bool) -> Execution:
    text = _ptx(config)
    signature = gemm_signature(config.operation)
    block = signature.arguments(problem, ONE, ONE if reads_c else ZERO).block.raw
    sizes = [x.size or 0 for x in parsed(text, config.name).parameters.values()]
    arguments: list[Argument] = [
        block[begin : begin + size] for begin, size in zip(signature.offsets, sizes, strict=True)
    ]
    for place, matrix in enumerate((problem.A, problem.B, problem.C)):
        arguments[place] = Buffer(np.zeros(matrix.nbytes, np.uint8), matrix.name, 0)
    shape = (config.threads,)
    return run(text, config.name, (4,), shape, config.smem, arguments, record=True, watch=False)


class _Launch:
    """The launch that is recorded."""

    def __init__(self, config: CutlassUniversalConfig, products: bool, reads_c: bool) -> None:
        self.config, self.warps = config, config.threads // WARP
        self.problem = _problem(config, config.tile[2] if products else 0)
        self.execution = _execute(config, self.problem, reads_c)
        assert self.execution.accesses is not None
        self.accesses = accesses = self.execution.accesses
        shared, store = accesses.shared, accesses.store
        self.writes, self.reads = shared & store, shared & ~store
        #: For each access, the bytes that a lane of its warp has stored to shared memory before it.
        self.stored = np.zeros(len(accesses), int)
        for cta in range(4):
            for warp in range(self.warps):
                mine = (accesses.cta == cta) & (accesses.warp == warp)
                self.stored[mine] = np.cumsum((accesses.width * self.writes)[mine])

    def recording(self) -> Recording:
        """Classify accesses by their target, and those of a warp by the bytes stored before."""
        config, accesses, stored = self.config, self.accesses, self.stored
        (first, second), (rows, columns, _) = config.turned(("A", "B")), config.kernel_tile
        depth = min(self.problem.k, config.tile[2]) * config.operation.a.bytes
        of_first = rows * depth // config.threads
        of_both = of_first + columns * depth // config.threads
        # All stages but one are filled before the main loop; with registers, both stages.
        main = stored <= of_both * max(2, config.stages - 1)
        stores = {
            first: self._rows(self.writes & (stored <= of_first)),
            second: self._rows(self.writes & (stored > of_first) & (stored <= of_both)),
        }
        of_second = accesses.addresses.max(axis=1) >= accesses.addresses[stores[second]].min(
            initial=2**62
        )
        steps = config.tile[2] // MATH[config.math].instruction[2]
        fragments, ahead = {}, {}
        for name, mine in ((first, ~of_second), (second, of_second)):
            loads = self._rows(self.reads & main & mine)
            read = np.cumsum(accesses.width[loads[:, 0]])
            last = np.searchsorted(read, read[-1:].sum() // (steps + 1) * steps, "right")
            fragments[name] = self._requests(loads[:last])
            ahead[name] = self._requests(loads[last:])
        return Recording(
            {name: self._requests(self._rows(self._of(name, False)), name) for name in "ABC"},
            {name: self._requests(rows) for name, rows in stores.items()},
            fragments,
            ahead,
            self._requests(self._rows(self.writes & ~main)),
            self._accumulators(self.reads & ~main),
            self._requests(self._rows(self._of("C", True)), "C"),
        )

    def _of(self, operand: str, store: bool) -> np.ndarray:
        """Return which accesses load an operand, or store to it; bool array."""
        (region,) = (x for x in self.execution.regions if x.name == operand)
        place = self.accesses.addresses.max(axis=1) - GLOBAL
        inside = (place >= region.begin) & (place < region.end)
        return ~self.accesses.shared & (self.accesses.store == store) & inside

    def _rows(self, chosen: np.ndarray, cta: int = 0) -> np.ndarray:
        """Return the numbers of the chosen accesses of a whole tile; int array [steps, warps]."""
        mine = chosen & (self.accesses.cta == cta)
        of_warps = [np.flatnonzero(mine & (self.accesses.warp == w)) for w in range(self.warps)]
        return np.stack(of_warps, axis=1)

    def _requests(
        self, rows: np.ndarray, operand: str = "", tested: np.ndarray | None = None
    ) -> list[Requests]:
        """Return requests by instruction; ``operand``: their target, "" for shared memory."""
        accesses, code = self.accesses, self.execution.kernel.instructions
        kinds: dict[tuple[str, int], list[int]] = {}
        step = 0
        while step < len(rows):
            name, _, bits = described(code[accesses.instruction[rows[step, 0]]])
            joins = name.startswith(("ld.", "st.")) and not operand and tested is None
            count = self._joined(rows[step:], bits // 8) if joins else 1
            name = name.format("global" if operand else "shared")
            kinds.setdefault((name, bits * count), []).append(step)
            step += count
        return [
            Requests(
                *kind,
                self._places(rows[steps].ravel(), operand),
                None if tested is None else tested[steps].reshape(-1, WARP, 2),
            )
            for kind, steps in kinds.items()
        ]

    def _joined(self, rows: np.ndarray, size: int) -> int:
        """Return how many of the first steps move neighbouring vectors, which ptxas merges."""
        for count in (4, 2):
            if count <= min(len(rows), 16 // size):
                first = rows[:count]
                places, width = self.accesses.addresses[first], self.accesses.width[first]
                ahead = np.arange(count)[:, None, None] * size
                aligned = not (places[0] % (count * size)).any()
                if aligned and (width == size).all() and (places == places[0] + ahead).all():
                    return count
        return 1

    def _places(self, rows: np.ndarray, operand: str) -> np.ndarray:
        """Return the addresses of accesses, as ``Requests.places``."""
        addresses = self.accesses.addresses[rows]
        if not operand:
            return addresses
        (region,) = (x for x in self.execution.regions if x.name == operand)
        matrix = getattr(self.problem, operand)
        element = (addresses - GLOBAL - region.begin) // matrix.element.bytes
        across, along = np.divmod(element, matrix.ld)
        pair = (along, across) if matrix.unit == 0 else (across, along)
        return np.where((addresses < 0)[..., None], -1, np.stack(pair, axis=-1))

    def _accumulators(self, chosen: np.ndarray) -> list[Requests]:
        """Return the reads of accumulators, with the tests of C's extents that precede them.

        CTAs at an edge show the tests. Between two of its stores a lane reads, by address, its next
        vectors of C in order; NVRTC moves reads that follow tests to the end.
        """
        rows, results = self._rows(chosen), self._of("C", True)
        if not len(rows):
            return []
        places = self.accesses.addresses[rows].max(axis=-1)
        rows = np.take_along_axis(rows, np.lexsort((places, self.stored[rows]), axis=0), axis=0)
        own = self._rows(results)
        vectors = self._places(np.repeat(own, len(rows) // len(own), axis=0), "C")
        tested = np.zeros_like(vectors)
        for mode in (0, 1):
            for cta in (1, 2, 3):
                first = self._places(np.flatnonzero(results & (self.accesses.cta == cta))[0], "C")
                at_edge = first.max(axis=0) >= self.config.tile[:2]
                if at_edge[mode] and not at_edge[1 - mode]:
                    there = self._reads(np.flatnonzero(chosen & (self.accesses.cta == cta)))
                    left_out = ~np.isin(self._reads(rows), there)
                    tested[..., mode] = np.where(left_out, vectors[..., mode], 0)
        return self._requests(rows, "", tested if tested.any() else None)

    def _reads(self, rows: np.ndarray) -> np.ndarray:
        """Return a number for each lane's read: its warp, lane, address and bytes stored before."""
        accesses = self.accesses
        of_warp = (accesses.warp[rows].astype(np.int64) << 16 | self.stored[rows])[..., None]
        place = (of_warp << 5 | np.arange(WARP)) << 20 | accesses.addresses[rows]
        return np.where(accesses.addresses[rows] < 0, -1, place)
