"""Calls of `gemm` by the operators of `cute_gemm.torch`, on tensors in any layout."""

from __future__ import annotations

import math
from typing import Any

import torch

from cute_gemm.api import gemm, plan
from cute_gemm.arrays import fingerprint
from cute_gemm.arrays.base import dtype_name
from cute_gemm.arrays.torch import is_watched
from cute_gemm.plan import reused
from cute_gemm.problem.layers import (
    biases,
    forward,
    is_elementwise,
    name_of,
    pairs_of,
    width,
)
from cute_gemm.torch.expressions import activated
from cute_gemm.torch.launches import kept

#: Classes of plain tensors, without subclasses.
PLAIN = torch.Tensor, torch.nn.Parameter
_is_compiling = torch.compiler.is_compiling


def eager(x: Any = None, y: Any = None, z: Any = None) -> bool:
    """Return whether only autograd needs to see a call on these tensors, or None.

    It is not so if another observer needs the operator, which takes PyTorch 12 us: a compiler or
    tracer, a transform of ``torch.func``, forward mode, a dispatch mode, a subclass of tensors.
    """
    if _is_compiling() or is_watched() or torch._C._are_functorch_transforms_active():
        return False
    return _is_plain(x) and _is_plain(y) and _is_plain(z)


def _is_plain(x: Any) -> bool:
    return x is None or type(x) in PLAIN


def recorded(x: Any, y: Any = None, z: Any = None) -> bool:
    """Return whether autograd records a call on these tensors, or None."""
    return torch.is_grad_enabled() and (
        (x is not None and x.requires_grad)
        or (y is not None and y.requires_grad)
        or (z is not None and z.requires_grad)
    )


def row_major(
    a: Any, b: Any, dtype: Any = None, compute: Any = None, calls: Any = None,
    **epilogue: Any,
) -> Any:  # fmt: skip
    """Return the row-major product of two matrices, or batches of them, that `gemm` can read.

    ``calls``: a list to which the call of `gemm` is appended, as for `kept`.
    """
    letters, operands = as_stored(a, b)
    with torch.no_grad():
        product = gemm(letters, *operands, order="C", out_dtype=dtype, compute=compute, **epilogue)
    if calls is not None:
        function = epilogue.pop("epilogue", None)
        words = letters, "C", dtype, compute, function, "auto", "auto", None
        calls.append((words, *operands, epilogue, product))
    return product


def as_stored(a: Any, b: Any) -> tuple[str, list[Any]]:
    """Return the letters of op, and the operands as stored, without lazy conjugation."""
    letters, operands = "", []
    for x in (a, b):
        conjugated = x.is_conj()
        letters += "C" if conjugated else "N"
        operands.append((x.mH if conjugated else x).resolve_neg())
    return letters, operands


def readable(x: Any) -> Any:
    """Return matrices with a unit stride: x, or a copy if it has none."""
    rows, columns = x.shape[-2:]
    down, across = x.stride()[-2:]
    row_major = (across == 1 or columns == 1) and (down >= columns or rows == 1)
    column_major = (down == 1 or rows == 1) and (across >= rows or columns == 1)
    return x if row_major or column_major else x.contiguous()


def rows_of(x: Any) -> Any:
    """Return a tensor (..., K) as a matrix (rows, K), copied if its strides require it."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _is_shared(x: Any, batch: tuple[int, ...]) -> bool:
    """Return whether all products of a batch share this operand."""
    if x.dim() == 2:
        return True
    lead = zip(x.expand(*batch, *x.shape[-2:]).stride(), batch, strict=False)
    return all(stride == 0 or extent == 1 for stride, extent in lead)


def _first(x: Any) -> Any:
    """Return the first matrix of a batch."""
    return x[(0,) * (x.dim() - 2)]


def _batch(x: Any, batch: tuple[int, ...]) -> Any:
    """Return an operand as one shared matrix, or with one batch dimension."""
    if 0 not in batch and _is_shared(x, batch):
        return readable(_first(x))
    whole = x.expand(*batch, *x.shape[-2:])
    return readable(whole.reshape(math.prod(batch), *x.shape[-2:]))


def multiply(a: Any, b: Any, dtype: Any = None, compute: Any = None) -> Any:
    """Return the row-major product (..., M, N) of (..., M, K) and (..., K, N)."""

    def run(calls: list[Any]) -> Any:
        return _multiply(a, b, dtype=dtype, compute=compute, calls=calls)

    return kept(product_of(dtype, compute), a, b, compute=run)


def product_of(dtype: Any, compute: Any) -> tuple[Any, ...]:
    """Return the identification of a product of matrices for `kept`."""
    return "matmul", dtype, compute


def _multiply(a: Any, b: Any, **given: Any) -> Any:
    product = row_major(*_matrices(a, b), **given)
    if a.dim() == b.dim() == 2:
        return product
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if product.numel() != math.prod(shape):  # all entries of the batch share one product
        return product.expand(shape).contiguous()
    return product.view(shape)


def _matrices(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the matrices, or batches of them, whose product is that of a and b."""
    if a.dim() == b.dim() == 2:
        return readable(a), readable(b)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if 0 not in batch and a.shape[:-2] == batch and _is_shared(b, batch):
        try:  # all rows of a in one product
            rows = a.view(math.prod(a.shape[:-1]), a.shape[-1])
        except RuntimeError:
            pass
        else:
            return readable(rows), readable(_first(b))
    return _batch(a, batch), _batch(b, batch)


