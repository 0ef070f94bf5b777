"""Every kernel as NVRTC emitted it, executed without a GPU and compared with float64.

The spread that runs everywhere has of every kernel a few types, ops and kinds of problems;
``--matrix`` has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from cute_gemm import select
from cute_gemm.arch import Arch
from cute_gemm.errors import FaultError, GemmError
from cute_gemm.gpus.table import nearest
from cute_gemm.kernels import registry
from cute_gemm.plan import Plan
from cute_gemm.problem.dtypes import DTYPES, operand_types
from cute_gemm.problem.problem import GemmProblem, from_sizes
from cute_gemm.problem.verify import verify
from cute_gemm.ptx import execute

OPS = ("NN", "NT", "TN", "TT")
KERNELS = tuple(name for name in registry.KERNELS if name not in ("host", "cublas"))


@dataclass(frozen=True)
class Kind:
    """Extents, padding of the leading dimensions in elements, order of C, batch, beta."""

    mnk: tuple[int, int, int]
    pad: int
    order: str = "F"
    l: int = 1
    beta: bool = True
    #: Whether base addresses are multiples of an element alone.
    odd: bool = False
    arch: str = "sm_80"


KINDS = {
    "tails": Kind((37, 29, 23), 3),
    "wide": Kind((48, 80, 144), 16, order="C", beta=False, arch="sm_90a"),
    "batch": Kind((33, 17, 40), 1, order="C", l=3),
    "base": Kind((64, 48, 32), 0, odd=True, arch="sm_90a"),
    "tiles": Kind((150, 140, 65), 2, beta=False),
    "flat": Kind((1, 65, 9), 0),
    "deep": Kind((70, 40, 350), 2),
    "groups": Kind((300, 50, 9), 1),  # more rows of tiles than are walked together
}


@dataclass(frozen=True)
class Case:
    kernel: str
    type: str
    op: str
    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        more = [str(value) for _, value in self.options]
        return "-".join((self.kernel, self.type.replace("/", "_"), self.op, self.kind, *more))

    def problem(self) -> GemmProblem:
        kind, (dtype, _, compute) = KINDS[self.kind], self.type.partition("/")
        m, n, k = kind.mnk
        inner = [m if self.op[0] == "N" else k, k if self.op[1] == "N" else n]
        inner.append(m if kind.order == "F" else n)
        lda, ldb, ldc = (extent + kind.pad for extent in inner)
        problem = from_sizes(
            self.op, m=m, n=n, k=k, dtype=dtype, l=kind.l, lda=lda, ldb=ldb, ldc=ldc,
            order=kind.order, compute=compute or None,
        )  # fmt: skip
        if kind.odd:
            for name in "ABC":
                matrix = getattr(problem, name)
                size = DTYPES[matrix.dtype].bytes
                problem = replace(problem, **{name: replace(matrix, alignment=size)})
        return problem

    def plan(self) -> Plan:
        """The plan; ``GemmError`` for what the kernel does not take."""
        problem, arch = self.problem(), KINDS[self.kind].arch
        options = dict(self.options)
        choice = select.select(problem, arch, self.kernel, options, nearest(Arch(arch)))
        return Plan(problem, "cpu", None, arch, choice)

    def arrays(self) -> list[np.ndarray]:
        """A, B and C as they are stored, with numbers everywhere."""
        kind, problem = KINDS[self.kind], self.problem()
        (m, n), k = problem.C.shape, problem.k
        stored = [(m, k) if self.op[0] == "N" else (k, m), (k, n) if self.op[1] == "N" else (n, k)]
        random = np.random.default_rng(m * n + k)
        found = []
        for shape, matrix in zip((*stored, (m, n)), (problem.A, problem.B, problem.C), strict=True):
            order = kind.order if matrix.name == "C" else "F"
            rows, columns = shape if order == "C" else shape[::-1]
            batch = () if kind.l == 1 else (kind.l,)
            size = (*batch, rows, columns + kind.pad)
            array = numbers(random, size, matrix.dtype)[..., :columns]
            found.append(array if order == "C" else array.swapaxes(-1, -2))
        return found


def numbers(random: np.random.Generator, size: tuple[int, ...], dtype: str) -> np.ndarray:
    row = DTYPES[dtype]
    if row.roundoff == 0:
        return random.integers(-128, 128, size).astype(row.numpy)
    found = random.standard_normal(size)
    return (found + 1j * random.standard_normal(size) if row.is_complex else found).astype(
        row.numpy
    )


def scalars(case: Case) -> tuple[complex, complex]:
    row = DTYPES[case.type.partition("/")[0]]
    beta = KINDS[case.kind].beta
    if row.roundoff == 0:
        return 3, -2 * beta
    return (1.5 - 0.5j, (2 + 1j) * beta) if row.is_complex else (-1.5, 0.75 * beta)


def check(case: Case) -> None:
    plan = case.plan()
    A, B, before = case.arrays()
    C = case.arrays()[2]
    alpha, beta = scalars(case)
    if beta == 0 and DTYPES[plan.problem.C.dtype].roundoff:
        C[...] = np.nan  # it must not be read
    execute(plan, A, B, C, alpha, beta)
    verdict = verify(plan.problem, A, B, C, C=before, alpha=alpha, beta=beta)
    assert verdict.ok, verdict
    if plan.problem.inputs.roundoff == 0:
        assert verdict.max_error == 0


def cases() -> Iterator[Case]:
    """Everything that a kernel takes."""
    for kernel, name, op, kind in product(KERNELS, operand_types(), OPS, KINDS):
        if name in registry.get(kernel).dtypes:
            yield Case(kernel, name, op, kind)


def spread() -> Iterator[Case]:
    """Of each kernel two cases, in which types, ops and kinds take turns; and other programs."""
    kinds = tuple(KINDS)
    for number, kernel in enumerate(KERNELS):
        types = registry.get(kernel).dtypes
        for step in range(2):
            turn = number + step
            kind = kinds[(turn + number // 6) % len(kinds)]
            yield Case(kernel, types[(2 * step + number) % len(types)], OPS[turn % 4], kind)
    for name in ("float16", "int8", "float64", "float32/tf32"):
        yield Case("sm80_pipeline", name, "NT", "wide", (("copy", "mn_major"),))
    yield Case("double_buffered", "float32", "TN", "tails", (("staging", "registers"),))
    yield Case("double_buffered", "float16", "NN", "wide", (("skew", "xor"),))
    yield Case("coalesced", "float32", "TT", "tails", (("warp_along", "k"),))
    yield Case("smem_tiled", "float32", "NN", "groups")
    yield Case("naive", "float32", "NT", "batch")


def takes(case: Case) -> bool:
    try:
        case.plan()
    except GemmError:
        return False
    return True


@pytest.mark.parametrize("case", list(spread()), ids=str)
def test_the_spread(case):
    if not takes(case):
        assert case.kernel == "cutlass_universal" and "int8" in case.type
        pytest.skip("CUTLASS has no kernel for it")
    check(case)


@pytest.mark.matrix
@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_everything(case):
    if not takes(case):
        pytest.skip("the kernel does not take it")
    check(case)


def test_an_empty_product_and_alpha_zero_read_nothing():
    case = Case("sm80_pipeline", "float16", "TN", "tails")
    plan = case.plan()
    A, B, before = case.arrays()
    A[...], B[...] = np.nan, np.nan
    C = case.arrays()[2]
    execute(plan, A, B, C, 0, 0.75)
    assert verify(plan.problem, A, B, C, C=before, alpha=0, beta=0.75).ok


@pytest.mark.parametrize("kernel", ["sm80_pipeline", "tensor_core"])
def test_tf32_is_rounded_to_nearest(kernel):
    """Of these operands the upper 19 bits alone are off by twice what rounding may be."""
    case = Case(kernel, "float32/tf32", "TN", "tails")
    plan = case.plan()
    A, B, C = case.arrays()
    A[...] = B[...] = np.float32(1 + 2**-10 - 2**-20)
    execute(plan, A, B, C)
    assert verify(plan.problem, A, B, C).ok


@pytest.mark.parametrize("op", ["CN", "NC", "CC", "CT"])
@pytest.mark.parametrize("kernel", ["naive", "warp_tiled"])
def test_the_conjugate_is_of_the_operand_that_is_meant(kernel, op):
    check(Case(kernel, "complex64", op, "tails"))


@pytest.mark.parametrize("kernel", ["naive", "sm80_pipeline"])
def test_scalars_are_read_where_they_are(kernel):
    """BLAS's device pointer mode: both in memory, beside arguments that say something else."""
    case = Case(kernel, "float32", "NT", "tails")
    plan = case.plan()
    A, B, before = case.arrays()
    C = case.arrays()[2]
    places = {"alpha_ptr": np.float32([2.5]), "beta_ptr": np.float32([-0.5])}
    execute(plan, A, B, C, 7, 9, places=places)
    assert verify(plan.problem, A, B, C, C=before, alpha=2.5, beta=-0.5).ok


