"""Random batches of small products, with rows of any length, address and layout."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cases import COMPLEX, TYPES, numbers, stored_shapes

from cute_gemm.arch import Arch
from cute_gemm.arrays.base import Operand
from cute_gemm.dtypes import DTYPES, FLOAT8
from cute_gemm.gpus.table import nearest
from cute_gemm.plan import select
from cute_gemm.plan.plan import Plan
from cute_gemm.problem.describe import from_operands
from cute_gemm.problem.problem import GemmProblem

#: Layouts of the matrices of an operand: contiguous; with gaps between rows, or between matrices;
#: interleaved rows of all matrices (heads), with or without gaps; one matrix for all products.
LIES = ("dense", "rows", "matrices", "heads", "packed heads", "shared")
#: Types, and the type of C if it is not the default.
KINDS: dict[str, tuple[str, str | None]] = {
    name: (t.dtype, t.out) for name, t in (TYPES | COMPLEX).items() if t.compute is None
} | {name: (name, None) for name in FLOAT8 if "/" not in name}


@dataclass(frozen=True)
class Lie:
    """Strides (batch, leading dimension) and offset of ``l`` matrices in a buffer."""

    ld: int
    batch: int
    offset: int
    length: int

    def view(self, buffer: Any, shape: tuple[int, int, int], order: str) -> np.ndarray:
        """Return a view of the matrices in a one-dimensional NumPy array."""
        steps = (self.batch, *((1, self.ld) if order == "F" else (self.ld, 1)))
        steps = tuple(step * buffer.itemsize for step in steps)
        begin = self.offset * buffer.itemsize
        return np.ndarray(shape, buffer.dtype, buffer, begin, steps)


@dataclass(frozen=True)
class BatchedCase:
    """A batch of products. Stored operands are column-major ("F"), as in BLAS, or row-major."""

    kind: str
    op: str
    orders: str  #: Orders of A, B and C: ``"FFC"``.
    extents: tuple[int, int, int, int]  #: m, n, k, l.
    lies: tuple[Lie, Lie, Lie]
    beta: float
    arch: str = "sm_80"
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        lies = ",".join(f"{lie.ld}:{lie.batch}+{lie.offset}" for lie in self.lies)
        sizes = "x".join(map(str, self.extents))
        options = "".join(f"-{name}{value}" for name, value in self.options)
        return f"{self.kind}-{self.op}-{self.orders}-{sizes}-{lies}{options}".replace(" ", "")

    @property
    def dtypes(self) -> tuple[str, str, str]:
        dtype, out = KINDS[self.kind]
        a, _, b = dtype.partition(" x ")
        return a, b or a, out or DTYPES[a].outputs[0]

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Return the shapes of the stored A, B and C."""
        m, n, k, l = self.extents
        a, b = stored_shapes(self.op, m, n, k)
        return (l, *a), (l, *b), (l, m, n)

    @property
    def problem(self) -> GemmProblem:
        """Return the problem of operands whose buffers have aligned addresses."""
        operands: list[Operand] = []
        given = zip(self.lies, self.dtypes, self.shapes, self.orders, strict=True)
        for lie, dtype, shape, order in given:
            strides = (lie.batch, *((1, lie.ld) if order == "F" else (lie.ld, 1)))
            address = (len(operands) + 1 << 40) + lie.offset * DTYPES[dtype].bytes
            operands.append(Operand(address, shape, strides, dtype, 0, "torch", None, False))
        return from_operands(self.op, *operands)

    def plan(self, kernel: str = "batched") -> Plan:
        """Return the plan of such arrays, without arrays."""
        problem, gpu = self.problem, nearest(Arch(self.arch))
        options = dict(self.options) if kernel == "batched" else {}
        selection = select.select(problem, self.arch, kernel, options, gpu)
        return Plan(problem, "cpu", None, self.arch, selection)

    def buffers(self, seed: int = 0) -> list[np.ndarray]:
        """Return buffers of random numbers for A, B and C. C is NaN if it must not be read."""
        random = np.random.default_rng(seed)
        found = [
            numbers(random, (lie.length,), dtype)
            for lie, dtype in zip(self.lies, self.dtypes, strict=True)
        ]
        if not self.beta:
            found[2][...] = -99 if self.dtypes[2] == "int32" else np.nan
        return found

    def views(self, buffers: list[np.ndarray]) -> list[np.ndarray]:
        """Return views of A, B and C in such buffers."""
        return [
            lie.view(buffer, shape, order)
            for lie, buffer, shape, order in zip(
                self.lies, buffers, self.shapes, self.orders, strict=True
            )
        ]


