"""Test ``epilogue=`` of gemm, plan and analyze: operands, further results, plans, errors."""

import re
from typing import Any

import numpy as np
import pytest
from fused_cases import CASES, MANY_ACCUMULATORS, FusedCase, planned, run, run_many_accumulators
from unity_build import unity_build

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.problem.epilogue.fuse import fuse, read_operands

M, N, K = 40, 48, 64


@cg.epilogue
def gated(acc: Any, bias: Any, up: Any, scale: Any) -> Any:
    z = acc + bias
    return cg.silu(z) * up * scale


@cg.epilogue
def with_sums(acc: Any, bias: Any) -> Any:
    z = acc + bias
    y = cg.silu(z)
    return y, z, cg.amax(y)


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape)
    return numbers.astype(DTYPES[dtype].numpy)


A, B, BIAS, UP = random(M, K), random(N, K), random(N), random(M, N)
Z = A.astype(float) @ B.astype(float).T + BIAS


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_operands_by_keyword(backend: Any) -> None:
    given = {"bias": BIAS, "up": UP, "scale": 0.5, "backend": backend}
    C = cg.gemm("NT", A, B, epilogue=gated, order="C", **given)
    np.testing.assert_allclose(C, silu(Z) * UP * 0.5, rtol=1e-4, atol=1e-4)
    assert C.flags.c_contiguous
    # ``acc`` is the whole linear combination, and a 0-d host array is a number.
    given["scale"] = np.float32(2)
    D = cg.gemm("NT", A, B, C.copy(), alpha=-1, beta=3.0, epilogue=gated, **given)
    z = 2 * BIAS - Z + 3 * C
    np.testing.assert_allclose(D, silu(z) * UP * 2, rtol=2e-3, atol=2e-3)


def arch_of(case: FusedCase) -> str | None:
    return "sm_90a" if case.kernel == "sm90_wgmma" else None


@pytest.mark.parametrize("case", CASES, ids=str)
@unity_build(lambda case: planned(case, "cpu", arch_of(case))[0])
def test_every_family(case: FusedCase) -> None:
    run(case, "interpreter", arch_of(case))


@pytest.mark.parametrize("case", MANY_ACCUMULATORS)
def test_a_vector_with_many_accumulators(case: Any) -> None:
    run_many_accumulators(case, "interpreter", "sm_90a")


@pytest.mark.parametrize("case", MANY_ACCUMULATORS)
def test_spills_with_many_accumulators_are_outside_the_main_loop(case: Any) -> None:
    dtype, order, _, options = case
    asked = {"dtype": dtype, "order": order, "kernel": "sm90_wgmma", "arch": "sm_90a", **options}
    plan = cg.plan("TN", m=264, n=328, k=136, epilogue="bias+gelu", bias=(328,), backend="cpu",
                   **asked)  # fmt: skip
    lines = plan.sass.splitlines()
    products = [place for place, line in enumerate(lines) if "HGMMA" in line]
    back = next(x for x in range(products[-1], len(lines)) if "BRA" in lines[x])
    label = re.findall(r"\.L_x_\d+", lines[back])[0]
    loop = lines[lines.index(f"{label}:") : back]
    assert len(products) >= 4 and not [line for line in loop if re.search("LDL|STL", line)]
    assert plan.resources.spill_loads < 400


