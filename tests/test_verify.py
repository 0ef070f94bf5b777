"""The comparison with float64 must pass good results and catch every kind of bad one."""

from __future__ import annotations

import numpy as np
import pytest

from cute_gemm.atoms import DTYPES
from cute_gemm.problem import from_sizes
from cute_gemm.verify import _BLOCK, bound_formula, verify

M, N, K = 37, 29, 53
FLOATS = ("float16", "bfloat16", "float32", "float64")


def operands(dtype: str, op: str = "NN", k: int = K) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    a = (M, k) if op[0] == "N" else (k, M)
    b = (k, N) if op[1] == "N" else (N, k)
    if dtype == "int8":
        return rng.integers(-128, 128, a, np.int8), rng.integers(-128, 128, b, np.int8)
    numpy = DTYPES[dtype].numpy
    return rng.standard_normal(a).astype(numpy), rng.standard_normal(b).astype(numpy)


def problem(dtype: str, op: str = "NN", k: int = K, **more):
    return from_sizes(op, m=M, n=N, k=k, dtype=dtype, **more)


def product(A, B, op="NN", out=None):
    left = A if op[0] == "N" else A.T
    right = B if op[1] == "N" else B.T
    wide = np.float64 if A.dtype == np.float64 else np.float32
    return (left.astype(wide) @ right.astype(wide)).astype(out or A.dtype)


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_good_result_passes(dtype, op):
    A, B = operands(dtype, op)
    verdict = verify(problem(dtype, op), A, B, product(A, B, op))
    assert verdict.ok
    assert (verdict.wrong, verdict.elements) == (0, M * N)
    assert verdict.max_ratio <= 1
    assert verdict.max_ratio > 0 or dtype == "float64"  # there the reference is the same sum


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
    """The mildest mistake of a kernel: one k left out."""
    A, B = operands(dtype)
    A[:, -1] = B[-1, :] = 1
    assert not verify(problem(dtype), A, B, product(A[:, :-1], B[:-1])).ok


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
    # alpha itself is rounded to float32 by the kernel
    scaled["alpha"] = float(np.float32(-0.7))
    assert verify(problem("float32"), A, B, good, **scaled).ok
    assert not verify(problem("float32"), A, B, good - 2 * old, **scaled).ok


def test_beta_zero_does_not_read_c():
    A, B = operands("float32")
    old = np.full((M, N), np.nan, np.float32)
    assert verify(problem("float32"), A, B, product(A, B), C=old, beta=0).ok


@pytest.mark.parametrize(("alpha", "k"), [(0, K), (1, 0)])
def test_without_products_a_and_b_do_not_count(alpha, k):
    A, B = operands("float32", k=k)
    A[...] = np.nan
    old = np.arange(M * N, dtype=np.float32).reshape(M, N)
    result = 3 * old
    assert verify(problem("float32", k=k), A, B, result, C=old, alpha=alpha, beta=3).ok


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
