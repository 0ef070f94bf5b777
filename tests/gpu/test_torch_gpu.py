"""Test ``cute_gemm.torch``, and `gemm` with gradients, on the GPU."""

import itertools
from typing import Any

import pytest
import torch
from activations import ROWS, of_library

import cute_gemm as cg
import cute_gemm.torch as ct

HALF = ["float16", "bfloat16"]
REAL = [*HALF, "float32", "float64"]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def wanted(*shape: int, dtype: str = "float64") -> Any:
    x = torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))
    return (x / 4).requires_grad_()


def compare(function: Any, reference: Any, *tensors: Any) -> None:
    """Compare a function and its gradients with PyTorch's in float64."""
    exact = [x.detach().double().requires_grad_() for x in tensors]
    digits = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-9}
    tolerance = digits[str(tensors[0].dtype)[6:]]
    result = function(*tensors)
    expected = reference(*exact)
    weights = torch.randn_like(expected)
    of = torch.autograd.grad((result * weights.to(result.dtype)).sum(), tensors)
    of_exact = torch.autograd.grad((expected * weights).sum(), exact)
    for found, each in zip((result, *of), (expected, *of_exact), strict=True):
        scale = each.abs().max().item() or 1.0
        assert (found.double() - each).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("dtype", REAL)
