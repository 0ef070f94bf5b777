"""Test that the comparison with float64 accepts good results and rejects wrong ones."""

import cases
import numpy as np
import pytest

from cute_gemm.dtypes import DTYPES
from cute_gemm.problem import verify as verifying
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.verify import _BLOCK, bound_formula, verify

M, N, K = 37, 29, 53
COMPLEX = ("complex64", "complex128")
FLOATS = ("float16", "bfloat16", "float32", "float64", *COMPLEX)


def operands(dtype: str, op: str = "NN", k: int = K) -> tuple[np.ndarray, np.ndarray]:
    return cases.operands(op, dtype, mnk=(M, N, k))


def problem(dtype: str, op: str = "NN", k: int = K, **more):
    return from_sizes(op, m=M, n=N, k=k, dtype=dtype, **more)


def product(A, B, op="NN", out=None):
    left = A if op[0] == "N" else A.T
    right = B if op[1] == "N" else B.T
    left = left.conj() if op[0] in "CH" else left
    right = right.conj() if op[1] in "CH" else right
    wide = A.dtype if A.dtype in (np.float64, *COMPLEX) else np.float32
    return (left.astype(wide) @ right.astype(wide)).astype(out or A.dtype)


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT", "CN", "NH", "HC"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_good_result_passes(dtype, op):
    A, B = operands(dtype, op)
    verdict = verify(problem(dtype, op), A, B, product(A, B, op))
    assert verdict.ok
    assert (verdict.wrong, verdict.elements) == (0, M * N)
    assert verdict.max_ratio <= 1
    # For float64, the reference has the same sum.
    assert verdict.max_ratio > 0 or dtype in ("float64", "complex128")


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_wrong_element_is_found(dtype):
    A, B = operands(dtype)
    result = product(A, B)
    result[5, 7] += DTYPES[dtype].numpy.type(1.0)
    verdict = verify(problem(dtype), A, B, result)
    assert not verdict.ok
    assert (verdict.wrong, verdict.worst) == (1, (5, 7))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_missing_last_k_is_found(dtype):
    """Test a result without the last k, the smallest error of a kernel."""
    A, B = operands(dtype)
    A[:, -1] = B[-1, :] = 1
    assert not verify(problem(dtype), A, B, product(A[:, :-1], B[:-1])).ok


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("given", ["TN", "CT", "NC"])
def test_a_conjugate_too_many_or_too_few_is_found(dtype, given):
    A, B = operands(dtype, given)
    for op in {given[0] + letter for letter in given[1] + "TC"} - {given}:
        if (op[1] == "N") == (given[1] == "N"):
            assert verify(problem(dtype, given), A, B, product(A, B, op)).wrong > 0.9 * M * N


@pytest.mark.parametrize("dtype", COMPLEX)
def test_each_part_of_a_complex_number_counts(dtype):
    A, B = operands(dtype)
    for change in (1e-3, 1e-3j):
        result = product(A, B)
        result[5, 7] += change
        assert verify(problem(dtype), A, B, result).worst == (5, 7)
        assert not verify(problem(dtype), A, B, result).ok


def test_the_complex_bound_is_the_one_that_it_says():
    k = 1 << 12
    A, B = np.full((1, k), 1 + 1j, np.complex64), np.full((k, 1), 1 + 1j, np.complex64)
    sizes = from_sizes("NN", m=1, n=1, k=k, dtype="complex64")
    allowed = 2 * np.sqrt(2) * k * 2.0**-24 * (2 * k)  # for |a||b| = 2
    for share, good in ((0.99, True), (1.01, False)):
        for direction in (1, 1j, (1 + 1j) / np.sqrt(2)):
            off = np.full((1, 1), 2j * k + share * allowed * direction, np.complex64)
            assert verify(sizes, A, B, off).ok == good


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_alpha_and_beta(dtype):
    A, B = operands(dtype)
    kind = np.dtype(dtype).type
    old = product(A, B)[::-1].copy()
    alpha, beta = complex(kind(0.6 - 0.7j)), complex(kind(-1 + 0.3j))
    good = kind(alpha) * product(A, B) + kind(beta) * old
    given = {"C": old, "alpha": alpha, "beta": beta}
    assert verify(problem(dtype), A, B, good, **given).ok
    for name in ("alpha", "beta"):
        for wrong in (given[name].conjugate(), given[name].real):
            assert not verify(problem(dtype), A, B, good, **{**given, name: wrong}).ok


