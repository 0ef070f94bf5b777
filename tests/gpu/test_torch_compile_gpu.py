"""Test ``torch.compile``, ``torch.export`` and CUDA graphs: one operator per call, no break."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import OPS

import cute_gemm as cg
from cute_gemm.errors import ArrayError, OptionError, ScalarError, ShapeError


def integers(*shape: int, dtype: Any = None) -> Any:
    """Return random integers, whose products are exact."""
    return torch.randint(-4, 5, shape, device="cuda").to(dtype or torch.float32)


def traced(function: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
    """Compile without a graph break, and compare the result with the eager one."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", **how)
    given = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
    found, expected = compiled(*given), function(*arguments)
    assert torch.equal(found, expected) and found.stride() == expected.stride()
    return found


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_a_new_c(dtype: str, op: str, order: Any) -> None:
    kind = getattr(torch, dtype)
    A = integers(*((48, 32) if op[0] == "N" else (32, 48)), dtype=kind)
    B = integers(*((32, 80) if op[1] == "N" else (80, 32)), dtype=kind)
    traced(lambda a, b: cg.gemm(op, a, b, order=order) + 1, A, B)
    plan = cg.plan(op, A, B, order=order)
    traced(lambda a, b: plan(a, b) + 1, A, B)


def test_in_place_with_scalars_and_options() -> None:
    A, B, C = integers(48, 32), integers(32, 80), integers(48, 80)
    alpha = torch.tensor(3.0, device="cuda")
    traced(lambda a, b, c: cg.gemm("NN", a, b, c, alpha=2, beta=-1) + 1, A, B, C)
    traced(lambda a, b, c, s: cg.gemm("NN", a, b, c, alpha=s, beta=s) + 1, A, B, C, alpha)
    options: dict[str, Any] = {"kernel": "double_buffered"}
    options |= {"tile": (64, 32, 16), "thread_tile": (4, 4)}
    traced(lambda a, b: cg.gemm("NN", a, b, out_dtype="float32", **options) + 1, A, B)


def test_batches_of_any_size() -> None:
    A, B = integers(3, 48, 32), integers(32, 80)
    traced(lambda a, b: cg.gemm("NN", a, b) + 1, A, B, dynamic=True)


def test_the_operators_keep_their_word() -> None:
    A, B, C = integers(48, 32), integers(32, 80), integers(48, 80)
    traced(lambda a, b: cg.gemm("NN", a, b), A, B)
    check = torch.library.opcheck
    check(torch.ops.cute_gemm.gemm, (A, B, "NN", 1.0, None, 0.0, None, "order=F", []))
    check(torch.ops.cute_gemm.gemm_, (A, B, C, "NN", 1.0, None, 1.0, None, "", []))


def test_export_and_graphs() -> None:
    class Layer(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return cg.gemm("NN", a, b)

    A, B = integers(48, 32), integers(32, 80)
    exported = torch.export.export(Layer(), (A, B))
    assert torch.equal(exported.module()(A, B), A @ B)

    C = cg.gemm("NN", A, B)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cg.gemm("NN", A, B, C)
        new = cg.gemm("NN", A, B)
    A += 1
    graph.replay()
    assert torch.equal(C, A @ B) and torch.equal(new, A @ B)


def test_parameters_where_no_gradient_is_kept() -> None:
    A, B = integers(48, 32), torch.nn.Parameter(integers(32, 80))
    plan = cg.plan("NN", A, B.detach())
    for function in (lambda a: cg.gemm("NN", a, B) + 1, lambda a: plan(a, B) + 1):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                traced(function, A)
    torch._dynamo.reset()
    for call in (function, torch.compile(function, backend="aot_eager")):  # the plan's function
        with pytest.raises(ArrayError, match=r"B requires grad .* pass B\.detach\(\)"):
            call(A)

    def inside(a: Any) -> Any:
        with torch.no_grad():
            return cg.gemm("NN", a, B)

    traced(inside, A)


def test_mistakes_keep_their_sentences() -> None:
    A, B = integers(48, 32), integers(32, 80)
    compiled: dict[Any, tuple[Callable[..., Any], str]] = {
        ShapeError: (lambda a, b: cg.gemm("NT", a, b), "makes k = 32"),
        ScalarError: (lambda a, b: cg.gemm("NN", a, b, beta=2), "no C is given"),
        OptionError: (lambda a, b: cg.gemm("NN", a, b, bias=a), "has no argument 'bias'"),
    }
    for kind, (function, message) in compiled.items():
        torch._dynamo.reset()
        with pytest.raises(kind, match=message):
            torch.compile(function, backend="aot_eager")(A, B)
    plan = cg.plan("NN", A, B)
    torch._dynamo.reset()
    exported = torch.export.export(_Module(plan), (A, B)).module()
    assert torch.equal(exported(A, B), A @ B)
    del plan
    gc.collect()
    with pytest.raises(OptionError, match=r"plan \d+ of this graph is not in this process"):
        exported(A, B)


class _Module(torch.nn.Module):
    def __init__(self, plan: Any) -> None:
        super().__init__()
        self.plan = plan

    def forward(self, a: Any, b: Any) -> Any:
        return self.plan(a, b)
