"""Test ``cute_gemm.torch``, and `gemm` with gradients, on the CPU."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from activations import of_library
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cute_gemm as cg
import cute_gemm.torch as ct
from cute_gemm.errors import ArrayError, DTypeError, GemmError, OptionError, ShapeError, StrideError
from cute_gemm.torch import operators, running

pytestmark = pytest.mark.filterwarnings("ignore:no usable GPU")

Calls = list[tuple[str, Any, Any, dict[str, Any]]]
ops = torch.ops.cute_gemm


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return the calls of `gemm` by the operators: op, A, B and keywords."""
    seen: Calls = []

    def spy(op: str, A: Any, B: Any, C: Any = None, **keywords: Any) -> Any:
        seen.append((op, A, B, keywords))
        return cg.gemm(op, A, B, C, **keywords)

    monkeypatch.setattr(running, "gemm", spy)
    monkeypatch.setattr(operators, "compute", spy)
    return seen


def random(*shape: int, dtype: Any = torch.float64, grad: bool = False) -> Any:
    if dtype == torch.int8:
        return torch.randint(-5, 6, shape, dtype=dtype)
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def wanted(*shape: int, dtype: Any = torch.float64) -> Any:
    return random(*shape, dtype=dtype, grad=True)


def twice(function: Callable[..., Any], *tensors: Any) -> None:
    """Check first and second derivatives against finite differences."""
    assert gradcheck(function, tensors) and gradgradcheck(function, tensors)


# ---- matmul -------------------------------------------------------------------------------------

SHAPES = [
    ((4, 5), (5, 6)), ((3, 4, 5), (5, 6)), ((2, 3, 4, 5), (5, 6)), ((4, 5), (3, 5, 6)),
    ((3, 4, 5), (3, 5, 6)), ((2, 1, 4, 5), (3, 5, 6)), ((3, 4, 5), (1, 5, 6)),
    ((1, 4, 5), (3, 5, 6)), ((4, 1), (1, 6)), ((1, 5), (5, 1)), ((0, 5), (5, 6)), ((4, 0), (0, 6)),
    ((0, 4, 5), (5, 6)), ((0, 4, 5), (0, 5, 6)), ((3, 0, 5), (5, 6)), ((2, 3, 4, 0), (3, 0, 6)),
]  # fmt: skip
#: Views with a tensor's shape, of tensors with other layouts.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "row-major": lambda x: x,
    "column-major": lambda x: x.mT.contiguous().mT,
    "batch inside": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "padded": lambda x: torch.nn.functional.pad(x, (0, 3, 0, 2))[..., :-2, :-3],
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "negative": lambda x: torch.complex(x, -x).conj().imag,
}


@pytest.mark.parametrize(("first", "second"), SHAPES, ids=str)
def test_matmul_is_torchs(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = random(*first), random(*second)
    expected = torch.matmul(a, b)
    for view, other in itertools.product(VIEWS.values(), repeat=2):
        result = ct.matmul(view(a), other(b))
        torch.testing.assert_close(result, expected)
        assert result.is_contiguous()


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8"]
)
def test_every_type(dtype: str) -> None:
    kind = getattr(torch, dtype)
    a, b = random(2, 4, 5, dtype=kind), random(5, 6, dtype=kind)
    exact = torch.int32 if dtype == "int8" else kind
    torch.testing.assert_close(ct.matmul(a, b), torch.matmul(a.to(exact), b.to(exact)))
    if kind in (torch.float16, torch.bfloat16):
        wide = ct.matmul(a, b, out_dtype=torch.float32)
        torch.testing.assert_close(wide, a.float() @ b.float())


def test_nothing_is_copied_that_gemm_can_read(calls: Calls) -> None:
    x, w = random(2, 3, 8), random(6, 8)
    for a, b, pointers in (
        (x, w.T, (x, w)),
        (x.mT.contiguous().mT, w.T, None),
        (x[:, :, :4], w.T[:4], (x, w)),
        (w[None].expand(2, 6, 8), x.mT, (w, x)),
        (x, w.T.expand(2, 8, 6), (x, w)),
    ):
        calls.clear()
        ct.matmul(a, b)
        (_, A, B, _), = calls  # fmt: skip
        expected = pointers or (a, b)
        assert (A.data_ptr(), B.data_ptr()) == tuple(each.data_ptr() for each in expected)
    # Rows of a batch are rows of one matrix. A shared operand is passed once.
    for a, b, dimensions in (
        (x, w.T, (2, 2)),
        (x.mT.contiguous().mT, w.T, (3, 2)),
        (w, x.mT, (2, 3)),
        (x, x.mT, (3, 3)),
    ):
        calls.clear()
        ct.matmul(a, b)
        (_, A, B, _), = calls  # fmt: skip
        assert (A.dim(), B.dim()) == dimensions


