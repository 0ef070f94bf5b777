"""Test ``scale_a=`` and ``scale_b=`` of `gemm` in PyTorch's graphs, with gradients, on the CPU."""

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import cute_gemm as cg
from cute_gemm.errors import ArrayError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore:no usable GPU")

M, N, K = 40, 24, 256
FLOAT8 = torch.float8_e4m3fn
#: Shapes of scale_a and scale_b, by recipe.
SHAPES = {
    "tensor": ((), ()), "row": ((M, 1), (N, 1)), "vector": ((M,), (N,)), "mixed": ((1, 1), (N, 1)),
    "blocks": ((M, K // 128), (1, K // 128)),
}  # fmt: skip


def given(recipe: str) -> tuple[Any, ...]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w = torch.randn(M, K).to(FLOAT8), torch.randn(N, K).to(FLOAT8)
    return x, w, *(torch.rand(shape) + 0.5 for shape in SHAPES[recipe])


def layer(x: Any, w: Any, a: Any, b: Any, **keywords: Any) -> Any:
    return cg.gemm("NT", x, w, scale_a=a, scale_b=b, order="C", **keywords)


@pytest.mark.parametrize("recipe", SHAPES)
def test_scales_are_compiled(recipe: str) -> None:
    arrays = given(recipe)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*arrays), layer(*arrays))
    out = {"out_dtype": "float32", "epilogue": "bias+relu", "bias": torch.ones(N)}
    assert torch.equal(compiled(*arrays, **out), layer(*arrays, **out))


def test_numbers_are_compiled() -> None:
    x, w, *_ = given("tensor")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, w, 0.5, 2), layer(x, w, 0.5, 2))
    assert torch.equal(compiled(x, w, 0.5, None), layer(x, w, 0.5, None))


@pytest.mark.parametrize("recipe", [name for name in SHAPES if name != "blocks"])
def test_operands_and_scales_are_differentiable(recipe: str) -> None:
    _, _, a, b = given(recipe)
    # Scales are float32. Gradients of A and B are compared with those of PyTorch's product.
    A, B = torch.randn(M, 8, requires_grad=True), torch.randn(N, 8, requires_grad=True)
    a, b = (x.requires_grad_() for x in (a, b))
    wide = (a[:, None], b[:, None]) if recipe == "vector" else (a, b)
    y, expected = layer(A, B, a, b, epilogue="relu"), torch.relu((wide[0] * A) @ (wide[1] * B).T)
    torch.testing.assert_close(y, expected)
    g = torch.randn(M, N)
    leaves = A, B, a, b
    for found, right in zip(
        torch.autograd.grad(y, leaves, g), torch.autograd.grad(expected, leaves, g), strict=True
    ):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_scales_of_float8_are_differentiable() -> None:
    x, w, a, b = given("row")
    for out, close in (("bfloat16", 2e-2), ("float32", 1e-4)):
        y = layer(x, w, a.requires_grad_(), b, out_dtype=out)
        assert y.dtype == getattr(torch, out)
        (grad,) = torch.autograd.grad(y.float().sum(), a)
        torch.testing.assert_close(grad, (x.float() @ (b * w.float()).T).sum(1, keepdim=True),
                                   rtol=close, atol=close * 20)  # fmt: skip
    large = a.detach() * 1e6
    saturated = layer(x, w, large.clone().requires_grad_(), b, out_dtype="float8_e4m3fn")
    expected = layer(x, w, large, b, out_dtype="float8_e4m3fn")
    assert torch.equal(saturated.detach().float(), expected.float())


def test_a_number_is_differentiated_around() -> None:
    A = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    B = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    scaled = lambda A, B: layer(A, B, 0.5, 3.0)  # noqa: E731
    assert gradcheck(scaled, (A, B)) and gradgradcheck(scaled, (A, B))


def test_what_has_no_gradient_is_refused() -> None:
    x, w, a, b = given("blocks")
    with pytest.raises(ShapeError, match=r"scale_a has shape \(40, 2\) .* block scales"):
        layer(x, w, a.requires_grad_(), b)
    with torch.no_grad():
        assert layer(x, w, a, b).shape == (M, N)
    with pytest.raises(ShapeError, match=r"scale_b has shape \(7, 1\) .*\(N, 1\) = \(24, 1\)"):
        layer(x, w, 2.0, torch.ones(7, 1, requires_grad=True))


def test_a_graph_traced_without_gradients_is_not_differentiated() -> None:
    A, B = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    words = "order=C kernel=auto backend=auto scale_a=2.0"
    y = torch.ops.cute_gemm.gemm(A, B, "NT", 1, None, 0, None, words, [])
    with pytest.raises(ArrayError, match="epilogue or scales"):
        y.sum().backward()
