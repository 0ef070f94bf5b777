"""Test ``cute_gemm.jax`` on the CPU: products inside jit, grad, jvp, vmap and shard_map."""

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from activations import of_library

import cute_gemm as cg
from cute_gemm.errors import (
    ArrayError,
    DTypeError,
    GemmError,
    OpError,
    OptionError,
    ScalarError,
    ShapeError,
    UnknownKernelError,
)

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import cute_gemm.jax as cj  # noqa: E402
from cute_gemm.jax import calls, ffi  # noqa: E402
from cute_gemm.jax.parts import parts  # noqa: E402
from cute_gemm.plan import reused  # noqa: E402
from cute_gemm.problem.epilogue.value import Value  # noqa: E402

ROOT = Path(__file__).parents[2]
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {None: lambda z: z, **of_library(jax)}
TRANSPOSED: dict[str, Callable[[Any], Any]] = {
    "N": lambda x: x, "T": lambda x: x.mT, "C": lambda x: x.conj().mT
}  # fmt: skip


@pytest.fixture
def x64() -> Iterator[None]:
    """Enable float64 in JAX."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def random(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    if dtype == "int8":
        return jnp.asarray(rng.integers(-5, 6, shape), dtype)
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return jnp.asarray(values, dtype)


def exact(x: Any) -> np.ndarray:
    return np.asarray(x, np.complex128 if jnp.iscomplexobj(x) else np.float64)


def bound(a: Any, b: Any, dtype: str) -> np.ndarray:
    """Return the error bound of a product of this type, element by element."""
    sums = UNIT["float32"] if dtype in ("float16", "bfloat16") else UNIT[dtype]
    magnitudes = np.abs(exact(a)) @ np.abs(exact(b))
    k = a.shape[-1]
    return (1.01 * k * sums + UNIT[dtype]) * magnitudes + 2.0**-25


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    scale = float(jnp.abs(expected).max(initial=0)) or 1.0
    error = np.abs(exact(found) - exact(expected)).max(initial=0)
    assert error <= tolerance * scale


# ---- matmul -------------------------------------------------------------------------------------

SHAPES = [
    ((4, 5), (5, 6)), ((3, 4, 5), (5, 6)), ((2, 3, 4, 5), (5, 6)), ((4, 5), (3, 5, 6)),
    ((3, 4, 5), (3, 5, 6)), ((2, 1, 4, 5), (3, 5, 6)), ((3, 4, 5), (1, 5, 6)),
    ((2, 1, 4, 5), (1, 3, 5, 6)), ((2, 3, 1, 4, 5), (3, 7, 5, 6)), ((4, 1), (1, 6)),
    ((1, 5), (5, 1)), ((0, 5), (5, 6)), ((4, 0), (0, 6)), ((0, 4, 5), (5, 6)),
    ((0, 4, 5), (0, 5, 6)), ((3, 0, 5), (5, 6)), ((2, 3, 4, 0), (3, 0, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), SHAPES, ids=str)
def test_matmul_is_that_of_jax(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = random(*first), random(*second)
    expected = np.matmul(exact(a), exact(b))
    for found in (cj.matmul(a, b), jax.jit(cj.matmul)(a, b)):
        assert found.shape == expected.shape and found.dtype == a.dtype
        assert (np.abs(exact(found) - expected) <= bound(a, b, "float32")).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_types_within_bounds(dtype: str, x64: None) -> None:
    a, b = random(33, 40, dtype=dtype), random(40, 17, dtype=dtype)
    found = jax.jit(cj.matmul)(a, b)
    assert found.dtype == dtype
    assert (np.abs(exact(found) - exact(a) @ exact(b)) <= bound(a, b, dtype)).all()


def test_other_types(x64: None) -> None:
    a, b = random(2, 4, 5, dtype="int8"), random(5, 6, dtype="int8")
    assert (jax.jit(cj.matmul)(a, b) == jnp.matmul(a, b, preferred_element_type="int32")).all()
    for dtype in ("complex64", "complex128"):
        a, b = random(4, 5, dtype=dtype), random(5, 6, dtype=dtype)
        close(cj.matmul(a, b), a @ b)
    half, other = random(4, 5, dtype="bfloat16"), random(5, 6, dtype="bfloat16")
    wide = cj.matmul(half, other, out_dtype=jnp.float32)
    assert wide.dtype == "float32"
    close(wide, half.astype("float32") @ other.astype("float32"), 1e-6)


def test_numpy_arrays() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    found = cj.matmul(a, b)
    assert isinstance(found, jax.Array) and (found == 3).all()


def ops_of(function: Any, *arrays: Any) -> list[str]:
    """Return the ops of the custom calls in a program."""
    text = jax.jit(function).lower(*arrays).as_text()
    marker = r"\22op\22: \22"
    return [part[:2] for part in text.split(marker)[1:]]


def test_a_transpose_in_the_program_is_a_letter() -> None:
    x, w = random(2, 3, 8), random(6, 8)
    assert ops_of(lambda x, w: cj.matmul(x, w.T), x, w) == ["NT"]
    assert ops_of(lambda x, w: cj.matmul(w, x.mT), x, w) == ["NT"]
    assert ops_of(lambda x, w: cj.gemm("TN", w.T, x.mT), x, w) == ["NT"]
    assert ops_of(lambda x, w: cj.matmul(x.transpose(0, 2, 1).mT, w.T), x, w) == ["NT"]
    assert ops_of(lambda x: cj.matmul(x.transpose(1, 0, 2), random(8, 8)), x) == ["NN"]
    compiled = jax.jit(lambda x, w: cj.matmul(x, w.T)).lower(x, w).compile().as_text()
    assert " transpose(" not in compiled
    close(jax.jit(lambda x, w: cj.matmul(w, x.mT))(x, w), w @ x.mT)


def test_gradients_are_products_in_their_layouts() -> None:
    x, w = random(2, 3, 8), random(6, 8)

    def total(x: Any, w: Any) -> Any:
        return cj.linear(x, w).sum()

    assert sorted(ops_of(jax.grad(total, (0, 1)), x, w)) == ["NN", "TN"]
    text = jax.jit(jax.grad(total, (0, 1))).lower(x, w).as_text()
    assert "stablehlo.transpose" not in text


# ---- derivatives --------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), SHAPES[:9:2], ids=str)
def test_matmul_derivatives(first: Any, second: Any, x64: None) -> None:
    a, b = random(*first, dtype="float64"), random(*second, dtype="float64")
    check_grads(cj.matmul, (a, b), order=2, modes=("fwd", "rev"))
    for function in (jax.grad, lambda f, x: jax.jit(jax.grad(f, x))):
        found = function(lambda a, b: (cj.matmul(a, b) ** 2).sum(), (0, 1))(a, b)
        expected = jax.grad(lambda a, b: (jnp.matmul(a, b) ** 2).sum(), (0, 1))(a, b)
        for one, other in zip(found, expected, strict=True):
            close(one, other, 1e-12)


@pytest.mark.parametrize("op", ["".join(x) for x in itertools.product("NTC", repeat=2)])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_every_op_has_derivatives(op: str, batch: tuple[int, ...], x64: None) -> None:
    a = random(*batch, *((4, 5) if op[0] == "N" else (5, 4)), dtype="complex128")
    b = random(*((5, 6) if op[1] == "N" else (6, 5)), dtype="complex128")

    def total(a: Any, b: Any) -> Any:
        return (cj.gemm(op, a, b, alpha=2 - 1j) ** 2).sum().real

    def expected(a: Any, b: Any) -> Any:
        c = (2 - 1j) * TRANSPOSED[op[0]](a) @ TRANSPOSED[op[1]](b)
        return (c**2).sum().real

    assert jnp.allclose(total(a, b), expected(a, b))
    pairs = zip(jax.grad(total, (0, 1))(a, b), jax.grad(expected, (0, 1))(a, b), strict=True)
    for one, other in pairs:
        close(one, other, 1e-12)
    real = a.real, b.real
    check_grads(partial(cj.gemm, op), real, order=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_gradients_are_summed_in_float32(dtype: str) -> None:
    """Test a weight and a bias for many rows: each addend would be lost in the 16-bit type."""
    x, w, b = jnp.ones((64, 64, 8), dtype), jnp.zeros((4, 8), dtype), jnp.zeros(4, dtype)
    _, dw, db = jax.grad(lambda x, w, b: cj.linear(x, w, b).sum().astype("float32"), (0, 1, 2))(
        x, w, b
    )
    assert dw.dtype == db.dtype == dtype
    assert (dw == 4096).all() and (db == 4096).all()
    a = jnp.ones((4096, 2, 3), dtype)
    da = jax.grad(lambda b: cj.gemm("TN", a, b).sum().astype("float32"))(jnp.ones((2, 5), dtype))
    assert (da == 4096 * 3).all()


# ---- linear -------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear(activation: Any, has_bias: bool, x64: None) -> None:
    x, w = random(2, 3, 8, dtype="float64"), random(6, 8, dtype="float64")
    given = (x, w, random(6, dtype="float64")) if has_bias else (x, w)

    def layer(x: Any, w: Any, b: Any = None) -> Any:
        return cj.linear(x, w, b, activation)

    def reference(x: Any, w: Any, b: Any = 0.0) -> Any:
        return ACTIVATIONS[activation](x @ w.T + b)

    close(jax.jit(layer)(*given), reference(*given), 1e-12)
    close(jax.vmap(layer, (0, *(None,) * (len(given) - 1)))(*given), reference(*given), 1e-12)
    check_grads(layer, given, order=2, modes=("fwd", "rev"))
    places = tuple(range(len(given)))
    for one, other in zip(
        jax.jit(jax.grad(lambda *given: (layer(*given) ** 2).sum(), places))(*given),
        jax.grad(lambda *given: (reference(*given) ** 2).sum(), places)(*given),
        strict=True,
    ):
        close(one, other, 1e-12)


def test_linear_is_one_call() -> None:
    x, w, b = random(2, 3, 8), random(6, 8), random(6)
    for activation in ACTIVATIONS:
        assert ops_of(partial(cj.linear, activation=activation), x, w, b) == ["NT"]
    # One more for each requested gradient.
    gradient = jax.grad(lambda w, x, b: cj.linear(x, w, b, "gelu").sum())
    assert ops_of(gradient, w, x, b) == ["NT", "TN"]


def test_linear_of_rows_and_nothing() -> None:
    w, b = random(6, 8), random(6)
    assert cj.linear(random(8), w, b, "gelu").shape == (6,)
    assert cj.linear(random(0, 8), w, b, "gelu").shape == (0, 6)
    whole = cj.linear(jnp.ones((3, 8), "int8"), jnp.ones((6, 8), "int8"), jnp.arange(6))
    assert whole.dtype == "int32" and (whole[0] == 8 + jnp.arange(6)).all()


def test_training() -> None:
    """Test a step under jit, with other JAX operations around it, scanned over batches."""
    x, y = random(5, 16, 8), random(5, 16, 4, seed=1)
    start = {"w1": random(32, 8) / 3, "b1": jnp.zeros(32), "w2": random(4, 32) / 6}

    def loss(parameters: Any, x: Any, y: Any, linear: Any) -> Any:
        h = linear(jnp.tanh(x), parameters["w1"], parameters["b1"], "silu")
        return ((linear(h * 2, parameters["w2"]) - y) ** 2).mean()

    def trained(linear: Any) -> Any:
        def step(parameters: Any, batch: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(parameters, *batch, linear)
            return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value

        return jax.jit(lambda p: jax.lax.scan(step, p, (x, y)))(start)

    def reference(x: Any, w: Any, b: Any = 0.0, activation: Any = None) -> Any:
        return ACTIVATIONS[activation](x @ w.T + b)

    (found, losses), (expected, others) = trained(cj.linear), trained(reference)
    close(losses, others, 1e-5)
    jax.tree.map(partial(close, tolerance=1e-4), found, expected)


# ---- vmap ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 2), (2, None), (None, 1)])
def test_vmap(axes: tuple[Any, Any]) -> None:
    a, b = random(4, 5), random(5, 6)
    given = [
        x if axis is None else jnp.moveaxis(random(3, *x.shape), 0, axis)
        for x, axis in zip((a, b), axes, strict=True)
    ]
    close(jax.vmap(cj.matmul, axes)(*given), jax.vmap(jnp.matmul, axes)(*given))
    gradient = jax.grad(lambda a, b: (jax.vmap(cj.matmul, axes)(a, b) ** 2).sum(), (0, 1))
    expected = jax.grad(lambda a, b: (jax.vmap(jnp.matmul, axes)(a, b) ** 2).sum(), (0, 1))
    for one, other in zip(jax.jit(gradient)(*given), expected(*given), strict=True):
        close(one, other, 1e-4)


def test_vmap_of_vmap() -> None:
    a, b = random(2, 4, 5), random(3, 5, 6)
    for outer, inner in (((0, None), (None, 0)), ((None, 0), (0, None))):
        found = jax.jit(jax.vmap(jax.vmap(cj.matmul, inner), outer))(a, b)
        close(found, jax.vmap(jax.vmap(jnp.matmul, inner), outer)(a, b))


def test_a_mapped_weight_has_one_product_for_its_gradient() -> None:
    x, w = random(3, 4, 8), random(6, 8)

    def total(w: Any) -> Any:
        return jax.vmap(cj.linear, (0, None))(x, w).sum()

    text = jax.jit(jax.grad(total)).lower(w).as_text()
    assert text.count("custom_call @cute_gemm_product") == 1 and "reduce" not in text


def test_hessian_of_a_mapped_layer(x64: None) -> None:
    x, w = random(3, 5, dtype="float64"), random(2, 5, dtype="float64")
    found = jax.hessian(lambda w: cj.linear(x, w, None, "gelu").sum())(w)
    expected = jax.hessian(lambda w: ACTIVATIONS["gelu"](x @ w.T).sum())(w)
    close(found, expected, 1e-10)


# ---- epilogues ----------------------------------------------------------------------------------


def several(acc: Any, bias: Any, scale: Any) -> Any:
    y = acc * scale + bias
    return y, cg.cast(y * 3, "int8"), cg.amax(y), cg.exp(-abs(acc))


def references(a: Any, b: Any, bias: Any, scale: Any) -> tuple[Any, ...]:
    acc = a @ b
    y = acc * scale + bias
    eighth = jnp.clip(jnp.round(y * 3), -128, 127).astype("int8")
    return y, eighth, jnp.abs(y).max(), jnp.exp(-jnp.abs(acc))


@pytest.mark.parametrize(
    "bias", [(6,), (4, 1), (4, 6), (1, 1), (), (3, 1, 1), (3, 4, 6), (3, 1, 6)], ids=str
)
def test_operands_that_broadcast(bias: tuple[int, ...]) -> None:
    a, b, bias = random(3, 4, 5), random(5, 6), random(*bias)
    function = jax.jit(partial(cj.gemm, "NN", epilogue=several, scale=2.0))
    for found, expected in zip(function(a, b, bias=bias), references(a, b, bias, 2.0), strict=True):
        assert found.dtype == expected.dtype
        close(found, expected)


def test_a_mapped_epilogue() -> None:
    a, b, biases, scales = random(3, 4, 5), random(5, 6), random(3, 6), random(3)

    def ours(a: Any, b: Any, bias: Any, scale: Any) -> Any:
        return cj.gemm("NN", a, b, epilogue=several, bias=bias, scale=scale)

    cases: list[tuple[Any, Any]] = [
        ((0, None, None, None), (a, b, biases[0], scales[0])),
        ((None, None, 0, 0), (a[0], b, biases, scales)),
        ((0, None, 0, None), (a, b, biases, scales[0])),
        ((None, 0, None, 0), (a[0], jnp.stack([b, 2 * b, -b]), biases[1], scales)),
    ]
    for axes, given in cases:
        found, expected = (jax.vmap(f, axes)(*given) for f in (ours, references))
        for one, other in zip(found, expected, strict=True):
            close(one, other)


def test_results_of_8_bits_saturate_in_a_differentiated_call_too() -> None:
    a, b = jnp.array([[1000.0], [-1000.0], [3.0]]), jnp.ones((1, 1))
    function = cg.epilogue(lambda acc: (acc, cg.cast(acc, "float8_e4m3fn")))
    (_, plain), (_, differentiated) = (
        cj.gemm("NN", a, b, epilogue=function),
        jax.jvp(lambda a: cj.gemm("NN", a, b, epilogue=function), (a,), (a,))[0],
    )
    for x in (plain, differentiated):
        assert x.astype("float32").tolist() == [[448.0], [-448.0], [3.0]]


def test_an_epilogue_has_derivatives(x64: None) -> None:
    a, b = random(4, 5, dtype="float64"), random(5, 6, dtype="float64")
    given = a, b, random(6, dtype="float64"), random(dtype="float64")

    def ours(*given: Any) -> Any:
        a, b, bias, scale = given
        y, _, greatest, decayed = cj.gemm("NN", a, b, epilogue=several, bias=bias, scale=scale)
        return y, greatest, decayed

    check_grads(ours, given, order=1, modes=("fwd", "rev"))
    half = [x.astype("bfloat16") for x in given]
    gradients = jax.grad(lambda *given: ours(*given)[0].sum(), (0, 1, 2, 3))(*half)
    assert all(x.dtype == "bfloat16" for x in gradients)
    named = jax.grad(lambda a: cj.gemm("NN", a, b, epilogue="relu").sum())(0 * a)
    assert not named.any()  # relu's gradient at 0


def test_masks_and_powers_have_derivatives(x64: None) -> None:
    a, b = random(4, 5, dtype="float64"), random(5, 6, dtype="float64")

    def masked(acc: Any) -> Any:
        where = cg.where if isinstance(acc, Value) else jnp.where
        y = acc**3 + acc * (acc != 1) + (acc**2 + 1) ** -0.5
        return where((acc > 0) & (acc < 2) | ~(acc >= -1) ^ (acc == 1), y, acc)

    for of in (lambda x: x, jax.grad):
        ours = of(lambda a: cj.gemm("NN", a, b, epilogue=masked).sum())(a)
        close(ours, of(lambda a: masked(a @ b).sum())(a))


def test_gemm_is_that_of_numpy() -> None:
    a, b, bias = random(5, 4), random(6, 5), random(6)
    given = {"alpha": 0.5, "epilogue": "bias+gelu"}
    found = jax.jit(lambda *x: cj.gemm("tT", x[0], x[1], bias=x[2], **given))(a, b, bias)
    arrays = (np.asarray(x) for x in (a, b, bias))
    A, B, other = arrays
    expected = cg.gemm("TT", A, B, order="C", backend="cpu", bias=other, **given)  # type: ignore[arg-type]
    assert (np.asarray(found) == expected).all()


# ---- errors -------------------------------------------------------------------------------------

x, half = jnp.ones((4, 4)), jnp.ones((4, 4), "bfloat16")
REFUSED: list[tuple[Callable[..., Any], type[GemmError], str]] = [
    (lambda x: cj.matmul(x, jnp.ones((5, 4))), ShapeError, "a has shape .4, 4. and b .5, 4."),
    (lambda x: cj.matmul(x[0], x), ShapeError, r"a has shape .4,.; .* a row is a\[None, :\]"),
    (lambda x: cj.matmul(x[None, :3].repeat(2, 0), jnp.ones((3, 4, 4))), ShapeError,
     "expected batch dimensions that broadcast"),
    (lambda x: cj.matmul(x, half), DTypeError, r"b has dtype bfloat16 .*b\.astype\(a\.dtype\)"),
    (lambda x: cj.matmul(x.astype("int32"), x.astype("int32")), DTypeError, "int32, which is not"),
    (lambda x: cj.gemm("NN", x, half), DTypeError, "B"),
    (lambda x: cj.matmul([[1.0]], x), ArrayError, r"a is of type list; .*jnp\.asarray\(a\)"),
    (lambda x: cj.matmul(x, x, out_dtype="float64"), GemmError, "float64"),
    (lambda x: cj.gemm("NX", x, x), OpError, "op is 'NX'"),
    (lambda x: cj.gemm("NN", x, x, alpha=x[0, 0]), ScalarError, "epilogue='scale', scale=alpha"),
    (lambda x: cj.gemm("NN", x, x, alpha=1j), ScalarError, "alpha is 1j; expected a real number"),
    (lambda x: cj.gemm("NN", x, x, beta=1.0), OptionError, "'beta', .*epilogue='residual'"),
    (lambda x: cj.gemm("NN", x, x, order="F"), OptionError, "no argument 'order'"),
    (lambda x: cj.gemm("NN", x, x, stage=3), OptionError, "did you mean stages"),
    (lambda x: cj.gemm("NN", x, x, kernel="fast"), UnknownKernelError, "kernel 'fast' is not"),
    (lambda x: cj.gemm("NN", x, x, epilogue="bias"), OptionError, "reads bias: pass bias="),
    (lambda x: cj.gemm("NN", x, x, epilogue="bias", bias=jnp.ones(7)), ShapeError, "bias has"),
    (lambda x: cj.gemm("NN", x, x, epilogue="bias", bias=jnp.ones((2, 4, 4))), ShapeError,
     r"bias has shape .2, 4, 4., and the result's batch dimensions are ..;"),
    (lambda x: cj.gemm("NN", x, x, epilogue="bias", bias=[1.0]), ArrayError, "bias is of type"),
    (lambda x: cj.linear(x, x, activation="swish"), OptionError, "activation='swish'; expected"),
    (lambda x: cj.linear(x, x[:, :3]), ShapeError, "expected .*K. and .N, K."),
    (lambda x: cj.linear(x, x, x), ShapeError, "expected .N,. and .N, K."),
    (lambda x: cj.linear(x, x, half[0]), DTypeError, "b has dtype bfloat16"),
    (lambda x: cj.linear(x.astype("int8"), x.astype("int8"), activation="relu"), DTypeError,
     "leave activation out"),
    (lambda x: cj.gemm("NN", x, x, epilogue="swiglu"), OptionError,
     "epilogue 'swiglu' takes pairs of columns, which cute_gemm.jax does not have"),
    (lambda x: cg.gemm("NN", x, x), ArrayError, r"A is traced .*cute_gemm\.jax\.gemm"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_refused_while_it_is_traced(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        jax.jit(call)(x)
    assert "\n" not in str(caught.value).partition("\n--------")[0]


#: Errors of JAX if a program fails, at its start or when its results are read.
FAILED = jax.errors.JaxRuntimeError, ValueError


def test_refused_where_it_runs() -> None:
    with pytest.raises(FAILED, match="'cublas' computes only on a GPU"):
        jax.jit(partial(cj.gemm, "NN", kernel="cublas"))(x, x).block_until_ready()
    close(cj.matmul(x, x), x @ x)  # later calls work


def test_a_call_takes_another_kernel_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = jnp.ones((3, 5)), jnp.ones((5, 4))
    call, made, prepared = jax.jit(cj.matmul), [], calls._prepared

    def again(*given: Any) -> Any:
        made.append(prepared(*given))
        return made[-1]

    monkeypatch.setattr(calls, "_prepared", again)
    reused.drop()
    for _ in range(3):
        assert (call(a, b) == 5).all()
    assert len(made) == 1
    made[0][0].executable.is_replaced = lambda: True
    assert (call(a, b) == 5).all()
    assert len(made) == 2
    made[1][0].executable.is_replaced = None
    reused.drop()  # as after tuning
    assert (call(a, b) == 5).all()
    assert len(made) == 3


def test_no_exception_reaches_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise KeyError("a fault")

    monkeypatch.setattr(calls, "_launch", failing)
    with pytest.raises(FAILED, match="INTERNAL: 'a fault'"):
        cj.matmul(x, x).block_until_ready()


# ---- programs -----------------------------------------------------------------------------------


def test_a_call_is_its_text() -> None:
    call = calls.ProductCall(
        "CN", alpha=2 - 1j, out_dtype="float32", compute="tf32", epilogue=cg.epilogue(several),
        operands=("bias",), numbers=(("scale", math.inf),), kernel="sm80_pipeline",
        options=(("stages", 3), ("tile", (128, 64, 32))),
    )  # fmt: skip
    assert calls.from_text(call.text.encode()) == call
    assert calls.from_text(calls.ProductCall("NT").text.encode()) == calls.ProductCall("NT")


def in_new_process(code: str, **environment: str) -> str:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": paths} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_from_another_process(tmp_path: Path) -> None:
    """Test JAX's compilation cache: the second process runs the program of the first."""
    code = """if True:
        import jax, jax.numpy as jnp
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        import cute_gemm as cg, cute_gemm.jax as cj
        ends = cg.epilogue(lambda acc, c: (acc - c, cg.amax(acc)))
        f = jax.jit(lambda a, c: cj.gemm("NN", a, a, epilogue=ends, c=c))
        y, z = f(2 * jnp.ones((3, 3)), jnp.ones(3))
        print(y[0, 0], z)
    """
    place = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    assert in_new_process(code, **place) == in_new_process(code, **place) == "11.0 12.0\n"
    assert any(tmp_path.iterdir())


