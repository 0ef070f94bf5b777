"""Test ``cute_gemm.torch.grouped_mm``: results, gradients, and the operator."""

from typing import Any

import pytest

from cute_gemm.errors import ArrayError, DTypeError, OffsetsError, OptionError, ShapeError

torch = pytest.importorskip("torch")
cgt = pytest.importorskip("cute_gemm.torch")

SHAPES = {"M": ((9, 5), (3, 5, 4)), "N": ((3, 4, 5), (5, 9)), "K": ((4, 9), (9, 5))}


@pytest.fixture
def ends() -> Any:
    return torch.tensor([2, 2, 9], dtype=torch.int32)


def wanted(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def loop(ragged: str, x: Any, w: Any) -> Any:
    """Compute the same with PyTorch, group by group."""
    parts = [slice(0, 2), slice(2, 2), slice(2, 9)]
    if ragged == "M":
        return torch.cat([x[part] @ w[g] for g, part in enumerate(parts)])
    if ragged == "N":
        return torch.cat([x[g] @ w[:, part] for g, part in enumerate(parts)], 1)
    return torch.stack([x[:, part] @ w[part] for part in parts])


@pytest.mark.parametrize("ragged", list(SHAPES))
@pytest.mark.parametrize("turned", [False, True])
def test_as_a_loop(ragged: str, turned: bool, ends: Any) -> None:
    torch.manual_seed(0)
    x, w = (wanted(*shape) for shape in SHAPES[ragged])
    if turned:
        x, w = (y.detach().mT.contiguous().mT.requires_grad_() for y in (x, w))
    found, expected = cgt.grouped_mm(x, w, ends), loop(ragged, x, w)
    torch.testing.assert_close(found, expected)
    g = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (x, w), g), torch.autograd.grad(expected, (x, w), g), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(cgt.grouped_mm(x.detach(), w.detach(), ends), expected.detach())


@pytest.mark.parametrize("ragged", list(SHAPES))
def test_gradients_of_gradients(ragged: str, ends: Any) -> None:
    x, w = (wanted(*shape) for shape in SHAPES[ragged])
    assert torch.autograd.gradcheck(lambda *a: cgt.grouped_mm(*a, ends), (x, w))
    assert torch.autograd.gradgradcheck(lambda *a: cgt.grouped_mm(*a, ends), (x, w))


def test_conjugated(ends: Any) -> None:
    x, w = wanted(9, 5, dtype=torch.complex128), wanted(3, 4, 5, dtype=torch.complex128)
    torch.testing.assert_close(cgt.grouped_mm(x, w.mH, ends), loop("M", x, w.mH))
    assert torch.autograd.gradcheck(lambda x, w: cgt.grouped_mm(x, w.mH, ends), (x, w))


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_bias(shape: tuple[int, ...], ends: Any) -> None:
    x, w, b = wanted(9, 5), wanted(3, 5, 4), wanted(*shape)
    rows = b.expand(3, 4).repeat_interleave(torch.tensor([2, 0, 7]), 0)
    found, expected = cgt.grouped_mm(x, w, ends, b), loop("M", x, w) + rows
    torch.testing.assert_close(found, expected)
    g = torch.randn_like(expected)
    (ours,), (theirs,) = (torch.autograd.grad(y, b, g) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(lambda *a: cgt.grouped_mm(*a[:2], ends, a[2]), (x, w, b))


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_rows_behind_the_last_group_are_not_in_the_bias_gradient(shape: tuple[int, ...]) -> None:
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)
    x, w, b = wanted(9, 5), wanted(3, 5, 4), wanted(*shape)
    g = torch.randn(9, 4, dtype=torch.float64)
    of_groups = torch.stack([g[:2].sum(0), g[:0].sum(0), g[2:7].sum(0)])
    g[7:] = torch.nan  # rows without a group
    (found,) = torch.autograd.grad(cgt.grouped_mm(x, w, ends, b), b, g)
    torch.testing.assert_close(found, of_groups if len(shape) == 2 else of_groups.sum(0))


