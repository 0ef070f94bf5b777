"""Test layers of ``cute_gemm.torch``: unfused bits, gates, and functions as activations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from activations import of_library
from torch.autograd import gradcheck, gradgradcheck

import cute_gemm as cg
import cute_gemm.torch as ct
from cute_gemm.errors import ArrayError, DTypeError, OptionError
from cute_gemm.problem.layers import GATED, forward
from cute_gemm.torch import running

pytestmark = pytest.mark.filterwarnings("ignore:no usable GPU")

ops = torch.ops.cute_gemm
ELEMENTWISE = of_library(torch)


def gated(name: str) -> Callable[[Any], Any]:
    return lambda z: ELEMENTWISE[GATED[name]](z[..., 0::2]) * z[..., 1::2]


ACTIVATIONS = {**ELEMENTWISE, **{name: gated(name) for name in GATED}}


@cg.epilogue
def of_halves(acc: Any) -> Any:
    gate, up = cg.halves(acc)
    return cg.silu(gate) * (up + 1)


def by_torch(z: Any) -> Any:
    gate, up = z.chunk(2, -1)
    return torch.nn.functional.silu(gate) * (up + 1)


@cg.epilogue
def scaled(acc: Any, scale: Any, residual: Any) -> Any:
    return cg.tanh(acc) * scale + residual


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def random(*shape: int, dtype: Any = torch.float64, grad: bool = False) -> Any:
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


# ---- bits of the unfused program -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_on_the_cpu_it_is_that_program(name: str, dtype: Any) -> None:
    x, w, b = (random(*shape, dtype=dtype) for shape in ((2, 40, 64), (96, 64), (96,)))
    activation = ACTIVATIONS[name]
    if name == "silu":
        activation = torch.nn.functional.silu
    if name == "swiglu":
        activation = lambda z: torch.nn.functional.silu(z[..., 0::2]) * z[..., 1::2]  # noqa: E731
    if name == "hardswish":
        activation = torch.nn.functional.hardswish
    for bias in (b, None):
        expected = activation(ct.linear(x, w / 8, bias))
        for grad in (False, True):
            found = ct.linear(x.requires_grad_(grad), w / 8, bias, name, unfused_bits=True)
            assert torch.equal(found, expected) and found.requires_grad == grad
    layer = ct.Linear(64, 96, activation=name, dtype=dtype, unfused_bits=True)
    expected = activation(ct.linear(x, layer.weight, layer.bias))
    assert torch.equal(layer(x), expected) and "unfused_bits=True" in repr(layer)
    w2 = random(8, 48 if name in GATED else 96, dtype=dtype)
    result = ct.mlp(x, layer.weight, layer.bias, w2, None, name, unfused_bits=True)
    assert torch.equal(result, ct.linear(expected, w2))


def test_gradients_are_those_of_the_program() -> None:
    given = [random(*shape, dtype=torch.bfloat16, grad=True) for shape in ((16, 8), (12, 8), (12,))]
    for name, activation in ACTIVATIONS.items():
        if name in ("relu2", "silu", "swiglu", "hardswish"):  # computed differently here
            continue
        g = random(16, 6 if name in GATED else 12, dtype=torch.bfloat16)
        found = torch.autograd.grad(ct.linear(*given, name, unfused_bits=True), given, g)
        program = activation(ct.linear(*given))
        for one, other in zip(found, torch.autograd.grad(program, given, g), strict=True):
            assert torch.equal(one, other), name


def test_what_is_fused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the arguments of `gemm`, with the program's order of summation."""
    seen: list[Any] = []

    def spied(*words: Any, **keywords: Any) -> Any:
        seen.append(keywords)
        return cg.plan(*words, **keywords, arch="sm_90a")

    monkeypatch.setattr(running, "plan", spied)
    x, w, b = (random(*shape, dtype=torch.bfloat16) for shape in ((4, 40, 64), (96, 64), (96,)))
    given = running._given(x, w, b, "gelu_tanh", False, False, True)
    assert given["epilogue"] is forward("gelu_tanh", True, False, "bfloat16")
    assert str(given["epilogue"].expression).splitlines()[2:] == [
        "v2 = add(v0, v1)", "v3 = round_to_bfloat16(v2)", "v4 = gelu_tanh_torch(v3)", "return v4",
    ]  # fmt: skip
    assert given["bias"] is b and seen == [{"order": "C", "epilogue": "bias", "bias": b}]
    sizes = {"m": 160, "n": 96, "k": 64, "dtype": "bfloat16", "order": "C", "storage": "C"}
    plain = cg.plan("NT", **sizes, arch="sm_90a", backend="cpu", epilogue="bias")
    assert given["order_of_summation"] == plain.order_of_summation
    given = running._given(x, w, b, "swiglu", False, False, True)
    lines = str(given["epilogue"].expression).splitlines()
    assert [line for line in lines if "round_to" in line] == [
        "v4 = round_to_bfloat16(v3)", "v6 = round_to_bfloat16(v5)", "v10 = round_to_bfloat16(v9)",
    ]  # fmt: skip
    assert torch.equal(given["bias_gate"], b[0::2]) and torch.equal(given["bias_up"], b[1::2])
    given = running._given(x, w, b, "gelu", True, False, True)
    assert given["batch_invariant"] and "order_of_summation" not in given


