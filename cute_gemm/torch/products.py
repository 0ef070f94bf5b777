"""Operators that `cute_gemm.torch` calls: matmul, weight_gradient, linear, with their gradients.

Each is one node of PyTorch's graphs, ``torch.ops.cute_gemm``. Operators examine strides when they
run, so graphs do not depend on strides. Gradients consist of the same operators, so they can be
differentiated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cute_gemm.errors import ArrayError
from cute_gemm.problem.layers import gradient, is_elementwise, keeps_argument, width
from cute_gemm.torch.definitions import batched, counted, define, differentiable, differentiated_as
from cute_gemm.torch.expressions import activated, times_derivative, wide
from cute_gemm.torch.main_grad import added, refuse_batch, refuse_second_derivative
from cute_gemm.torch.running import (
    add_weight_gradient,
    multiply,
    readable,
    row_major,
    rows_of,
    run_linear,
    run_weight_gradient,
    with_preactivation,
)

# ---- matmul -------------------------------------------------------------------------------------


def _matmul_shape(a: Any, b: Any, dtype: Any = None, compute: Any = None) -> Any:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    sums = torch.int32 if a.dtype == torch.int8 else a.dtype
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=dtype or sums)


#: ``a @ b``, row-major, of a given type; two or more dimensions each.
matmul = define(
    "matmul(Tensor a, Tensor b, ScalarType? dtype=None, str? compute=None) -> Tensor",
    multiply, _matmul_shape, conjugates=True,
)  # fmt: skip


def _save_matmul(ctx: Any, inputs: Any, output: Any) -> None:
    a, b, ctx.dtype, ctx.compute = inputs
    ctx.save_for_backward(a, b)


def _matmul_backward(ctx: Any, g: Any) -> Any:
    a, b = ctx.saved_tensors
    return matmul_gradients(g, a, b, ctx.needs, ctx.compute)


def _matmul_tangent(ctx: Any, da: Any, db: Any, *_: Any) -> Any:
    a, b = ctx.saved_tensors
    return of_factors(lambda a, b: matmul(a, b, ctx.dtype, ctx.compute), (a, b), (da, db))


def of_factors(product: Callable[..., Any], factors: Any, tangents: Any) -> Any:
    """Return the tangent of a product that is linear in each factor."""
    total = None
    for place, tangent in enumerate(tangents):
        if tangent is not None:
            total = sum_of(total, product(*factors[:place], tangent, *factors[place + 1 :]))
    return total


def _batch_of_matmul(own: Any, a: Any, b: Any, dtype: Any, compute: Any) -> Any:
    rank = max(a.dim() - own[0], b.dim() - own[1])
    a, b = (
        x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:]) if batched else x
        for x, batched in ((a, own[0]), (b, own[1]))
    )
    return matmul(a, b, dtype, compute)


def matmul_gradients(
    g: Any, a: Any, b: Any, needs: tuple[bool, ...], compute: str | None
) -> tuple[Any, Any]:
    """Return the gradients of a and b, in their layouts, from that of ``a @ b``, or None.

    Sums over a batch with a shared operand have at least float32 precision.
    """
    g = g.to(a.dtype)
    da = _summed_to(a, g, b.mH, compute) if needs[0] else None
    db = None
    if needs[1] and b.dim() == 2:
        db = _product_of_rows(b, a.conj(), g, compute)
    elif needs[1]:
        db = _summed_to(b, a.mH, g, compute)
    return da, db


def _is_column_major(x: Any) -> bool:
    return bool(x.stride(-1) != 1 and x.stride(-2) == 1)


def _product_of_rows(like: Any, x: Any, y: Any, compute: str | None = None) -> Any:
    """Return ``x^T y``, summed over the leading dimensions, in the layout of ``like``."""
    if _is_column_major(like):
        return weight_gradient(y, x, compute).mT
    return weight_gradient(x, y, compute)


def _summed_to(like: Any, a: Any, b: Any, compute: str | None) -> Any:
    """Return ``a @ b``, summed over dimensions that ``like`` broadcasts, in its layout."""
    turned = _is_column_major(like)
    if turned:
        a, b = b.mT, a.mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if batch == like.shape[:-2]:
        product = matmul(a, b, None, compute)
        return product.mT if turned else product
    product = matmul(a, b, wide(like.dtype), compute)
    return (product.mT if turned else product).sum_to_size(like.shape).to(like.dtype)


differentiable(matmul, _save_matmul, _matmul_backward, _matmul_tangent)
batched(matmul, _batch_of_matmul)
counted(
    matmul,
    lambda a, b, *_: 2 * math.prod(torch.broadcast_shapes(a[:-2], b[:-2])) * a[-2] * a[-1] * b[-1],
)


# ---- weight_gradient ----------------------------------------------------------------------------


#: ``g^T x`` (N, K) of (..., N) and (..., K), summed over the leading dimensions.
weight_gradient = define(
    "weight_gradient(Tensor g, Tensor x, str? compute=None) -> Tensor",
    run_weight_gradient,
    lambda g, x, compute=None: g.new_empty((g.shape[-1], x.shape[-1])),
    conjugates=True,
)


def _batch_of_weight_gradient(own: Any, g: Any, x: Any, compute: Any) -> Any:
    g, x = (_batch_of_rows(each, batched) for each, batched in ((g, own[0]), (x, own[1])))
    return matmul(g.mT, x, None, compute)


def _batch_of_rows(x: Any, batched: bool) -> Any:
    """Return (..., K), or a batch of them, as a matrix or a batch of matrices."""
    return x.reshape(x.shape[0], -1, x.shape[-1]) if batched else rows_of(x)


differentiated_as(
    weight_gradient,
    lambda g, x, compute=None: matmul(rows_of(g).mT, rows_of(x), None, compute),
)
batched(weight_gradient, _batch_of_weight_gradient)
counted(weight_gradient, lambda g, x, *_: 2 * math.prod(g) * x[-1])


#: ``main_grad += g^T x``, added to the accumulators of the product.
add_weight_gradient_ = define(
    "add_weight_gradient_(Tensor(a!) main_grad, Tensor g, Tensor x) -> ()",
    add_weight_gradient,
    lambda *_: None,
)
differentiated_as(add_weight_gradient_, refuse_second_derivative, written=0)
counted(add_weight_gradient_, lambda _, g, x: 2 * math.prod(g) * x[-1])


# ---- linear -------------------------------------------------------------------------------------


def _linear_shape(x: Any, w: Any, b: Any, activation: str, *_: Any) -> Any:
    return x.new_empty((*x.shape[:-1], width(activation, w.shape[0])))


#: ``activation(x w^T + b)``, row-major. An empty text means no activation; the text of an epilogue
#: is also an activation. The gradient of w is added to ``main_grad``, if given.
linear = define(
    "linear(Tensor x, Tensor w, Tensor? b, str activation, bool batch_invariant=False, "
    "bool unfused_bits=False, Tensor? main_grad=None) -> Tensor",
    run_linear,
    _linear_shape,
)


#: ``activation(z)`` and ``z = x w^T + b``, which the gradient reads.
linear_with_preactivation = define(
    "linear_with_preactivation(Tensor x, Tensor w, Tensor? b, str activation, "
    "bool batch_invariant=False, bool unfused_bits=False, Tensor? main_grad=None) "
    "-> (Tensor, Tensor)",
    with_preactivation,
    lambda x, w, *_: tuple(x.new_empty((*x.shape[:-1], w.shape[0])) for _ in range(2)),
)


def _save_linear(ctx: Any, inputs: Any, output: Any) -> None:
    # Other code may write to `main_grad` in between, but not to saved tensors.
    x, w, b, ctx.activation, ctx.batch_invariant, _, ctx.main_grad = inputs
    if not is_elementwise(ctx.activation):
        raise ArrayError(
            "a graph traced without gradients has no gradient if a layer in it has "
            f"activation={ctx.activation!r}: trace it with gradients enabled"
        )
    ctx.returns_z = isinstance(output, tuple)
    y, z = output if ctx.returns_z else (output, None)
    kept = z if keeps_argument(ctx.activation) else y
    ctx.save_for_backward(x, w, b, kept if ctx.activation else None)


def _saved(ctx: Any) -> Any:
    """Return x, w, b and the argument of the activation's derivative."""
    x, w, b, kept = ctx.saved_tensors
    if kept is None and ctx.activation:  # not kept, so computed again
        kept = linear(x, w, b, "", ctx.batch_invariant)
    return x, w, b, kept