@pytest.mark.parametrize("kernel", ["naive", "sm80_pipeline", "sm90_wgmma"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_accesses_are_as_reported(kernel: str, order: Any) -> None:
    a, b, bias = (x.astype(DTYPES["bfloat16"].numpy) for x in (A, B, BIAS))
    options = {"kernel": kernel, "arch": "sm_90a" if kernel == "sm90_wgmma" else "sm_80"}
    plan = cg.plan("NT", a, b, epilogue=with_sums, bias=bias, order=order, backend="cpu", **options)
    trace = plan.trace(a, b, bias=bias)
    assert trace.agrees and trace.verdict.ok
    rows = {row.operand: row for row in plan.report().rows}
    assert (rows["bias"].direction, rows["result_1"].direction) == ("load", "store")


@pytest.mark.parametrize(
    ("kernel", "options"),
    [("double_buffered", {}), ("vectorized", {}), ("sm80_pipeline", {"split_k": 2})],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_accesses_where_vectors_of_c_straddle_its_end(
    kernel: str, options: dict[str, Any], order: Any
) -> None:
    """Test padded rows: partial vectors are accessed by elements, also of operands and results."""
    m, n, k = 38, 45, 64
    whole = np.zeros((m, 48) if order == "C" else (n, 40), np.float32)
    C = whole[:, :n] if order == "C" else whole[:, :m].T
    up = random(m, 48)[:, :n], np.asfortranarray(random(40, n))[:m]
    for number in (0, 1):
        given = {"bias": random(n), "up": up[number], "scale": 0.5}
        a, b = random(m, k), random(n, k)
        plan = cg.plan("NT", a, b, C, epilogue=gated, kernel=kernel, arch="sm_80",
                       backend="cpu", **given, **options)  # fmt: skip
        trace = plan.trace(a, b, C, **given)
        assert trace.agrees and trace.verdict.ok


def test_a_nan_is_the_greatest() -> None:
    a = A.copy()
    a[3, 5] = np.nan
    for backend in ("cpu", "interpreter"):
        y, _, greatest = cg.gemm("NT", a, B, epilogue=with_sums, bias=BIAS, backend=backend)
        assert np.isnan(greatest) and np.isnan(y[3]).all() and np.isfinite(y[4:]).all()


def test_the_greatest_is_of_what_lies_inside() -> None:
    """Test that ``amax`` ignores elements of a tile outside of C. Their value would be 1."""
    nearest = cg.epilogue(lambda acc: (acc, cg.amax(cg.exp(-abs(acc)))))
    a, b = A.astype(np.float16), B.astype(np.float16)
    options = {"kernel": "sm90_wgmma", "arch": "sm_90a", "tile": (64, 64, 64), "warp_groups": 1}
    _, greatest = cg.gemm("NT", a, b, epilogue=nearest, backend="interpreter", **options)
    exact = np.exp(-abs(a.astype(float) @ b.astype(float).T)).max()
    assert exact < 0.999 and greatest == pytest.approx(exact, rel=1e-4)


def test_batches_share_operands_or_not() -> None:
    a, each = random(3, M, K), random(3, 1, N)
    for bias in (BIAS, each):
        y, z, greatest = cg.gemm("NT", a, B, epilogue=with_sums, bias=bias, backend="interpreter")
        np.testing.assert_allclose(z, a @ B.T + bias, rtol=1e-4, atol=1e-4)
        assert z.shape == y.shape == (3, M, N)
        assert greatest == pytest.approx(abs(silu(z.astype(float))).max(), rel=1e-5)


def test_float64_and_nothing_to_multiply() -> None:
    a, b = A.astype(float), B.astype(float)
    y, _, greatest = cg.gemm("NT", a, b, epilogue=with_sums, bias=BIAS, backend="interpreter")
    assert greatest.dtype == np.float64 and greatest == pytest.approx(abs(y).max(), rel=1e-14)
    # With alpha = 0, NaN in A are not read, and the epilogue is applied.
    C = cg.gemm(
        "NT", A * np.nan, B, alpha=0, epilogue="bias+relu", bias=BIAS, backend="interpreter"
    )
    np.testing.assert_array_equal(C, np.broadcast_to(np.maximum(BIAS, 0), (M, N)))


def test_integers_are_rounded_and_saturate() -> None:
    quantize = cg.epilogue(lambda acc: (acc, cg.cast(acc * 8, "int8"), cg.cast(acc, "float64")))
    a = A.copy()
    a[0] = np.nan
    for backend in ("cpu", "interpreter"):
        y, q, wide = cg.gemm("NT", a, B, epilogue=quantize, backend=backend)
        assert (q.dtype, wide.dtype) == (np.int8, np.float64)
        assert (q[0] == 0).all() and q.min() == -128 and q.max() == 127
        np.testing.assert_array_equal(q[1:], np.clip(np.rint(y[1:] * 8), -128, 127))
        np.testing.assert_array_equal(wide[1:], y[1:].astype(float))


def test_a_plan_takes_other_numbers_and_arrays() -> None:
    plan = cg.plan("NT", A, B, epilogue=gated, bias=BIAS, up=UP, scale=1.0, backend="interpreter")
    assert plan.problem.numbers == (0.0,) and "epilogue=gated" in repr(plan)
    for scale in (0.5, 2.0):
        C = plan(A, B, bias=BIAS, up=UP, scale=scale)
        np.testing.assert_allclose(C, silu(Z) * UP * scale, rtol=1e-4, atol=1e-4)
    for given, said in (
        ({"bias": BIAS, "up": UP, "scale": UP}, "the epilogue's operands are"),
        ({"bias": BIAS, "up": np.asfortranarray(UP), "scale": 1}, "the epilogue's operands are"),
        ({"bias": BIAS, "up": random(M, 2 * N)[:, :N], "scale": 1}, "up is (40,48):(96,1)"),
    ):
        with pytest.raises(cg.GemmError) as caught:
            plan(A, B, **given)
        assert said in str(caught.value)
    with pytest.raises(cg.GemmError, match="bias= came with a plan without an epilogue"):
        cg.plan("NT", A, B, backend="cpu")(A, B, bias=BIAS)


def test_sizes_have_operands_too() -> None:
    sizes: dict[str, Any] = {"m": 256, "n": 128, "k": 64, "dtype": "float16", "arch": "sm_80"}
    plan = cg.plan("NN", **sizes, epilogue="scale+bias+gelu+residual")
    assert [str(x) for x in plan.problem.operands] == ["(256,128):(0,1)", "(256,128):(1,256)"]
    assert plan.problem.epilogue.numbers == ("scale",)
    plan = cg.plan("NN", **sizes, epilogue=gated, bias=(256, 1), up=(256, 128), scale=())
    strides = ["(256,128):(1,0)", "(256,128):(128,1)", "(256,128):(0,0)"]
    assert [str(x) for x in plan.problem.operands] == strides
    with pytest.raises(cg.GemmError, match="reads up: pass up="):
        cg.plan("NN", **sizes, epilogue=gated)
    report = cg.analyze("NN", **sizes, epilogue="bias+gelu")
    (row,) = (row for row in report.rows if row.operand == "bias")
    assert row.direction == "load" and "bias" in str(report)
    with pytest.raises(cg.GemmError, match="has no argument 'wait'"):
        cg.analyze("NN", **sizes, epilogue="bias", wait=1)


def test_what_does_not_fit() -> None:
    C = np.zeros((M, N), np.float32)
    buffer = np.zeros(M * N + N, np.float32)
    inside = buffer[: M * N].reshape(M, N)
    for given, said in (
        (
            {"bias": BIAS},
            "gemm() has no argument 'bias'; name it in epilogue=, as in epilogue='bias'",
        ),
        ({"epilogue": "bias+gelu"}, "epilogue 'bias+gelu' reads bias: pass bias="),
        ({"epilogue": "gelu", "bias": BIAS}, "gemm() has no argument 'bias'"),
        ({"epilogue": "bias", "bias": BIAS[:3]}, "bias has shape (3,), and C is (40, 48)"),
        ({"epilogue": lambda acc, stages: acc + stages, "stages": 1.0}, "which is an option of"),
        ({"epilogue": "bias", "bias": buffer[M : M + N], "C": inside}, "C shares memory with bias"),
        ({"epilogue": "bias", "bias": 1.0, "kernel": "host"}, "beta C alone, not epilogue 'bias'"),
        (
            {"epilogue": lambda acc: (cg.amax(acc), acc)},
            "returns amax first; expected the value of C",
        ),
        ({"epilogue": lambda acc: (acc, 3)}, "returns 3; expected a value of its arguments"),
    ):
        with pytest.raises(cg.GemmError) as caught:
            cg.gemm("NT", A, B, given.pop("C", C), backend="cpu", **given)
        assert said in str(caught.value)
    assert not C.any() and not buffer.any()
    # Another type is an error at any address.
    wide = np.zeros(M * N + N, np.int64)
    inside = wide[N:].view(np.float32)[: M * N].reshape(M, N)
    for bias in (wide[:N], wide[N : 2 * N], wide[-N:]):
        with pytest.raises(cg.GemmError, match="bias has dtype int64; expected a real type"):
            cg.gemm("NT", A, B, inside, epilogue="bias", bias=bias, backend="cpu")


def lying(how: str, lead: tuple[int, ...] = ()) -> np.ndarray:
    """Return numbers (M, N), row-major or column-major, with or without padding."""
    pad = 3 * ("padded" in how)
    if how[0] == "F":
        return random(*lead, N + pad, M + pad)[..., :N, :M].swapaxes(-1, -2)
    return random(*lead, M + pad, N + pad)[..., :M, :N]


@pytest.mark.parametrize("how", ["C", "F", "C padded", "F padded"])
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_c_may_be_its_own_operand(backend: Any, how: str) -> None:
    """Test that every element is read before it is written, also by further results."""
    for lead, options in (((), {}), ((2,), {}), ((), {"split_k": 2})):
        a, b, C = random(*lead, M, K), random(*lead, N, K), lying(how, lead)
        before, acc = C.copy(), a @ b.swapaxes(-1, -2) + 2 * C

        def several(acc: Any, old: Any) -> Any:
            return acc + 3 * old, acc - old, cg.amax(acc * old)

        given = {"old": C, "backend": backend, "arch": "sm_80", **options}
        found = cg.gemm("NT", a, b, C, beta=2, epilogue=several, **given)
        expected = acc + 3 * before, acc - before, abs(acc * before).max()
        assert found[0] is C
        for each, same in zip(found, expected, strict=True):
            np.testing.assert_allclose(each, same, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("how", ["C", "F padded"])
def test_a_trace_of_c_as_its_own_operand(how: str) -> None:
    C = lying(how)
    plan = cg.plan("NT", A, B, C, epilogue="residual", residual=C, arch="sm_80", backend="cpu")
    assert plan.trace(A, B, C, residual=C).verdict.ok


def test_scales_are_not_c() -> None:
    """Test that scales must not overlap C: they are read for other elements too."""
    a, b = (random(2, 256).astype(DTYPES["float8_e4m3fn"].numpy) for _ in "AB")
    C = np.ones((2, 2), np.float32)
    given = {"scale_a": C, "scale_b": C + 1, "backend": "cpu", "out_dtype": "float32"}
    with pytest.raises(cg.GemmError, match="C shares memory with scale_a"):
        cg.gemm("NT", a, b, C, **given | {"out_dtype": None})


def test_problems_are_kept() -> None:
    plain = cg.plan("NT", A, B, backend="cpu").problem
    operands = read_operands(with_sums, {"bias": BIAS}, plain, None)
    assert fuse(plain, with_sums, operands) is fuse(plain, with_sums, operands)


@pytest.mark.parametrize("order", ["C", "F"])
def test_matrices_are_read_along_neighbours(order: Any) -> None:
    """Test that a thread's neighboring values are along N (along M if swapped), without spills."""
    sizes: dict[str, Any] = {"m": 4096, "n": 4096, "k": 1024, "dtype": "bfloat16", "order": order}
    sizes |= {"arch": "sm_90a", "gpu": "H200", "kernel": "sm90_wgmma"}
    plan = cg.plan("NT", **sizes, epilogue="residual")
    assert plan.config.swap_ab == (order == "F")
    assert plan.resources.spill_stores == 0
