"""Test that the benchmark's comparison with float64 agrees with `verify` and detects errors."""

from dataclasses import asdict

import fake_gpu
import numpy as np
import pytest

from cute_gemm.arrays import read
from cute_gemm.dtypes import DTYPES
from cute_gemm.measure.matrices import DeviceMatrices, Factors, Reference
from cute_gemm.problem.describe import from_operands, from_sizes
from cute_gemm.problem.values import random_values
from cute_gemm.problem.verify import verify
from cute_gemm.run.timing import copies_past_l2

M, N, K = 70, 41, 53
TYPES = [name for name, row in DTYPES.items() if row.outputs]


def problem(dtype: str, op: str = "NN", order="F", compute=None):
    return from_sizes(op, m=M, n=N, k=K, dtype=dtype, order=order, compute=compute)


def result(p, factors: Factors) -> np.ndarray:
    """Return a right result, computed in the accumulator's type."""
    accumulator = DTYPES[DTYPES[p.A.dtype].accumulator].numpy
    order = "F" if p.C.unit == 0 else "C"
    product = factors.left.astype(accumulator) @ factors.right.astype(accumulator)
    return np.asarray(product, DTYPES[p.C.dtype].numpy, order=order)


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("dtype", TYPES)
def test_it_says_what_verify_says(dtype, order):
    p = problem(dtype, order=order)
    factors = Factors(p, seed=1)
    reference, C = Reference(p, factors), result(p, factors)
    assert reference.check(C).wrong == 0
    for spoil in (1, np.nan if DTYPES[dtype].roundoff else 7):
        C[5, 7], C[61, 30] = C[5, 7] + spoil, C[61, 30] + 3
        found = reference.check(C)
        expected = verify(p, factors.stored("A", "N"), factors.stored("B", "N"), C)
        assert (found.wrong, found.worst) == (expected.wrong, expected.worst) == (2, found.worst)
        assert found.max_error == pytest.approx(expected.max_error)


def test_integers_wrap():
    p = from_sizes("NN", m=6, n=5, k=200_000, dtype="int8")
    factors = Factors(p, seed=0)
    factors.left[...] = factors.right[...] = -128
    C = np.full((6, 5), (200_000 * 2**14 + 2**31) % 2**32 - 2**31, np.int32, order="F")
    reference = Reference(p, factors)
    assert reference.check(C).wrong == 0
    C[3, 3] += 1
    assert reference.check(C).wrong == 1


def test_the_bound_is_that_of_the_products():
    """Test tf32: an error that is wrong for float32 is within its bound."""
    factors = Factors(problem("float32"), seed=0)
    C = np.asfortranarray((factors.left * np.float32(1 + 2.0**-12)) @ factors.right)
    assert Reference(problem("float32"), factors).check(C).wrong > 0
    assert Reference(problem("float32", compute="tf32"), factors).check(C).wrong == 0


def test_a_missing_last_k_is_found():
    p = problem("float32")
    factors = Factors(p, seed=0)
    C = np.asfortranarray(factors.left[:, :-1] @ factors.right[:-1])
    assert Reference(p, factors).check(C).wrong > M * N // 2


def test_blocks_do_not_matter(monkeypatch):
    from cute_gemm.measure import matrices as bench_matrices

    p = problem("float32")
    factors = Factors(p, seed=0)
    C = result(p, factors)
    C[69, 40] = np.inf
    whole = Reference(p, factors).check(C)
    monkeypatch.setattr(bench_matrices, "_BLOCK", 3 * M + 1)
    assert asdict(Reference(p, factors).check(C)) == asdict(whole)
    assert (whole.wrong, whole.worst) == (1, (69, 40))


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT", "CN", "NH", "HC"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_one_product_serves_every_op(dtype, op):
    p = problem(dtype, op)
    factors = Factors(p, seed=2)
    A, B = (factors.stored(*factors.form(name, op)) for name in "AB")
    assert A.flags.f_contiguous and B.flags.f_contiguous
    assert A.shape == ((M, K) if op[0] == "N" else (K, M))
    assert B.shape == ((K, N) if op[1] == "N" else (N, K))
    assert verify(p, A, B, result(p, factors)).ok


