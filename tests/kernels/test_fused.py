"""Test epilogues of expressions: tracing, emitted code, results, error bounds."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import activations
import numpy as np
import pytest
from cases import numbers, placed
from epilogue_cases import plan_of
from fused_cases import BOTH, evaluated
from hypothesis import given, settings
from hypothesis import strategies as st

import cute_gemm as cg
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import DTypeError, OptionError, ScalarError, ShapeError, StrideError
from cute_gemm.plan.interpreted import execute
from cute_gemm.problem.describe import from_sizes
from cute_gemm.problem.epilogue import fuse
from cute_gemm.problem.epilogue.bound import Interval, Rules
from cute_gemm.problem.epilogue.epilogue import EpilogueArguments, EpilogueOperand
from cute_gemm.problem.epilogue.expression import Expression, Value, trace
from cute_gemm.problem.epilogue.fused import Fused
from cute_gemm.problem.epilogue.rows import ACTIVATIONS, FUNCTIONS
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.verify import verify

M, N, K = 9, 7, 5


def fused(problem: GemmProblem, function: Callable[..., Any]) -> GemmProblem:
    """Return the problem with an epilogue whose operand ``b`` is a vector along N."""
    tensors = (EpilogueOperand("b", "float32", "N", "N"),)
    epilogue = Fused(trace(function), tensors, output=problem.C.dtype)
    matrix = Matrix("b", (problem.m, problem.n), (0, 1), "float32", 256)
    return replace(problem, epilogue=epilogue, operands=(matrix,))


def arrays(dtype: str) -> tuple[np.ndarray, ...]:
    """Return A, B, C and b."""
    random = np.random.default_rng(0)
    A, B, C = (
        np.asfortranarray(random.standard_normal(shape).astype(DTYPES[dtype].numpy))
        for shape in ((M, K), (K, N), (M, N))
    )
    return A, B, C, random.standard_normal(N).astype(np.float32)


def executed(problem: GemmProblem, dtype: str, beta: float = 0.75) -> bool:
    """Return whether the emitted kernel computes the expression."""
    A, B, C, b = arrays(dtype)
    before = C.copy(order="K")
    scaling = {"alpha": 1.25, "beta": beta, "operands": {"b": b}}
    execute(plan_of(problem, "naive", "sm_80"), A, B, C, 1.25, beta, operands={"b": b})
    return verify(problem, A, B, C, C=before, **scaling).ok


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", BOTH)
def test_every_function_is_executed_within_its_bound(name: str, dtype: str) -> None:
    problem = fused(from_sizes("NN", m=M, n=N, k=K, dtype=dtype), BOTH[name])
    assert executed(problem, dtype)


def test_another_function_is_out_of_bound() -> None:
    """Test that the bound rejects a result of a function with a relative difference of 2**-18."""
    problem = fused(from_sizes("NN", m=M, n=N, k=K, dtype="float32"), BOTH["gelu"])
    other = fused(problem, lambda acc, b: cg.gelu(acc + b) * (1 + 2**-18))
    A, B, C, b = arrays("float32")
    execute(plan_of(other, "naive", "sm_80"), A, B, C, 1, 0, operands={"b": b})
    assert verify(other, A, B, C, operands={"b": b}).ok
    assert not verify(problem, A, B, C, operands={"b": b}).ok


def test_a_nan_of_either_is_the_maximum() -> None:
    problem = fused(from_sizes("NN", m=M, n=N, k=K, dtype="float32"), BOTH["relu"])
    A, B, C, b = arrays("float32")
    A[2], b[3] = np.nan, np.nan
    execute(plan_of(problem, "naive", "sm_80"), A, B, C, 1, 0, operands={"b": b})
    assert np.isnan(C[2]).all() and np.isnan(C[:, 3]).all()
    assert np.isfinite(np.delete(np.delete(C, 2, 0), 3, 1)).all()


# ---- random expressions -------------------------------------------------------------------------

LEAVES = st.one_of(
    st.just("acc"), st.just("b"), st.sampled_from([0.0, 1.0, -2.5, 0.1, 3.0, 1e-3]).map(repr)
)


def grown(children: Any) -> Any:
    """Return a strategy for texts of expressions, composed of others."""
    unary = ["-{}", "abs({})", "cg.tanh({})", "cg.erf({})", "cg.exp(cg.tanh({}))",
             "cg.sqrt(abs({}) + 0.25)", "cg.rsqrt(abs({}) + 0.5)", "cg.log(abs({}) + 1)",
             "cg.sigmoid({})", "cg.silu({})", "cg.gelu({})"]  # fmt: skip
    binary = ["({} + {})", "({} - {})", "({} * {})", "({} / (abs({}) + 0.5))",
              "cg.maximum({}, {})", "cg.minimum({}, {})", "cg.where(acc < b, {}, {})"]  # fmt: skip
    return st.one_of(
        st.tuples(st.sampled_from(unary), children).map(lambda x: x[0].format(x[1])),
        st.tuples(st.sampled_from(binary), children, children).map(
            lambda x: x[0].format(x[1], x[2])
        ),
    )


EXPRESSIONS = st.recursive(LEAVES, grown, max_leaves=8).map(
    lambda text: f"{text} + 0 * acc + 0 * b"
)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(EXPRESSIONS)
def test_random_expressions_are_executed_within_their_bounds(text: str) -> None:
    problem = from_sizes("NN", m=M, n=N, k=K, dtype="float32")
    assert executed(fused(problem, eval(f"lambda acc, b: {text}", {"cg": cg})), "float32"), text


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(EXPRESSIONS, st.integers(0, 2**32 - 1))
def test_what_float32_computes_is_within_the_bound(text: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    exact = random.standard_normal((4, 5)) * 2.0 ** random.integers(-6, 6, (4, 5))
    error = abs(exact) * 2.0**-20
    sums = (exact + error * random.uniform(-1, 1, exact.shape)).astype(np.float32)
    b = random.standard_normal(5).astype(np.float32)
    epilogue = Fused(trace(eval(f"lambda acc, b: {text}", {"cg": cg})))
    arguments = EpilogueArguments(None, 1, 0, {"b": b})
    wide = arguments._replace(operands={"b": b.astype(np.float64)})
    row = DTYPES["float32"]
    bound = epilogue.bound(exact, error + abs(sums) * row.roundoff, abs(exact), row, wide)
    difference = abs(epilogue.apply(sums, arguments).astype(float) - epilogue.apply(exact, wide))
    # NumPy's float32 functions have errors of a few units in the last place too.
    assert (difference <= 2 * bound + 1e-37).all(), text


def test_intervals_are_as_wide_as_what_is_computed_can_be() -> None:
    rules, unit = Rules(DTYPES["float32"]), 2.0**-24

    def of(function: Callable[..., Any], low: float, high: float) -> tuple[float, float]:
        found = rules.evaluate(trace(function), {"acc": Interval(low, high)})
        return float(found.low), float(found.high)

    def near(found: tuple[float, float], low: float, high: float) -> bool:
        return found == (pytest.approx(low, rel=1e-12), pytest.approx(high, rel=1e-12))

    # Half a unit in the last place of a product and a quotient, 2 of an exponential.
    assert near(of(lambda acc: acc * 3, 1, 2), 3 * (1 - unit), 6 * (1 + unit))
    assert near(of(lambda acc: 3 / acc, 1, 2), 1.5 * (1 - unit), 3 * (1 + unit))
    assert near(of(cg.exp, 0, 0), 1 - 4 * unit, 1 + 4 * unit)
    # A condition that may be true or false, one that is true, one that is false.
    step = {"a": -1.0, "b": 5.0}
    for ends, expected in (((1, 3), (-1, 5)), ((0, 1), (-1, -1)), ((3, 4), (5, 5))):
        assert of(lambda acc: cg.where(acc < 2, step["a"], step["b"]), *ends) == expected
    assert of(abs, -3, 2) == (0, 3)
    # Overflow gives infinity in float32, and its reciprocal is 0 or subnormal.
    assert of(cg.exp, 100, 101)[1] == math.inf
    assert max(map(abs, of(lambda acc: 1 / cg.exp(acc), 100, 101))) < 1e-37
    # A root of a possibly negative number, and a quotient by a possible 0, are unbounded.
    for function in (cg.sqrt, cg.log, lambda acc: 1 / acc):
        assert of(function, -1e-9, 1) == (-math.inf, math.inf)


# ---- tracing ------------------------------------------------------------------------------------


def test_values_that_are_equal_are_computed_once() -> None:
    found = trace(lambda acc, bias: (acc + bias) * cg.sigmoid(acc + bias))
    assert str(found).count("add(v0, v1)") == 1
    assert found.operands == ("bias",) and isinstance(found, Expression)
    assert found == trace(lambda acc, bias: (acc + bias) * cg.sigmoid(acc + bias))
    result = evaluated(found, {"acc": 0.0, "bias": 3.0})
    assert result == pytest.approx(3 / (1 + math.exp(-3)))
    names = {Fused(trace(function)).name for function in BOTH.values()}
    assert len(names) == len(BOTH)


def with_if(acc: Value, bias: Value) -> Value:
    return acc if acc > bias else bias


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (with_if, "use cute_gemm.where(condition, a, b) in place of if"),
        (lambda acc: 3.0, "returns 3.0; expected a value of its arguments"),
        (lambda acc: acc < 0, "returns a condition; expected cute_gemm.where"),
        (lambda acc: (acc < 0) + 1, "gives add a condition; expected a number"),
        (lambda acc: cg.where(acc, 1, 2), "gives where a number; expected a condition"),
        (lambda acc: np.sin(acc), "calls numpy.sin, which is not known; expected one of add"),
        (lambda acc: acc + "1", "computes with '1'; expected a number"),
        (lambda: 1, "expected the accumulator and operands by name"),
        (lambda acc, *more: acc, "expected the accumulator and operands by name"),
        (lambda acc: cg.gelu(acc, "sigmoid"), "approximate='sigmoid'; expected 'none' or 'tanh'"),
    ],
)
def test_what_cannot_be_traced(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        trace(function)
    assert said in str(caught.value)


def test_every_primitive_is_among_the_functions() -> None:
    traced = {step.function for f in BOTH.values() for step in trace(f).steps}
    assert set(FUNCTIONS) - traced <= {"subtract", "negative"}
    assert activations.ROWS.keys() == ACTIVATIONS.keys()


# ---- names, functions and operands --------------------------------------------------------------


def test_names_are_what_functions_compute() -> None:
    for name, function in (
        ("bias+gelu", lambda acc, bias: cg.gelu(acc + bias)),
        ("silu", lambda acc: cg.silu(acc)),
        ("scale+bias+relu+residual",
         lambda acc, scale, bias, residual: cg.relu(acc * scale + bias) + residual),
    ):  # fmt: skip
        assert fuse.named(name).expression == trace(function)
    assert fuse.as_function("silu") is fuse.named("silu")
    traced = fuse.epilogue(BOTH["clamp"])
    assert fuse.as_function(BOTH["clamp"]) is traced is fuse.as_function(traced)


@pytest.mark.parametrize(
    ("kernel", "arch", "dtype", "l"),
    [("naive", "sm_80", "float32", 1), ("sm80_pipeline", "sm_80", "float16", 3),
     ("thin", "sm_80", "bfloat16", 1), ("double_buffered", "sm_80", "float64", 2),
     ("sm90_wgmma", "sm_90a", "float16", 1)],
)  # fmt: skip
def test_operands_of_every_shape_broadcast(kernel: str, arch: str, dtype: str, l: int) -> None:
    m, n, k = (5 if kernel == "thin" else 40), 72, 64
    lda = {"lda": 48} if kernel == "sm90_wgmma" else {}
    asked = from_sizes("NN", m=m, n=n, k=k, l=l, dtype=dtype, **lda)
    function = fuse.epilogue(
        lambda acc, row, column, scalar, both, turned: (
            (acc + row) * scalar + cg.tanh(column) * both - turned
        )
    )
    random = np.random.default_rng(1)
    shapes = {
        "row": numbers(random, (n,), "float32"), "column": numbers(random, (m, 1), "float32"),
        "scalar": numbers(random, (), "float32"), "both": placed((m, n), "float32", pad=3)[0],
        "turned": placed((*(l,) * (l > 1), m, n), "float32", "F")[0],
    }  # fmt: skip
    read_ = fuse.read_operands(function, shapes, asked, None)
    fitted = replace(fuse.fuse(asked, function, read_), numbers=read_.values)
    A, B, C = (
        placed((*(l,) * (l > 1), *shape), dtype, "F", x.ld - shape[0], random=random)[0]
        for shape, x in (((m, k), asked.A), ((k, n), asked.B), ((m, n), asked.C))
    )
    before = C.copy(order="K")
    options = {"tile": "64x64x64", "warp_groups": 1} if kernel == "sm90_wgmma" else {}
    plan = plan_of(fitted, kernel, arch, **options)
    execute(plan, A, B, C, 1.5, 0.5, operands=shapes)
    assert verify(fitted, A, B, C, C=before, alpha=1.5, beta=0.5, operands=shapes).ok
    loads = {row.operand for row in plan.report().rows if row.operand in shapes}
    assert loads == set(shapes) - {"scalar"}


def test_operands_that_do_not_fit() -> None:
    asked = from_sizes("NN", m=M, n=N, k=K, dtype="float32")
    relu = fuse.named("bias+relu")

    def fitted(problem: GemmProblem, **given_: Any) -> GemmProblem:
        return fuse.fuse(problem, relu, fuse.read_operands(relu, given_, problem, None))

    bias, column = np.ones(N, np.float32), np.ones((M, 1), np.float32)
    assert fitted(asked, bias=column).operands[0].stride == (1, 0)
    assert fitted(asked, bias=bias) is fitted(asked, bias=bias.copy())
    for problem, given_, error, said in (
        (asked, {}, OptionError, "epilogue 'bias+relu' reads bias: pass bias="),
        (asked, {"bias": bias, "scale": bias}, OptionError, "which reads bias"),
        (asked, {"bias": column[:, 0]}, ShapeError,
         "bias has shape (9,), and C is (9, 7); expected (7,), (9, 1), (9, 7) or another"),
        (asked, {"bias": bias[None, None, None]}, ShapeError, "array of three dimensions at most"),
        (asked, {"bias": bias[::-1]}, StrideError, "expected none to be negative"),
        (asked, {"bias": bias.astype("c8")}, DTypeError, "expected a real type"),
        (asked, {"bias": "b"}, ScalarError, "bias is 'b'; expected a number or a 0-d array"),
        (from_sizes("NN", m=M, n=N, k=K, dtype="int8"), {"bias": bias}, DTypeError,
         "with A and B of int8 and C of int32; expected a C of floating-point numbers: pass "),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            fitted(problem, **given_)
        assert said in str(caught.value)
    for value, said in (
        ("bias+swish", "'swish' is not known; expected some of bias, residual, scale, relu"),
        ("bias+bias", "an operand is there twice"),
        (3, "epilogue=3; expected a name such as 'bias+gelu', or a function"),
        (lambda acc, alpha: acc * alpha, "an operand called alpha, which is an argument"),
        (lambda acc, float: acc * float, "an operand called float"),
    ):
        with pytest.raises(OptionError) as caught:
            fuse.as_function(value)
        assert said in str(caught.value)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_functions_on_the_host_have_their_digits(kind: type[np.floating[Any]]) -> None:
    """Test errors of at most 5 units in the last place, also where 1 + erf has no digits left."""
    mp = pytest.importorskip("mpmath")
    random = np.random.default_rng(0)
    numbers = np.concatenate([random.uniform(-13, 5, 400), -(10.0 ** random.uniform(-9, 1, 100))])
    exact: dict[str, Any] = {
        "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2, "erf": mp.erf, "tanh": mp.tanh,
        "silu": lambda x: x / (1 + mp.exp(-x)), "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
        "exp": mp.exp, "log": mp.log, "sqrt": mp.sqrt, "rsqrt": lambda x: 1 / mp.sqrt(x),
    }  # fmt: skip
    with mp.workdps(40):
        for name, function in exact.items():
            given = numbers.astype(kind)
            given = abs(given) if name in ("log", "sqrt", "rsqrt") else given
            for x, found in zip(given, FUNCTIONS[name].numpy(given), strict=True):
                expected = function(mp.mpf(float(x)))
                unit = np.spacing(kind(abs(float(expected))))
                assert abs(mp.mpf(float(found)) - expected) <= 5 * float(unit), (name, x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_an_epilogue_are_not_fused_with_products(dtype: str) -> None:
    random = np.random.default_rng(7)
    A, B = (random.integers(-9, 9, shape).astype(dtype) for shape in ((M, K), (K, N)))
    scale, bias = random.standard_normal((2, N)).astype(dtype)
    for function, expected in (
        (lambda acc, scale, bias: acc * scale + bias * scale, A @ B * scale + bias * scale),
        (lambda acc, scale, bias: bias - acc * scale, bias - A @ B * scale),
    ):
        C = cg.gemm(
            "NN", A, B, kernel="naive", epilogue=function, scale=scale, bias=bias,
            backend="interpreter",
        )  # fmt: skip
        np.testing.assert_array_equal(C, expected)
