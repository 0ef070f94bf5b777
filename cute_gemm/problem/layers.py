"""Layers, of PyTorch and of JAX: epilogues of activations and of their gradients, and checks.

Arrays here are those of either library; what it writes to convert one is given as a text of
``{name}``, ``{other}`` and ``{dtype}``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cute_gemm.arrays.base import dtype_name
from cute_gemm.errors import DTypeError, OptionError, ShapeError
from cute_gemm.problem.epilogue.expression import trace
from cute_gemm.problem.epilogue.fuse import EpilogueFunction
from cute_gemm.problem.epilogue.rows import ACTIVATIONS
from cute_gemm.problem.epilogue.value import Value


@cache
def forward(activation: str, has_bias: bool, with_argument: bool) -> EpilogueFunction:
    """Return the epilogue of a layer, which may return the argument of its activation too."""

    def function(acc: Value, **operands: Value) -> Any:
        z = acc + operands["bias"] if has_bias else acc
        y = ACTIVATIONS[activation].function(z) if activation else z
        return (y, z) if with_argument else y

    return EpilogueFunction(f"{activation}_forward", trace(function, ["bias"] * has_bias))


@cache
def gradient(activation: str) -> EpilogueFunction:
    """Return the epilogue that multiplies gradients by the derivative of an activation.

    Its operand ``kept`` is the activation's argument, or its result, as `keeps_argument` says.
    """
    rule = ACTIVATIONS[activation].gradient
    return EpilogueFunction(f"{activation}_gradient", trace(lambda acc, kept: rule(acc, kept)))


def keeps_argument(activation: str) -> bool:
    """Return whether the gradient of an activation takes its argument; its result, otherwise."""
    return bool(activation) and not ACTIVATIONS[activation].keeps_result


def check_activation(activation: str | None) -> None:
    """Refuse an activation that is not known."""
    if activation is not None and activation not in ACTIVATIONS:
        raise OptionError(
            f"activation={activation!r}; expected one of {', '.join(ACTIVATIONS)}, or None"
        )


def check_real(activation: str | None, x: Any, real: bool) -> None:
    """Refuse an activation of x, whose type is real and floating-point, or not."""
    if activation is not None and not real:
        raise DTypeError(
            f"activation={activation!r} came with x of {x.dtype}; expected a real floating-point "
            "type: leave activation out"
        )


def check_product(a: Any, b: Any, convert: str) -> None:
    """Refuse what is not (..., M, K) and (..., K, N) of one type."""
    check_matrix("a", a)
    check_matrix("b", b)
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected (..., M, K) and "
            "(..., K, N), with one K"
        )
    check_batches("a", a, "b", b)
    check_dtype("b", b, "a", a, convert)


def check_matrix(name: str, x: Any) -> None:
    """Refuse what has less than two dimensions."""
    if x.ndim < 2:
        raise ShapeError(
            f"{name} has shape {tuple(x.shape)}; expected a matrix or a batch of them: a row is "
            f"{name}[None, :], a column {name}[:, None]"
        )


def check_batches(name: str, x: Any, other: str, y: Any) -> None:
    """Refuse batch dimensions that do not broadcast."""
    lead = zip(x.shape[:-2][::-1], y.shape[:-2][::-1], strict=False)
    if any(i != j and i != 1 and j != 1 for i, j in lead):
        raise ShapeError(
            f"{name} has shape {tuple(x.shape)} and {other} {tuple(y.shape)}; expected batch "
            "dimensions that broadcast: equal, or 1"
        )


def check_dtype(name: str, x: Any, other: str, like: Any, convert: str) -> None:
    """Refuse what is of another type than another array."""
    if x.dtype != like.dtype:
        converted = convert.format(name=name, other=other, dtype=like.dtype)
        raise DTypeError(
            f"{name} has dtype {x.dtype} and {other} {like.dtype}; expected one type: pass "
            f"{converted}"
        )


def check_layer(
    x: Any, w: Any, b: Any, convert: str, names: tuple[str, str, str] = ("x", "w", "b")
) -> None:
    """Refuse what is not (..., K), (N, K) and (N,), or None, of one type."""
    x_name, w_name, b_name = names
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[-1]:
        raise ShapeError(
            f"{x_name} has shape {tuple(x.shape)} and {w_name} {tuple(w.shape)}; expected "
            "(..., K) and (N, K)"
        )
    check_dtype(w_name, w, x_name, x, convert)
    if b is None:
        return
    if b.ndim != 1 or b.shape[0] != w.shape[0]:
        raise ShapeError(
            f"{b_name} has shape {tuple(b.shape)} and {w_name} {tuple(w.shape)}; expected (N,) and "
            "(N, K)"
        )
    if b.dtype != x.dtype and dtype_name(x.dtype) != "int8":
        check_dtype(b_name, b, x_name, x, convert)
