"""``batched``: batches of small products; a CTA computes several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess, Work
from cute_gemm.dtypes import FLOAT8
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.base import EmittedKernel
from cute_gemm.kernels.batched.accesses import copied, elements_of_c, read, results
from cute_gemm.kernels.batched.structure import (
    MMA_SHAPE,
    VECTOR,
    BatchedConfig,
    Order,
    lowest_bit,
    results_of,
)
from cute_gemm.kernels.batched.unit import EmitBatched
from cute_gemm.kernels.options import access_bytes, most_ctas, registers, with_options
from cute_gemm.kernels.rules import first, memory_fits, names_known, positive, refuse
from cute_gemm.kernels.staging import Block
from cute_gemm.toolchain.signature import Launch

if TYPE_CHECKING:
    from cute_gemm.arch import Arch
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: Largest m, n and k.
MOST = 64
#: Fewest products of a batch for which ``"auto"`` considers it: fewer leave most multiprocessors
#: idle, or take no longer than a launch.
LEAST_PRODUCTS = 64
#: Registers of a thread besides its accumulators and factors: addresses.
_OTHERS = 40
#: Registers of a thread that its accumulators may take.
_ACCUMULATORS = 64
#: Approximate threads of a CTA of candidates, and results of a thread along M and N.
_THREADS, _RESULTS = (128, 256), (1, 2, 4, 8)
#: Results along M and N of warps that multiply by MMA.
_OF_MMA = (2, 4, 8)
#: Most bytes of shared memory of candidates, if a product needs less.
_SHARED = 48 << 10


class Batched(EmittedKernel):
    """Batches of small products; a CTA computes several."""

    name = "batched"
    summary = "batches of m, n and k up to 64: a CTA copies and computes several products"
    minimum_cc = 80
    dtypes = (
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8",
        *(name for name in FLOAT8 if "/" not in name),
    )  # fmt: skip
    options = ("unit", "products", "thread_tile", "min_ctas")
    choices: ClassVar = {"unit": ("fma", "mma")}
    label_options: ClassVar = {"products": "{} products"}
    option_values: ClassVar = {
        "products": "1 or more products of a CTA",
        "thread_tile": "most results of a thread along M and N: 4x4",
    }
    depth: ClassVar = 1
    emitter: ClassVar = EmitBatched

    def kinds(self, config: BatchedConfig) -> tuple[str, ...]:
        return ("mma",) if config.unit == "mma" else super().kinds(config)

    def contends(self, problem: GemmProblem, arch: Arch) -> bool:
        """Return whether the problem is a large batch of small products."""
        return problem.l >= LEAST_PRODUCTS and _small(problem)

    def candidates(
        self, problem: GemmProblem, arch: Arch, options: dict[str, Any]
    ) -> Iterator[BatchedConfig]:
        m, n, _ = extents = _extents(problem)
        if not _small(problem):
            yield self._config(problem, (m, n, 1), "fma", 1, (1, 1), options)
            return
        words = problem.accumulator.bytes // 4
        tiles = [("fma", x, y) for x, y in _up_to(_RESULTS, _power(m), _power(n))]
        if _multiplied_by_mma(problem):
            tiles += [("mma", x, y) for x, y in _up_to(_OF_MMA, 2 * -(-m // 16), 2 * -(-n // 8))]
        for (unit, *tile), threads in product(tiles, _THREADS):
            if tile[0] * tile[1] * words > _ACCUMULATORS and tile != [1, 1]:
                continue
            single = self._config(problem, extents, unit, 1, (tile[0], tile[1]), options)
            if first(_broken(single)):
                yield single
                return
            count = max(1, threads // single.workers)
            count = min(count, max(1, _SHARED // single.smem))
            # If matrices follow each other without gaps, vectors end with the matrices of a CTA.
            count -= count % next((grain for grain in (16, 8, 4, 2) if count >= grain), 1)
            yield self._config(problem, extents, unit, count, (tile[0], tile[1]), options)

    def _config(
        self, problem: GemmProblem, tile: tuple[int, int, int], unit: str, products: int,
        thread_tile: tuple[int, int], options: dict[str, Any],
    ) -> BatchedConfig:  # fmt: skip
        """Return the config with a number of products of a CTA, or with the options' number."""
        operands = problem.A, problem.B, problem.C
        plain: tuple[Order, Order, Order] = ("rows", "rows", "rows")
        config = BatchedConfig(
            unit=unit, products=products, thread_tile=thread_tile, min_ctas=1, tile=tile,
            orders=plain, shared=(problem.A.batch_stride == 0, problem.B.batch_stride == 0),
            operation=problem.operation(*(x.element.bytes for x in operands)),
        )  # fmt: skip
        config = with_options(config, options)
        if first(_broken(config)):
            return config
        wanted = enumerate(zip(config.tile, config.thread_tile, strict=False))
        rows, columns = (
            results_of(config.operation, config.unit, mode, extent, most)
            for mode, (extent, most) in wanted
        )
        config = replace(config, thread_tile=(rows, columns))
        ways = [_order_and_width(matrix, config.products) for matrix in operands]
        a, b, c = (order for order, _ in ways)
        config = replace(
            config, orders=(a, b, c), operation=problem.operation(*(width for _, width in ways))
        )
        if "min_ctas" not in options and config.threads:
            ctas = most_ctas((8, 6, 4, 3, 2), config.threads, self._registers(config))
            config = replace(config, min_ctas=ctas)
        return config

    @staticmethod
    def _registers(config: BatchedConfig) -> int:
        """Return the approximate number of registers that a thread needs."""
        tm, tn = config.thread_tile
        words = max(1, config.operation.accumulator.bytes // 4)
        depth = config.depth
        if config.unit == "mma":
            return _OTHERS + tm * tn + depth * (tm + tn // 2)
        return _OTHERS + words * (tm * tn + depth * (tm + tn))

    def check(self, config: BatchedConfig, problem: GemmProblem, arch: Arch) -> None:
        if not _small(problem):
            raise UnsupportedError(
                f"m={problem.m}, n={problem.n}, k={problem.k}: kernel {self.name!r} takes m, n and "
                f"k up to {MOST}; take kernel='auto'"
            )
        if problem.slices > 1 or problem.k_last:
            raise UnsupportedError(
                f"kernel {self.name!r} takes no slices of K, which is at most {MOST}: leave "
                "split_k out"
            )
        refuse(_broken(config))
        refuse(self._beyond(config, problem, arch))

    def _beyond(self, config: BatchedConfig, problem: GemmProblem, arch: Arch) -> Iterator[str]:
        """Yield a sentence for each rule of threads, registers and memory that a config breaks."""
        if config.unit == "mma" and not _multiplied_by_mma(problem):
            yield f"option unit='mma' came with {problem.spelled}; expected float16 or bfloat16"
        yield from positive(config, "min_ctas")
        words = prod(config.thread_tile) * max(1, problem.accumulator.bytes // 4)
        if words > 2 * _ACCUMULATORS:
            yield (
                f"option thread_tile={config.thread_tile} takes {words} registers for "
                f"the accumulators of a thread; expected 1 to {2 * _ACCUMULATORS}"
            )
        if config.threads > 1024:
            yield (
                f"option thread_tile={config.thread_tile} with products={config.products} makes "
                f"{config.threads} threads; expected 1024 or fewer"
            )
        need, room = self._registers(config), registers(config.threads, config.min_ctas)
        if room < need:
            yield (
                f"option min_ctas={config.min_ctas} leaves {config.threads} threads {room} "
                f"registers each, which need {need}; take fewer"
            )
        yield from memory_fits(f"option products={config.products}", config.smem, arch, "fewer")

    def traits(self, problem: GemmProblem) -> Any:
        """Return the extents and strides of small products: the code depends on them."""
        if not _small(problem):
            return None
        strides = ((*x.stride, x.batch_stride, x.first_alignment) for x in problem.matrices)
        return (_extents(problem), problem.slices, problem.k_last, *strides)

    def strides(self, matrix: Matrix) -> Any:
        """Return the strides: lanes of a request may belong to several matrices."""
        return matrix.shape, matrix.stride, matrix.batch_stride, matrix.first_alignment

    def sample(self, config: BatchedConfig, problem: GemmProblem) -> GemmProblem:
        """Return the problem of one CTA."""

        def of_cta(matrix: Matrix) -> Matrix:
            return replace(matrix, l=config.products if matrix.l > 1 else 1)

        A, B, C = (of_cta(matrix) for matrix in (problem.A, problem.B, problem.C))
        operands = tuple(map(of_cta, problem.operands))
        return replace(problem, l=config.products, A=A, B=B, C=C, operands=operands)

    def launch(self, config: BatchedConfig, problem: GemmProblem) -> Launch:
        some = bool(problem.m and problem.n)
        grid = -(-problem.l // config.products) * some
        return Launch(grid, config.threads, config.smem)

    def accesses(
        self, config: BatchedConfig, problem: GemmProblem, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        """Return the accesses of a launch whose alpha is not 0."""
        if 0 in (problem.m, problem.n, problem.l):
            return ()
        out: list[Access] = []
        for index in (0, 1) if problem.k else ():
            out += copied(config, problem, index)
            out += read(config, index, problem)
        return (*out, *results(config, problem, reads_c))

    def epilogue_blocks(
        self, config: BatchedConfig, problem: GemmProblem
    ) -> list[tuple[GlobalAccess, Block]]:
        """Return the units of work of the epilogue: in a run, single elements."""
        if config.orders[2] not in ("run", "matrices"):
            return super().epilogue_blocks(config, problem)
        return [(elements_of_c(config, problem), Block((1, 1)))]

    def warps_of(self, config: BatchedConfig, requests: int, warps: int) -> np.ndarray:
        """Return the warp of each request of C's stores, by the elements of a vector in turn."""
        run = config.orders[2] in ("run", "matrices")
        width = config.operands[2].width if run else 1
        return np.arange(requests) // width % warps

    def work(self, config: BatchedConfig, problem: GemmProblem) -> Work:
        ctas = -(-problem.l // config.products)
        results = config.workers * config.thread_tile[0] * config.thread_tile[1]
        if config.unit == "mma":
            depth = -(-problem.k // MMA_SHAPE[2]) * MMA_SHAPE[2]
            return Work(ctas, ctas * results * depth, "tensor cores", problem.A.dtype)
        real = 4 if problem.is_complex else 1
        return Work(ctas, ctas * results * problem.k * real, "CUDA cores", problem.products)


def _multiplied_by_mma(problem: GemmProblem) -> bool:
    return problem.dtype in ("float16", "bfloat16")


def _up_to(sides: Iterable[int], m: int, n: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of results along M and N, equal in both but no more than the extents."""
    yield from dict.fromkeys((min(side, m), min(side, n)) for side in sides)


def _broken(config: BatchedConfig) -> Iterator[str]:
    """Yield a sentence for each rule of its options by themselves that a config breaks."""
    yield from names_known(config, Batched.choices)
    if not 1 <= config.products <= 1024:
        yield f"option products={config.products}; expected 1 to 1024"
    if min(config.thread_tile) < 1:
        yield f"option thread_tile={config.thread_tile}: each extent must be 1 or more"


def _small(problem: GemmProblem) -> bool:
    return max(problem.m, problem.n, problem.k) <= MOST


def _extents(problem: GemmProblem) -> tuple[int, int, int]:
    return max(1, problem.m), max(1, problem.n), max(1, problem.k)


def _power(extent: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << (extent - 1).bit_length()


def _order_and_width(matrix: Matrix, products: int) -> tuple[Order, int]:
    """Return the order in which a CTA's matrices are copied, and the bytes of an access.

    Vectors end with rows if these allow the widest accesses; else a run may be longer.
    """
    size = matrix.element.bytes
    run, rows = (max(1, matrix.shape[mode]) for mode in (matrix.unit, 1 - matrix.unit))
    step = matrix.batch_stride
    inner = rows > 1 and 0 < step < matrix.ld
    order: Order = "interleaved" if inner else "rows"
    width = access_bytes(matrix, True)[0]
    if rows > 1 and matrix.ld != run:
        return order, width
    # Rows follow each other without gaps; matrices may too.
    whole = max(size, lowest_bit(matrix.alignment | run * rows * size | VECTOR))
    first = max(matrix.alignment, matrix.first_alignment)
    every = 0
    if step == 0 and matrix.name == "C":  # there is one
        every = max(size, lowest_bit(first | VECTOR))
    elif step == 0:
        every = whole
    elif step == run * rows:
        every = max(size, lowest_bit(first | products * run * rows * size | VECTOR))
    if width >= max(whole, every):
        return order, width
    return ("run", every) if every >= whole else ("matrices", whole)
