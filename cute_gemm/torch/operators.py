"""Operators for calls that PyTorch traces or differentiates: one per call, with its gradient.

`cute_gemm.torch` passes `call` to `cute_gemm.arrays.torch`, where `gemm` and plans find it. A
schema limits the arguments of operators, so keywords are passed as text, ``name=value``, as on the
command line.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from cute_gemm.api import gemm as compute
from cute_gemm.arrays.base import dtype_name
from cute_gemm.arrays.torch import (
    differentiates,
    hand_over,
    refuse_grad,
    refuse_layout,
    traced,
)
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import ArrayError, OptionError, ShapeError
from cute_gemm.plan.plan import numbered
from cute_gemm.problem.epilogue.expression import ACCUMULATOR
from cute_gemm.problem.epilogue.fuse import (
    EpilogueFunction,
    as_function,
    check_names,
    from_text,
    takes_pairs,
    with_scales,
)
from cute_gemm.problem.parts.scales import SCALES
from cute_gemm.torch.definitions import (
    batched,
    counted,
    define,
    differentiable,
    differentiated_as,
    knows_dtensor,
)
from cute_gemm.torch.expressions import results
from cute_gemm.torch.products import matmul, matmul_gradients, of_factors

#: Arguments of both operators besides the matrices.
_GIVEN = (
    "str op, Scalar alpha, Tensor? alpha_at, Scalar beta, Tensor? beta_at, str keywords, "
    "Tensor[] operands"
)

#: The epilogue of a call with scales and no other epilogue.
_NONE = with_scales(None, ())


#: Arguments of a call after op, in order.
_WORDS = ("order", "out_dtype", "compute", "epilogue", "kernel", "backend", "arch")


def call(
    words: tuple[Any, ...], A: Any, B: Any, C: Any, alpha: Any, beta: Any, stream: Any,
    keywords: dict[str, Any],
) -> Any:  # fmt: skip
    """Put a call of `gemm`, or of a plan, into the graph.

    ``words``: op and `_WORDS`; for a plan, only the first of them. ``keywords``: other arguments,
    for a plan its number. Tensors among them are the epilogue's operands.
    """
    knows_dtensor()
    op, *rest = words
    keywords = {**dict(zip(_WORDS, rest, strict=False)), **keywords}
    epilogue, out_dtype = keywords.get("epilogue"), keywords["out_dtype"]
    if epilogue is not None and not traced():
        epilogue = as_function(epilogue)
    keywords["out_dtype"] = None if out_dtype is None else dtype_name(out_dtype)
    keywords["tune"] = str(keywords["tune"]) if keywords.get("tune") else None
    if stream is not None:
        raise OptionError(
            "stream must not be given when PyTorch traces or differentiates the call, whose code "
            "runs on PyTorch's current stream: leave it out"
        )
    if keywords.get("order_of_summation") is not None:
        raise OptionError(
            "order_of_summation is not supported when PyTorch traces or differentiates the call: "
            "leave it out, or call cute_gemm.torch.linear(..., unfused_bits=True)"
        )
    for name, x in {"A": A, "B": B, "C": C, **keywords}.items():
        if isinstance(x, np.ndarray) and x.ndim:
            keywords[name] = torch.tensor(x)
        if isinstance(x, torch.Tensor):
            refuse_layout(x, name)
    differentiable = C is None and "plan" not in keywords
    others = {"alpha": alpha, "beta": beta}
    if not differentiable:
        others |= {"A": A, "B": B, "C": C, **keywords}
    for name, x in others.items():
        if isinstance(x, torch.Tensor):
            refuse_grad(x, name)
    if isinstance(epilogue, EpilogueFunction):
        keywords["epilogue"] = epilogue.text
    elif not (epilogue is None or isinstance(epilogue, str)):
        raise OptionError(
            f"epilogue={epilogue!r} inside torch.compile or torch.export; expected a name, or a "
            "function that was traced before: epilogue = cute_gemm.epilogue(function)"
        )
    scales = {name: keywords[name] for name in SCALES if name in keywords}
    several = isinstance(epilogue, EpilogueFunction) and len(epilogue.expression.results) > 1
    composed = differentiates(A, B, *keywords.values()) or (several and not traced())
    if differentiable and (scales or epilogue) and composed:
        return _composed(op, A, B, alpha, beta, epilogue, keywords)
    if several:
        assert isinstance(epilogue, EpilogueFunction)
        raise OptionError(
            f"epilogue {epilogue.name!r} has several results; inside torch.compile or torch.export "
            "expected one"
        )
    tensors = {name: x for name, x in keywords.items() if isinstance(x, torch.Tensor)}
    names = [] if epilogue or "plan" in keywords else [x for x in tensors if x not in scales]
    if names:
        name = names[0]
        raise OptionError(
            f"gemm() has no argument {name!r} that is a tensor: leave it out, or name it in "
            "epilogue="
        )
    said = {name: x for name, x in keywords.items() if x is not None and name not in tensors}
    said |= {"operands": ",".join(tensors)} if tensors else {}
    text = " ".join(f"{name}={_text(x)}" for name, x in said.items())
    given = op, *_factor(alpha), *_factor(beta), text, list(tensors.values())
    if C is None:
        return torch.ops.cute_gemm.gemm(A, B, *given)
    torch.ops.cute_gemm.gemm_(A, B, C, *given)
    return C


def _composed(
    op: str, A: Any, B: Any, alpha: Any, beta: Any, epilogue: Any, keywords: dict[str, Any]
) -> Any:
    """Compute the product by `gemm`; PyTorch computes and differentiates scales and epilogue."""
    function = _named(epilogue) if isinstance(epilogue, str) else epilogue or _NONE
    names = function.expression.operands
    operands = {name: keywords.pop(name) for name in names if name in keywords}
    check_names(function, operands)
    scales = {name: keywords.pop(name) for name in SCALES if name in keywords}
    name = keywords.pop("out_dtype")
    first = DTYPES[dtype_name(A.dtype)].outputs[0] if name is None else name
    out = getattr(torch, first)
    sums = "float32" if out.itemsize < 4 and out.is_floating_point else name
    words = op, keywords.pop("order"), sums
    acc = call(words, A, B, None, alpha, beta, None, keywords | {"epilogue": None})
    for name, scale in scales.items():
        acc = acc * _broadcast(name, scale, acc)
    values = {
        name: x.to(acc.dtype) if isinstance(x, torch.Tensor) else acc.new_tensor(x)
        for name, x in operands.items()
    }
    return results(function.expression, values | {ACCUMULATOR: acc}, out)


def _broadcast(name: str, scale: Any, acc: Any) -> Any:
    """Return a tensor scale or row scales, shaped to broadcast to the accumulators."""
    if not isinstance(scale, torch.Tensor) or scale.dim() == 0:
        return scale
    rows = acc.shape[-2 if name == "scale_a" else -1]
    whole = scale[:, None] if scale.dim() == 1 else scale
    if whole.shape[-1] != 1 or whole.shape[-2] not in (1, rows):
        mode = "M" if name == "scale_a" else "N"
        raise ShapeError(
            f"{name} has shape {tuple(scale.shape)} where PyTorch differentiates the call; "
            f"expected () for a tensor scale or ({mode}, 1) = ({rows}, 1) for row scales: block "
            "scales have no gradient, so detach the tensors, or call it under torch.no_grad()"
        )
    return whole if name == "scale_a" else whole.mT


def _named(name: str) -> Any:
    """Return the epilogue of a name, which PyTorch's compiler takes as constant."""
    return as_function(name)


