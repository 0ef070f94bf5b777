"""Ops, orders, types, problems and cases that all tests share.

A kernel depends on types, majors, access widths and tile, but not on the sizes themselves. A case
therefore specifies how wide its operands may be accessed (through the leading dimension and the
base address), so that many unaligned sizes share a kernel.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cute_gemm.arch import Arch
from cute_gemm.arrays import read
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.kernels import registry
from cute_gemm.kernels.base import CompiledKernel, Kernel
from cute_gemm.plan import select
from cute_gemm.plan.plan import Plan
from cute_gemm.problem.describe import from_operands, from_sizes
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem

OPS = ("NN", "NT", "TN", "TT")
ORDERS = ("F", "C")
SIZES = (1, 2, 3, 7, 31, 63, 65, 127, 129, 255, 1000, 4095)
POLICIES = ("auto", "mn_major")
#: Rows or columns of thin problems.
THIN = (1, 2, 3, 4, 7, 8, 16, 17, 32)
#: The tutorial kernels.
LADDER = registry.LADDER[1 : registry.LADDER.index("sm80_pipeline")]
#: Tutorial kernels that select the width of their accesses to A and B.
WIDE = ("vectorized", "bank_free", "warp_tiled", "double_buffered")


def configure(kernel: Kernel, problem: GemmProblem, arch: str, **options: Any) -> Any:
    """Return the config that is selected for a kernel."""
    return select.select(problem, arch, kernel.name, options).config


def refusal(kernel: CompiledKernel, config: Any, problem: GemmProblem, arch: str) -> str:
    """Return the error message of the first broken rule, or ``""``."""
    try:
        kernel.check(config, problem, Arch(arch))
    except (OptionError, UnsupportedError) as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Type:
    """Types of the operands, of the products and of C."""

    name: str
    dtype: str
    compute: str | None
    out: str

    @property
    def bytes(self) -> int:
        return DTYPES[self.dtype].bytes

    @property
    def integer(self) -> bool:
        return self.dtype == "int8"

    @property
    def operands(self) -> str:
        """The types as kernels name them: ``"float32/tf32"``."""
        return self.dtype if self.compute is None else f"{self.dtype}/{self.compute}"

    @property
    def scalars(self) -> tuple[int | float, ...]:
        return (0, 1, -7) if self.integer else (0.0, 1.0, -0.7)


TYPES = {
    t.name: t
    for t in (
        Type("float16", "float16", None, "float16"), Type("bfloat16", "bfloat16", None, "bfloat16"),
        Type("float32", "float32", None, "float32"), Type("tf32", "float32", "tf32", "float32"),
        Type("float64", "float64", None, "float64"), Type("int8", "int8", None, "int32"),
        Type("float16-float32", "float16", None, "float32"),
        Type("bfloat16-float32", "bfloat16", None, "float32"),
    )
}  # fmt: skip
#: Types with the default type of C.
PLAIN = tuple(name for name, t in TYPES.items() if "-" not in name)
#: Complex types, which some kernels do not support.
COMPLEX = {name: Type(name, name, None, name) for name in ("complex64", "complex128")}


class NamedTypes:
    """Types of A and B, as a kernel names them: ``"float32/tf32"``, ``"float8_e4m3fn x ..."``."""

    operands: str

    @property
    def a(self) -> str:
        return self.operands.partition("/")[0].partition(" x ")[0]

    @property
    def b(self) -> str:
        return self.operands.partition("/")[0].partition(" x ")[2] or self.a

    @property
    def compute(self) -> str | None:
        return self.operands.partition("/")[2] or None


@dataclass(frozen=True)
class Buffer:
    """The layout of ``l`` matrices in a buffer. ld, offset and batch stride are in elements."""

    matrix: tuple[int, int]
    order: str
    ld: int
    offset: int
    l: int = 1
    batch: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix if self.l == 1 else (self.l, *self.matrix)

    @property
    def strides(self) -> tuple[int, ...]:
        strides = (1, self.ld) if self.order == "F" else (self.ld, 1)
        return strides if self.l == 1 else (self.batch, *strides)

    @property
    def length(self) -> int:
        """Elements of a buffer with space before, between and after the matrices."""
        last = self.offset + (self.l - 1) * self.batch
        return last + self.ld * self.matrix[self.order == "F"] + 256


@dataclass(frozen=True)
class Case:
    """One problem on device arrays.

    Attributes
    ----------
    widths
        Access widths of A, B and C in bytes that ld and base address allow.
    padded
        Whether the leading dimensions leave at least two elements between columns (or rows).
    more
        Further options of the kernel.
    l
        Products of a batch.
    shared
        ``"A"`` or ``"B"`` if all products of a batch share that operand, otherwise empty.
    """

    kernel: str
    type: str
    op: str
    copy: str | None
    m: int
    n: int
    k: int
    order: str
    widths: tuple[int, int, int]
    padded: bool = True
    more: tuple[tuple[str, Any], ...] = ()
    l: int = 1
    shared: str = ""

    def __str__(self) -> str:
        widths = "_".join(map(str, self.widths))
        size = f"{self.m}x{self.n}x{self.k}" + (f"x{self.l}{self.shared}" if self.l != 1 else "")
        more = (str(value) for _, value in self.more)
        parts = (self.kernel, self.type, self.op, self.copy, *more, self.order, f"v{widths}")
        return "-".join((*filter(None, parts), size))

    @property
    def t(self) -> Type:
        return (TYPES | COMPLEX)[self.type]

    def runs_on(self, arch: str) -> bool:
        """Return whether an architecture supports the kernel."""
        return self.kernel != "sm90_wgmma" or Arch(arch).has("wgmma")

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``gemm`` and ``plan``."""
        options: dict[str, Any] = {"kernel": self.kernel, **dict(self.more)}
        if self.copy is not None:
            options["copy"] = self.copy
        if self.t.compute is not None:
            options["compute"] = self.t.compute
        return options

    def _place(
        self, shape: tuple[int, int], order: str, element: int, width: int, shared: bool = False
    ) -> Buffer:
        """Return a buffer whose address and strides are odd multiples of ``width`` bytes."""
        step = max(1, width // element)
        extent, count = shape if order == "F" else shape[::-1]
        blocks = -(-(extent + 2 * self.padded) // step) | 1
        batch = 0 if shared or self.l == 1 else (blocks * count + 2 * self.padded | 1) * step
        return Buffer(shape, order, blocks * step, step, self.l, batch)

    @cached_property
    def places(self) -> tuple[Buffer, Buffer, Buffer]:
        """Buffers of A, B and C. A and B are column-major, as in BLAS."""
        m, n, k = self.m, self.n, self.k
        element, out = self.t.bytes, DTYPES[self.t.out].bytes
        a, b = stored_shapes(self.op, m, n, k)
        return (
            self._place(a, "F", element, self.widths[0], self.shared == "A"),
            self._place(b, "F", element, self.widths[1], self.shared == "B"),
            self._place((m, n), self.order, out, self.widths[2]),
        )

    @cached_property
    def problem(self) -> GemmProblem:
        """The problem that ``from_operands`` would return for the arrays."""
        a, b, c = self.places
        problem = from_sizes(
            self.op,
            m=self.m,
            n=self.n,
            k=self.k,
            dtype=self.t.dtype,
            lda=a.ld,
            ldb=b.ld,
            ldc=c.ld,
            l=self.l,
            batch_a=a.batch,
            batch_b=b.batch,
            batch_c=c.batch,
            order=self.order,  # type: ignore[arg-type]
            out_dtype=self.t.out,
            compute=self.t.compute,
        )
        return replace(
            problem,
            A=_at(problem.A, a.offset),
            B=_at(problem.B, b.offset),
            C=_at(problem.C, c.offset),
        )

    def plan(self, arch: str, gpu: Gpu | None = None) -> Plan:
        """Return the plan of such arrays, without arrays, for device 0 or for ``gpu``."""
        options = dict(self.more)
        if self.copy is not None:
            options["copy"] = self.copy
        place = gpu or select.gpu_of_device(0)
        selection = select.select(self.problem, arch, self.kernel, options, place)
        return Plan(self.problem, "cpu", None, arch, selection)


def _at(matrix: Matrix, offset: int) -> Matrix:
    if 0 in matrix.shape:  # empty arrays have no address
        return matrix
    address = 256 | offset * DTYPES[matrix.dtype].bytes | matrix.batch_bytes
    return replace(matrix, alignment=address & -address)


def types_of(kernel: str) -> tuple[str, ...]:
    """Return the plain types that a tutorial kernel supports."""
    taken = registry.get(kernel).dtypes
    return tuple(name for name in PLAIN if TYPES[name].operands in taken)


def complex_of(kernel: str) -> tuple[str, ...]:
    """Return the complex types that a kernel supports."""
    return tuple(name for name in COMPLEX if name in registry.get(kernel).dtypes)


def narrow(kernel: str, name: str, op: str, copy: str | None = None, order: str = "F") -> Case:
    """Return a small case of element-wise accesses: odd ld, base address off by one element."""
    return at_widths(Case(kernel, name, op, copy, 65, 63, 127, order, (1, 1, 1)), 1)


def at_widths(case: Case, *widths: int) -> Case:
    """Return the case with access widths of A, B and C, or one width, of at least an element."""
    of_a, of_b, of_c = widths if len(widths) == 3 else widths * 3
    element, out = case.t.bytes, DTYPES[case.t.out].bytes
    return replace(case, widths=(max(element, of_a), max(element, of_b), max(out, of_c)))


def wide(kernel: str, name: str, op: str, copy: str | None = None, order: str = "C") -> Case:
    """Return a small case of accesses of 16 bytes."""
    if kernel == "cutlass_universal":  # it predicates a vector by its first element
        return Case(kernel, name, op, copy, 80, 1008, 272, order, (16, 16, 16))
    sizes = (63, 1000, 65) if order == "C" else (1000, 63, 65)
    return Case(kernel, name, op, copy, *sizes, order, (16, 16, 16))


def cutlass_takes(case: Case) -> bool:
    """Return whether CUTLASS has a kernel for a case. True for cases of other kernels.

    Its dp4a kernels, for all int8 ops but TN, load 4 elements at a time. A single row of A and B
    (k = 1 with ld = 1) does not show whether it is transposed.
    """
    if case.kernel != "cutlass_universal":
        return True
    transposed = case.op == "TN" and (case.k > 1 or case.padded)
    return not case.t.integer or transposed or case.widths == (16, 16, 16)


# Problems and arrays ------------------------------------------------------------------------------


def problem(op: str = "TN", size: int = 4096, **given: Any) -> GemmProblem:
    """Return a problem with default extents ``size``. ``dtype`` may be ``"tf32"``."""
    given = {"m": size, "n": size, "k": size, "dtype": "float16", **given}
    if given["dtype"] == "tf32":
        given |= {"dtype": "float32", "compute": "tf32"}
    return from_sizes(op, **given)


def problem_of(op: str, A: Any, B: Any, C: Any = None, **options: Any) -> GemmProblem:
    """Return the problem of the arrays."""
    C = None if C is None else read(C, "C")
    return from_operands(op, read(A, "A"), read(B, "B"), C, **options)


def stored_shapes(op: str, m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of the stored A and B."""
    return (m, k) if op[0] in "Nn" else (k, m), (k, n) if op[1] in "Nn" else (n, k)


def numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return normal numbers, or random 8-bit integers, of a type."""
    numpy_type = DTYPES[dtype].numpy
    if DTYPES[dtype].roundoff == 0:
        return random.integers(-128, 128, shape).astype(numpy_type)
    real = random.standard_normal(shape)
    if DTYPES[dtype].is_complex:
        return (real + 1j * random.standard_normal(shape)).astype(numpy_type)
    return real.astype(numpy_type)


def placed(
    shape: tuple[int, ...], dtype: str, order: str = "C", pad: int = 0, step: int = 1,
    rows: tuple[int, int] = (0, 0), around: float | None = None,
    random: np.random.Generator | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return a view of random numbers in a larger array, and that array.

    The array has at least two dimensions and is filled with ``around``, by default NaN or 99. The
    leading dimension is the length of a row (or of a column of order "F"), rounded up to a multiple
    of ``step``, plus ``pad``. ``rows``: numbers of extra rows before and after.
    """
    random = random or np.random.default_rng(sum(shape) + pad)
    if around is None:
        around = np.nan if DTYPES[dtype].roundoff else 99
    *lead, count, run = shape if order == "C" else (*shape[:-2], *shape[:-3:-1])
    before, behind = rows
    width = -(-run // step) * step + pad
    whole = np.full((*lead, before + count + behind, width), around, DTYPES[dtype].numpy)
    part = whole[..., before : before + count, :run]
    part[...] = numbers(random, part.shape, dtype)
    return (part if order == "C" else part.swapaxes(-1, -2)), whole


def operands(
    op: str, dtype: str = "float32", order: str = "F", *, mnk: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return random stored A and B."""
    random, (a, b) = np.random.default_rng(1), stored_shapes(op, *mnk)
    return placed(a, dtype, order, random=random)[0], placed(b, dtype, order, random=random)[0]


def used(stored: np.ndarray, letter: str) -> np.ndarray:
    """Return op(X) in float64 or complex128."""
    wide = stored.astype(np.complex128 if stored.dtype.kind == "c" else np.float64)
    wide = wide if letter in "Nn" else wide.swapaxes(-1, -2)
    return wide.conj() if letter in "CcHh" else wide


def in_threads(work: Callable[..., Any], arguments: Iterable[Any], seconds: float = 120) -> None:
    """Run ``work`` with each argument in its own thread. Raise AssertionError if one fails."""
    failures: list[BaseException] = []

    def run(argument: Any) -> None:
        try:
            work(argument)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(x,), daemon=True) for x in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not failures and not any(thread.is_alive() for thread in threads), failures