def test_complex_infinities_and_nan():
    A, B = operands("complex64")
    A[4, 0] = complex(np.inf, 0)
    A[6, 1] = complex(0, np.nan)
    with np.errstate(all="ignore"):
        good = product(A, B)
    for value in (complex(np.inf, np.nan), complex(0, np.inf), np.nan):
        good[4, 3] = value  # which part it is depends on the order of the products
        assert verify(problem("complex64"), A, B, good).ok
    for row, column in ((4, 3), (6, 3)):
        bad = good.copy()
        bad[row, column] = 0
        verdict = verify(problem("complex64"), A, B, bad)
        assert (verdict.wrong, verdict.worst) == (1, (row, column))
    bad = good.copy()
    bad[7, 3] = complex(bad[7, 3].real, np.inf)
    assert verify(problem("complex64"), A, B, bad).worst == (7, 3)


def test_complex_overflow_of_the_output():
    A, B = operands("complex64")
    A[...] = B[...] = 1e20 + 1e20j
    result = np.full((M, N), complex(np.nan, np.inf), np.complex64)
    assert verify(problem("complex64"), A, B, result).ok
    result[0, 0] = 3e38j
    assert verify(problem("complex64"), A, B, result).wrong == 1


@pytest.mark.parametrize("shared", ["", "A", "B"])
@pytest.mark.parametrize("block", [None, 40])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_batches(monkeypatch, dtype, block, shared):
    """Test that each matrix has its own bound, and that the message names its matrix."""
    monkeypatch.setattr(verifying, "_BLOCK", block or _BLOCK)
    pairs = [operands(dtype, "TN") for _ in range(5)]
    A, B = (np.stack([pair[i] for pair in pairs]) for i in (0, 1))
    for i in range(5):
        A[i], B[i] = np.roll(A[i], i), np.roll(B[i], 2 * i)
    A, B = A[0] if shared == "A" else A, B[0] if shared == "B" else B
    wide = np.int64 if dtype == "int8" else A.dtype if dtype in ("float64", *COMPLEX) else "f4"
    out = DTYPES[dtype].outputs[0]
    good = (A.swapaxes(-1, -2).astype(wide) @ B.astype(wide)).astype(DTYPES[out].numpy)
    batch = problem(dtype, "TN", l=5)
    verdict = verify(batch, A, B, good)
    assert verdict.ok and verdict.elements == 5 * M * N and len(verdict.worst) == 3
    bad = good.copy()
    bad[3, 5, 7] += 1
    verdict = verify(batch, A, B, bad)
    assert (verdict.wrong, verdict.worst) == (1, (3, 5, 7))
    scaled = {"C": good[::-1], "alpha": 0, "beta": 2}
    assert verify(batch, A, B, 2 * good[::-1], **scaled).ok
    assert not verify(batch, A, B, 2 * good, **scaled).ok


def test_a_batch_of_none():
    A, B = operands("float32")
    verdict = verify(problem("float32", l=0), A, B, np.ones((0, M, N), "f4"))
    assert verdict.ok and (verdict.elements, verdict.worst) == (0, None)


def test_nan_and_unwritten_elements_are_found():
    A, B = operands("float32")
    result = product(A, B)
    result[3:5, 2] = np.nan
    verdict = verify(problem("float32"), A, B, result)
    assert verdict.wrong == 2
    assert verdict.worst == (3, 2)


def test_infinities_and_nan_of_the_input_are_expected():
    A, B = operands("float32")
    A[4, 0] = np.inf
    A[6, 1] = np.nan
    good = product(A, B)
    assert verify(problem("float32"), A, B, good).ok
    bad = good.copy()
    bad[4, 3] = 0
    assert verify(problem("float32"), A, B, bad).wrong == 1