# ---- activations of two columns, and functions ---------------------------------------------------


@pytest.mark.parametrize("activation", [*GATED, of_halves], ids=[*GATED, "of_halves"])
def test_columns_that_are_taken_together(activation: Any) -> None:
    expected = by_torch if activation is of_halves else ACTIVATIONS[activation]
    w, b = random(6, 5), random(6)
    for shape in ((5,), (4, 5), (2, 3, 5)):
        x = random(*shape)
        for bias in (b, None):
            z = torch.nn.functional.linear(x, w, bias)
            result = ct.linear(x, w, bias, activation)
            torch.testing.assert_close(result, expected(z))
            assert result.is_contiguous()
    given = [random(*shape, grad=True) for shape in ((2, 2, 3), (4, 3), (4,))]
    function = lambda *given: ct.linear(*given, activation)  # noqa: E731
    assert gradcheck(function, given) and gradgradcheck(function, given)
    second = random(3, 2, grad=True)
    result = ct.mlp(*given, second, None, activation)
    torch.testing.assert_close(result, ct.linear(function(*given), second))
    assert gradcheck(lambda *given: ct.mlp(*given, None, activation), (*given, second))
    layer = ct.Linear(5, 6, activation=activation, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected(ct.linear(x, layer.weight, layer.bias)))
    assert layer(x).requires_grad
    said = "of_halves" if activation is of_halves else activation
    assert f"activation='{said}'" in repr(layer)


def test_a_function_with_operands() -> None:
    x, w, b = random(2, 3, 5, grad=True), random(6, 5), random(6)
    for scale, residual in ((0.5, random(6)), (random(2, 3, 6), random(2, 3, 1))):
        expected = torch.tanh(torch.nn.functional.linear(x, w, b)) * scale + residual
        for given in (x, x.detach()):
            found = ct.linear(given, w, b, scaled, scale=scale, residual=residual)
            torch.testing.assert_close(found, expected)
            assert found.requires_grad == given.requires_grad
    layer = ct.Linear(5, 6, activation=scaled, dtype=torch.float64)
    assert layer(x, scale=2.0, residual=random(6)).shape == (2, 3, 6)
    residual = random(2, 3, 6, grad=True)
    assert gradcheck(lambda x, r: ct.linear(x, w, b, scaled, scale=2, residual=r), (x, residual))


