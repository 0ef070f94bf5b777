"""The config of ``batched``, and the layouts and thread maps that follow from it.

Extents are static, and so is the arrangement of the matrices of a batch, except its strides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, Literal

import numpy as np

from cute_gemm.cute.atoms import MmaAtom, mma_atoms
from cute_gemm.cute.layout import Layout
from cute_gemm.kernels.config import Config, symbol
from cute_gemm.kernels.derived import derived
from cute_gemm.problem.operation import Operation

WARP = 32
#: Lanes of an MMA along M and N.
MMA_LANES = (8, 4)
#: M, N and K of an MMA of 16-bit types.
MMA_SHAPE = (16, 8, 16)
#: Bytes of the widest access.
VECTOR = 16
#: Order in which the elements of the matrices of a CTA are copied, after the unit-stride mode. A
#: run has no gaps between neighbours. All matrices are one run; each matrix is a run; or each row
#: (column) is, with the rows of a matrix, or equal rows of all matrices, after each other.
Order = Literal["run", "matrices", "rows", "interleaved"]
#: Most registers for the factors of a thread, if more than one k is read at a time.
FRAGMENTS = 64


def lowest_bit(number: int) -> int:
    """Return the largest power of two that divides a number."""
    return number & -number


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def run_of(operation: Operation, mode: int, extent: int, most: int) -> int:
    """Return the neighbours along M (0) or N (1) that a thread reads together: at most ``most``."""
    if operation.majors[mode] == "K":
        return 1
    widest = VECTOR // (operation.a, operation.b)[mode].bytes
    return min(lowest_bit(extent), widest, 1 << most.bit_length() - 1)


def results_of(operation: Operation, unit: str, mode: int, extent: int, most: int) -> int:
    """Return the results along M (0) or N (1) of a thread: the fewest for the same threads."""
    if unit == "mma":  # two along M and along N of each MMA
        tiles, each = -(-extent // MMA_SHAPE[mode]), max(1, most // 2)
        return -(-tiles // -(-tiles // each)) * 2
    run = run_of(operation, mode, extent, most)
    runs, each = extent // run, max(1, most // run)
    return -(-runs // -(-runs // each)) * run


@dataclass(frozen=True, eq=False)
class BatchedOperand:
    """The layout in shared memory of the matrices A, B or C of a CTA, and their copy.

    ``smem``: (unit-stride mode, other mode, product) -> element; for C, accumulator. ``copy``:
    vectors of ``width`` elements, in the order in which threads take them -> element of shared
    memory. Its modes are vectors of a run, rows and products; ``product_mode`` is that of products:
    1, 2, or 0 if all is one run.
    """

    name: str
    unit: int  #: The mode with unit stride.
    width: int
    copy: Layout
    product_mode: int
    smem: Layout
    elements: int  #: Elements in shared memory.
    read: int  #: Elements of an access to shared memory by the threads that multiply.

    @property
    def modes(self) -> Layout:
        """``smem`` with the modes of the matrix in their order: (M or N, K or N, product)."""
        order = (0, 1, 2) if self.unit == 0 else (1, 0, 2)
        shape, stride = self.smem.shape, self.smem.stride
        assert isinstance(shape, tuple) and isinstance(stride, tuple)
        return Layout(tuple(shape[i] for i in order), tuple(stride[i] for i in order))

    def vectors(self, threads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the vectors of lanes and their places: int [requests, 32, 3], and [requests, 32].

        First: element of the run, row and product, -1 without a vector. Second: place in shared
        memory, in elements. Third: lanes that have a vector.
        """
        extents = self.copy.extents
        count = self.copy.size
        number = np.arange(-(-count // threads) * threads).reshape(-1, WARP)
        some = number < count
        at = np.unravel_index(np.where(some, number, 0), extents, order="F")
        places = np.where(some, self.copy(*at), -1)
        first, second, third = at
        row, product = (third, second) if self.product_mode == 1 else (second, third)
        crd = np.stack((first * self.width, row, product), axis=-1)
        return np.where(some[..., None], crd, -1), places, some


@dataclass(frozen=True, kw_only=True)
class BatchedConfig(Config):
    """Everything that shapes the code of the kernel.

    The fields up to ``min_ctas`` may be set as options; the others follow from the problem.
    """

    kernel: ClassVar[str] = "batched"
    raster: ClassVar[int] = 1  #: There are no tiles.
    #: ``"fma"``: each thread computes its own results; ``"mma"``: the lanes of a warp together.
    unit: str
    products: int  #: Products of a CTA.
    thread_tile: tuple[int, int]  #: (TM, TN): results of a thread.
    min_ctas: int  #: CTAs per multiprocessor that the register count must leave room for.
    tile: tuple[int, int, int]  #: (M, N, K): the extents of a product, at least 1.
    orders: tuple[Order, Order, Order]  #: Orders of A, B and C.
    shared: tuple[bool, bool]  #: Whether all products share A, and B.
    operation: Operation

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and extent."""
        orders = [
            "one" if shared and order == "run" else f"one_{order}" if shared else order
            for order, shared in zip(self.orders, (*self.shared, False), strict=True)
        ]
        return symbol(
            self.kernel, self.operation.name, self.tile, f"{self.unit}_p{self.products}",
            self.thread_tile, *orders, self.operation.access_name, f"o{self.min_ctas}",
        )  # fmt: skip

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes along M and N that have results together: those of an MMA, or one."""
        return MMA_LANES if self.unit == "mma" else (1, 1)

    @property
    def parts(self) -> tuple[int, int]:
        """Threads, or warps, along M and N that share a product."""
        sides = zip(self.tile, self.lanes, self.thread_tile, strict=False)
        m, n = (-(-extent // (lanes * results)) for extent, lanes, results in sides)
        return m, n

    @property
    def workers(self) -> int:
        """Threads of a CTA that have results."""
        return self.products * prod(self.parts) * prod(self.lanes)

    @property
    def atom(self) -> MmaAtom | None:
        """The MMA atom, or None: FMA."""
        tag = self.operation.a.tag
        return mma_atoms(tag, tag)[0] if self.unit == "mma" else None

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return -(-self.workers // WARP) * WARP

    @derived
    def values(self) -> tuple[Layout, Layout]:
        """The results of a thread: (run, repeat) -> m, and -> n, from its first."""
        m, n = self.thread_tile
        if self.unit == "mma":
            return Layout((1, m), (0, 8)), Layout((2, n // 2), (1, 8))
        return self._values(0), self._values(1)

    def _values(self, mode: int) -> Layout:
        extent, count = self.tile[mode], self.thread_tile[mode]
        run = run_of(self.operation, mode, extent, count)
        return Layout((run, count // run), (1, run * self.parts[mode] if count > run else 0))

    @property
    def rows(self) -> tuple[Layout, Layout]:
        """The rows of A and of B that a thread reads, as `values`."""
        if self.unit == "mma":  # A's rows and B's lie along the same lanes
            return self.values[0], Layout((1, self.thread_tile[1] // 2), (0, 8))
        return self.values

    @property
    def parts_by_order(self) -> tuple[int, int, int]:
        """`parts`, with C's unit-stride mode first, and products."""
        along, across = self.parts[:: -1 if self.operation.row_major else 1]
        return along, across, self.products

    @property
    def depth(self) -> int:
        """Number of k multiplied at a time: those that are read together, if any."""
        if self.unit == "mma":
            return MMA_SHAPE[2] // MMA_LANES[1]
        operation, (tm, tn) = self.operation, self.thread_tile
        depth = 1
        for mode, element in enumerate((operation.a, operation.b)):
            if operation.majors[mode] == "K":
                depth = max(depth, min(VECTOR // element.bytes, lowest_bit(self.tile[2])))
        words = max(1, operation.accumulator.bytes // 4)
        while depth > 1 and depth * (tm + tn) * words > FRAGMENTS:
            depth //= 2
        return depth

    @derived
    def operands(self) -> tuple[BatchedOperand, BatchedOperand, BatchedOperand]:
        """The layouts and copies of the matrices A, B and C of a CTA's products."""
        return self._operand(0), self._operand(1), self._operand(2)

    @property
    def begins(self) -> tuple[int, int, int]:
        """Bytes of shared memory before A, B and C; accumulators take the place of A."""
        return 0, _up(self.operands[0].elements * self.operation.a.bytes, 128), 0

    @property
    def smem(self) -> int:
        """Bytes of shared memory."""
        _, B, C = self.operands
        copied = self.begins[1] + B.elements * self.operation.b.bytes
        return _up(max(copied, C.elements * self.operation.accumulator.bytes), VECTOR)

    def _operand(self, index: int) -> BatchedOperand:
        values = self.values if index == 2 else self.rows
        m, n, k = self.tile
        operation, order = self.operation, self.orders[index]
        shape = ((m, k), (n, k), (m, n))[index]
        major = operation.majors[index]
        unit = int(major in ("K", "N"))
        run, rows = shape[unit], shape[1 - unit]
        products = 1 if index < 2 and self.shared[index] else self.products
        element = (operation.a, operation.b, operation.c)[index]
        width = operation.bytes[index] // element.bytes
        if index == 2:
            size = operation.accumulator.bytes
            # The second of two neighbours of an MMA may lie beyond the end.
            read = min(int(values[unit].extents[0]), max(1, VECTOR // size), lowest_bit(run))
        elif major == "K":
            read = min(self.depth, VECTOR // element.bytes, lowest_bit(k))
            size = element.bytes
        else:
            read, size = int(values[index].extents[0]), element.bytes
        # Rows and products begin at multiples of vectors, an odd number apart, so that
        # neighbouring ones lie in different banks.
        grain = max(read, min(width, max(1, VECTOR // size)))
        pitch = run
        if order in ("rows", "interleaved"):
            pitch = _up(run, grain)
            pitch += grain * (pitch // grain % 2 == 0)
        matrix = rows * pitch
        if order != "run":
            matrix = _up(matrix, grain)
            matrix += grain * (matrix // grain % 2 == 0)
        smem = Layout((run, rows, products), (1, pitch, matrix if products > 1 else 0))
        if order == "run":
            lanes: tuple[int, ...] = (-(-run * rows * products // width), 1, 1)
            steps, product_mode = (width, 0, 0), 0
        elif order == "matrices":
            lanes, steps, product_mode = (run * rows // width, 1, products), (width, 0, matrix), 2
        elif order == "rows":
            lanes, steps, product_mode = (run // width, rows, products), (width, pitch, matrix), 2
        else:
            lanes, steps, product_mode = (run // width, products, rows), (width, matrix, pitch), 1
        stride = tuple(step if extent > 1 else 0 for extent, step in zip(lanes, steps, strict=True))
        return BatchedOperand(
            name="ABC"[index], unit=unit, width=width, copy=Layout(lanes, stride),
            product_mode=product_mode, smem=smem, elements=matrix * products, read=read,
        )  # fmt: skip
