"""Test ``cute_gemm.torch`` and `gemm` in forward mode and within ``torch.func``, on the CPU."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from activations import of_library
from torch.autograd import forward_ad, gradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import cute_gemm as cg
import cute_gemm.torch as ct
from cute_gemm.errors import ArrayError, OptionError, ScalarError

pytestmark = pytest.mark.filterwarnings("ignore:no usable GPU")

functional = torch.nn.functional
ENDS = torch.tensor([2, 2, 5], dtype=torch.int32)
ACTIVATIONS = of_library(torch)


class Case(NamedTuple):
    """A call, the same with PyTorch, and the shapes of the arguments."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


@cg.epilogue
def gated(acc: Any, bias: Any) -> Any:
    gate, up = cg.halves(acc)
    return cg.silu(gate) * up + bias


def by_groups(x: Any, w: Any, b: Any) -> Any:
    """Compute groups of rows with PyTorch, with a bias per group or one bias."""
    ends, parts, begin = ENDS.tolist(), [], 0
    for g, end in enumerate(ends):
        parts.append(x[begin:end] @ w[g] + (b[g] if b.dim() == 2 else b))
        begin = end
    return torch.cat(parts)


def _cases() -> dict[str, Case]:
    number = torch.tensor(0.5, dtype=torch.float64)
    cases = {
        "matmul": Case(ct.matmul, torch.matmul, ((3, 4), (4, 2))),
        "matmul of a batch": Case(ct.matmul, torch.matmul, ((2, 3, 4), (4, 2))),
        "linear": Case(ct.linear, functional.linear, ((2, 3, 4), (5, 4), (5,))),
        "gemm": Case(
            lambda a, b: cg.gemm("TN", a, b, alpha=2), lambda a, b: 2 * a.T @ b, ((4, 3), (4, 2))
        ),
        "gemm with alpha in memory": Case(
            lambda a, b: cg.gemm("NT", a, b, alpha=number, order="C"),
            lambda a, b: number * a @ b.T,
            ((3, 4), (2, 4)),
        ),
        "gemm with a name": Case(
            lambda a, b, c: cg.gemm("NT", a, b, epilogue="bias+gelu", bias=c),
            lambda a, b, c: functional.gelu(a @ b.T + c),
            ((3, 4), (2, 4), (2,)),
        ),
        "gemm with an epilogue": Case(
            lambda a, b, c: cg.gemm("NN", a, b, epilogue=gated, bias=c, order="C"),
            lambda a, b, c: ACTIVATIONS["silu"]((a @ b)[:, :2]) * (a @ b)[:, 2:] + c,
            ((3, 4), (4, 4), (2,)),
        ),
        "grouped": Case(
            lambda x, w, b: ct.grouped_mm(x, w, ENDS, b), by_groups, ((5, 3), (3, 3, 4), (4,))
        ),
        "grouped with rows of bias": Case(
            lambda x, w, b: ct.grouped_mm(x, w, ENDS, b), by_groups, ((5, 3), (3, 3, 4), (3, 4))
        ),
    }
    for name, own in ACTIVATIONS.items():
        cases[f"linear {name}"] = Case(
            lambda x, w, b, name=name: ct.linear(x, w, b, name),
            lambda x, w, b, own=own: own(functional.linear(x, w, b)),
            ((3, 4), (5, 4), (5,)),
        )
        cases[f"mlp {name}"] = Case(
            lambda *given, name=name: ct.mlp(*given, name),
            lambda x, w, b, v, c, own=own: functional.linear(own(functional.linear(x, w, b)), v, c),
            ((3, 4), (5, 4), (5,), (2, 5), (2,)),
        )
    return cases


CASES = _cases()


def drawn(case: Case) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[int, ...]]:
    """Return arguments, tangents, and indices of the arguments."""
    torch.manual_seed(0)
    given = tuple(torch.randn(shape, dtype=torch.float64) for shape in case.shapes)
    return given, tuple(torch.randn_like(x) for x in given), tuple(range(len(given)))


def compare(transform: Callable[[Callable[..., Any]], Any], case: Case) -> None:
    torch.testing.assert_close(transform(case.ours), transform(case.theirs))


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: function(*given).square().sum()


@pytest.mark.parametrize("name", CASES)
def test_tangents(name: str) -> None:
    case = CASES[name]
    given, tangents, every = drawn(case)

    def dual(function: Callable[..., Any]) -> Any:
        with forward_ad.dual_level():
            numbers = map(forward_ad.make_dual, given, tangents)
            return tuple(forward_ad.unpack_dual(function(*numbers)))

    compare(dual, case)
    compare(lambda function: jvp(function, given, tangents), case)
    compare(lambda function: jacfwd(function, every)(*given), case)
    for place in every:  # with respect to one argument

        def of_one(function: Callable[..., Any], place: int = place) -> Any:
            rest = given[:place], given[place + 1 :]
            one = lambda x: function(*rest[0], x, *rest[1])  # noqa: E731
            batch = torch.stack([given[place], tangents[place]], -1)
            outputs = torch.stack([one(x.contiguous()) for x in batch.unbind(-1)])
            torch.testing.assert_close(vmap(one, -1)(batch), outputs)
            return jvp(one, (given[place],), (tangents[place],)), outputs

        compare(of_one, case)


