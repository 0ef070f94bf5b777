"""Test epilogues that compute a column of C from two columns of the product."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import placed, refusal
from pairs_cases import APART, BOTH, WGMMA, PairsCase, planned, run
from unity_build import unity_build

import cute_gemm as cg
from cute_gemm.errors import OptionError, ScalarError, ShapeError, UnsupportedError
from cute_gemm.kernels import refusals, registry
from cute_gemm.problem.epilogue.expression import trace
from cute_gemm.problem.epilogue.fuse import named
from cute_gemm.problem.parts.slices import Reduction
from cute_gemm.problem.verify import verify
from cute_gemm.report.executed import Compared

M, N, K = 24, 32, 40


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


A, B = random(M, K), random(N, K)
Z = A.astype(float) @ B.astype(float).T


def arch_of(case: PairsCase) -> str:
    return "sm_90a" if case.kernel == "sm90_wgmma" else "sm_80"


def plan_of(case: PairsCase, kind: str) -> cg.Plan:
    return planned(case, kind, "cpu", arch_of(case))[0]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", WGMMA, ids=str)
@unity_build(plan_of)
def test_the_fused_kernel(case: PairsCase, kind: str) -> None:
    plan = run(case, kind, "interpreter", "sm_90a")
    reductions = [step for step in plan.steps if isinstance(step.problem, Reduction)]
    assert len(reductions) == (kind in case.apart)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", APART, ids=str)
@unity_build(plan_of)
def test_a_launch_behind_other_kernels(case: PairsCase, kind: str) -> None:
    plan = run(case, kind, "interpreter", arch_of(case))
    (reduction,) = (step.problem for step in plan.steps if isinstance(step.problem, Reduction))
    assert reduction.partials.shape == (case.m, case.n)
    assert f"{kind} of columns are taken by the reduction kernel" in plan.why
    assert f"{kind} of columns: {reduction.partials} in scratch" in str(plan.report()).replace(
        f"{reduction.slices} slices of K and ", ""
    )


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", [WGMMA[1], APART[0], APART[5]], ids=str)
def test_on_the_cpu(case: PairsCase, kind: str) -> None:
    run(case, kind, "cpu", arch_of(case))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", [*WGMMA[::3], *APART[::3]], ids=str)
@unity_build(plan_of)
def test_counts_are_those_executed(case: PairsCase, kind: str) -> None:
    # A reduction's operands are counted as if all vectors of C were whole.
    case = case._replace(m=72) if case.order == "F" else case
    plan, a, b, c, _, operands = planned(case, kind, "cpu", arch_of(case))
    trace = plan.trace(a, b, c, **operands)
    figures: list[Compared] = [*trace.figures, *(x for _, each in trace.auxiliary for x in each)]
    wrong = [str(figure) for figure in figures if figure.difference]
    assert trace.verdict.ok and not wrong, wrong
    assert trace.agrees


def test_what_is_read_and_written_of_a_product() -> None:
    """Test the accesses: B as often as without pairs, half of C, and nothing else."""
    sizes: dict[str, Any] = {"m": 512, "n": 1024, "k": 256, "dtype": "bfloat16", "arch": "sm_90a"}
    sizes |= {"order": "C", "storage": "C", "kernel": "sm90_wgmma", "backend": "cpu"}
    sizes |= {
        "tile": (128, 128, 64), "warp_groups": 2, "cluster": (2, 1), "swap_ab": 0, "ping_pong": 0,
    }  # fmt: skip
    plain = cg.plan("NT", **sizes).report()
    for epilogue in ("swiglu", cg.epilogue(lambda acc: cg.halves(acc)[0] * cg.halves(acc)[1])):
        plan = cg.plan("NT", **sizes, epilogue=epilogue)
        report = plan.report()
        assert len(plan.steps.each) == 1 and "taken by the kernel itself" in plan.why
        for name, part in (("A", 1), ("B", 1), ("C", 2)):
            for space in ("global", "shared"):
                rows, others = (
                    [x for x in each.rows if (x.operand, x.space) == (name, space)]
                    for each in (report, plain)
                )
                for figure in ("sectors", "wavefronts"):
                    ours, theirs = (
                        sum(getattr(x.launch, figure, None) or 0 for x in each)
                        for each in (rows, others)
                    )
                    assert part * ours == theirs, (name, space, figure)
        assert report.performance.flops == plain.performance.flops
        # A separate kernel would write and read the product, two columns for one of C.
        assert report.performance.saved_bytes == 2 * 512 * 1024 * 2
        saved = plain.performance.traffic.compulsory_bytes - 512 * 512 * 2
        assert report.performance.traffic.compulsory_bytes == saved
        first, direct = (each.candidates()[0].prediction for each in (plan, cg.plan("NT", **sizes)))
        assert first is not None and direct is not None
        assert first.ctas == direct.ctas
        assert first.terms["tensor cores"] == direct.terms["tensor cores"]


def test_a_launch_behind_has_its_prediction() -> None:
    sizes: dict[str, Any] = {"m": 256, "n": 1024, "k": 256, "dtype": "bfloat16", "arch": "sm_90a"}
    plan = cg.plan("NT", **sizes, order="C", storage="C", epilogue="swiglu", backend="cpu")
    predictions = [candidate.prediction for candidate in plan.candidates()]
    seconds = [prediction.seconds for prediction in predictions if prediction]
    assert seconds == sorted(seconds)
    behind = ["reduction" in prediction.terms for prediction in predictions if prediction]
    assert any(behind) and not all(behind)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_names(order: Any, backend: Any) -> None:
    from scipy.special import erf

    gate, up = Z[:, 0::2], Z[:, 1::2]
    given: dict[str, Any] = {"order": order, "backend": backend}
    found = cg.gemm("NT", A, B, epilogue="swiglu", **given)
    np.testing.assert_allclose(found, silu(gate) * up, rtol=1e-4, atol=1e-4)
    found = cg.gemm("NT", A, B, epilogue="geglu+bias", bias=np.arange(N / 2, dtype="f4"), **given)
    exact = 0.5 * gate * (1 + erf(gate / np.sqrt(2))) * up + np.arange(N / 2)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
    assert found.flags[f"{order}_CONTIGUOUS"]


def test_names_are_what_functions_compute() -> None:
    def geglu(acc: Any) -> Any:
        gate, up = cg.pairs(acc)
        return cg.gelu(gate) * up

    assert named("geglu").expression == trace(geglu)
    assert named("swiglu").expression.pairs == "pairs"
    assert trace(lambda acc: cg.halves(acc)[1]).pairs == "halves"
    assert trace(lambda acc: acc * 2).pairs == ""


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", BOTH)
def test_one_of_a_pair(kind: str, which: int) -> None:
    columns = Z[:, which::2] if kind == "pairs" else np.split(Z, 2, axis=1)[which]
    function = cg.epilogue(lambda acc: getattr(cg, kind)(acc)[which])
    for order in "CF":
        found = cg.gemm(
            "NT", A, B, epilogue=function, backend="interpreter", order=order, kernel="naive"
        )
        np.testing.assert_allclose(found, columns, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 32, 16), (24, 0, 16), (24, 32, 0)])
def test_empty_products(m: int, n: int, k: int, arch: str) -> None:
    def more(acc: Any) -> Any:
        gate, up = cg.pairs(acc)
        return gate * up + 1.5, cg.amax(up)

    a, b = np.ones((m, k), "f2"), np.ones((n, k), "f2")
    y, amax = cg.gemm("NT", a, b, epilogue=more, backend="interpreter", arch=arch)
    assert y.shape == (m, n // 2) and (y == 1.5).all() and amax == 0


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", [WGMMA[1], WGMMA[-2], APART[0], APART[5]], ids=str)
@unity_build(plan_of)
def test_a_product_that_is_not_read(case: PairsCase, kind: str) -> None:
    """Test alpha = 0: NaN in A and in the old C must not change the result."""
    plan, a, b, c, whole, operands = planned(case, kind, "interpreter", arch_of(case))
    a[...], c[...] = np.nan, np.nan
    y, gate, *_ = plan(a, b, c, alpha=0.0, **operands)
    exact = np.broadcast_to(-0.75 * operands["both"].astype(float), y.shape)
    np.testing.assert_allclose(y.astype(float), exact, rtol=2.0**-7)
    assert (gate == 0).all()
    c[...] = 7.0
    assert (whole == 7).all()


def test_scales() -> None:
    """Test a tensor scale of B, row scales of A, and block scales before a separate launch."""
    import ml_dtypes

    a, b = (random(*shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((M, 256), (N, 256)))
    rows = np.abs(random(M, 1)) + 0.5
    given: dict[str, Any] = {"backend": "interpreter", "arch": "sm_90a", "order": "C"}
    given |= {"out_dtype": "float32", "epilogue": "swiglu"}
    found = cg.gemm("NT", a, b, scale_a=rows, scale_b=np.float32(0.25), **given)
    z = 0.25 * rows * (a.astype(float) @ b.astype(float).T)
    np.testing.assert_allclose(found, silu(z[:, 0::2]) * z[:, 1::2], rtol=1e-2, atol=1e-1)
    blocks = np.abs(random(N, 2)) + 0.5
    found = cg.gemm("NT", a, b, scale_b=blocks, **given)
    z = a.astype(float) @ (b.astype(float) * np.repeat(blocks, 128, axis=1)).T
    np.testing.assert_allclose(found, silu(z[:, 0::2]) * z[:, 1::2], rtol=1e-2, atol=1e-1)


@pytest.mark.parametrize(
    ("op", "dtype", "given"),
    [
        ("NT", "bfloat16", {"tile": (128, 128, 64), "warp_groups": 2, "cluster": (2, 1)}),
        ("NN", "float16", {"tile": (128, 192, 64), "warp_groups": 2, "ping_pong": 1}),
        ("TT", "float8_e4m3fn", {"tile": (64, 64, 128), "warp_groups": 1, "cluster": (4, 1)}),
    ],
)
def test_layouts_are_those_of_cute(op: str, dtype: str, given: dict[str, Any]) -> None:
    sizes: dict[str, Any] = {"m": 4096, "n": 8192, "k": 1024, "dtype": dtype, "arch": "sm_90a"}
    sizes |= {"kernel": "sm90_wgmma", "order": "C", "storage": "C", "backend": "cpu"}
    halves = cg.epilogue(lambda acc: cg.silu(cg.halves(acc)[0]) * cg.halves(acc)[1])
    plan = cg.plan(op, **sizes, epilogue=halves, **given)
    assert len(plan.steps.each) == 1
    unit = plan._kernel.compiled().proof(plan.config)
    assert "true>::kDepth" in unit.source
    assert plan.proof


def test_a_config_with_pairs_is_refused_where_they_are_apart() -> None:
    sizes: dict[str, Any] = {"m": 512, "n": 512, "k": 256, "dtype": "bfloat16", "arch": "sm_90a"}
    plan = cg.plan("NT", **sizes, order="C", storage="C", epilogue="swiglu", backend="cpu")
    kernel, config = plan._kernel.compiled(), plan.config
    for change, said in (
        (
            {"swap_ab": 1, "tile": (64, 64, 64)},
            "option swap_ab=1 came with an epilogue of pairs of columns; expected",
        ),
        ({"tile": (192, 192, 64), "warp_groups": 2, "ping_pong": 0}, "divided along N"),
        ({"tile": (128, 80, 64), "warp_groups": 2}, "must be a multiple of 32 up to 256; it is 80"),
    ):
        assert said in refusal(kernel, replace(config, **change), plan.problem, "sm_90a")
    for op, epilogue, n, said in (
        ("NN", "swiglu", 512, "takes pairs of columns where K is B's unit-stride mode"),
        ("NN", lambda acc: cg.halves(acc)[0], 520, "where n / 2 is a multiple of 16 bytes, or K"),
    ):  # fmt: skip
        given: dict[str, Any] = sizes | {"n": n, "order": "C", "storage": "C", "backend": "cpu"}
        other = cg.plan(op, **given, epilogue=epilogue)
        assert len(other.steps.each) == 2
        assert said in refusal(kernel, config, other.problem, "sm_90a")
    with pytest.raises(UnsupportedError, match="has columns of a pair in different threads"):
        refusals.check(registry.get("sm80_pipeline"), plan.problem, "sm_90a")


def both(acc: Any) -> Any:
    return cg.pairs(acc)[0] * cg.pairs(acc)[1]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda acc: cg.pairs(acc)[0] + acc, "has pairs(acc) and acc itself, in add; expected"),
        (lambda acc: (cg.halves(acc)[0], acc), "has halves(acc) and acc itself, as a result"),
        (lambda acc: cg.pairs(acc)[0] * cg.halves(acc)[0], "takes pairs and halves of acc"),
        (lambda acc: cg.pairs(2 * acc)[0], "gives pairs multiply; expected the accumulator itself"),
        (lambda acc, bias: cg.halves(bias)[0] * acc, "gives halves bias; expected the accumulator"),
        (lambda acc: cg.pairs(3)[0], "gives pairs 3; expected the accumulator"),
        ("bias+swiglu", "gives pairs add; expected the accumulator itself: pairs(acc)"),
    ],
)
def test_what_is_not_traced(function: Any, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        cg.gemm("NT", A, B, epilogue=function, bias=1.0, backend="cpu")
    assert said in str(caught.value)


def _of_groups() -> Any:
    several = random(2, N, K)
    return cg.grouped_gemm("NT", A, several, offsets=np.array([3, M], "i4"), epilogue=both)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: cg.gemm("NT", A, B[:-1], epilogue=both), ShapeError,
         "makes n = 31, and the epilogue takes pairs of columns; expected an even n"),
        (lambda: cg.plan("NT", m=M, n=31, k=K, dtype="float32", epilogue=both), ShapeError,
         "makes n = 31"),
        (lambda: cg.gemm("NT", A, B, random(M, N), epilogue=both), ShapeError,
         "expected (24, 16), because op 'NT' multiplies A of shape (24, 40) by B of shape (32, 40),"
         " two columns of which make one of C"),
        (lambda: cg.gemm("NT", A, B, random(M, N // 2), beta=0.5, epilogue=both), ScalarError,
         "beta = 0.5 scales C, and the epilogue makes C of pairs of the product's columns; "
         "expected beta = 0, and C as an operand of the epilogue"),
        (lambda: cg.plan("NT", A, B, epilogue=both, backend="cpu").report(beta=1), ScalarError,
         "beta = 1.0 scales C"),
        (lambda: cg.gemm("NT", A, B, epilogue="swiglu+bias", bias=random(N)), ShapeError,
         "bias has shape (32,), and C is (24, 16); expected (16,)"),
        (lambda: cg.gemm("NT", A, B, epilogue=both, scale_b=random(N, 1)), OptionError,
         "scale_b has a number for each column of the product, of which epilogue 'both' takes"),
        (_of_groups, OptionError, "epilogue 'both' takes pairs of columns, which grouped_gemm()"),
        (lambda: cg.gemm("NT", A, B, epilogue=both, kernel="cublas", backend="cpu"),
         UnsupportedError, "computes alpha A B + beta C alone, not epilogue 'both'"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_pairs(call: Callable[[], Any], error: Any, said: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize("take", [cg.pairs, cg.halves])
def test_a_wrong_product_is_out_of_bound(take: Callable[[Any], Any]) -> None:
    """Test the bound of two accumulators: it rejects results of other pairs of columns."""
    plan = cg.plan("NT", A, B, epilogue=lambda acc: np.multiply(*take(acc)), backend="cpu")
    C = plan(A, B)
    assert verify(plan.problem, A, B, C).ok
    wrong = verify(plan.problem, A, np.roll(B, 2, axis=0), C)
    assert not wrong.ok and wrong.wrong > C.size // 2
    C[3, 5] *= 1 + 2.0**-12
    assert verify(plan.problem, A, B, C).wrong == 1


def test_a_padded_array_is_what_cases_take() -> None:
    part, whole = placed((5, 6), "float32", "F", step=4, rows=(1, 1))
    assert part.strides[0] == 4 and np.isnan(whole[0]).all() and np.isfinite(part).all()