def _linear_backward(ctx: Any, g: Any, gz: Any = None) -> Any:
    x, w, b, kept = _saved(ctx)
    of_y = None if g is None else times_derivative(ctx.activation, g, kept)
    # z has a gradient only if gradients are differentiated.
    return _linear_gradients(sum_of(of_y, gz), x, w, b, ctx.needs, ctx.main_grad)


def _linear_tangent(ctx: Any, dx: Any, dw: Any, db: Any, *_: Any) -> Any:
    x, w, _, kept = _saved(ctx)
    dz = _preactivation_tangent(x, w, dx, dw, db)
    dy = times_derivative(ctx.activation, dz, kept)
    return (dy, dz) if ctx.returns_z else dy


def _preactivation_tangent(x: Any, w: Any, dx: Any, dw: Any, db: Any) -> Any:
    """Return the tangent of ``x w^T + b``, None if no argument has one."""
    dz = of_factors(lambda x, w: linear(x, w, None, ""), (x, w), (dx, dw))
    return dz if db is None else sum_of(dz, db.expand(*x.shape[:-1], w.shape[0]))


def _linear_gradients(
    dz: Any, x: Any, w: Any, b: Any, needs: tuple[bool, ...], main_grad: Any = None
) -> tuple[Any, Any, Any]:
    """Return the requested gradients of x, w and b, from that of ``x w^T + b``."""
    if dz is None:
        return None, None, None
    dx = matmul(dz, w) if needs[0] else None
    dw = db = None
    if needs[1] and main_grad is not None:
        dw = added(w, main_grad, add_weight_gradient_, dz, x)
    elif needs[1]:
        dw = _product_of_rows(w, dz, x)
    if b is not None and needs[2]:
        lead = tuple(range(dz.dim() - 1))
        # On a GPU, sums of half types are rounded once, at the end.
        sums = dz.sum(lead) if dz.is_cuda else dz.sum(lead, dtype=wide(dz.dtype))
        db = sums.to(b.dtype)
    return dx, dw, db