def test_conjugates_are_letters(calls: Calls) -> None:
    a, b = (random(4, 4, dtype=torch.complex128) for _ in range(2))
    views: list[Callable[[Any], Any]] = [lambda x: x, torch.conj, lambda x: x.mT, lambda x: x.mH]
    for first, second in itertools.product(views, repeat=2):
        calls.clear()
        torch.testing.assert_close(ct.matmul(first(a), second(b)), first(a) @ second(b))
        (op, A, B, _), = calls  # fmt: skip
        assert (A.data_ptr(), B.data_ptr()) == (a.data_ptr(), b.data_ptr())
        assert op == "".join("C" if view(a).is_conj() else "N" for view in (first, second))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(
    ("first", "second"),
    [((3, 2), (2, 4)), ((2, 3, 2), (2, 3)), ((2, 2), (2, 2, 3)), ((2, 1, 1, 2), (2, 2, 1))],
    ids=str,
)
def test_gradients_of_matmul(first: Any, second: Any, dtype: Any) -> None:
    a, b = wanted(*first, dtype=dtype), wanted(*second, dtype=dtype)
    twice(ct.matmul, a, b)
    column = VIEWS["column-major"]
    assert gradcheck(lambda a, b: ct.matmul(column(a), column(b).conj()), (a, b))


def test_gradients_have_the_layouts_of_what_they_are_of() -> None:
    for a, b in itertools.product(
        (random(3, 4), random(4, 3).T, random(2, 4, 3).mT), (random(4, 5), random(5, 4).T)
    ):
        a, b = a.requires_grad_(), b.requires_grad_()
        ct.matmul(a, b).sum().backward()
        assert a.grad.stride() == a.stride() and b.grad.stride() == b.stride()


def test_half_types_are_summed_over_a_batch_in_float32() -> None:
    w = wanted(2, 2, dtype=torch.bfloat16)
    x = torch.ones(600, 2, 1, dtype=torch.bfloat16)
    ct.matmul(w, x).sum().backward()
    assert (w.grad == 600).all()
    bias = torch.zeros(3, dtype=torch.float16, requires_grad=True)
    y = ct.linear(x.half().mT, torch.ones(3, 2).half(), bias)
    y.backward(torch.full_like(y, 1.5))
    assert (bias.grad == 900).all()


# ---- linear, Linear, mlp ------------------------------------------------------------------------

ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {None: lambda x: x, **of_library(torch)}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_is_torchs(activation: str | None, calls: Calls) -> None:
    w, b = random(6, 5), random(6)
    for shape in ((5,), (2, 3, 5)):
        x = random(*shape)
        for bias in (b, None):
            calls.clear()
            result = ct.linear(x, w, bias, activation)
            expected = ACTIVATIONS[activation](torch.nn.functional.linear(x, w, bias))
            torch.testing.assert_close(result, expected)
            assert result.is_contiguous()
            parts = (["bias"] if bias is not None else []) + ([activation] if activation else [])
            assert [call[3].get("epilogue") for call in calls] == ["+".join(parts) or None]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_linear(activation: str | None) -> None:
    x, w, b = wanted(2, 2, 3), wanted(2, 3), wanted(2)
    twice(lambda *given: ct.linear(*given, activation), x, w, b)
    assert gradcheck(lambda *given: ct.linear(*given, None, activation), (x, w))
    column = w.detach().T.contiguous().T.requires_grad_()
    ct.linear(x, column, b, activation).sum().backward()
    assert column.grad.stride() == column.stride()
    if activation:  # the operator alone, which keeps no preactivation
        assert gradcheck(lambda *given: ops.linear(*given, activation), (x, w, b))


