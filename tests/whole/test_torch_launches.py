"""Test cached launches of layers on the CPU, with fake launches that compute at their addresses."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cute_gemm as cg
import cute_gemm.torch as ct
from cute_gemm.plan import reused
from cute_gemm.torch import launches

ops = torch.ops.cute_gemm


def at_address(like: torch.Tensor, address: int) -> torch.Tensor:
    """Return a tensor at an address, with the layout of another tensor."""
    last = sum((extent - 1) * step for extent, step in zip(like.shape, like.stride(), strict=True))
    memory = (ctypes.c_char * ((last + 1) * like.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype).as_strided(like.shape, like.stride())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Return addresses of launches. Tensors of the CPU are treated as a GPU's."""
    addresses: list[tuple[int, ...]] = []

    def recent(words: Any, A: Any, B: Any, keywords: dict[str, Any]) -> Any:
        letters, order, dtype, compute, epilogue, *_ = words
        lies = [x.detach() for x in (A, B, *keywords.values())]

        def bound(at: tuple[int, ...], stream: int) -> None:
            assert stream == 7
            addresses.append(at)
            a, b, *rest = map(at_address, lies, (*at[:2], *at[3:]))
            others = dict(zip(keywords, rest, strict=False)) | {"epilogue": epilogue}
            place = (others.pop("offsets"),) if "offsets" in others else ()
            function = cg.grouped_gemm if place else cg.gemm
            how = {"order": order, "out_dtype": dtype, "compute": compute}
            found = function(letters, a, b, *place, **how, **others)
            results = found if isinstance(found, tuple) else (found,)
            ends = at[2], *at[3 + len(keywords) :]
            for result, address in zip(results, ends, strict=True):
                at_address(result, address).copy_(result)

        plan = cg.plan(letters, A.detach(), B.detach(), order=order, epilogue=epilogue, **{
            name: x.detach() for name, x in keywords.items()
        })  # fmt: skip
        executable = SimpleNamespace(
            problem=plan.problem,
            results=plan.problem.results,
            launch=lambda *_: bound,
            is_replaced=None,
        )
        places = tuple(range(len(keywords)))
        return SimpleNamespace(executable=executable, numbers=(), stream=lambda: 7, order=places)

    monkeypatch.setattr(launches, "_on_gpu", lambda x: True)
    monkeypatch.setattr(launches, "_ALIGNMENT", 16)  # the alignment of the CPU's tensors
    monkeypatch.setattr(launches, "recent_call", recent)
    monkeypatch.setattr(reused, "torch_launches", type(reused.torch_launches)(64))
    return addresses


def drawn(*shape: int) -> Any:
    return torch.randn(shape).requires_grad_()


@pytest.mark.parametrize("activation", ["", "relu", "gelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer(activation: str, bias: bool, started: list[Any]) -> None:
    w, b = drawn(12, 8), drawn(12) if bias else None
    given = (w, b) if bias else (w,)
    for turn in range(3):
        x, g = drawn(3, 5, 8), torch.randn(3, 5, 12)
        before = len(started)
        y = ct.linear(x, w, b, activation or None)
        found = torch.autograd.grad(y, (x, *given), g)
        # The layer, and the gradients of x and w.
        assert len(started) - before == (3 if turn else 0)
        with torch.no_grad():
            again = ct.linear(x, w, b, activation or None)
        z = torch.nn.functional.linear(x, w, b)
        expected = getattr(torch.nn.functional, activation)(z) if activation else z
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(again, expected)
        exact = torch.autograd.grad(expected, (x, *given), g)
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other)


def test_products_and_mlp(started: list[Any]) -> None:
    w1, w2 = drawn(12, 8), drawn(6, 12)
    for turn in range(2):
        x = drawn(4, 8)
        for function, reference in (
            (ct.matmul, torch.matmul),
            (
                lambda x, w: ct.mlp(x, w.mT, None, w2, None, "gelu"),
                lambda x, w: torch.nn.functional.gelu(x @ w) @ w2.mT,
            ),
        ):
            before = len(started)
            y = function(x, w1.mT)
            torch.testing.assert_close(y, reference(x, w1.mT))
            torch.testing.assert_close(
                torch.autograd.grad(y.sum(), (x, w1)),
                torch.autograd.grad(reference(x, w1.mT).sum(), (x, w1)),
            )
            assert len(started) > before or not turn


def test_what_lies_otherwise_is_no_kept_call(started: list[Any]) -> None:
    w = drawn(12, 8)
    x = torch.randn(6, 8)
    for _ in range(2):
        ct.linear(x, w)
    assert len(started) == 1
    others = {
        "another shape": torch.randn(7, 8), "rows apart": torch.randn(6, 16)[:, :8],
        "turned": torch.randn(8, 6).T, "negated": torch._neg_view(x),
        "misaligned": torch.randn(49)[1:].view(6, 8),
    }  # fmt: skip
    for name, other in others.items():
        torch.testing.assert_close(ct.linear(other, w), other @ w.T, msg=name)
    assert len(started) == 1
    freed = torch.randn(6, 8)
    freed.untyped_storage().resize_(0)
    with pytest.raises(cg.errors.ArrayError, match="storage that was freed"):
        ct.linear(freed, w)
    assert torch.func.vmap(lambda x: ct.linear(x, w))(torch.randn(2, 6, 8)).shape == (2, 6, 12)
    assert len(started) == 1


@pytest.mark.parametrize("bias", [False, True])
def test_groups(bias: bool, started: list[Any]) -> None:
    w, b = drawn(3, 8, 12), drawn(3, 12) if bias else None
    for turn in range(2):
        x, ends = drawn(20, 8), torch.tensor([4, 4 + turn, 20], dtype=torch.int32)
        before = len(started)
        y = ct.grouped_mm(x, w, ends, b)
        groups = zip((0, *ends.tolist()), ends.tolist(), strict=False)
        parts = [x[i:j] @ w[g] + (b[g] if bias else 0) for g, (i, j) in enumerate(groups)]
        torch.testing.assert_close(y, torch.cat(parts))
        given = (x, w, b) if bias else (x, w)
        g = torch.randn_like(y)
        for one, other in zip(
            torch.autograd.grad(y, given, g),
            torch.autograd.grad(torch.cat(parts), given, g),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
        assert len(started) - before == 3 * turn