def test_shard_map() -> None:
    """Test that each device computes its part, and that gradients of shared operands are summed."""
    out = in_new_process(
        """if True:
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import PartitionSpec as P
        import cute_gemm.jax as cj
        kinds = getattr(jax.sharding, "AxisType", None)
        more = {"axis_types": (kinds.Auto,)} if kinds else {}
        mesh = jax.make_mesh((2,), ("d",), **more)
        rng = np.random.default_rng(0)
        x, w, b = (jnp.asarray(rng.standard_normal(s), "float32") for s in ((4, 8), (6, 8), (6,)))
        def parallel(x, w, b):
            return jax.shard_map(
                lambda x, w, b: cj.linear(x, w, b, "gelu"), mesh=mesh,
                in_specs=(P("d"), P(), P()), out_specs=P("d"),
            )(x, w, b)
        def alone(x, w, b):
            return jax.nn.gelu(x @ w.T + b, approximate=False)
        pairs = [(jax.jit(parallel)(x, w, b), alone(x, w, b))]
        pairs += zip(*(
            jax.jit(jax.grad(lambda *given: (f(*given) ** 2).sum(), (0, 1, 2)))(x, w, b)
            for f in (parallel, alone)
        ))
        print(all(bool(jnp.allclose(p, q, atol=1e-4)) for p, q in pairs))
        shared = jax.device_put(x, jax.NamedSharding(mesh, P("d")))
        print(bool(jnp.allclose(jax.jit(cj.linear)(shared, w, b), x @ w.T + b, atol=1e-4)))
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert out == "True\nTrue\n"


def test_cute_gemm_does_not_import_jax() -> None:
    assert in_new_process("import sys, cute_gemm; print('jax' in sys.modules)") == "False\n"


# ---- parts of a batch ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "a", "b", "operands", "m", "shapes", "count"),
    [
        ("NT", (2, 3, 4, 5), (6, 5), [], 4, [(24, 5), (6, 5), (24, 6)], 1),
        ("TN", (2, 3, 5, 4), (5, 6), [], 4, [(6, 5, 4), (5, 6), (6, 4, 6)], 1),
        ("NN", (3, 4, 5), (3, 5, 6), [(6,)], 4, [(3, 4, 5), (3, 5, 6), (3, 4, 6), (1, 6)], 1),
        ("NN", (3, 4, 5), (5, 6), [(4, 1)], 4, [(3, 4, 5), (5, 6), (3, 4, 6), (4, 1)], 1),
        ("NN", (3, 4, 5), (5, 6), [(3, 4, 6)], 4, [(12, 5), (5, 6), (12, 6), (12, 6)], 1),
        ("NN", (3, 1, 5), (5, 6), [(3, 1, 6)], 1, [(3, 5), (5, 6), (3, 6), (3, 6)], 1),
        ("NN", (4, 5), (5, 6), [(3, 1, 6)], 4, [(3, 4, 5), (5, 6), (3, 4, 6), (3, 1, 6)], 1),
        ("NN", (2, 1, 4, 5), (3, 5, 6), [], 4, [(4, 5), (3, 5, 6), (3, 4, 6)], 2),
        ("NN", (1, 3, 4, 5), (2, 1, 5, 6), [], 4, [(12, 5), (2, 5, 6), (2, 12, 6)], 1),
    ],
)
def test_parts(op: str, a: Any, b: Any, operands: Any, m: int, shapes: Any, count: int) -> None:
    found = parts(op, a, b, operands, m, 6)
    assert len(found) == count and [place.shape for place in found[0]] == shapes


def test_what_the_handler_reads() -> None:
    seen = []

    def handler(text: bytes, given: Any, made: Any, context: ffi.Context) -> None:
        seen.append((text, [x[:2] for x in given], [x[:2] for x in made], context.device))

    ffi.register("cute_gemm_test", {"cpu": handler})
    result = jax.ShapeDtypeStruct((), jnp.int8)
    call = jax.ffi.ffi_call("cute_gemm_test", result)
    jax.jit(lambda x: call(x, jnp.ones(3, "bfloat16"), text="told"))(x).block_until_ready()
    assert seen[0][:3] == (b"told", [("float32", (4, 4)), ("bfloat16", (3,))], [("int8", ())])


# ---- scales -------------------------------------------------------------------------------------


def float8(*shape):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float8_e4m3fn)


@pytest.mark.parametrize("shapes", [((), ()), ((40, 1), (24, 1)), ((1, 1), (24, 1))], ids=str)
def test_scales(shapes):
    x, w = float8(40, 64), float8(24, 64)
    a, b = (jnp.linspace(0.5, 2, math.prod(shape)).reshape(shape) for shape in shapes)
    for more in ({}, {"epilogue": "bias+relu", "bias": jnp.ones(24)}, {"out_dtype": "float32"}):
        expected = cg.gemm("NT", x, w, order="C", scale_a=a, scale_b=b, backend="cpu", **more)
        found = jax.jit(partial(cj.gemm, "NT", **more))(x, w, scale_a=a, scale_b=b)
        unit = float(jnp.finfo(expected.dtype).eps)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.astype("f4"), expected.astype("f4"), rtol=2 * unit)


def test_scales_are_mapped_and_differentiated():
    x, w, b = float8(2, 40, 64), float8(24, 64), jnp.linspace(1, 2, 24)[:, None]
    a = jnp.linspace(0.5, 2, 80).reshape(2, 40, 1)
    y = jax.vmap(lambda x, a: cj.gemm("NT", x, w, scale_a=a, scale_b=b))(x, a)
    assert (y == cj.gemm("NT", x, w, scale_a=a, scale_b=b)).all()
    options = {"scale_b": 2.0, "compute": "fast_accum", "out_dtype": "float32"}
    found = jax.grad(lambda a: cj.gemm("NT", x, w, scale_a=a, **options).sum())(a)
    expected = 2 * (x.astype("float32") @ w.astype("float32").T).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_scales_that_are_refused():
    x, w = float8(40, 256), float8(24, 256)
    with pytest.raises(ShapeError, match=r"scale_a has shape \(40, 2\).* scales of blocks"):
        cj.gemm("NT", x, w, scale_a=jnp.ones((40, 2)))
    with pytest.raises(ShapeError, match=r"scale_b has shape \(1, 7\)"):
        cj.gemm("NT", x, w, scale_b=jnp.ones((7, 1)))
    with pytest.raises(DTypeError, match="scale_b has dtype bfloat16; expected float32"):
        cj.gemm("NT", x, w, scale_b=jnp.ones((24, 1), "bfloat16"))