def test_types_without_an_epilogue() -> None:
    for kind in (torch.complex64, torch.complex128):
        x, w, b = (random(*shape, dtype=kind) for shape in ((4, 5), (6, 5), (6,)))
        torch.testing.assert_close(ct.linear(x, w, b), torch.nn.functional.linear(x, w, b))
        with pytest.raises(DTypeError, match="leave activation out"):
            ct.linear(x, w, b, "relu")
    i, j = random(4, 5, dtype=torch.int8), random(6, 5, dtype=torch.int8)
    assert torch.equal(ct.linear(i, j, torch.ones(6).int()), i.int() @ j.T.int() + 1)


@pytest.mark.parametrize("activation", list(ACTIVATIONS)[1:])
def test_mlp_is_two_layers(activation: str, calls: Calls) -> None:
    given = wanted(2, 3), wanted(3, 3), wanted(3), wanted(2, 3), wanted(2)
    twice(lambda *each: ct.mlp(*each, activation), *given)
    expected = ct.linear(ct.linear(*given[:3], activation), *given[3:])
    result = ct.mlp(*given, activation)
    torch.testing.assert_close(result, expected)
    calls.clear()
    gradients = torch.autograd.grad(result.square().sum(), given)
    fused = [call[3]["epilogue"].name for call in calls if "epilogue" in call[3]]
    assert fused == [f"{activation}_gradient"]
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), given))
    with torch.no_grad():
        torch.testing.assert_close(ct.mlp(*given, activation), expected)


def test_a_layer_is_torchs() -> None:
    torch.manual_seed(3)
    reference = torch.nn.Linear(5, 6)
    torch.manual_seed(3)
    layer = ct.Linear(5, 6, activation="silu")
    x = random(2, 5, dtype=torch.float32)
    torch.testing.assert_close(layer(x), torch.nn.functional.silu(reference(x)))
    layer.load_state_dict(reference.state_dict())
    assert "activation='silu'" in repr(layer) and "activation" not in repr(ct.Linear(5, 6))
    assert isinstance(layer, torch.nn.Linear) and ct.Linear(5, 6, bias=False).bias is None
    assert ct.Linear(5, 6, dtype=torch.bfloat16).weight.dtype == torch.bfloat16


# ---- PyTorch features ---------------------------------------------------------------------------


def test_operators_keep_their_word() -> None:
    check = torch.library.opcheck
    x, w, b = wanted(2, 3, 4), wanted(5, 4), wanted(5)
    check(ops.matmul, (x, wanted(4, 5)))
    check(ops.matmul, (wanted(3, 4, dtype=torch.complex64), wanted(2, 4, 2, dtype=torch.complex64)))
    half = wanted(3, 3, dtype=torch.float16)
    check(ops.matmul, (half, half), {"dtype": torch.float32})
    check(ops.matmul, (random(3, 3, dtype=torch.int8), random(3, 3, dtype=torch.int8)))
    check(ops.weight_gradient, (x, wanted(2, 3, 5)))
    check(ops.linear, (x, w, b, "relu"))
    check(ops.linear, (x, w, None, "gelu"))
    check(ops.linear_with_preactivation, (x, w, b, "silu"))
    check(ops.mlp, (x, w, b, wanted(2, 5), None, "tanh"))
    check(ops.activation_gradient, (random(3, 4), random(4, 5), random(3, 5), "gelu"))
    A, B = wanted(3, 4), wanted(4, 5)
    check(ops.gemm, (A, B, "NN", 2.0, None, 0.0, None, "order=F", []))
    plain = random(3, 4), random(4, 5), random(3, 5)
    check(ops.gemm_, (*plain, "NN", 2.0, None, 1.0, None, "", []))
    version = plain[2]._version
    ops.gemm_(*plain, "NN", 2.0, None, 1.0, None, "", [])
    assert plain[2]._version == version + 1


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_compile(activation: str, compiled: Callable[..., Any]) -> None:
    layer = ct.Linear(4, 3, activation=activation)
    w = wanted(3, 2, dtype=torch.float32)

    def function(x: Any) -> Any:
        hidden = ct.mlp(layer(x), w.T, None, w, None, activation)
        return ct.matmul(hidden, hidden.mT).sum()

    quick = compiled(function)
    for rows in (2, 3):
        x = wanted(2, rows, 4, dtype=torch.float32)
        every = x, w, *layer.parameters()
        expected = torch.autograd.grad(function(x), every)
        torch.testing.assert_close(torch.autograd.grad(quick(x), every), expected)


