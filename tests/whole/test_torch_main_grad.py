"""Test ``main_grad``: gradients of weights that products accumulate in place."""

from typing import Any

import pytest

import cute_gemm as cg
from cute_gemm.errors import ArrayError, DTypeError, OptionError, ShapeError, StrideError

torch = pytest.importorskip("torch")
cgt = pytest.importorskip("cute_gemm.torch")

#: Type of x and w, of ``main_grad``, and a tolerance for other orders of summation.
KINDS = (
    (torch.bfloat16, torch.float32, 2e-2), (torch.float16, torch.float32, 2e-3),
    (torch.float32, torch.float32, 1e-5), (torch.float64, torch.float64, 1e-12),
)  # fmt: skip


def random(*shape: int, dtype: Any = torch.float32, wanted: bool = True) -> Any:
    return torch.randn(*shape, dtype=dtype, requires_grad=wanted)


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: str(kinds[0]).partition(".")[2])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("turned", [False, True])
def test_of_a_layer(turned: bool, activation: str | None, kinds: Any) -> None:
    """Compare three batches with ``w.grad``. The initial value stays in the sum."""
    torch.manual_seed(0)
    kind, wide, apart = kinds
    w, b = random(8, 16, dtype=kind), random(8, dtype=kind)
    main_grad = torch.randn(16, 8, dtype=wide).T if turned else torch.randn(8, 16, dtype=wide)
    expected = main_grad.clone()
    for rows in (5, 1, 7):
        x = random(2, rows, 16, dtype=kind)
        y = cgt.linear(x, w, b, activation, main_grad=main_grad)
        g = torch.randn_like(y)
        y.backward(g)
        assert w.grad is None
        dx, db = x.grad, b.grad
        x.grad = b.grad = None
        cgt.linear(x, w, b, activation).backward(g)
        torch.testing.assert_close((dx, db), (x.grad, b.grad), rtol=0, atol=0)
        expected += w.grad
        w.grad = b.grad = None
    torch.testing.assert_close(main_grad, expected, rtol=apart, atol=apart * 20)


def test_sums_of_half_types_keep_their_digits() -> None:
    torch.manual_seed(1)
    w = random(8, 16, dtype=torch.bfloat16)
    main_grad, exact = torch.zeros(8, 16), torch.zeros(8, 16, dtype=torch.float64)
    for _ in range(100):
        x, g = torch.rand(4, 16).bfloat16(), torch.rand(4, 8).bfloat16()
        cgt.linear(x, w, main_grad=main_grad).backward(g)
        cgt.linear(x, w).backward(g)
        exact += g.double().T @ x.double()
    ours, theirs = ((x - exact).abs().max() for x in (main_grad, w.grad))
    assert ours < 1e-5 * exact.max() and theirs > 100 * ours


SHAPES = {"M": ((9, 5), (3, 5, 4)), "N": ((3, 4, 5), (5, 9)), "K": ((4, 9), (9, 5))}