def test_overflow_of_the_output_is_infinity():
    A, B = operands("float16")
    A[...] = B[...] = 60000
    result = np.full((M, N), np.inf, np.float16)
    assert verify(problem("float16"), A, B, result).ok
    result[0, 0] = 65504
    assert verify(problem("float16"), A, B, result).wrong == 1


def test_alpha_and_beta():
    A, B = operands("float32")
    old = np.ones((M, N), np.float32)
    good = np.float32(-0.7) * product(A, B) + np.float32(2) * old
    scaled = {"C": old, "alpha": -0.7, "beta": 2}
    # the kernel rounds alpha to float32
    scaled["alpha"] = float(np.float32(-0.7))
    assert verify(problem("float32"), A, B, good, **scaled).ok
    assert not verify(problem("float32"), A, B, good - 2 * old, **scaled).ok


def test_beta_zero_does_not_read_c():
    A, B = operands("float32")
    old = np.full((M, N), np.nan, np.float32)
    assert verify(problem("float32"), A, B, product(A, B), C=old, beta=0).ok


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(("alpha", "k"), [(0, K), (1, 0), (np.inf, 0), (np.nan, 0)])
def test_without_products_a_and_b_do_not_count(dtype, alpha, k):
    A, B = operands(dtype, k=k)
    A[...] = np.nan
    old = np.arange(M * N, dtype=dtype).reshape(M, N)
    result = 3 * old
    scaled = {"C": old, "alpha": alpha, "beta": 3}
    assert verify(problem(dtype, k=k), A, B, result, **scaled).ok
    result[2, 3] = 0
    assert verify(problem(dtype, k=k), A, B, result, **scaled).wrong == 1


def test_integers_are_exact_and_wrap():
    A, B = operands("int8")
    exact = A.astype(np.int64) @ B.astype(np.int64)
    alpha = 2**26 + 1
    result = (alpha * exact).astype(np.int32)
    assert verify(problem("int8"), A, B, result, alpha=alpha).ok
    result[2, 3] += 1
    verdict = verify(problem("int8"), A, B, result, alpha=alpha)
    assert (verdict.wrong, verdict.worst) == (1, (2, 3))


def test_tf32_has_room_for_rounded_factors_and_float32_does_not():
    A, B = operands("float32")
    bits = A.view(np.int32)
    rounded = ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(np.float32)
    result = product(rounded, B)
    assert verify(problem("float32", compute="tf32"), A, B, result).ok
    assert not verify(problem("float32"), A, B, result).ok


@pytest.mark.parametrize("empty", [{"m": 0}, {"n": 0}])
def test_nothing_to_compare(empty):
    sizes = {"m": 3, "n": 4, "k": 5} | empty
    A = np.ones((sizes["m"], 5), np.float32)
    B = np.ones((5, sizes["n"]), np.float32)
    verdict = verify(from_sizes("NN", dtype="float32", **sizes), A, B, A @ B)
    assert verdict.ok
    assert verdict.worst is None


def test_column_blocks_have_the_right_index():
    rows = _BLOCK // 8
    A = np.ones((rows, 1), np.float32)
    B = np.ones((1, 20), np.float32)
    result = np.ones((rows, 20), np.float32)
    result[7, 18] = 2
    verdict = verify(from_sizes("NN", m=rows, n=20, k=1, dtype="float32"), A, B, result)
    assert (verdict.wrong, verdict.worst) == (1, (7, 18))


def test_the_formula_names_the_types():
    assert bound_formula(problem("float16")) == "2^-11 |C| + K 2^-24 sum |a||b|"
    assert bound_formula(problem("float64")) == "2^-53 |C| + 2 K 2^-53 sum |a||b|"
    assert bound_formula(problem("int8")) == "exact, modulo 2^32"
    assert bound_formula(problem("complex64")) == "2^-24 |C| + 2 sqrt(2) K 2^-24 sum |a||b|"
    assert bound_formula(problem("complex128")) == "2^-53 |C| + 4 sqrt(2) K 2^-53 sum |a||b|"