@pytest.mark.parametrize("name", CASES)
def test_gradients_within_func(name: str) -> None:
    case = CASES[name]
    given, others, every = drawn(case)
    batch = tuple(map(torch.stack, zip(given, others, strict=True)))
    compare(lambda function: grad(loss(function), every)(*given), case)
    compare(lambda function: jacrev(function, every)(*given), case)
    compare(lambda function: hessian(loss(function), every)(*given), case)
    each = [grad(loss(case.theirs), every)(*one) for one in (given, others)]
    expected = tuple(map(torch.stack, zip(*each, strict=True)))
    torch.testing.assert_close(vmap(grad(loss(case.ours), every))(*batch), expected)
    # Gradients per sample, with shared weights.
    first = (0, *(None for _ in every[1:]))
    samples = vmap(grad(loss(case.ours), every), first)(batch[0], *given[1:])
    each = [grad(loss(case.theirs), every)(x, *given[1:]) for x in batch[0]]
    torch.testing.assert_close(samples, tuple(map(torch.stack, zip(*each, strict=True))))
    of_batch = grad(lambda *all: vmap(case.ours)(*all).square().sum(), every)(*batch)
    torch.testing.assert_close(of_batch, expected)


@pytest.mark.parametrize("name", ["matmul", "linear silu", "mlp relu", "mlp gelu", "gemm"])
def test_second_derivatives(name: str) -> None:
    case = CASES[name]
    given, tangents, every = drawn(case)
    for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
        compare(lambda f, o=outer, i=inner: o(i(loss(f), every), every)(*given), case)
    compare(lambda f: jvp(lambda *x: vjp(loss(f), *x)[1](torch.tensor(1.0).double()), given,
                          tangents), case)  # fmt: skip

    def dual(function: Callable[..., Any]) -> Any:
        with forward_ad.dual_level():
            numbers = [
                forward_ad.make_dual(x.clone().requires_grad_(), y)
                for x, y in zip(given, tangents, strict=True)
            ]
            found = torch.autograd.grad(loss(function)(*numbers), numbers)
            return [forward_ad.unpack_dual(x).tangent for x in found]

    compare(dual, case)
    whole = torch.autograd.functional
    compare(lambda f: whole.hvp(loss(f), given, tangents), case)
    compare(lambda f: whole.jvp(f, given, tangents), case)
    for mode in ("reverse-mode", "forward-mode"):
        compare(lambda f, m=mode: whole.jacobian(f, given, vectorize=True, strategy=m), case)


def test_differences_agree_with_tangents() -> None:
    wanted = lambda *shape: torch.randn(shape, dtype=torch.float64, requires_grad=True)  # noqa: E731
    x, w, b = wanted(3, 4), wanted(5, 4), wanted(5)
    for function in (
        lambda x, w, b: ct.linear(x, w, b, "gelu"),
        lambda x, w, b: ct.mlp(x, w, b, w.T, None, "tanh"),
        lambda x, w, b: cg.gemm("NT", x, w, epilogue="bias+silu", bias=b),
        lambda x, w, b: ct.matmul(x, w.T) + b,
    ):
        assert gradcheck(
            function, (x, w, b), check_forward_ad=True, check_batched_forward_grad=True
        )
    z = torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
    assert gradcheck(lambda z: ct.matmul(z.conj(), z.mH), (z,), check_forward_ad=True)
    assert gradcheck(lambda z: cg.gemm("CN", z, z, alpha=2j), (z,), check_forward_ad=True)


