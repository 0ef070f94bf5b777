"""Test ``compute="bf16x9"`` and ``"bf16x6"``: float32 as products of bfloat16 components."""

from typing import Any

import numpy as np
import pytest

import cute_gemm as cg
from cute_gemm.dtypes import COMPONENT_PRODUCTS
from cute_gemm.errors import OptionError, UnsupportedError
from cute_gemm.problem.verify import verify

COMPUTES = tuple(COMPONENT_PRODUCTS)
FAST = {"kernel": "sm90_wgmma", "tile": (64, 64, 64), "warp_groups": 1, "stages": 3}
INTERPRETED = {"arch": "sm_90a", "backend": "interpreter"}


def operand(random: np.random.Generator, rows: int, columns: int, pad: int = 0) -> np.ndarray:
    """Return a column-major matrix with ``pad`` elements between columns."""
    whole = np.full((columns, rows + pad), np.nan, np.float32)
    whole[:, :rows] = random.standard_normal((columns, rows))
    return whole[:, :rows].T


def given(op: str, m: int, n: int, k: int, pad: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    a = operand(random, *((m, k) if op[0] == "N" else (k, m)), pad)
    return a, operand(random, *((k, n) if op[1] == "N" else (n, k)), pad)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
def test_every_op(op: str, compute: str) -> None:
    order = "C" if op in ("NN", "TT") else "F"
    A, B = given(op, 72, 52, 140, pad=op[0] == "T")
    plan = cg.plan(op, A, B, compute=compute, order=order, **INTERPRETED, **FAST)
    C = np.full((72, 52), np.nan, np.float32, order=order)
    assert verify(plan.problem, A, B, plan(A, B, C)).ok


OTHERS: dict[str, dict[str, Any]] = {
    "ping-pong": {"tile": (64, 64, 64), "warp_groups": 2, "ping_pong": 1},
    "swapped": {"tile": (64, 128, 64), "warp_groups": 2, "swap_ab": 1},
    "cluster": {"tile": (64, 32, 64), "warp_groups": 1, "cluster": (2, 1)},
    "slices of K": {"tile": (64, 64, 64), "warp_groups": 1, "split_k": 2},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_every_way_through_the_kernel(options: dict[str, Any]) -> None:
    A, B = given("TN", 130, 100, 200)
    C = np.ones((130, 100), np.float32, order="F")
    options = {"kernel": "sm90_wgmma", "stages": 3, **options}
    plan = cg.plan("TN", A, B, C, compute="bf16x6", **INTERPRETED, **options)
    before = C.copy()
    plan(A, B, C, alpha=2.0, beta=-1.0)
    assert verify(plan.problem, A, B, C, C=before, alpha=2.0, beta=-1.0).ok


@pytest.mark.parametrize("shared", [False, True])
def test_batches(shared: bool) -> None:
    random = np.random.default_rng(0)
    A = random.standard_normal((3, 40, 70), np.float32)
    B = random.standard_normal((70, 30) if shared else (3, 70, 30), np.float32)
    plan = cg.plan("NN", A, B, compute="bf16x9", order="C", **INTERPRETED, **FAST)
    assert verify(plan.problem, A, B, plan(A, B)).ok


def test_an_epilogue() -> None:
    A, B = given("TN", 64, 48, 64)
    bias = np.arange(48, dtype=np.float32)
    options = {"compute": "bf16x9", "epilogue": "bias+relu", "bias": bias}
    C = cg.gemm("TN", A, B, **options, **INTERPRETED, **FAST)
    np.testing.assert_allclose(C, np.maximum(A.T @ B + bias, 0), rtol=1e-5, atol=1e-5)


# ---- accuracy -----------------------------------------------------------------------------------


def errors(A: np.ndarray, B: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Return errors over ``sum |a||b|``."""
    wide = A.astype(np.float64), B.astype(np.float64)
    return np.abs(C - wide[0] @ wide[1]) / (np.abs(wide[0]) @ np.abs(wide[1]))


def in_order(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return the product as a loop over k computes it in float32."""
    C = np.zeros((A.shape[0], B.shape[1]), np.float32)
    for k in range(A.shape[1]):
        exact = np.multiply.outer(A[:, k].astype(np.float64), B[k].astype(np.float64))
        C = (C + exact).astype(np.float32)  # a fused multiply-add
    return C


def drawn(kind: str, random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    x = random.standard_normal(shape)
    if kind == "wide":
        x *= 2.0 ** random.integers(-12, 13, shape)
    elif kind == "positive":
        x = np.abs(x)
    elif kind == "large":
        x *= 1e18
    return x.astype(np.float32)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("kind", ["normal", "wide", "positive", "large"])
def test_errors_are_at_most_those_of_float32(kind: str, compute: str) -> None:
    random = np.random.default_rng(1)
    A, B = drawn(kind, random, (64, 512)), drawn(kind, random, (512, 32))
    C = cg.gemm("NN", A, B, compute=compute, **INTERPRETED, **FAST)
    found, plain = errors(A, B, C), errors(A, B, in_order(A, B))
    assert found.max() <= plain.max() and np.sqrt((found**2).mean() / (plain**2).mean()) <= 1


def test_components_are_the_elements() -> None:
    """Test that a product with 1 is exact, for normal numbers with a normal last component."""
    x = np.array([1, -1, 1 + 2**-23, 1 / 3, np.pi, -1e30, 1e-30, 3.4028235e38, 2.0**-110, 0.0])
    A, B = x.astype(np.float32)[:, None], np.ones((1, 16), np.float32)
    C = cg.gemm("NN", A, B, compute="bf16x9", **INTERPRETED, **FAST)
    assert (C == A).all()


@pytest.mark.parametrize("rows", [64, 128])  # with and without ping-pong
@pytest.mark.parametrize("compute", COMPUTES)
def test_infinities_and_nan_are_those_of_float32(compute: str, rows: int) -> None:
    A, B = given("NN", 8, 16, 64)
    A[0, 3], A[1, 5], A[2, 7], A[3, :2] = np.inf, -np.inf, np.nan, (np.inf, -np.inf)
    B[9, 4] = np.inf
    A[4, 9], A[5, 9] = 0, 1 / 3
    options = {**FAST, "tile": (rows, 64, 64), "swap_ab": 0}
    C = cg.gemm("NN", A, B, compute=compute, **INTERPRETED, **options)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.where(np.isfinite(C), 0, C),
                                      np.where(np.isfinite(A @ B), 0, A @ B))  # fmt: skip


# ---- reports ------------------------------------------------------------------------------------


def test_counts_are_those_of_the_execution() -> None:
    for op, extents in (("TN", (72, 52, 140)), ("NT", (70, 51, 130))):
        arrays = given(op, *extents)
        plan = cg.plan(op, *arrays, compute="bf16x6", **INTERPRETED, **FAST)
        trace = plan.trace(*arrays)
        assert trace.agrees, str(trace)


def test_packed_once() -> None:
    A, B = given("TN", 40, 30, 70)
    plan = cg.plan("TN", A, B, compute="bf16x9", arch="sm_90a", backend="cpu")
    packed = plan.pack(B, "B")
    assert packed.target.dtype == "bfloat16"
    np.testing.assert_allclose(plan(A, packed), A.T @ B, rtol=1e-5, atol=1e-5)


def test_the_selection_and_its_roofline() -> None:
    sizes = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float32", "gpu": "H200"}
    plain = cg.plan("NT", **sizes, compute="tf32").report().performance
    for compute, products in COMPONENT_PRODUCTS.items():
        plan = cg.plan("NT", **sizes, compute=compute)
        assert plan.kernel == "sm90_wgmma" and plan.algorithm.pack == "AB"
        roof = plan.report().performance.roofline
        assert roof.peak_tflops == pytest.approx(2 * plain.roofline.peak_tflops / products)
        assert plan.problem.spelled == f"float32/{compute}"


def test_predictions_count_all_products() -> None:
    sizes = {
        "m": 4096, "n": 4096, "k": 4096, "arch": "sm_90a", "gpu": "H200", "tile": (128, 128, 64),
    }  # fmt: skip
    options = {
        **sizes, "dtype": "float32", "kernel": "sm90_wgmma", "cluster": (1, 1), "warp_groups": 2,
    }  # fmt: skip
    six, nine = (cg.plan("NT", **options, compute=x).candidates()[0].prediction for x in COMPUTES)
    for unit in ("TMA", "tensor cores"):
        assert nine.terms[unit] == pytest.approx(1.5 * six.terms[unit])


def test_empty_products_have_no_components() -> None:
    A, B = np.ones((3, 0), np.float32), np.ones((0, 4), np.float32)
    assert (cg.gemm("NN", A, B, compute="bf16x9", backend="cpu") == 0).all()


def test_refused() -> None:
    A, B = given("NN", 40, 30, 70)
    with pytest.raises(UnsupportedError, match="the only kernel is 'sm90_wgmma', for sm_90a"):
        cg.plan("NN", A, B, compute="bf16x9", arch="sm_80")
    with pytest.raises(UnsupportedError, match="'thin' computes no products of components.*: take"):
        cg.plan("NN", A, B, compute="bf16x9", arch="sm_90a", kernel="thin")
    with pytest.raises(OptionError, match="pack='none' came with compute='bf16x9'"):
        cg.plan("NN", A, B, compute="bf16x9", arch="sm_90a", pack="none")
    with pytest.raises(OptionError, match="does not go with dtype float64"):
        cg.plan("NN", A.astype("f8"), B.astype("f8"), compute="bf16x9")
    ends = np.array([40], np.int32)
    with pytest.raises(OptionError, match="grouped GEMM"):
        cg.grouped_gemm("NN", A, B[None], ends, compute="bf16x6")
