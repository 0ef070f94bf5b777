"""Test ``kernel="cublas"`` on the GPU, with the contract of the other kernels.

The tests are skipped if cuBLAS is missing. Complex types are in ``test_complex.py``.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import OPS, PLAIN, SIZES, TYPES, Case
from device_matrices import (
    DEVICE,
    assert_canaries,
    assert_result,
    assert_threads_share_a_plan,
    compute,
    inputs,
    new_c,
)

import cute_gemm as cg
from cute_gemm.arrays import read
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.library.cublas import Cublas, CublasError
from cute_gemm.problem.describe import from_operands
from cute_gemm.problem.verify import verify
from cute_gemm.run.driver import entered

#: Clock cycles that keep a stream busy, about 30 ms: a result without a wait is wrong.
BUSY = 50_000_000


@pytest.fixture(scope="module", autouse=True)
def cublas() -> None:
    """Skip the tests if cuBLAS is missing."""
    try:
        with entered(0):
            Cublas()
    except CublasError as error:
        pytest.skip(str(error))


def case_of(
    name: str, op: str, order: str = "F", sizes: tuple[int, int, int] = (65, 63, 127)
) -> Case:
    """Return a case with element alignment, except int8, which cuBLAS takes in multiples of 4."""
    t = TYPES[name]
    out = 4 if t.out in ("float32", "int32") else t.bytes
    widths = (16, 16, 16) if t.integer else (t.bytes, t.bytes, out)
    if t.integer:
        sizes = tuple(-(-size // 4) * 4 for size in sizes)  # type: ignore[assignment]
    return Case("cublas", name, op, None, *sizes, order, widths)


def cases() -> Iterator[Case]:
    """Yield every type, op and order of C, with unaligned m, n and k."""
    sizes, number = SIZES[:10], 0
    for name, op, order in itertools.product(TYPES, OPS, "FC"):
        for _ in range(2):
            m, n, k = (sizes[(number + step) % len(sizes)] for step in (0, 3, 7))
            yield replace(case_of(name, op, order, (m, n, k)), padded=number % 2 == 0)
            number += 1


def batches() -> Iterator[Case]:
    """Yield batches of three products, with separate A and B and with one of them shared."""
    for number, case in enumerate(cases()):
        yield replace(case, l=3, shared=("", "A", "B")[number % 3])


@pytest.mark.parametrize("case", [*cases(), *batches()])
def test_awkward_sizes(case: Case) -> None:
    given = inputs(case)
    for alpha, beta in itertools.product(case.t.scalars, repeat=2):
        try:
            C, before = compute(given, alpha, beta)
        except UnsupportedError:
            assert case.t.integer  # cuBLAS supports only some ops and sizes of int8
            return
        assert_result(given, C, before, alpha, beta)


@pytest.mark.parametrize("name", PLAIN)
def test_k_of_0_scales_c(name: str) -> None:
    case = case_of(name, "NN", sizes=(64, 48, 0))
    given = inputs(case)
    for alpha, beta in itertools.product(case.t.scalars, repeat=2):
        C, before = compute(given, alpha, beta)
        assert_result(given, C, before, alpha, beta)


@pytest.mark.parametrize("sizes", [(0, 64, 64), (64, 0, 64), (0, 0, 0)], ids=str)
def test_m_or_n_of_0_does_nothing(sizes: tuple[int, int, int]) -> None:
    case = case_of("float32", "TN", sizes=sizes)
    given = inputs(case)
    C, _ = new_c(case, 0)
    assert cg.gemm("TN", given.A.view, given.B.view, C.view, beta=1, kernel="cublas") is C.view
    assert_canaries(C)


@pytest.mark.parametrize("name", PLAIN)
def test_device_scalars(name: str) -> None:
    """Test alpha, beta or both on the device, changed between calls of one plan."""
    case = case_of(name, "TN")
    given = inputs(case)
    kind = {"float64": torch.float64, "int8": torch.int32}.get(name, torch.float32)
    C, _ = new_c(case, 0)
    plan = cg.plan(case.op, given.A.view, given.B.view, C.view, **case.options)
    for alpha, beta in itertools.product(case.t.scalars, repeat=2):
        there = [torch.tensor(x, dtype=kind, device=DEVICE) for x in (alpha, beta)]
        for a, b in ((there[0], there[1]), (there[0], beta), (alpha, there[1]), (alpha, beta)):
            C, before = new_c(case, beta)
            plan(given.A.view, given.B.view, C.view, alpha=a, beta=b)
            assert_result(given, C, before, alpha, beta)


def test_on_the_current_stream_and_on_a_given_one() -> None:
    """Test calls without synchronization. The data arrive late in the stream."""
    case = case_of("float32", "TN")
    given = inputs(case)
    C, _ = new_c(case, 0)
    late = [torch.full_like(x.view, torch.nan) for x in (given.A, given.B)]
    cg.gemm("TN", *late, C.view, kernel="cublas")  # load the kernel before the race
    torch.cuda.synchronize()
    for how in ("current", "given"):
        for x in late:
            x.fill_(torch.nan)
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(BUSY)
            for target, source in zip(late, (given.A, given.B), strict=True):
                target.copy_(source.view)
            if how == "current":
                cg.gemm("TN", *late, C.view, kernel="cublas")
        if how == "given":
            cg.gemm("TN", *late, C.view, kernel="cublas", stream=side)
        assert not side.query()
        side.synchronize()
        assert_result(given, C, None, 1, 0)


def test_threads_share_the_handle() -> None:
    """Test threads with their own streams, scalars and Cs. Those of another would fail."""
    case = case_of("float32", "TN")
    assert_threads_share_a_plan(case)


@pytest.mark.parametrize("name", ["float32", "tf32", "float64", "bfloat16"])
def test_numpy(name: str) -> None:
    t = TYPES[name]
    random = np.random.default_rng(1)
    A, B = (
        np.asarray(random.standard_normal(shape), order="F").astype(DTYPES[t.dtype].numpy)
        for shape in ((127, 65), (63, 127))
    )
    for order in ("F", "C"):
        C = cg.gemm("TT", A, B, order=order, compute=t.compute, kernel="cublas")  # type: ignore[arg-type]
        assert type(C) is np.ndarray and C.flags.f_contiguous == (order == "F")
        problem = from_operands("TT", read(A, "A"), read(B, "B"), read(C, "C"), compute=t.compute)
        assert verify(problem, A, B, C).ok
        before = C.copy(order="K")
        assert cg.gemm("TT", A, B, C, beta=2, compute=t.compute, kernel="cublas") is C
        assert verify(problem, A, B, C, C=before, beta=2).ok


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    A, B = (cupy.random.standard_normal(shape, dtype="f4") for shape in ((127, 65), (127, 63)))
    C = cg.gemm("TN", A, B, kernel="cublas")
    assert isinstance(C, cupy.ndarray)
    host = [np.asfortranarray(cupy.asnumpy(x)) for x in (A, B, C)]
    problem = from_operands("TN", *(read(x, n) for x, n in zip(host, "ABC", strict=True)))
    assert verify(problem, *host).ok


def test_a_broadcast_operand_is_refused() -> None:
    row = torch.ones(1, 8, device=DEVICE).expand(8, 8)
    with pytest.raises(UnsupportedError, match="leading dimension"):
        cg.gemm("NN", row, torch.ones(8, 8, device=DEVICE), kernel="cublas")