@pytest.mark.parametrize("l", [1, 3])
@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT", "CH"])
def test_padded_columns_lie_as_the_problem_says(op, l):
    lda, ldb = (M if op[0] == "N" else K) + 3, (K if op[1] == "N" else N) + 3
    p = from_sizes(op, m=M, n=N, k=K, l=l, dtype="complex64", lda=lda, ldb=ldb)
    plain, factors = (Factors(p, seed=2, pad=pad) for pad in (0, 3))
    A, B = (factors.stored(*factors.form(name, op)) for name in "AB")
    C = np.empty((l, N, M)[-3 + (l == 1) :], np.complex64).swapaxes(-1, -2)
    a, b, c = (read(x, name) for x, name in ((A, "A"), (B, "B"), (C, "C")))
    assert from_operands(op, a, b, c, order="F") == p
    for name, x in (("A", A), ("B", B)):
        assert np.array_equal(x, plain.stored(*plain.form(name, op)))


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("op", ["NT", "CN"])
def test_a_batch(op, order):
    p = from_sizes(op, m=M, n=N, k=K, l=3, dtype="complex64", order=order)
    factors = Factors(p, seed=2)
    A, B = (factors.stored(*factors.form(name, op)) for name in "AB")
    assert A.shape[0] == B.shape[0] == 3
    assert all(x.flags.f_contiguous for x in (*A, *B))
    C = factors.left @ factors.right
    if order == "F":
        C = np.ascontiguousarray(C.swapaxes(1, 2)).swapaxes(1, 2)
    reference = Reference(p, factors)
    assert reference.check(C).wrong == 0 and verify(p, A, B, C).ok
    C[2, 69, 7] += 1
    assert (reference.check(C).wrong, reference.check(C).worst) == (1, (2, 69, 7))


def test_equal_forms_are_held_once():
    real, complex_ = (Factors(problem(t), 0) for t in ("float32", "complex64"))
    assert real.form("A", "TN") == real.form("A", "CN") == real.form("A", "HT")
    assert complex_.form("B", "NC") == complex_.form("B", "TH") != complex_.form("B", "NT")


@pytest.mark.parametrize("dtype", [*TYPES, "int32"])
def test_random_values_are_normal_or_of_8_bits(dtype):
    values = random_values(np.random.default_rng(0), (200, 300), dtype)
    assert values.dtype == DTYPES[dtype].numpy
    if dtype.startswith("int"):
        assert (values.min(), values.max()) == (-128, 127)
        return
    parts = [values.real, values.imag] if np.iscomplexobj(values) else [values]
    for part in parts:
        assert abs(part.astype(np.float64).std() - 1) < 0.02


def test_matrices_on_the_device(monkeypatch):
    gpu = fake_gpu.install(monkeypatch)
    p = problem("float32")
    factors, C = Factors(p, 0), np.zeros((M, N), np.float32, order="F")
    with DeviceMatrices(factors, C, 3, device=0) as matrices:
        places = {op: matrices.of(op)[0] for op in ("NN", "TN", "NT")}
        assert len(gpu.memory) == 5 * 3  # A and B in two forms each, C once
        assert len({a for a, _, _ in places["NN"]}) == 3
        assert [b for _, b, _ in places["NN"]] == [b for _, b, _ in places["TN"]]
        assert [c for *_, c in places["NN"]] == [c for *_, c in places["NT"]]
        assert (gpu.memory[places["TN"][2][0]] == factors.left.T).all()
        matrices.spoil()
        matrices.download()
        assert np.isnan(C).all()
    assert not gpu.memory


def test_copies_exceed_twice_the_cache():
    l2 = 60 << 20
    for size in (300, 1024, 2000, 4096):
        cube = from_sizes("NN", m=size, n=size, k=size, dtype="float32")
        each, copies = 3 * 4 * size**2, copies_past_l2(cube, l2)
        assert copies == 1 or copies * each > 2 * l2 >= (copies - 1) * each
    assert copies_past_l2(from_sizes("NN", m=1, n=1, k=1, dtype="float32"), l2) == 256