def sum_of(x: Any, y: Any) -> Any:
    """Return the sum of two gradients, either of which may be None."""
    return y if x is None else x if y is None else x + y


def _batch_of_linear(
    own: Any, x: Any, w: Any, b: Any, activation: str, batch_invariant: bool,
    unfused_bits: bool = False, main_grad: Any = None, with_z: bool = False,
) -> Any:  # fmt: skip
    refuse_batch(main_grad)
    if not (own[1] or own[2]):
        op = linear_with_preactivation if with_z else linear
        return op(x, w, b, activation, batch_invariant, unfused_bits)
    if batch_invariant or not is_elementwise(activation):
        return None
    lead = x.shape[1:-1] if own[0] else x.shape[:-1]
    if own[1]:
        z = matmul(_batch_of_rows(x, own[0]), w.mT)
        z = z.view(w.shape[0], *lead, w.shape[1])
    else:
        z = linear(x, w, None, "")
    if b is not None:
        z = z + (b.view(b.shape[0], *(1 for _ in lead), b.shape[1]) if own[2] else b)
    y = activated(activation, z) if activation else z
    return (y, z) if with_z else y


for _op, _with_z in ((linear, False), (linear_with_preactivation, True)):
    differentiable(_op, _save_linear, _linear_backward, _linear_tangent)
    batched(_op, partial(_batch_of_linear, with_z=_with_z))
    counted(_op, lambda x, w, *_: 2 * math.prod(x) * w[0])


# ---- mlp ----------------------------------------------------------------------------------------


def _activation_gradient(g: Any, w: Any, kept: Any, activation: str) -> Any:
    rows = readable(rows_of(g))
    product = row_major(rows, readable(w), epilogue=gradient(activation), kept=rows_of(kept))
    return product.view(kept.shape)


#: ``(g w) * activation'``, with the derivative in the product's epilogue.
activation_gradient = define(
    "activation_gradient(Tensor g, Tensor w, Tensor kept, str activation) -> Tensor",
    _activation_gradient,
    lambda g, w, *_: g.new_empty((*g.shape[:-1], w.shape[1])),
)
differentiated_as(
    activation_gradient,
    lambda g, w, kept, activation: times_derivative(activation, matmul(g, w), kept),
)
batched(activation_gradient)
counted(activation_gradient, lambda g, w, *_: 2 * math.prod(g) * w[1])