_named._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in `arrays.torch`


def _factor(value: Any) -> tuple[Any, Any]:
    """Return a number and None; for a tensor, which the operator reads, 1 and the tensor."""
    if isinstance(value, torch.Tensor):
        return 1, value
    return value.item() if isinstance(value, (np.ndarray, np.generic)) else value, None


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _read(keywords: str) -> dict[str, str]:
    return dict(text.split("=", 1) for text in keywords.split())


def _shape(A: Any, B: Any, op: str, *given: Any) -> Any:
    keywords = _read(given[-2])
    m, n, _ = _extents(A.shape, B.shape, op)
    n //= 2 if _takes_pairs(keywords) else 1
    operands = dtype_name(A.dtype)
    # The call refuses unsupported products when the graph runs.
    outputs = DTYPES[operands].outputs if operands in DTYPES else ()
    name = keywords.get("out_dtype") or next(iter(outputs), operands)
    shape: tuple[Any, ...] = (m, n)
    strides: tuple[Any, ...] = (1, m) if keywords["order"] == "F" else (n, 1)
    batches = [x.shape[0] for x in (A, B) if x.dim() == 3]
    if batches:
        shape, strides = (max(batches), *shape), (m * n, *strides)
    return torch.empty_strided(shape, strides, dtype=getattr(torch, name), device=A.device)


def _extents(a: Any, b: Any, op: str) -> tuple[Any, Any, Any]:
    """Return m, n and k from the shapes of A and B."""
    m, k = a[-2:] if op[0] in "Nn" else (a[-1], a[-2])
    return m, b[-1 if op[1] in "Nn" else -2], k


def _flops(a: Any, b: Any, op: str, *_: Any) -> int:
    batch = max([1, *(x[0] for x in (a, b) if len(x) == 3)])
    return 2 * batch * math.prod(_extents(a, b, op))


