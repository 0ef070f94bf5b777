"""Test the CPU backend and the kernel "host" against float64 and the BLAS contract."""

import itertools
import tracemalloc
import warnings

import ml_dtypes
import numpy as np
import pytest
from cases import numbers, stored_shapes, used

from cute_gemm.arrays import read
from cute_gemm.dtypes import DTYPES, scalar_of
from cute_gemm.kernels import host
from cute_gemm.problem import reference as cpu
from cute_gemm.problem.describe import from_operands

DTYPES_IN = [row.name for row in DTYPES.values() if row.outputs]
COMPLEX = [name for name in DTYPES_IN if DTYPES[name].is_complex]
FLOATS = [name for name in DTYPES_IN if DTYPES[name].roundoff]
CANARY = 77


@pytest.fixture(params=[cpu, host], ids=["blas", "loop"])
def run(request):
    """Return a function that computes on stored arrays, in place."""

    def call(op, A, B, C, alpha=1, beta=0, **options):
        problem = from_operands(op, read(A, "A"), read(B, "B"), read(C, "C"), **options)
        request.param.gemm(problem, A, B, C, alpha, beta)

    return call


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def matrix(shape, order, dtype, rng=None, pad=2):
    """Return a random matrix inside a buffer of canaries, and that buffer."""
    rows, columns = shape
    buffer = np.full((rows + pad, columns + pad), CANARY, numpy_dtype(dtype), order=order)
    view = buffer[1 : rows + 1, 1 : columns + 1]
    if rng is not None:
        view[:] = numbers(rng, shape, dtype)
    return view, buffer


def wide(x):
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def expected(op, A, B, C, alpha, beta):
    """Return the result and the sum of magnitudes, in float64."""
    A, B = used(A, op[0]), used(B, op[1])
    total = alpha * (A @ B)
    sizes = abs(alpha) * (abs(A) @ abs(B))
    if beta != 0:
        total = total + beta * wide(C)
        sizes = sizes + abs(beta) * abs(wide(C))
    return total, sizes


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT", "HC", "CN", "NH", "CT"])
@pytest.mark.parametrize("dtype", DTYPES_IN)
@pytest.mark.parametrize("small_blocks", [False, True])
def test_against_float64(monkeypatch, run, op, dtype, small_blocks):
    if small_blocks:
        monkeypatch.setattr(cpu, "_BLOCK", 8)
        monkeypatch.setattr(host, "_BLOCK", 8)
    rng = np.random.default_rng(1)
    row = DTYPES[dtype]
    sizes = [(1, 1, 1), (7, 3, 31), (8, 16, 24), (33, 17, 9)]
    scalars = [(1, 0), (0, 1), (3, 2)] if dtype == "int8" else [(1, 0), (-0.7, 1), (1, -0.7)]
    if dtype in COMPLEX:
        scalars = [(1, 0), (0.6 - 0.8j, 1j), (-0.7, 0.3 + 2j)]
    # Sums of these integers exceed the range of float16.
    outs = [out for out in row.outputs if (dtype, out) != ("int8", "float16")]
    for (m, n, k), orders, out, (alpha, beta) in itertools.product(
        sizes, ["FFF", "CFC", "FCF"], outs, scalars
    ):
        A_shape, B_shape = stored_shapes(op, m, n, k)
        A, _ = matrix(A_shape, orders[0], dtype, rng)
        B, _ = matrix(B_shape, orders[1], dtype, rng)
        C, buffer = matrix((m, n), orders[2], out, rng)
        reference, magnitude = expected(op, A, B, C, alpha, beta)
        run(op, A, B, C, alpha, beta)
        sums = scalar_of(DTYPES[row.accumulator], DTYPES[out]).roundoff
        terms = (2 * np.sqrt(2) if dtype in COMPLEX else 1) * (k + 4)
        rounding = DTYPES[out].roundoff * abs(reference) + DTYPES[out].underflow
        bound = rounding + (1 + DTYPES[out].roundoff) * terms * sums * magnitude
        assert np.isfinite(wide(C)).all()
        assert (abs(wide(C) - reference) <= bound).all()
        C[:] = CANARY
        assert (buffer == CANARY).all()


def test_half_types_are_summed_in_float32(run):
    ones = np.ones((1, 5000), np.float16)
    C = np.zeros((1, 1), np.float32)
    run("NT", ones, ones, C)
    assert C == 5000  # sums of ones in float16 would end at 2048


def test_int8_is_exact_where_one_float32_sum_would_not_be(run):
    A = np.full((1, 2049), -128, np.int8)
    A[0, 0] = 1
    C = np.zeros((1, 1), np.int32)
    run("NT", A, A, C)
    assert C == 2048 * 2**14 + 1


def test_int32_wraps(run):
    rng = np.random.default_rng(2)
    A, B = (rng.integers(-128, 128, (4, 4)).astype(np.int8) for _ in "AB")
    C = rng.integers(-(2**31), 2**31, (4, 4)).astype(np.int32)
    exact = 2**27 * (A.astype(int) @ B) - 3 * C.astype(int)
    run("NN", A, B, C, 2**27, -3)
    np.testing.assert_array_equal(C, exact.astype(np.int32))
    assert abs(exact).max() >= 2**31