def _mlp(
    x: Any, w1: Any, b1: Any, w2: Any, b2: Any, activation: str, unfused_bits: bool = False, *_: Any
) -> Any:
    if keeps_argument(activation):
        h, z = with_preactivation(x, w1, b1, activation, False, unfused_bits)
    else:
        h = run_linear(x, w1, b1, activation, False, unfused_bits)
        z = _nothing(h)
    return run_linear(h, w2, b2, ""), h, z


def _nothing(h: Any) -> Any:
    return h.new_empty((*h.shape[:-1], 0))


def _mlp_shape(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, activation: str, *_: Any) -> Any:
    widths = w2.shape[0], w1.shape[0], w1.shape[0] if keeps_argument(activation) else 0
    return tuple(x.new_empty((*x.shape[:-1], width)) for width in widths)


#: ``y = h w2^T + b2``, ``h = activation(z)`` and ``z = x w1^T + b1``; z is (..., 0) if the gradient
#: needs only h.
mlp = define(
    "mlp(Tensor x, Tensor w1, Tensor? b1, Tensor w2, Tensor? b2, str activation, "
    "bool unfused_bits=False, Tensor? main_grad1=None, Tensor? main_grad2=None) "
    "-> (Tensor, Tensor, Tensor)",
    _mlp,
    _mlp_shape,
)


def _save_mlp(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.activation, ctx.unfused_bits, ctx.main_grad1, ctx.main_grad2 = inputs
    _, h, z = output
    ctx.save_for_backward(*tensors, h, z if keeps_argument(ctx.activation) else h)


def _mlp_backward(ctx: Any, g: Any, gh: Any, gz: Any) -> Any:
    x, w1, b1, w2, b2, h, kept = ctx.saved_tensors
    needs = ctx.needs
    _, dw2, db2 = _linear_gradients(g, h, w2, b2, (False, *needs[3:5]), ctx.main_grad2)
    # h and z have gradients of their own only if gradients are differentiated.
    # The unfused program stores the gradient of h.
    if g is None or gh is not None or torch.is_grad_enabled() or ctx.unfused_bits:
        dh = sum_of(None if g is None else matmul(g, w2), gh)
        dz = None if dh is None else times_derivative(ctx.activation, dh, kept)
    else:
        dz = activation_gradient(g, w2, kept, ctx.activation)
    if keeps_argument(ctx.activation):
        dz = sum_of(dz, gz)
    dx, dw1, db1 = _linear_gradients(dz, x, w1, b1, needs[:3], ctx.main_grad1)
    return dx, dw1, db1, dw2, db2


def _mlp_tangent(ctx: Any, dx: Any, dw1: Any, db1: Any, dw2: Any, db2: Any, *_: Any) -> Any:
    x, w1, _, w2, _, h, kept = ctx.saved_tensors
    keeps_z = keeps_argument(ctx.activation)
    dz = _preactivation_tangent(x, w1, dx, dw1, db1)
    dh = None if dz is None else times_derivative(ctx.activation, dz, kept)
    dy = _preactivation_tangent(h, w2, dh, dw2, db2)
    of_z = dz if keeps_z else _nothing(h)
    if dz is None:
        dh, of_z = torch.zeros_like(h), torch.zeros_like(kept if keeps_z else of_z)
    return dy, dh, of_z


def _batch_of_mlp(
    own: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, activation: str,
    unfused_bits: bool = False, *main_grads: Any,
) -> Any:  # fmt: skip
    refuse_batch(*main_grads)
    if not any(own[1:]):
        return mlp(x, w1, b1, w2, b2, activation, unfused_bits)
    if not any(own[:3]):
        return None
    h, z = _batch_of_linear(own[:3], x, w1, b1, activation, False, with_z=True)
    y = _batch_of_linear((True, *own[3:5]), h, w2, b2, "", False)
    return y, h, z if keeps_argument(activation) else _nothing(h)


differentiable(mlp, _save_mlp, _mlp_backward, _mlp_tangent)
batched(mlp, _batch_of_mlp)
counted(mlp, lambda x, w1, _, w2, *__: 2 * math.prod(x[:-1]) * (math.prod(w1) + math.prod(w2)))