def test_scales_of_groups_have_tangents() -> None:
    torch.manual_seed(0)
    x, w, a, b = torch.randn(5, 8), torch.randn(3, 8, 4), torch.rand(5), torch.rand(3, 4)
    given = x, w, a, b
    tangents = tuple(torch.randn_like(each) for each in given)
    ours = lambda x, w, a, b: ct.grouped_mm(x, w, ENDS, scale_a=a, scale_b=b)  # noqa: E731
    theirs = lambda x, w, a, b: by_groups(a[:, None] * x, w * b[:, None], torch.zeros(4))  # noqa: E731
    found, expected = (jvp(function, given, tangents) for function in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tangents_of_half_types(dtype: Any) -> None:
    x, w = torch.randn(3, 4, dtype=dtype), torch.randn(5, 4, dtype=dtype)
    _, tangent = jvp(lambda x: ct.linear(x, w, None, "relu"), (x,), (torch.ones_like(x),))
    assert tangent.dtype == dtype
    _, tangent = jvp(lambda x: ct.matmul(x, w.T, out_dtype=torch.float32), (x,), (x,))
    assert tangent.dtype == torch.float32
    torch.testing.assert_close(tangent, x.float() @ w.T.float())


def test_batches_within_batches() -> None:
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5, 6)
    torch.testing.assert_close(vmap(vmap(ct.matmul))(a, b), a @ b)
    both = vmap(vmap(ct.matmul, (None, 0)), (0, None))(a[0], b[0])
    torch.testing.assert_close(both, a[0][:, None] @ b[0])
    w, bias = torch.randn(3, 7, 5), torch.randn(3, 7)
    for invariant in (False, True):
        layer = lambda x, w, b, same=invariant: ct.linear(x, w, b, "relu", batch_invariant=same)  # noqa: E731
        expected = torch.stack([layer(a[0, i], w[i], bias[i]) for i in range(3)])
        torch.testing.assert_close(vmap(layer)(a[0], w, bias), expected)
        torch.testing.assert_close(vmap(layer, (0, None, None))(a[0], w[0], bias[0]),
                                   layer(a[0], w[0], bias[0]))  # fmt: skip
    # An epilogue with several results, which an operator's graph does not support.
    both = lambda acc: (acc, acc * 2)  # noqa: E731
    found = vmap(lambda a, b: cg.gemm("NN", a, b, epilogue=both))(a[0], b[0])
    torch.testing.assert_close(found[1], 2 * a[0] @ b[0])


def test_a_layer_that_is_called_with_other_parameters() -> None:
    torch.manual_seed(0)
    layer, reference = ct.Linear(4, 3, activation="gelu"), torch.nn.Linear(4, 3)
    parameters = {name: torch.randn_like(x) for name, x in layer.named_parameters()}
    x = torch.randn(5, 4)

    def ours(parameters: Any, x: Any) -> Any:
        return functional_call(layer, parameters, (x,)).square().sum()

    def theirs(parameters: Any, x: Any) -> Any:
        return functional.gelu(functional_call(reference, parameters, (x,))).square().sum()

    for transform in (grad, lambda f: vmap(grad(f), (None, 0))):
        torch.testing.assert_close(transform(ours)(parameters, x), transform(theirs)(parameters, x))


@pytest.mark.parametrize("name", ["linear gelu", "gemm with a name", "matmul"])
def test_transforms_are_compiled(name: str) -> None:
    case = CASES[name]
    given, tangents, every = drawn(case)
    for transform in (
        lambda *x: jvp(case.ours, x, tangents)[1],
        lambda *x: vmap(grad(loss(case.ours), every))(*(torch.stack([y, y]) for y in x)),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(transform, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(*given), transform(*given))
    torch._dynamo.reset()


def test_what_has_no_derivative_says_so() -> None:
    A, B = torch.randn(3, 3), torch.randn(3, 3)
    plan = cg.plan("NN", A, B)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(A, B)
        for call in (
            lambda: cg.gemm("NN", dual, B, A.T.contiguous()),
            lambda: cg.gemm("NN", B, B, dual, beta=1),
            lambda: plan(dual, B),
            lambda: cg.gemm("NN", dual, B.numpy()),
        ):
            with pytest.raises(ArrayError, match="has a tangent in a call .*unpack_dual"):
                call()
        alpha = forward_ad.make_dual(torch.tensor(1.0), torch.tensor(1.0))
        with pytest.raises(ScalarError, match="alpha has a tangent"):
            cg.gemm("NN", A, B, alpha=alpha)
        with pytest.raises(OptionError, match="call cute_gemm.torch.grouped_mm"):
            cg.grouped_gemm("NN", dual, torch.randn(3, 3, 3), ENDS)
        # Tensors without a tangent are computed at once within the level too.
        torch.testing.assert_close(cg.gemm("NN", A, B, torch.zeros(3, 3)), A @ B)
        torch.testing.assert_close(plan(A, B), A @ B)
    words = "NN", 1.0, None, 0.0, None, "", []
    in_place = lambda a: torch.ops.cute_gemm.gemm_(a, B, torch.zeros(3, 3), *words)  # noqa: E731
    with pytest.raises(ArrayError, match="gemm computes into a C has no gradient"):
        jvp(in_place, (A,), (B,))
    keywords = "order=F epilogue=bias operands=bias"

    def named(bias: Any) -> Any:
        return torch.ops.cute_gemm.gemm(A, A, *words[:-2], keywords, [bias])

    with pytest.raises(ArrayError, match="traced without gradients"):
        jvp(named, (A[0],), (A[0],))
    with forward_ad.dual_level(), pytest.raises(ArrayError, match="traced without gradients"):
        named(forward_ad.make_dual(A[0], A[0]))
    with pytest.raises(OptionError, match="call cute_gemm.torch.grouped_mm"):
        vmap(lambda x: cg.grouped_gemm("NN", x, torch.ones(3, 3, 3), ENDS))(torch.ones(2, 5, 3))