@pytest.mark.parametrize("kernel", ["smem_tiled", "double_buffered", "sm80_pipeline"])
def test_a_barrier_that_is_missing_is_found(kernel):
    """The emitted text without one of its barriers."""
    case = Case(kernel, "float16", "NN", "deep")
    plan = case.plan()
    pieces = plan.ptx.split("bar.sync \t0;")
    assert len(pieces) > 1
    found = set()
    for gone in range(1, len(pieces)):
        without = [*pieces[: gone - 1], pieces[gone - 1] + pieces[gone], *pieces[gone + 1 :]]
        plan.steps.each[0].__dict__["ptx"] = "bar.sync \t0;".join(without)
        with pytest.raises(FaultError) as caught:
            execute(plan, *case.arrays())
        found.add(caught.value.kind)
    assert found <= {"race", "in flight"}


def test_a_wait_that_is_missing_is_found():
    case = Case("sm80_pipeline", "float16", "TN", "wide")
    plan = case.plan()
    waits = plan.ptx.count("cp.async.wait_group")
    assert waits
    without = plan.ptx.replace("cp.async.wait_group", "cp.async.wait_group 9; //")
    plan.steps.each[0].__dict__["ptx"] = without
    with pytest.raises(FaultError, match="asynchronous copy, not waited for"):
        execute(plan, *case.arrays())


def test_an_operand_that_is_read_in_place_of_another_is_found():
    """Both pointers are A's: B lies in its bounds, and the result is wrong."""
    case = Case("smem_tiled", "float32", "NN", "base")
    plan = case.plan()
    plan.steps.each[0].__dict__["ptx"] = plan.ptx.replace("_param_1]", "_param_0]", 1)
    A, B, before = case.arrays()
    C = case.arrays()[2]
    execute(plan, A, B, C)
    assert not verify(plan.problem, A, B, C, C=before).ok
    # The other way round B ends before A does.
    plan.steps.each[0].__dict__["ptx"] = plan.ptx.replace("_param_0]", "_param_1]")
    with pytest.raises(FaultError, match="behind the end of B"):
        execute(plan, A, B, C)