def _takes_pairs(keywords: dict[str, str]) -> bool:
    """Return whether the epilogue of a call or plan makes C of pairs of columns."""
    if (number := keywords.get("plan")) is not None:
        plan = numbered(number)
        return plan is not None and bool(plan.problem.epilogue.pairs)
    name = keywords.get("epilogue")
    return takes_pairs(None if name is None else from_text(name))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    A, B, ctx.op, ctx.alpha, alpha_at, *ctx.rest = inputs
    ctx.save_for_backward(A, B, alpha_at)


def _backward(ctx: Any, g: Any) -> Any:
    A, B, alpha_at = ctx.saved_tensors
    keywords = _differentiable(ctx)
    if alpha_at is not None:
        g = g * alpha_at.conj()
    elif ctx.alpha != 1:
        g = g * ctx.alpha.conjugate()
    a, b = _turned(ctx.op[0], A), _turned(ctx.op[1], B)
    da, db = matmul_gradients(g, a, b, ctx.needs, keywords.get("compute"))
    dA = None if da is None else _turned(ctx.op[0], da)
    dB = None if db is None else _turned(ctx.op[1], db)
    return dA, dB


def _differentiable(ctx: Any) -> dict[str, str]:
    """Return the keywords of a call; refuse a call that has no derivative."""
    keywords = _read(ctx.rest[2])
    if not keywords.keys().isdisjoint(("epilogue", "plan", "operands", *SCALES)):
        raise ArrayError(
            "a graph traced without gradients has no gradient if a call in it has an epilogue or "
            "scales, or is a plan's: trace it with gradients enabled"
        )
    return keywords


def _tangent(ctx: Any, dA: Any, dB: Any, *others: Any) -> Any:
    keywords = _differentiable(ctx)
    letters, dtype = ctx.op, getattr(torch, keywords.get("out_dtype", ""), None)

    def product(A: Any, B: Any, alpha: Any) -> Any:
        a, b = _turned(letters[0], A), _turned(letters[1], B)
        return matmul(a, b, dtype, keywords.get("compute")) * (
            ctx.alpha if alpha is None else alpha
        )

    return of_factors(product, ctx.saved_tensors, (dA, dB, others[2]))


def _turned(letter: str, x: Any) -> Any:
    """Return ``op(x)``, a view."""
    return {"N": x, "T": x.mT}.get(letter.upper(), x.mH)


def _batch(own: Any, A: Any, B: Any, *given: Any) -> Any:
    """Compute a batch of plain products of matrices in one call."""
    keywords = _read(given[-2])
    others = any(own[2:]) or not keywords.keys().isdisjoint(("epilogue", "plan", *SCALES))
    if others or (A.dim() - own[0], B.dim() - own[1]) != (2, 2):
        return None
    return gemm(A, B, *given)


@torch.no_grad()  # the trace of the call decided whether gradients are needed
def _run(
    A: Any, B: Any, C: Any, op: str, alpha: Any, alpha_at: Any, beta: Any, beta_at: Any,
    keywords: str, operands: list[Any],
) -> Any:  # fmt: skip
    factors = {"alpha": alpha if alpha_at is None else alpha_at}
    factors["beta"] = beta if beta_at is None else beta_at
    given: dict[str, Any] = _read(keywords)
    tensors = dict(zip(given.pop("operands", "").split(","), operands, strict=False))
    number = given.get("plan")
    epilogue = given.get("epilogue")
    names: tuple[str, ...] = SCALES
    if epilogue is not None:
        given["epilogue"] = function = from_text(epilogue)
        names += function.expression.operands
    tensors |= {name: float(given.pop(name)) for name in names if name in given}
    if number is None:
        if (tune := given.pop("tune", None)) is not None:
            factors["tune"] = True if tune == "True" else tune
        return compute(op, A, B, C, **factors, **tensors, **given)
    plan = numbered(number)
    if plan is None:
        raise OptionError(
            f"plan {number} of this graph is not in this process, or was dropped: keep the "
            "plan as long as the graph, or call gemm in it"
        )
    numbers = {name: float(given[name]) for name in plan.problem.epilogue.numbers}
    return plan(A, B, C, **factors, **tensors, **numbers)


#: A call that returns a new C.
gemm = define(
    f"gemm(Tensor A, Tensor B, {_GIVEN}) -> Tensor",
    lambda A, B, *given: _run(A, B, None, *given),
    _shape,
)
differentiable(gemm, _save, _backward, _tangent)
batched(gemm, _batch)
counted(gemm, _flops)


def _refuse(*given: Any) -> None:
    raise ArrayError(
        "a graph in which gemm computes into a C has no gradient: leave C out to differentiate it"
    )


def _run_in_place(*given: Any) -> None:
    _run(*given)


#: A call that updates C in place.
gemm_ = define(
    f"gemm_(Tensor A, Tensor B, Tensor(a!) C, {_GIVEN}) -> ()",
    _run_in_place,
    lambda *given: None,
)
differentiated_as(gemm_, _refuse, written=2)
counted(gemm_, lambda A, B, C, *given: _flops(A, B, *given))
hand_over(call)