def run_weight_gradient(g: Any, x: Any, compute: Any = None) -> Any:
    """Return ``g^T x`` (N, K) of (..., N) and (..., K), summed over the leading dimensions."""

    def run(calls: list[Any]) -> Any:
        return row_major(readable(rows_of(g)).mT, readable(rows_of(x)), None, compute, calls)

    return kept(("weight_gradient", compute), g, x, compute=run)


def add_weight_gradient(main_grad: Any, g: Any, x: Any) -> None:
    """Add ``g^T x`` (N, K) of (..., N) and (..., K) to a tensor within the product."""
    letters, (A, B) = as_stored(readable(rows_of(g)).mT, readable(rows_of(x)))
    with torch.no_grad():
        gemm(letters, A, B, main_grad, beta=1.0)


def layer_of(
    activation: str, batch_invariant: bool, with_argument: bool, unfused_bits: bool
) -> tuple[Any, ...]:
    """Return the identification of a layer for `kept`."""
    return "linear", activation, batch_invariant, with_argument, unfused_bits


def _bias_and_activation(b: Any, activation: str) -> dict[str, Any]:
    """Return the keywords of `gemm` for a bias, or None, and an activation, or an empty text."""
    name = name_of(b is not None, activation)
    return ({"epilogue": name} if name else {}) | biases("", b)


def _given(
    x: Any, w: Any, b: Any, activation: str, batch_invariant: bool, with_argument: bool,
    unfused_bits: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the keywords of `gemm` for a layer."""
    invariant = {"batch_invariant": True} if batch_invariant else {}
    if not (with_argument or unfused_bits) and is_elementwise(activation):
        return _bias_and_activation(b, activation) | invariant
    rounded = dtype_name(x.dtype) if unfused_bits else ""
    function = forward(activation, b is not None, with_argument, rounded)
    keywords = {"epilogue": function, **biases(pairs_of(activation), b), **invariant}
    if unfused_bits and not batch_invariant:
        keywords["order_of_summation"] = _order_of_product(x, w, b)
    return keywords


def _order_of_product(x: Any, w: Any, b: Any) -> Any:
    """Return the order of summation of the layer without activation, by any kernel."""
    letters, (rows, columns) = as_stored(*_matrices(x, w.mT))
    keywords = _bias_and_activation(b, "")
    seen = fingerprint(rows, columns, None, keywords)
    key = None if seen is None else (letters, seen[0])
    order = reused.torch_orders_of_summation.get(key)
    if order is None:
        order = plan(letters, rows, columns, order="C", **keywords).order_of_summation
        if key is not None:
            reused.torch_orders_of_summation[key] = order
    return order


def run_linear(
    x: Any, w: Any, b: Any, activation: str, batch_invariant: bool = False,
    unfused_bits: bool = False, main_grad: Any = None, *, with_argument: bool = False,
) -> Any:  # fmt: skip
    """Return ``y = activation(z)``, or y and z, where ``z = x w^T + b``, row-major.

    An empty text means no activation. With ``with_argument`` one epilogue returns both.
    """
    unfused_bits = unfused_bits and bool(activation)
    if unfused_bits and not x.is_cuda:  # NumPy's functions differ from PyTorch's in bits
        z = run_linear(x, w, b, "", batch_invariant)
        y = activated(activation, z)
        return (y, z) if with_argument else y

    def run(calls: list[Any]) -> Any:
        given = _given(x, w, b, activation, batch_invariant, with_argument, unfused_bits)
        if not (with_argument or batch_invariant) and is_elementwise(activation):
            return _multiply(x, w.mT, calls=calls, **given)
        # One product for every layout of x.
        made = _multiply(rows_of(x), w.mT, calls=calls, **given)
        shape = *x.shape[:-1], width(activation, w.shape[0])
        return tuple(y.view(shape) for y in made) if with_argument else made.view(shape)

    what = layer_of(activation, batch_invariant, with_argument, unfused_bits)
    return kept(what, x, w, b, compute=run)


def with_preactivation(*given: Any) -> Any:
    """Return ``activation(z)`` and ``z = x w^T + b`` for the arguments of `run_linear`."""
    return run_linear(*given, with_argument=True)