@pytest.mark.parametrize("epilogue", [None, "relu", "bias+gelu", "swiglu"])
def test_compile_a_call_with_an_epilogue(
    epilogue: str | None, compiled: Callable[..., Any]
) -> None:
    bias = wanted(6, dtype=torch.float32)
    more = {"epilogue": epilogue} if epilogue else {}

    def function(x: Any, w: Any) -> Any:
        given = more | ({"bias": bias} if epilogue == "bias+gelu" else {})
        return cg.gemm("NT", x, w, order="C", **given).square().sum()

    quick = compiled(function)
    for rows in (2, 3):
        x, w = wanted(rows, 4, dtype=torch.float32), wanted(6, 4, dtype=torch.float32)
        every = x, w, *([bias] if epilogue == "bias+gelu" else [])
        expected = torch.autograd.grad(function(x, w), every)
        torch.testing.assert_close(torch.autograd.grad(quick(x, w), every), expected)


def test_export() -> None:
    layer, x = ct.Linear(4, 3, activation="gelu"), random(2, 5, 4, dtype=torch.float32)
    rows = torch.export.Dim("rows")
    exported = torch.export.export(layer, (x,), dynamic_shapes=({1: rows},))
    assert any("cute_gemm" in str(node.target) for node in exported.graph.nodes)
    for several in (x, random(2, 7, 4, dtype=torch.float32)):
        torch.testing.assert_close(exported.module()(several), layer(several))


def test_autocast(compiled: Callable[..., Any]) -> None:
    layer = ct.Linear(4, 3, activation="gelu")
    x = wanted(2, 4, dtype=torch.float32)
    for function in (layer, compiled(layer)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = function(x)
            assert ct.matmul(x, layer.weight.T).dtype == torch.bfloat16
            assert ct.matmul(random(2, 2), random(2, 2)).dtype == torch.float64
            assert ct.mlp(x, layer.weight, layer.bias, layer.weight.T, None, "relu").dtype == (
                torch.bfloat16
            )
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        assert x.grad.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32


def test_checkpoint() -> None:
    layer, x = ct.Linear(4, 4, activation="silu"), wanted(2, 4, dtype=torch.float32)
    every = x, *layer.parameters()
    expected = torch.autograd.grad(layer(layer(x)).sum(), every)
    again = checkpoint(lambda x: layer(layer(x)).sum(), x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again, every), expected)


# ---- gemm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("op", ["NT", "TN", "CH"])
def test_gemm_is_differentiable(op: str, dtype: Any) -> None:
    A = wanted(*((3, 2) if op[0] == "N" else (2, 3)), dtype=dtype)
    B = wanted(*((2, 3) if op[1] == "N" else (3, 2)), dtype=dtype)
    alpha = 0.5 if dtype == torch.float64 else 0.5 - 2j
    for order in ("F", "C"):
        twice(lambda a, b, order=order: cg.gemm(op, a, b, alpha=alpha, order=order), A, B)
    C = cg.gemm(op, A, B)
    assert C.stride() == (1, 3)
    gradients = torch.autograd.grad(C, (A, B), torch.ones_like(C))
    assert [x.stride() for x in gradients] == [A.stride(), B.stride()]


