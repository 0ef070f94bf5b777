"""Every memory access of CUTLASS's kernel: which instruction, which lanes, how often.

What is left over of K comes first: with k not a multiple of bK, an operand's first k-tile is its
first ``k % bK`` elements, and the others begin there. (dp4a's last k-tile is the short one.)

A pipeline of more than 2 stages fills all but one before its main loop, with copies that write
zeros where there is nothing to copy, also for k-tiles that a short K does not have. The copies of
the main loop are predicated off there. A pipeline of 2 stages stores what it has loaded into
registers, zeros included, and once more than there are k-tiles. Both load the fragments of a
warp's next step ahead, the last of them in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from cute_gemm.access import Access, GlobalAccess, SharedAccess
from cute_gemm.kernels.cutlass import epilogue
from cute_gemm.kernels.cutlass.config import MATH, WIDEST, CutlassUniversalConfig, ctas
from cute_gemm.kernels.cutlass.maps import WARP
from cute_gemm.kernels.cutlass.shared import Requests, fragment_loads, shared_stores
from cute_gemm.kernels.staging import IN_VAIN
from cute_gemm.model.gmem import bypasses_l1
from cute_gemm.problem.dtypes import DTYPES, dtype
from cute_gemm.problem.problem import GemmProblem, Matrix

Direction = Literal["load", "store"]

#: What helps against conflicts of layouts that CUTLASS has built in.
OTHER_KERNEL = 'kernel="sm80_pipeline"'


def accesses(
    config: CutlassUniversalConfig, problem: GemmProblem, reads_c: bool
) -> tuple[Access, ...]:
    """Return every memory access of the launch, as ``Kernel.accesses`` says it.

    alpha is taken not to be 0, and alpha and beta to come as numbers: with ``alpha == 0`` the
    kernel does what it does with ``k == 0``, and scalars in device memory are read by every warp.
    """
    if not (problem.m and problem.n and problem.l):
        return ()
    launch = _Launch(config, problem)
    if problem.k == 0:
        return launch.scaling(reads_c)
    return (*launch.operand("A"), *launch.operand("B"), *launch.epilogue(reads_c))


def _shared(operand: str, direction: Direction, requests: Requests, **more: Any) -> SharedAccess:
    """The access that makes ``requests``."""
    offsets = requests.offsets.reshape(-1, WARP)
    return SharedAccess(operand, direction, requests.instruction, requests.bits, offsets, **more)


@dataclass(frozen=True)
class _Launch:
    """One launch of one instance."""

    config: CutlassUniversalConfig
    problem: GemmProblem

    @property
    def k_tiles(self) -> int:
        return -(-self.problem.k // self.config.tile[2])

    @property
    def ctas(self) -> int:
        return ctas(self.problem, self.config.tile) * self.problem.l

    def operand(self, name: str) -> list[Access]:
        """Return the accesses of ``"A"`` or ``"B"``."""
        parts = self._loads(name)
        return [*parts, *self._stores(name, parts[-1]), *self._fragments(name)]

    def _loads(self, name: str) -> list[GlobalAccess]:
        """Loads from global memory: of all k-tiles, or of the first and of the others."""
        config, problem = self.config, self.problem
        matrix, other = (problem.A, 1) if name == "A" else (problem.B, 0)
        side = config.side(name)
        elements = side.alignment
        coords = config.load_map(name).requests(elements)
        stores = shared_stores(config, name)
        if matrix.unit == 1:  # (contiguous, strided) -> (mode 0, mode 1)
            coords = np.ascontiguousarray(coords[..., ::-1])
        limit, fix = limit_of(config, matrix, elements)
        whole = GlobalAccess(
            operand=name,
            direction="load",
            instruction="cp.async" if config.stages > 2 else "ld.global",
            bits=8 * dtype(matrix.dtype).bytes * elements,
            matrix=matrix,
            tile=(side.extent, config.tile[2]),
            coords=coords,
            axis=matrix.unit,
            sweeps=-(-(problem.m, problem.n)[other] // config.tile[other]),
            limit=limit,
            fix=fix,
            targets=stores.offsets if stores.instruction == "cp.async" else None,
        )
        start = self._start(1)
        if start in (config.tile[2], problem.k):
            return [whole]
        rows = matrix.shape[0]
        return [
            replace(whole, extents=(rows, start), part="first k-tile"),
            replace(
                whole, origin=(0, start), extents=(rows, problem.k - start), part="other k-tiles"
            ),
        ]

    def _start(self, k_tile: int) -> int:
        """First element along K of a k-tile."""
        k, step = self.problem.k, self.config.tile[2]
        leftover = k % step if self.config.math != "dp4a" else 0
        return min(k, k_tile * step - (step - leftover if k_tile and leftover else 0))

    def _stores(self, name: str, load: GlobalAccess) -> list[Access]:
        """Stores of k-tiles to shared memory.

        The prologue writes zeros for what is not in the matrix, and for tiles beyond K; the main
        loop leaves it out. Of copies through L1 it matters which lanes read.
        """
        ahead = self.config.stages - 1
        requests = shared_stores(self.config, name)
        every = _shared(name, "store", requests, fix=load.fix or OTHER_KERNEL)
        if ahead == 1:
            return [replace(every, executions=self.ctas * (self.k_tiles + 1))]
        rows, k = load.matrix.shape[0], self.problem.k

        def of(begin: int, end: int, part: str, zero_fill: bool) -> list[Access]:
            guard = replace(load, origin=(0, begin), extents=(rows, end - begin), part=part)
            one = replace(every, guard=guard, part=part, zero_fill=zero_fill)
            return [one] if begin < end else []

        cut = rows % load.tile[0] != 0
        until = self._start(ahead) if cut else k
        loop = of(until, k, "main loop", False)
        part = "prologue" if loop else ""
        if bypasses_l1(every.instruction, every.bits):
            tiles = ahead if loop else max(self.k_tiles, ahead)
            return [replace(every, executions=self.ctas * tiles, part=part), *loop]
        first, beyond = self._start(1), self.ctas * max(0, ahead - self.k_tiles)
        filled = [*of(0, first, part, True), *of(first, until, part, True)]
        zeros = [replace(every, executions=beyond, part="zeros")] if beyond else []
        return [*filled, *zeros, *loop]

    def _fragments(self, name: str) -> list[Access]:
        """Loads of fragments from shared memory."""
        requests = fragment_loads(self.config, name)
        every = _shared(
            name, "load", requests, executions=self.ctas * self.k_tiles, fix=OTHER_KERNEL
        )
        last = replace(
            every, offsets=requests.offsets[0], executions=self.ctas, unit="CTA", part=IN_VAIN
        )
        return [every, last]

    def epilogue(self, reads_c: bool) -> list[Access]:
        """Return the accesses of C: through shared memory, then to global memory."""
        config, coords = self.config, self.config.store_map().requests()
        times = epilogue.iterations(config)
        more: dict[str, Any] = {"unit": "CTA", "times": times, "fix": OTHER_KERNEL}
        more["executions"] = self.ctas * times
        return [
            *([self._global_c("load", coords, config.align_c)] if reads_c else []),
            _shared("C", "store", epilogue.staged_stores(config), **more),
            *self._staged_loads(
                _shared("C", "load", epilogue.staged_loads(config), **more), reads_c
            ),
            self._global_c("store", coords, config.align_c),
        ]

    def _staged_loads(self, every: SharedAccess, reads_c: bool) -> list[SharedAccess]:
        """Loads of the sums from shared memory.

        In float64, where C is not read, NVRTC moves some behind the tests of
        ``PredicatedTileIterator::store_with_byte_offset``: those of the first row that a thread
        stores in an iteration behind that of the row, and the first of them also behind that of its
        column, but in the last iteration. Where a row is one vector, all are behind that of the
        column, and the first also behind that of the row, but in the last iteration.
        """
        config, count = self.config, epilogue.iterations(self.config)
        if reads_c or config.math != "float64":
            return [every]
        columns, warps = config.store_map().iterations[0], config.threads // WARP
        coords = config.store_map().requests().reshape(count, -1, warps, WARP, 2)
        offsets = np.broadcast_to(every.offsets.reshape(-1, warps, WARP), coords.shape[:-1])
        step = np.broadcast_to(np.arange(coords.shape[1]), coords.shape[:2])
        both = (step == 0) & (np.arange(count) < count - 1)[:, None]
        single = step < columns if columns > 1 else np.ones_like(both)
        found = []
        for chosen, tested, part in (
            (both, (True, True), "behind both tests"),
            (single & ~both, (columns > 1, columns == 1), "behind one test"),
            (~single & ~both, (False, False), "behind no test"),
        ):
            where = np.where(tested, coords[chosen], 0).reshape(-1, WARP, 2)
            guard = self._global_c("store", where, config.align_c)
            again = offsets[chosen].reshape(-1, WARP)
            if again.size:
                found.append(replace(every, offsets=again, executions=0, guard=guard, part=part))
        return found

    def scaling(self, reads_c: bool) -> tuple[Access, ...]:
        """Return the accesses without a product: ``scale_tile`` takes C element by element."""
        rows, columns, _ = self.config.instance_tile
        element = np.arange(rows * columns)
        coords = np.stack(np.divmod(element, columns), axis=-1).reshape(-1, WARP, 2)
        limit = "C is scaled one element at a time"
        store = self._global_c("store", coords, 1, limit)
        return (self._global_c("load", coords, 1, limit), store) if reads_c else (store,)

    def _global_c(
        self, direction: Direction, coords: np.ndarray, elements: int, limit: str | None = None
    ) -> GlobalAccess:
        """One access of C; ``coords`` are (row, column) of the instance."""
        config, matrix = self.config, self.problem.C
        found, fix = limit_of(config, matrix, elements)
        if config.swap_ab:
            coords = np.ascontiguousarray(coords[..., ::-1])
        return GlobalAccess(
            operand="C",
            direction=direction,
            instruction="ld.global" if direction == "load" else "st.global",
            bits=8 * dtype(config.out_dtype).bytes * elements,
            matrix=matrix,
            tile=config.tile[:2],
            coords=coords,
            axis=matrix.unit,
            sweeps=1,
            limit=found if limit is None else limit,
            fix=fix if limit is None else "",
            unit="CTA",
        )


def _limits(matrix: Matrix) -> tuple[int, int, int]:
    """What base address, leading dimension and contiguous extent allow an access, in bytes.

    CUTLASS guards a vector by its first element, so the extent counts as well.
    """
    size, unit = DTYPES[matrix.dtype].bytes, matrix.unit
    ld, extent = matrix.stride[1 - unit], matrix.shape[unit]
    return matrix.alignment, (ld & -ld) * size or 256, (extent & -extent) * size or 256


def elements_per_access(matrix: Matrix, vector: bool) -> int:
    """Return the elements of the widest access that CUTLASS may use for ``matrix``."""
    return max(1, min(WIDEST, *_limits(matrix)) // DTYPES[matrix.dtype].bytes) if vector else 1


def limit_of(config: CutlassUniversalConfig, matrix: Matrix, elements: int) -> tuple[str, str]:
    """Return what keeps the access from 16 bytes, and its fix."""
    if elements * dtype(matrix.dtype).bytes >= WIDEST:
        return "", ""
    if config.math == "dp4a" and matrix.name != "C":
        return "CUTLASS's dp4a kernel loads 4 elements at a time", ""
    if config.is_simt or not MATH[config.math].vector:
        return f"CUTLASS's {config.math} kernel moves one element at a time", ""
    mode = {"A": "mk", "B": "nk", "C": "mn"}[matrix.name][matrix.unit]
    ld = f"ld{matrix.name.lower()}"
    limits = _limits(matrix)
    words, fix = (
        (f"alignment of {matrix.name} = {matrix.alignment} bytes", "align it"),
        (f"{ld} = {matrix.ld}", f"pad {ld}"),
        (f"{mode} = {matrix.shape[matrix.unit]}", f"pad {mode} with zeros"),
    )[limits.index(min(limits))]
    return words, f"{fix} to a multiple of {WIDEST} bytes"