@pytest.mark.parametrize("tail", ["unwritten", "zero"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("ragged", list(SHAPES))
def test_of_groups(ragged: str, turned: bool, tail: str) -> None:
    """Test groups, one of which is empty. Elements without a group do not change."""
    torch.manual_seed(2)
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)
    first, second = SHAPES[ragged]
    x, w = random(*first, dtype=torch.bfloat16), random(*second, dtype=torch.bfloat16)
    main_grad = torch.randn(second)
    given, into = w, main_grad
    if turned:
        w = w.detach().mT.contiguous().requires_grad_()
        main_grad = main_grad.mT.contiguous()
        given, into = w.mT, main_grad.mT
    before = into.clone()
    y = cgt.grouped_mm(x, given, ends, tail=tail, main_grad=into)
    g = torch.randn_like(y)
    y.backward(g)
    assert w.grad is None and x.grad is not None
    zeros = cgt.grouped_mm(x, given, ends, tail="zero")
    (dw,) = torch.autograd.grad(zeros, given, g)
    torch.testing.assert_close(into - before, dw.float(), rtol=2e-2, atol=5e-2)
    if ragged in "NK":
        behind = into.narrow({"N": 1, "K": 0}[ragged], 7, 2)
        assert (behind == before.narrow({"N": 1, "K": 0}[ragged], 7, 2)).all()


@pytest.mark.parametrize("activation", ["relu", "gelu", None])
def test_of_an_mlp(activation: Any) -> None:
    torch.manual_seed(3)
    x = random(6, 5)
    w1, b1, w2 = random(8, 5), random(8), random(4, 8)
    first, second = torch.ones(8, 5), torch.ones(4, 8)
    y = cgt.mlp(x, w1, b1, w2, None, activation, main_grad1=first, main_grad2=second)
    g = torch.randn_like(y)
    y.backward(g)
    assert w1.grad is None and w2.grad is None and b1.grad is not None
    expected = torch.autograd.grad(cgt.mlp(x, w1, b1, w2, None, activation), (w1, w2), g)
    torch.testing.assert_close((first - 1, second - 1), expected, rtol=1e-5, atol=1e-5)
    # Only one of both has main_grad.
    second.fill_(1)
    cgt.mlp(x, w1, b1, w2, None, activation, main_grad2=second).backward(g)
    torch.testing.assert_close((w1.grad, second - 1), expected, rtol=1e-5, atol=1e-5)


def test_a_module_as_megatron_has_it() -> None:
    """Test hooks as in Megatron, which run in backward with a flag that the gradient was added."""
    torch.manual_seed(4)
    layer = cgt.Linear(16, 8, activation="silu", dtype=torch.bfloat16, accumulate_main_grad=True)
    assert "accumulate_main_grad=True" in repr(layer)
    weight, seen = layer.weight, []
    weight.main_grad = torch.zeros(8, 16)
    weight.register_post_accumulate_grad_hook(
        lambda p: seen.append((p.grad is not None, getattr(p, "grad_added_to_main_grad", None)))
    )
    x = torch.randn(3, 16, dtype=torch.bfloat16)
    weight.grad_added_to_main_grad = False
    layer(x).float().sum().backward()
    assert seen == [(True, True)] and weight.grad.dtype == torch.bfloat16
    once = weight.main_grad.clone()
    assert once.any()
    weight.grad, weight.grad_added_to_main_grad, weight.zero_out_wgrad = None, False, True
    layer(x).float().sum().backward()
    assert not weight.grad.any() and weight.grad_added_to_main_grad
    torch.testing.assert_close(weight.main_grad, 2 * once)
    weight.grad = None
    del weight.grad_added_to_main_grad
    layer(x).float().sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(weight.main_grad, 3 * once)


def test_nothing_is_added_where_nothing_is_recorded() -> None:
    layer = cgt.Linear(16, 8, accumulate_main_grad=True)
    with torch.no_grad():
        layer(torch.randn(3, 16))  # without main_grad
    layer.weight.main_grad = torch.zeros(8, 16)
    layer.weight.requires_grad_(False)
    x = random(3, 16)
    layer(x).sum().backward()
    assert x.grad is not None and not layer.weight.main_grad.any()


def test_in_autocast_and_checkpoints() -> None:
    torch.manual_seed(5)
    layer = cgt.Linear(16, 8, activation="gelu", accumulate_main_grad=True)
    layer.weight.main_grad = torch.zeros(8, 16)
    x = random(3, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad is None
    once = layer.weight.main_grad.clone()
    checked = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    checked.sum().backward()
    torch.testing.assert_close(layer.weight.main_grad, 2 * once, rtol=3e-2, atol=3e-2)


def test_compiled() -> None:
    """Test also groups, with dynamic shapes. The in-place sum is in the backward graph."""
    torch.manual_seed(6)
    layer = cgt.Linear(16, 16, activation="gelu", accumulate_main_grad=True)
    w, ends = random(2, 16, 4), torch.tensor([2, 5], dtype=torch.int32)
    layer.weight.main_grad, w.main_grad = torch.zeros(16, 16), torch.zeros(2, 16, 4)

    def function(x: Any) -> Any:
        y = cgt.grouped_mm(layer(layer(x)), w, ends, tail="zero", main_grad=w.main_grad)
        return y.square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (6, 7):
        found = []
        x = torch.randn(rows, 16)
        for call in (function, compiled):
            layer.weight.main_grad.zero_()
            w.main_grad.zero_()
            call(x).backward()
            found.append((layer.weight.main_grad.clone(), w.main_grad.clone()))
        torch.testing.assert_close(found[0], found[1])
        assert layer.weight.grad is None and w.grad is None and found[0][0].any()
    torch._dynamo.reset()


def test_operators_keep_their_word() -> None:
    ops, check = torch.ops.cute_gemm, torch.library.opcheck
    x, w, g = random(3, 16), random(8, 16), torch.randn(3, 8)
    check(ops.add_weight_gradient_, (torch.ones(8, 16), g, x.detach()))
    ends = torch.tensor([1, 3], dtype=torch.int32)
    check(ops.grouped_mm_add_, (torch.ones(2, 8, 16), g.mT, x.detach(), ends))
    forward = ("test_schema", "test_faketensor", "test_autograd_registration")
    check(ops.linear, (x, w, None, "relu", False, False, torch.ones(8, 16)), test_utils=forward)


def test_refused() -> None:
    x, w = random(3, 16, dtype=torch.bfloat16), random(8, 16, dtype=torch.bfloat16)
    for main_grad, error, said in (
        (torch.zeros(16, 8), ShapeError, "has shape (16, 8); expected that of w, (8, 16)"),
        (torch.zeros(8, 16).double(), DTypeError, "main_grad has dtype torch.float64 and w is "),
        (torch.zeros(8, 16, device="meta"), ArrayError, "main_grad is on meta and w on cpu"),
        (random(8, 16), ArrayError, "pass main_grad.detach()"),
        (torch.zeros(16, 64)[::2, ::4], StrideError, "expected one of the last two to be 1"),
        ("zeros", ArrayError, "main_grad is of type str"),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            cgt.linear(x, w, main_grad=main_grad)
        assert said in str(caught.value)
    with pytest.raises(ShapeError, match="main_grad2 has shape"):
        cgt.mlp(x, w, None, w.mT, None, "relu", main_grad2=torch.zeros(8, 16))
    with pytest.raises(OptionError, match="weight without main_grad; expected a float32 tensor"):
        cgt.Linear(16, 8, accumulate_main_grad=True)(x.float())
    y = cgt.linear(x, w, main_grad=torch.zeros(8, 16))
    with pytest.raises(ArrayError, match="has no gradient: leave main_grad out"):
        torch.autograd.grad(y.float().sum(), (x, w), create_graph=True)
    with pytest.raises(ArrayError, match="within torch.func.vmap"):
        torch.func.vmap(lambda x: cgt.linear(x, w.detach(), main_grad=torch.zeros(8, 16)))(
            torch.randn(2, 3, 16).bfloat16()
        )


def test_graphs_have_no_other_node() -> None:
    """Test graphs: an ``alias`` of an operator's output would fail an assertion of inductor."""
    tensors = torch.ones(8, 16), torch.randn(3, 8), torch.randn(3, 16)
    trace = torch.fx.experimental.proxy_tensor.make_fx
    for function, given in (
        (torch.ops.cute_gemm.add_weight_gradient_, tensors),
        (lambda C, A, B: cg.gemm("TN", A, B, C), tensors),
    ):
        nodes = trace(function)(*given).graph.find_nodes(
            op="call_function", target=torch.ops.aten.alias.default
        )
        assert not list(nodes)