@pytest.mark.parametrize("dtype", DTYPES_IN)
def test_integer_values_are_exact(run, dtype):
    rng = np.random.default_rng(3)
    A, B = (rng.integers(-3, 4, (40, 40)).astype(numpy_dtype(dtype)) for _ in "AB")
    C = np.zeros((40, 40), numpy_dtype(DTYPES[dtype].outputs[-1]))
    run("TN", A, B, C)
    assert (wide(C) == wide(A).T @ wide(B)).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_beta_0_does_not_read_c(run, dtype):
    A, C = np.eye(3).astype(numpy_dtype(dtype)), np.full((3, 3), np.nan, numpy_dtype(dtype))
    run("NN", A, A, C, 2, 0)
    assert (C == 2 * A).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("beta", "result"), [(0, 0), (1, 3), (-2, -6)])
def test_alpha_0_does_not_read_a_and_b(run, dtype, beta, result):
    nan = np.full((3, 3), np.nan, numpy_dtype(dtype))
    C = np.full((3, 3), 3, numpy_dtype(dtype))
    run("TN", nan, nan, C, 0, beta)
    np.testing.assert_array_equal(C, np.full_like(C, result))


@pytest.mark.parametrize("alpha", [1, np.nan, np.inf])
@pytest.mark.parametrize(("beta", "result"), [(0, 0), (0.5, 1.5)])
def test_k_0_is_beta_c(run, alpha, beta, result):
    C = np.full((3, 2), 3.0)
    run("NN", np.zeros((3, 0)), np.zeros((0, 2)), C, alpha, beta)
    np.testing.assert_array_equal(C, np.full_like(C, result))


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_do(run, m, n):
    run("NN", np.zeros((m, 4)), np.zeros((4, n)), np.zeros((m, n)), 2, 3)


def test_nan_and_infinity_are_numbers_and_no_warning(run):
    A, B = np.array([[1.0, 0.0]], "f4"), np.array([[1.0, 0.0], [0.0, 0.0]], "f4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        C = np.zeros((1, 2), np.float32)
        run("NN", A, B, C, np.inf)
        np.testing.assert_array_equal(C, [[np.inf, np.nan]])
        C[:] = 1
        run("NN", A, B, C, 1, np.nan)
        assert np.isnan(C).all()
        C = np.zeros((1, 2), np.float16)
        run("NN", A.astype("f2"), B.astype("f2"), C, 1e6)
        np.testing.assert_array_equal(C, [[np.inf, 0]])


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize(("alpha", "k"), [(0, 2), (1, 0)])
def test_without_products_a_complex_c_stays_as_it_is(run, dtype, alpha, k):
    """Test infinities in C: the product of 1 + 0j and an infinity would have a NaN."""
    nan = np.full((2, k), np.nan, dtype)
    C = np.array([[complex(np.inf, 0), 1j], [2, complex(0, -np.inf)]], dtype)
    before = C.copy()
    run("NT", nan, nan, C, alpha, 1)
    np.testing.assert_array_equal(C, before)


def test_conjugates_and_nothing_but_the_product(run):
    A, B, C = np.array([[1 + 2j]]), np.array([[3 - 1j]]), np.array([[5 + 7j]])
    for op, product in (("TT", 5 + 5j), ("CN", 1 - 7j), ("NC", 1 + 7j), ("HC", 5 - 5j)):
        result = C.copy()
        run(op, A, B, result, 2j, 3)
        assert result == 2j * product + 3 * C


def test_tf32_is_float32_here(run):
    A = np.array([[1 + 2.0**-20]], np.float32)
    C = np.zeros((1, 1), np.float32)
    run("NN", A, np.ones((1, 1), "f4"), C, compute="tf32")
    assert C == A


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_memory_stays_small(dtype):
    """Test the memory of BLAS's blocks. Those of the loop are as long as k."""
    A, B = np.ones((3000, 6000), dtype, order="F"), np.ones((6000, 8), dtype)
    C = np.zeros((3000, 8), DTYPES[dtype].outputs[0])
    problem = from_operands("NN", read(A, "A"), read(B, "B"), read(C, "C"))
    tracemalloc.start()
    cpu.gemm(problem, A, B, C)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (2 if dtype == "float32" else 20) * 2**20  # A alone is 72 MB in float32
    assert (C == 6000).all()


@pytest.mark.parametrize(
    ("dtype", "calls"), [("float32", 1), ("complex128", 1), ("float16", 6), ("int8", 6)]
)
@pytest.mark.parametrize("shape", [(1, 5000, 3000), (5000, 1, 3000), (8, 5000, 3000)])
@pytest.mark.parametrize("order", "FC")
def test_thin_products_are_few_calls_of_blas(monkeypatch, dtype, calls, shape, order):
    """Test the number of BLAS calls, at whose end threads synchronize: one, or one per block."""
    m, n, k = shape if dtype != "complex128" else (*shape[:2], 300)
    A, B = np.ones((m, k), dtype, order="F"), np.ones((k, n), dtype)
    C = np.zeros((m, n), DTYPES[dtype].outputs[0], order=order)
    made, product = [], cpu._product
    monkeypatch.setattr(cpu, "_product", lambda *given: made.append(1) or product(*given))
    cpu.gemm(from_operands("NN", read(A, "A"), read(B, "B"), read(C, "C")), A, B, C)
    assert len(made) == calls and C.min() == C.max() == k
