"""All memory accesses of CUTLASS's kernel: instructions, lanes, executions.

Instructions and lanes are those of a `recording`; executions follow from CUTLASS's loop over K. The
remainder of K comes first: if k is not a multiple of bK, the first k-tile of an operand is its
first ``k % bK`` elements. (With dp4a the last k-tile is the short one.)

A pipeline of more than 2 stages fills all but one before its main loop. These copies write zeros
outside the matrix, and for k-tiles that a short K does not have; copies of the main loop are
predicated off there. A pipeline of 2 stages stores its registers, including zeros, once more than
the number of k-tiles. Both prefetch the fragments of a warp's next step; the last prefetch is not
used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from cute_gemm.access.accesses import Access, GlobalAccess, Option, SharedAccess
from cute_gemm.access.gmem import bypasses_l1
from cute_gemm.kernels.cutlass.config import MATH, WIDEST, CutlassUniversalConfig
from cute_gemm.kernels.options import tiles_of
from cute_gemm.kernels.staging import UNUSED_PREFETCH
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem

if TYPE_CHECKING:
    from cute_gemm.kernels.cutlass.recording import Recording, Requests

Direction = Literal["load", "store"]

#: Fix of conflicts of layouts that are built into CUTLASS.
OTHER_KERNEL = Option("kernel", "sm80_pipeline")


def accesses(
    config: CutlassUniversalConfig, problem: GemmProblem, reads_c: bool
) -> tuple[Access, ...]:
    """Return all memory accesses of the launch, as ``Kernel.accesses``.

    alpha is assumed not to be 0, and alpha and beta to be host scalars: with ``alpha == 0`` the
    kernel behaves as with ``k == 0``, and every warp reads scalars in device memory.
    """
    from cute_gemm.kernels.cutlass.recording import recording

    if not (problem.m and problem.n and problem.l):
        return ()
    launch = _Launch(config, problem, recording(config, problem.k > 0, reads_c))
    operands = (*launch.operand("A"), *launch.operand("B")) if problem.k else ()
    return (*operands, *launch.epilogue())


@dataclass(frozen=True)
class _Launch:
    """One launch of one instance."""

    config: CutlassUniversalConfig
    problem: GemmProblem
    recorded: Recording

    @property
    def k_tiles(self) -> int:
        return -(-self.problem.k // self.config.tile[2])

    @property
    def ctas(self) -> int:
        return prod(tiles_of(self.problem, self.config.tile)) * self.problem.l

    def operand(self, name: str) -> list[Access]:
        """Return the accesses of ``"A"`` or ``"B"``."""
        parts = self._loads(name)
        return [*parts, *self._stores(name, parts[-1]), *self._fragments(name)]

    def _global(
        self, matrix: Matrix, direction: Direction, requests: Requests, **more: Any
    ) -> GlobalAccess:
        limit, fix = limit_of(self.config, self.problem, matrix, requests.bits)
        return GlobalAccess(
            matrix.name, direction, requests.instruction, requests.bits, matrix,
            coords=requests.places, axis=matrix.unit, limit=limit, fix=fix, **more,
        )  # fmt: skip

    def _shared(
        self, operand: str, direction: Direction, requests: Requests, executions: int, **more: Any
    ) -> SharedAccess:
        return SharedAccess(
            operand, direction, requests.instruction, requests.bits, requests.places, executions,
            **{"fix": OTHER_KERNEL, **more},
        )  # fmt: skip

    def _loads(self, name: str) -> list[GlobalAccess]:
        """Return loads from global memory: of all k-tiles, or of the first and of the others."""
        problem, tile, index = self.problem, self.config.tile, "AB".index(name)
        matrix, extent, bk = problem.matrices[index], tile[index], tile[2]
        sweeps = tiles_of(problem, tile)[1 - index]
        (load,), (store, *_) = self.recorded.loads[name], self.recorded.stores[name]
        targets = store.places if load.instruction == "cp.async" else None
        whole = self._global(
            matrix, "load", load, tile=(extent, bk), sweeps=sweeps, targets=targets
        )
        start = self._start(1)
        if start in (bk, problem.k):
            return [whole]
        rows = matrix.shape[0]
        return [
            replace(whole, extents=(rows, start), part="first k-tile"),
            replace(
                whole, origin=(0, start), extents=(rows, problem.k - start), part="other k-tiles"
            ),
        ]

    def _start(self, k_tile: int) -> int:
        """Return the first element along K of a k-tile."""
        k, step = self.problem.k, self.config.tile[2]
        leftover = k % step if self.config.math != "dp4a" else 0
        return min(k, k_tile * step - (step - leftover if k_tile and leftover else 0))

    def _stores(self, name: str, load: GlobalAccess) -> list[Access]:
        """Return the stores of k-tiles to shared memory.

        The prologue writes zeros outside the matrix, and for tiles beyond K; the main loop writes
        nothing there. For copies through L1 the lanes that read matter.
        """
        ahead = self.config.stages - 1
        if ahead == 1:
            count = self.ctas * (self.k_tiles + 1)
            return [
                self._shared(name, "store", requests, count, fix=load.fix or OTHER_KERNEL)
                for requests in self.recorded.stores[name]
            ]
        (requests,) = self.recorded.stores[name]
        every = self._shared(name, "store", requests, 0, fix=load.fix or OTHER_KERNEL)
        rows, k = load.matrix.shape[0], self.problem.k

        def of(begin: int, end: int, part: str, zero_fill: bool) -> list[Access]:
            guard = replace(load, origin=(0, begin), extents=(rows, end - begin), part=part)
            store = replace(every, guard=guard, part=part, zero_fill=zero_fill)
            return [store] if begin < end else []

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
        """Return the loads of fragments from shared memory."""
        count, recorded = self.ctas * self.k_tiles, self.recorded
        return [
            *(self._shared(name, "load", each, count) for each in recorded.fragments[name]),
            *(
                self._shared(name, "load", each, self.ctas, unit="CTA", part=UNUSED_PREFETCH)
                for each in recorded.ahead[name]
            ),
        ]

    def epilogue(self) -> list[Access]:
        """Return the accesses of C: through shared memory, then to global memory."""
        recorded, of_c = self.recorded, self.problem.C
        of_cta: dict[str, Any] = {"tile": self.config.tile[:2], "sweeps": 1, "unit": "CTA"}
        loads = [self._global(of_c, "load", each, **of_cta) for each in recorded.loads["C"]]
        stores = [self._global(of_c, "store", each, **of_cta) for each in recorded.results]
        staged = [
            self._shared("C", "store", each, self.ctas, unit="CTA") for each in recorded.staged
        ]
        return [
            *loads,
            *staged,
            *(self._accumulators(each, stores[0]) for each in recorded.accumulators),
            *stores,
        ]

    def _accumulators(self, requests: Requests, store: GlobalAccess) -> SharedAccess:
        """Return the loads of accumulators; NVRTC may move them after the tests of the store."""
        if requests.tested is None:
            return self._shared("C", "load", requests, self.ctas, unit="CTA")
        guard = replace(store, coords=requests.tested)
        return self._shared("C", "load", requests, 0, unit="CTA", guard=guard)


def _limits(matrix: Matrix) -> tuple[int, int, int]:
    """Return the bytes of an access that base address, leading dimension and extent allow.

    CUTLASS guards a vector by its first element, so the contiguous extent counts as well.
    """
    size, unit = matrix.element.bytes, matrix.unit
    ld, extent = matrix.stride[1 - unit], matrix.shape[unit]
    return matrix.alignment, (ld & -ld) * size or 256, (extent & -extent) * size or 256


def elements_per_access(matrix: Matrix, vector: bool) -> int:
    """Return the elements of the widest access that CUTLASS may use for ``matrix``."""
    return max(1, min(WIDEST, *_limits(matrix)) // matrix.element.bytes) if vector else 1


def limit_of(
    config: CutlassUniversalConfig, problem: GemmProblem, matrix: Matrix, bits: int
) -> tuple[str, str]:
    """Return the reason why the access is narrower than 16 bytes, and the fix."""
    if bits >= 8 * WIDEST:
        return "", ""
    if not problem.k:
        return "C is scaled one element at a time", ""
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