def test_compile_and_export(compiled: Callable[..., Any]) -> None:
    residual = random(6, dtype=torch.float32)
    for layer, operands in (
        (ct.Linear(4, 6, activation="swiglu", unfused_bits=True), {}),
        (ct.Linear(4, 6, activation=of_halves), {}),
        (ct.Linear(4, 6, activation="relu2", unfused_bits=True), {}),
        (ct.Linear(4, 6, activation=scaled), {"scale": residual, "residual": residual}),
    ):
        torch._dynamo.reset()
        function = partial(layer, **operands)
        quick = compiled(lambda x, function=function: function(x))
        for rows in (2, 3):
            x = random(2, rows, 4, dtype=torch.float32, grad=True)
            every = x, *layer.parameters()
            gradients = torch.autograd.grad(function(x).square().sum(), every)
            found = torch.autograd.grad(quick(x).square().sum(), every)
            torch.testing.assert_close(found, gradients)
            with torch.no_grad():
                torch.testing.assert_close(quick(x), function(x))
    layer, x = ct.Linear(4, 6, activation="swiglu"), random(2, 5, 4, dtype=torch.float32)
    with torch.no_grad():
        exported = torch.export.export(layer, (x,))
        torch.testing.assert_close(exported.module()(x), layer(x))
    targets = [str(node.target) for node in exported.graph.nodes]
    assert "cute_gemm.linear.default" in targets
    check = torch.library.opcheck
    check(ops.linear, (*(random(*s) for s in ((3, 4), (6, 4), (6,))), of_halves.text))
    check(
        ops.linear, (*(random(*s, grad=True) for s in ((3, 4), (6, 4), (6,))), "relu2", False, True)
    )


def test_func_and_meta() -> None:
    w, b, batch = random(6, 5), random(6), random(7, 3, 5)
    for name in ("swiglu", "relu2"):
        function = lambda x, name=name: ct.linear(x, w, b, name, unfused_bits=True)  # noqa: E731
        expected = torch.stack([function(x) for x in batch])
        torch.testing.assert_close(torch.func.vmap(function)(batch), expected)
        _, tangent = torch.func.jvp(function, (batch,), (batch,))
        _, pull = torch.func.vjp(function, batch)
        g = torch.randn_like(tangent)
        torch.testing.assert_close((g * tangent).sum(), (pull(g)[0] * batch).sum())
    meta = ct.linear(batch.to("meta"), w.to("meta"), None, "swiglu")
    assert meta.shape == (7, 3, 3) and meta.is_meta


def test_what_does_not_fit() -> None:
    x, w, b = random(4, 5), random(6, 5), random(6)
    several = cg.epilogue(lambda acc: (acc, acc * 2))
    named = cg.epilogue(lambda acc, bias: acc * bias)
    cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
        ("swish", {}, "expected one of relu, relu2, .*, swiglu, geglu, the result of cute_"),
        (lambda acc: acc, {}, "the result of cute_gemm.epilogue, or None"),
        (several, {}, "has several results; expected one result"),
        (scaled, {}, "reads scale: pass scale="),
        ("gelu", {"scale": 2}, "no argument 'scale', and activation='gelu' no operand"),
        (named, {"bias": 2}, "an operand called bias, and b is given: call it otherwise"),
        (scaled, {"scale": 2, "residual": 0, "unfused_bits": True}, "came with operands"),
    )
    for activation, more, said in cases:
        with pytest.raises(OptionError, match=said):
            ct.linear(x, w, b, activation, **more)
    order = cg.plan("NT", x, w, order="C", backend="cpu").order_of_summation
    assert cg.gemm("NT", x, w, order="C", order_of_summation=order).shape == (4, 6)
    with pytest.raises(
        OptionError, match="order_of_summation is not supported when PyTorch traces"
    ):
        cg.gemm("NT", x.clone().requires_grad_(), w, order_of_summation=order)
    with pytest.raises(OptionError, match="expected one of relu"):
        ct.Linear(4, 5, activation="swish")
    with pytest.raises(DTypeError, match="activation='of_halves' came with x of torch.int8"):
        ct.linear(x.to(torch.int8), w.to(torch.int8), None, of_halves)
    wanted = x.requires_grad_()
    with pytest.raises(ArrayError, match="traced without gradients has no gradient"):
        ops.linear(wanted, w, b, "swiglu")