@pytest.mark.parametrize("op", ["NN", "CT"])
def test_gemm_is_differentiable_with_a_complex_alpha_in_memory(op: str) -> None:
    dtype = torch.complex128
    A, B = wanted(3, 3, dtype=dtype), wanted(3, 3, dtype=dtype)
    alpha = torch.tensor(0.5 - 2j, dtype=dtype)
    twice(lambda a, b: cg.gemm(op, a, b, alpha=alpha), A, B)
    turned = {"N": A, "C": A.mH}[op[0]], {"N": B, "T": B.mT}[op[1]]
    expected, found = alpha * (turned[0] @ turned[1]), cg.gemm(op, A, B, alpha=alpha)
    g = wanted(3, 3, dtype=dtype).detach()
    for ours, theirs in zip(
        torch.autograd.grad(found, (A, B), g), torch.autograd.grad(expected, (A, B), g), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_gemm_of_a_batch_with_scalars_in_memory() -> None:
    A, B, alpha = wanted(2, 3, 2), wanted(2, 2), torch.tensor(0.5, dtype=torch.float64)
    twice(lambda a, b: cg.gemm("TN", a, b, alpha=alpha), B, A.detach().mT.requires_grad_())
    twice(lambda a, b: cg.gemm("NT", a, b, alpha=alpha, backend="cpu"), A, B)
    half = wanted(3, 3, dtype=torch.float16)
    C = cg.gemm("NN", half, half, out_dtype="float32")
    C.sum().backward()
    assert C.dtype == torch.float32 and half.grad.dtype == torch.float16


@cg.epilogue
def mixed(acc: Any, bias: Any, scale: Any, other: Any) -> Any:
    y = cg.where(acc + bias > 0, acc, 0.1 * cg.minimum(acc, other) + cg.silu(bias))
    return y * scale / cg.rsqrt(cg.exp(cg.maximum(other, -acc))) - cg.gelu(acc, "tanh")


def test_epilogues_are_differentiable(compiled: Callable[..., Any]) -> None:
    A, B, bias, other = wanted(2, 2), wanted(2, 3), wanted(3), wanted(2, 3)

    def function(a: Any, b: Any, bias: Any, other: Any) -> Any:
        y = cg.gemm("NN", a, b, epilogue=mixed, bias=bias, scale=2, other=other, order="C")
        return cg.gemm("NN", y, b.mT, epilogue="bias+relu", bias=bias[0])

    given = A, B, bias, other
    twice(function, *given)
    plain = function(*(x.detach() for x in given))
    torch.testing.assert_close(function(*given), plain)
    torch.testing.assert_close(compiled(function)(*given), plain)
    zero = torch.zeros(2, 2, requires_grad=True)
    cg.gemm("NN", zero, torch.ones(2, 2), epilogue="relu").sum().backward()
    assert not zero.grad.any()  # as torch.relu at 0
    half = cg.gemm("NN", A.half(), B.half(), epilogue=lambda acc: acc * 2)
    assert half.dtype == torch.float16 and half.requires_grad


def masked(acc: Any, b: Any) -> Any:
    """An epilogue that is also a function of tensors."""
    y = torch.relu(acc) ** 2 + acc * (acc != b) + (acc * acc + 1) ** -0.5
    return torch.where((acc > b) & (acc < 2) | ~(b < 0) ^ (acc == 1), y, acc**3)


def test_masks_and_powers_are_differentiable() -> None:
    A, B, bias = wanted(5, 3), wanted(3, 4), wanted(4)
    y = cg.gemm("NN", A, B, epilogue=masked, b=bias)
    expected = masked(A @ B, bias)
    torch.testing.assert_close(y, expected)
    for found, same in zip(
        *(torch.autograd.grad(x.sum(), (A, B)) for x in (y, expected)), strict=True
    ):
        torch.testing.assert_close(found, same)


def test_pairs_of_columns_are_differentiable(compiled: Callable[..., Any]) -> None:
    A, B, bias = wanted(2, 3), wanted(3, 4), wanted(2)

    @cg.epilogue
    def gated(acc: Any, bias: Any) -> Any:
        gate, up = cg.halves(acc)
        return cg.silu(gate + bias) * up

    def function(a: Any, b: Any, bias: Any) -> Any:
        y = cg.gemm("NN", a, b, epilogue=gated, bias=bias, order="C")
        return y + cg.gemm("NN", a, b, epilogue="swiglu", order="C")

    twice(function, A, B, bias)
    plain = function(*(x.detach() for x in (A, B, bias)))
    z = A @ B
    silu = torch.nn.functional.silu
    expected = silu(z[:, :2] + bias) * z[:, 2:] + silu(z[:, 0::2]) * z[:, 1::2]
    torch.testing.assert_close(plain, expected)
    torch.testing.assert_close(function(A, B, bias), expected)
    a, b = A.detach(), B.detach()
    found = compiled(lambda a, b: 2 * cg.gemm("NN", a, b, epilogue="swiglu", order="C"))(a, b)
    torch.testing.assert_close(found, 2 * silu(z[:, 0::2]) * z[:, 1::2])
    plan = cg.plan("NN", a, b, epilogue="swiglu")
    found = compiled(lambda a, b: 2 * plan(a, b))(a, b)
    torch.testing.assert_close(found, 2 * silu(z[:, 0::2]) * z[:, 1::2])


def test_parameters_where_no_gradient_is_recorded() -> None:
    A, B = random(3, 4), torch.nn.Parameter(random(4, 5))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            C = cg.gemm("NN", A, B)
            torch.testing.assert_close(C, A @ B)
            assert not C.requires_grad
            plan = cg.plan("NN", A, B, backend="cpu")
            torch.testing.assert_close(plan(A, B), A @ B)
            assert torch.equal(cg.gemm("NN", A, B, torch.zeros_like(C), beta=1), C)


def test_a_graph_traced_without_gradients_is_not_differentiated() -> None:
    A, B, bias = wanted(3, 4), random(4, 5), random(5)
    name = "order=F epilogue=bias operands=bias"
    C = ops.gemm(A, B, "NN", 1.0, None, 0.0, None, name, [bias])
    with pytest.raises(ArrayError, match="traced without gradients"):
        C.sum().backward()


# ---- errors -------------------------------------------------------------------------------------

X = torch.zeros(2, 3, 4)
W = torch.zeros(5, 4)
GRAD = torch.zeros(4, 4, requires_grad=True)
REFUSED: dict[str, tuple[type[GemmError], str, Callable[[], Any]]] = {
    "row": (ShapeError, r"b has shape \(4,\).*column b\[:, None\]", lambda: ct.matmul(X, W[0])),
    "k": (ShapeError, r"a has shape \(2, 3, 4\) and b \(5, 4\).*one K", lambda: ct.matmul(X, W)),
    "batch": (ShapeError, "batch dimensions", lambda: ct.matmul(X, torch.zeros(3, 4, 2))),
    "types": (DTypeError, r"b has dtype torch.float64", lambda: ct.matmul(W, W.T.double())),
    "int64": (DTypeError, "int64", lambda: ct.matmul(W.long(), W.T.long())),
    "no tensor": (ArrayError, "x is of type list", lambda: ct.linear([1], W)),
    "x": (ShapeError, r"x has shape \(5, 4\) and w \(4, 5\)", lambda: ct.linear(W, W.T)),
    "bias": (ShapeError, r"b has shape \(4,\)", lambda: ct.linear(X, W, W[0])),
    "bias type": (DTypeError, "pass b.to", lambda: ct.linear(X, W, W[:, 0].double())),
    "activation": (OptionError, "'swish'; expected one of", lambda: ct.linear(X, W, None, "swish")),
    "layer": (OptionError, "'swish'", lambda: ct.Linear(2, 3, activation="swish")),
    "mlp": (ShapeError, r"w2 \(5, 4\)", lambda: ct.mlp(GRAD, W, None, W, None, "relu")),
    "C": (
        ArrayError, "A requires grad.*and no C is given",
        lambda: cg.gemm("NN", GRAD, GRAD, W[:4].T),
    ),
    "plan": (ArrayError, r"pass A.detach\(\)", lambda: cg.plan("NN", GRAD, GRAD)),
    "alpha": (
        ArrayError, "alpha requires grad", lambda: cg.gemm("NN", GRAD, GRAD, alpha=GRAD[0, 0]),
    ),
    "NumPy": (ArrayError, "A requires grad", lambda: cg.gemm("NN", GRAD, W[:4].numpy())),
    "stream": (OptionError, "differentiates", lambda: cg.gemm("NN", GRAD, GRAD, stream=0)),
    "strides": (StrideError, "B.contiguous", lambda: cg.gemm("NN", GRAD[:, :2], GRAD[::2, ::2])),
    "operand": (OptionError, "bias=", lambda: cg.gemm("NN", GRAD, GRAD, epilogue="bias")),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    error, message, call = REFUSED[what]
    with pytest.raises(error, match=message):
        call()


def test_a_call_without_gradients_runs_past_its_operator_unless_something_watches() -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(func.__name__.partition(".")[0])
            return func(*args, **(kwargs or {}))

    x, w, b = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
    exact = torch.relu(x @ w.T + b)
    torch.testing.assert_close(ct.linear(x, w, b, "relu"), exact)
    with Watch():
        torch.testing.assert_close(ct.linear(x, w, b, "relu"), exact)
        torch.testing.assert_close(ct.matmul(x, w.T), x @ w.T)
    assert {"linear", "matmul"} <= set(seen)
    graph = make_fx(lambda x: ct.matmul(ct.linear(x, w, b), w))(x)
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert "cute_gemm.linear.default" in called and "cute_gemm.matmul.default" in called
    with torch.no_grad():
        torch.testing.assert_close(ct.linear(x.requires_grad_(), w, b, "relu"), exact)
    assert ct.linear(x, w, b).requires_grad