@pytest.mark.parametrize("shape", [(3,), (3, 3)])
def test_bias_with_as_many_columns_as_groups(shape: tuple[int, ...], ends: Any) -> None:
    """Test that (N,) is a bias of each column, and (G, N) one of each group and column."""
    x, w, b = wanted(9, 5), wanted(3, 5, 3), wanted(*shape)
    rows = b.expand(3, 3).repeat_interleave(torch.tensor([2, 0, 7]), 0)
    found, expected = cgt.grouped_mm(x, w, ends, b), loop("M", x, w) + rows
    torch.testing.assert_close(found, expected)
    g = torch.randn_like(expected)
    (ours,), (theirs,) = (torch.autograd.grad(y, b, g) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("ragged", list(SHAPES))
def test_zeros_behind_the_last_group(ragged: str) -> None:
    """Test results, gradients and tangents of both modes, with NaN in rows without a group."""
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)
    x, w = (wanted(*shape) for shape in SHAPES[ragged])
    b = wanted(3, 4) if ragged == "M" else None

    def layer(*tensors: Any) -> Any:
        return cgt.grouped_mm(*tensors[:2], ends, *tensors[2:], tail="zero")

    given = (x, w) if b is None else (x, w, b)
    assert torch.autograd.gradcheck(layer, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(layer, given)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    expected = layer(*given)
    g = torch.randn_like(expected)
    for call in (layer, compiled):
        with torch.no_grad():
            for tensor, modes in ((x, "MK"), (w, "KN"), (g, "MN")):
                if ragged in modes:
                    tensor.narrow(tensor.dim() - 2 + modes.index(ragged), 7, 2).fill_(torch.nan)
        found = call(*given)
        torch.testing.assert_close(found, expected)
        dx, dw = torch.autograd.grad(found, (x, w), g)
        for tensor, modes in ((found, "MN"), (dx, "MK"), (dw, "KN")):
            if ragged in modes:
                behind = tensor.narrow(tensor.dim() - 2 + modes.index(ragged), 7, 2)
                assert (behind == 0).all()
            assert tensor.isfinite().all()


def test_training_with_padding_rows() -> None:
    """Test that the loss of all rows is finite. Unwritten rows would make it NaN."""
    torch.manual_seed(0)
    w, bias = wanted(3, 8, 8, dtype=torch.float32), wanted(8, dtype=torch.float32)
    optimizer = torch.optim.SGD([w, bias], lr=1e-2)
    losses = []
    for step in range(20):
        ends = torch.tensor([step % 3, 5, 5 + step % 2], dtype=torch.int32)
        x = torch.randn(9, 8, requires_grad=True)
        y = cgt.grouped_mm(torch.relu(x), w, ends, bias, tail="zero")
        loss = cgt.grouped_mm(y, w.mT, ends, tail="zero").square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert x.grad is not None and not x.grad[int(ends[-1]) :].any()
        optimizer.step()
        losses.append(loss.item())
    assert all(loss == loss for loss in losses) and w.isfinite().all() and bias.isfinite().all()


def test_operator_keeps_its_word(ends: Any) -> None:
    check = torch.library.opcheck
    for first, second in SHAPES.values():
        given = wanted(*first), wanted(*second), ends, None
        check(torch.ops.cute_gemm.grouped_mm, given)
        check(torch.ops.cute_gemm.grouped_mm, given, {"tail": "zero"})
    half = {"dtype": torch.bfloat16}
    check(
        torch.ops.cute_gemm.grouped_mm,
        (wanted(9, 5, **half), wanted(3, 5, 4, **half), ends, wanted(3, 4, **half)),
    )


def test_compiled(ends: Any) -> None:
    x, w = wanted(9, 5), wanted(3, 5, 4)
    torch._dynamo.reset()
    compiled = torch.compile(cgt.grouped_mm, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w, ends), loop("M", x, w))
    torch._dynamo.reset()


def test_refused(ends: Any) -> None:
    x, w = torch.ones(9, 5), torch.ones(3, 5, 4)
    for given, error, said in (
        ((x, w[:, :4], ends), ShapeError, "with one K"),
        ((x[None], w, ends), ShapeError, "expected (M, K) and (G, K, N)"),
        ((x, w, ends[:2]), ShapeError, "expected (3,)"),
        ((x, w, ends.long()), DTypeError, "pass offs.int()"),
        ((x, w.double(), ends), DTypeError, "expected one type"),
        ((x, w, ends, torch.ones(5)), ShapeError, "expected (N,) or (G, N)"),
        ((x, x.T, ends, torch.ones(9)), ShapeError, "with x (M, K) and w (G, K, N)"),
    ):
        with pytest.raises(error) as caught:
            cgt.grouped_mm(*given)
        assert said in str(caught.value)
    with pytest.raises(OffsetsError, match=r"offsets\[1\]=1 does not fit; expected an end of 2"):
        cgt.grouped_mm(x, w, torch.tensor([2, 1, 9], dtype=torch.int32), check="device")
    with pytest.raises(OptionError, match="tail='ones' is unknown; expected 'unwritten' or 'zero'"):
        cgt.grouped_mm(x, w, ends, tail="ones")


def test_8_bit_floats_with_scales() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(40, 64).to(torch.float8_e4m3fn), torch.randn(3, 24, 64).to(torch.float8_e5m2)
    a, b, bias = torch.rand(40) + 0.5, torch.rand(3, 24) + 0.5, torch.randn(24).bfloat16()
    ends = torch.tensor([7, 7, 40], dtype=torch.int32)
    expected = torch.cat(
        [
            a[rows, None] * (x[rows].float() @ w[g].float().T) * b[g] + bias.float()
            for g, rows in enumerate((slice(0, 7), slice(7, 7), slice(7, 40)))
        ]
    )

    def layer(x: Any, w: Any, a: Any, b: Any, **given: Any) -> Any:
        return cgt.grouped_mm(x, w.mT, ends, bias, scale_a=a, scale_b=b, **given)

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for call in (layer, compiled):
        y = call(x, w, a, b)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), expected, rtol=1e-2, atol=1e-2)
    wide = cgt.grouped_mm(x, w.mT, ends, scale_a=a, out_dtype=torch.float32, fast_accum=True)
    torch.testing.assert_close(
        wide[:7], a[:7, None] * (x[:7].float() @ w[0].float().T), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(ArrayError, match="grouped_mm with scales has no gradient"):
        layer(x, w, a.requires_grad_(), b).float().sum().backward()