def _lie(random: np.random.Generator, how: str, rows: int, run: int, l: int, aligned: int) -> Lie:
    """Return a random `Lie`.

    ``run``: elements along the unit stride; ``aligned``: a factor of all strides.
    """

    def up(number: int) -> int:
        return -(-number // aligned) * aligned

    gap = int(random.integers(1, 9))
    ld, batch = run, run * rows
    if how == "rows":
        ld = up(run + gap)
        batch = ld * rows + up(gap) * int(random.integers(0, 2))
    elif how == "matrices":
        batch = up(run * rows + gap)
    elif how == "heads":
        batch = up(run + gap)
        ld = up(batch * l + gap)
    elif how == "packed heads":
        batch, ld = run, run * l
    elif how == "shared":
        batch = 0
        ld = run + gap * int(random.integers(0, 2))
    offset = int(random.choice([0, 1, 2, 8, 16])) if aligned == 1 else aligned * 16
    length = offset + max(0, l - 1) * batch + ld * rows + 64
    return Lie(ld, batch, offset, length)


def drawn(seed: int, kind: str = "", most: int = 24, l: int = 0) -> BatchedCase:
    """Return a random case with extents up to ``most``, often 1, a power of two or one less."""
    random = np.random.default_rng(seed)
    kind = kind or str(random.choice(sorted(KINDS)))
    letters = "NTC" if kind in COMPLEX else "NT"
    op = "".join(random.choice(list(letters), 2))
    extents = [
        int(random.choice([1, 2, 3, 4, 7, 8, 15, 16, int(random.integers(1, most + 1)), most]))
        for _ in range(3)
    ]
    m, n, k = (min(x, most) for x in extents)
    l = l or int(random.choice([1, 2, 5, 19, 40, 67]))
    orders = "".join(random.choice(list("FC"), 3))
    shapes = (*stored_shapes(op, m, n, k), (m, n))
    dtypes = BatchedCase(kind, op, orders, (m, n, k, l), (), 0).dtypes  # type: ignore[arg-type]
    lies = []
    for index, (shape, order, dtype) in enumerate(zip(shapes, orders, dtypes, strict=True)):
        run, rows = shape if order == "F" else shape[::-1]
        how = str(random.choice(LIES if index < 2 else LIES[:-1]))
        wide = max(1, 16 // DTYPES[dtype].bytes)
        lies.append(_lie(random, how, rows, run, l, int(random.choice([1, 1, 2, wide]))))
    beta = float(random.choice([0, 0.5])) * (1 if kind != "int8" else 4)
    arch = ("sm_80", "sm_90a")[seed % 2]
    case = BatchedCase(kind, op, orders, (m, n, k, l), tuple(lies), beta, arch)  # type: ignore[arg-type]
    if dtypes[0] in ("float16", "bfloat16"):
        case = replace(case, options=(("unit", ("fma", "mma")[seed // 2 % 2]),))
    elif random.integers(0, 3) == 0:
        tile = tuple(int(x) for x in random.choice([1, 2, 4, 8], 2))
        if tile[0] * tile[1] * DTYPES[DTYPES[dtypes[0]].accumulator].bytes <= 256:
            case = replace(case, options=(("thread_tile", tile),))
    return case