def test_matmul(dtype: str) -> None:
    shapes = [((96, 64), (64, 80)), ((2, 3, 40, 64), (64, 80)), ((40, 64), (3, 64, 80))]
    shapes += [((2, 1, 40, 64), (3, 64, 80)), ((33, 65), (65, 31))]
    for first, second in shapes:
        a, b = wanted(*first, dtype=dtype), wanted(*second, dtype=dtype)
        compare(ct.matmul, torch.matmul, a, b)
        turned = [x.detach().mT.contiguous().mT.requires_grad_() for x in (a, b)]
        compare(ct.matmul, torch.matmul, *turned)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_conjugates(dtype: str) -> None:
    a, b = (wanted(48, 48, dtype=dtype) for _ in range(2))
    for first, second in itertools.product((lambda x: x, torch.conj, lambda x: x.mH), repeat=2):
        torch.testing.assert_close(
            ct.matmul(first(a), second(b)), first(a) @ second(b), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("activation", [None, *ROWS])
@pytest.mark.parametrize("dtype", REAL)
def test_linear_and_mlp(dtype: str, activation: Any) -> None:
    functional = torch.nn.functional
    act = of_library(torch)[activation] if activation else lambda x: x
    x, w1, b1, w2, b2 = (
        wanted(*shape, dtype=dtype) for shape in ((2, 32, 64), (96, 64), (96,), (48, 96), (48,))
    )
    compare(
        lambda *given: ct.linear(*given, activation),
        lambda *given: act(functional.linear(*given)),
        x, w1, b1,
    )  # fmt: skip
    compare(
        lambda *given: ct.mlp(*given, activation),
        lambda x, w1, b1, w2, b2: functional.linear(act(functional.linear(x, w1, b1)), w2, b2),
        x, w1, b1, w2, b2,
    )  # fmt: skip


def test_gradients_against_differences() -> None:
    check, again = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    x, w, b = wanted(2, 2, 3), wanted(2, 3), wanted(2)
    for activation in ("relu", "gelu", "silu"):
        function = lambda *given, activation=activation: ct.linear(*given, activation)  # noqa: E731
        assert check(function, (x, w, b)) and again(function, (x, w, b))
        both = lambda x, w, b, activation=activation: ct.mlp(x, w, b, w.T, None, activation)  # noqa: E731
        assert check(both, (x, w, b))
    assert check(ct.matmul, (x, w.T)) and again(ct.matmul, (x, w.T))
    product = lambda a, b: cg.gemm("NT", a, b, alpha=0.5)  # noqa: E731
    assert check(product, (x, w)) and again(product, (x, w))
    fused = lambda a, b, bias: cg.gemm("NT", a, b, epilogue="bias+silu", bias=bias)  # noqa: E731
    assert check(fused, (x, w, b))


def test_operators_keep_their_word() -> None:
    ops, check = torch.ops.cute_gemm, torch.library.opcheck
    x, w, b = (wanted(*s, dtype="bfloat16") for s in ((2, 16, 32), (48, 32), (48,)))
    check(ops.matmul, (x, w.detach().T.requires_grad_()))
    check(ops.matmul, (x, w.detach().T), {"dtype": torch.float32})
    check(ops.weight_gradient, (x, x.detach()))
    check(ops.linear, (x, w, b, "relu"))
    check(ops.linear_with_preactivation, (x, w, b, "gelu"))
    check(ops.mlp, (x, w, b, w.detach().T.requires_grad_(), None, "silu"))


@pytest.mark.parametrize("dtype", [*HALF, "float32"])
def test_main_grad(dtype: str) -> None:
    """Test main_grad of layers and groups with cached launches; float32 is updated in place."""
    kind = getattr(torch, dtype)
    layer = ct.Linear(
        136, 72, activation="gelu", device="cuda", dtype=kind, accumulate_main_grad=True
    )
    w = wanted(3, 72, 136, dtype=dtype)
    layer.weight.main_grad = torch.zeros(72, 136, device="cuda")
    w.main_grad = torch.zeros(3, 72, 136, device="cuda")
    ends = torch.tensor([100, 100, 290], device="cuda").int()
    exact, of_groups = layer.weight.main_grad.double(), w.main_grad.double()
    for _ in range(5):
        x, g = wanted(320, 136, dtype=dtype), torch.randn(320, 72, device="cuda", dtype=kind)
        layer(x).backward(g)
        wide = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
        torch.nn.functional.gelu(torch.nn.functional.linear(*wide)).backward(g.double())
        exact += wide[1].grad
        y = ct.grouped_mm(x, w.mT, ends, tail="zero", main_grad=w.main_grad.mT)
        y.backward(g)
        for number, (begin, end) in enumerate(((0, 100), (100, 100), (100, 290))):
            of_groups[number] += g[begin:end].double().T @ x.detach()[begin:end].double()
    assert layer.weight.grad is None and w.grad is None
    bound = {"rtol": 1e-4, "atol": 1e-3} if dtype == "float32" else {"rtol": 3e-2, "atol": 0.5}
    torch.testing.assert_close(layer.weight.main_grad.double(), exact, **bound)
    torch.testing.assert_close(w.main_grad.double(), of_groups, rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_main_grad_compiled(backend: str) -> None:
    torch._dynamo.reset()
    layer = ct.Linear(64, 64, device="cuda", dtype=torch.bfloat16, accumulate_main_grad=True)
    layer.weight.main_grad = torch.zeros(64, 64, device="cuda")
    function = lambda x: layer(layer(x)).float().square().sum()  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for rows in (16, 32, 48):
        x, found = wanted(2, rows, 64, dtype="bfloat16"), []
        for call in (function, compiled):
            layer.weight.main_grad.zero_()
            call(x).backward()
            found.append(layer.weight.main_grad.clone())
        torch.testing.assert_close(found[0], found[1], rtol=3e-2, atol=3e-2)
    assert layer.weight.grad is None and found[0].any()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend: str) -> None:
    torch._dynamo.reset()
    layer = ct.Linear(64, 64, activation="gelu", device="cuda", dtype=torch.bfloat16)
    function = lambda x: layer(layer(x)).float().square().sum()  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for rows in (16, 32, 48):
        x = wanted(2, rows, 64, dtype="bfloat16")
        every = x, *layer.parameters()
        expected = torch.autograd.grad(function(x), every)
        found = torch.autograd.grad(compiled(x), every)
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", HALF)
def test_autocast(dtype: str) -> None:
    kind = getattr(torch, dtype)
    layer = ct.Linear(64, 96, activation="silu", device="cuda")
    x = wanted(32, 64, dtype="float32")
    with torch.autocast("cuda", dtype=kind):
        y = layer(x)
        expected = torch.nn.functional.silu(torch.nn.functional.linear(x, layer.weight, layer.bias))
        assert ct.matmul(x, layer.weight.T).dtype == y.dtype == kind
    torch.testing.assert_close(y, expected, rtol=3e-2, atol=3e-2)
    y.float().sum().backward()
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == x.grad.dtype == torch.float32


def test_checkpoint() -> None:
    layer = ct.Linear(64, 64, activation="gelu", device="cuda")
    x = wanted(32, 64, dtype="float32")
    every = x, *layer.parameters()
    expected = torch.autograd.grad(layer(layer(x)).sum(), every)
    again = torch.utils.checkpoint.checkpoint(
        lambda x: layer(layer(x)).sum(), x, use_reentrant=False
    )
    for found, each in zip(torch.autograd.grad(again, every), expected, strict=True):
        assert torch.equal(found, each)


def test_a_graph_of_a_training_step() -> None:
    layer = ct.Linear(64, 64, activation="gelu", device="cuda", dtype=torch.bfloat16)
    x = wanted(32, 64, dtype="bfloat16")
    every = x, *layer.parameters()

    def step() -> Any:
        hidden = ct.mlp(layer(x), layer.weight, layer.bias, layer.weight, None, "silu")
        loss = hidden.float().square().sum()
        return [loss, *torch.autograd.grad(loss, every)]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()  # compile the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(wanted(32, 64, dtype="bfloat16"))
    graph.replay()
    torch.testing.assert_close(captured, step(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("op", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", REAL)
def test_gemm(dtype: str, op: str) -> None:
    A = wanted(*((48, 64) if op[0] == "N" else (64, 48)), dtype=dtype)
    B = wanted(*((64, 80) if op[1] == "N" else (80, 64)), dtype=dtype)
    turn = {"N": lambda x: x, "T": lambda x: x.mT}

    def reference(a: Any, b: Any) -> Any:
        return 0.5 * turn[op[0]](a) @ turn[op[1]](b)

    for order in ("F", "C"):
        compare(
            lambda a, b, order=order: cg.gemm(op, a, b, alpha=0.5, order=order), reference, A, B
        )
    bias = wanted(80, dtype=dtype)
    compare(
        lambda a, b, bias: cg.gemm(op, a, b, alpha=0.5, epilogue="bias+relu", bias=bias),
        lambda a, b, bias: torch.relu(reference(a, b) + bias),
        A, B, bias,
    )  # fmt: skip


def test_parameters_where_no_gradient_is_recorded() -> None:
    x, w = wanted(32, 64, dtype="float32"), torch.nn.Parameter(torch.randn(48, 64, device="cuda"))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(3):
                assert not cg.gemm("NT", x, w).requires_grad
    assert cg.gemm("NT", x, w).requires_grad


def laid_out(how: str) -> Any:
    """Return an input (8, 24, 64) of a layer with the given layout."""
    x = torch.randn(8, 24, 72, device="cuda", dtype=torch.bfloat16)
    return {
        "contiguous": lambda: x[..., :64].contiguous(),
        "rows apart": lambda: x[..., :64],
        "turned": lambda: x[..., :64].mT.contiguous().mT,
        "misaligned": lambda: x.reshape(-1)[1 : 1 + 8 * 24 * 64].view(8, 24, 64),
        "negated": lambda: torch._neg_view(x[..., :64].contiguous()),
    }[how]()


@pytest.mark.parametrize("how", ["contiguous", "rows apart", "turned", "misaligned", "negated"])
@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
def test_calls_that_are_kept_give_the_bits_of_the_operator(activation: str, how: str) -> None:
    ops = torch.ops.cute_gemm
    w, b = (wanted(*shape, dtype="bfloat16") for shape in ((96, 64), (96,)))
    for _ in range(3):
        x = laid_out(how).requires_grad_()
        g = torch.randn(8, 24, 96, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            assert torch.equal(
                ct.linear(x, w, b, activation or None), ops.linear(x, w, b, activation)
            )
            assert torch.equal(ct.matmul(x, w.T), ops.matmul(x, w.T))
        y = ct.linear(x, w, b, activation or None)
        if activation == "gelu":
            expected, _ = ops.linear_with_preactivation(x, w, b, activation)
        else:
            expected = ops.linear(x, w, b, activation)
        assert torch.equal(y, expected)
        found = torch.autograd.grad(y, (x, w, b), g)
        for one, other in zip(found, torch.autograd.grad(expected, (x, w, b), g), strict=True):
            assert torch.equal(one, other)


def test_what_is_kept_takes_every_check_that_depends_on_the_call() -> None:
    layer = ct.Linear(64, 96, device="cuda")
    x = torch.randn(32, 64, device="cuda")
    for _ in range(3):
        y = layer(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer(x.to("cuda")).grad_fn is not None
    with torch.no_grad():
        assert layer(x).grad_fn is None and torch.equal(layer(x), y)
    freed = torch.randn(32, 64, device="cuda")
    freed.untyped_storage().resize_(0)
    with pytest.raises(cg.errors.ArrayError, match="storage that was freed"):
        layer(freed)
    a = torch.randn(64, 64, device="cuda")
    c = cg.gemm("NN", a, a)
    for _ in range(3):
        cg.gemm("NN", a, a, c, beta=0.5)
    with pytest.raises(cg.errors.GemmError, match="beta"):
        cg.gemm("NN", a, a, beta=0.5)


def test_second_derivatives_of_kept_calls() -> None:
    x, w = wanted(32, 64), wanted(48, 64)
    for _ in range(3):
        (of_x,) = torch.autograd.grad(ct.linear(x, w, None, "tanh").sum(), x, create_graph=True)
        (twice,) = torch.autograd.grad(of_x.square().sum(), w)
    (of_x,) = torch.autograd.grad(torch.tanh(x @ w.T).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(of_x.square().sum(), w)
    torch.testing.assert_close(twice, expected)
