"""Layers of PyTorch and JAX: epilogues of activations and their gradients, and checks.

Arrays here are those of either library; the library's conversion of an array is a text with
``{name}``, ``{other}`` and ``{dtype}``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

from cute_gemm.arrays.base import dtype_name
from cute_gemm.errors import DTypeError, OptionError, ShapeError
from cute_gemm.problem.epilogue.expression import ACCUMULATOR, Expression, fold, pairs, trace
from cute_gemm.problem.epilogue.functions import round_to
from cute_gemm.problem.epilogue.fuse import EpilogueFunction, from_text
from cute_gemm.problem.epilogue.rows import ACTIVATIONS, COLUMNS, PAIRS
from cute_gemm.problem.epilogue.value import Value, apply

#: Activations of pairs of adjacent columns of the product, gate and up: the function of the gate,
#: whose result multiplies up.
GATED = {"swiglu": "silu", "geglu": "gelu"}


def pairs_of(activation: str) -> str:
    """Return the columns of the product that an activation combines; "" for none."""
    if activation in GATED:
        return "pairs"
    return from_text(activation).expression.pairs if activation[:1] == "[" else ""


def name_of(has_bias: bool, activation: str) -> str:
    """Return the name of the epilogue of a bias and an activation, or an empty text."""
    return "+".join(filter(None, ("bias" * has_bias, activation)))


def width(activation: str, n: Any) -> Any:
    """Return the columns of a layer's result, from n columns of the product."""
    return n // 2 if pairs_of(activation) else n


def columns_of(kind: str, x: Any) -> tuple[Any, Any]:
    """Return the first and the second of the combined columns, as views."""
    first, second = (COLUMNS[name].numpy for name in PAIRS[kind])
    return first(x), second(x)


def biases(kind: str, b: Any) -> dict[str, Any]:
    """Return the operands of `forward` for a bias, or None; ``kind``: as returned by `pairs_of`."""
    if b is None:
        return {}
    if not kind:
        return {"bias": b}
    return dict(zip(("bias_gate", "bias_up"), columns_of(kind, b), strict=True))


@lru_cache(maxsize=256)
def forward(
    activation: str, has_bias: bool, with_argument: bool, rounded: str = ""
) -> EpilogueFunction:
    """Return the epilogue of a layer, which may also return the argument of its activation.

    ``activation``: a name, or the text of an `EpilogueFunction`; ``rounded``: the type that the
    unfused program rounds to, to give its bits, or "".
    """
    own = from_text(activation).expression if activation[:1] == "[" else None
    bits = "torch" if rounded else None
    kind = pairs_of(activation)
    names = ["bias_gate", "bias_up"] if kind else ["bias"]
    names = names * has_bias + list(own.operands if own else ())

    def stored(x: Value) -> Value:
        return round_to(x, rounded) if rounded else x

    def function(acc: Value, **operands: Value) -> Any:
        def argument(x: Value, bias: str = "bias") -> Value:
            return stored(x + operands[bias] if has_bias else x)

        if own:
            return _of_argument(own, acc, argument, operands)
        if kind:
            gate, up = pairs(acc)
            gate, up = argument(gate, "bias_gate"), argument(up, "bias_up")
            return stored(ACTIVATIONS[GATED[activation]].function(gate, bits=bits)) * up
        z = argument(acc)
        y = ACTIVATIONS[activation].function(z, bits=bits) if activation else z
        return (y, z) if with_argument else y

    label = from_text(activation).name if own else activation
    return EpilogueFunction(f"{label}_forward", trace(function, names))


def _of_argument(
    own: Expression, acc: Value, argument: Callable[..., Value], operands: dict[str, Value]
) -> Value:
    """Return an expression's value for ``argument``, the accumulator or its columns."""

    def of(name: str) -> Callable[..., Value]:
        if name not in COLUMNS:
            return partial(apply, name)
        bias = "bias_gate" if name in (first for first, _ in PAIRS.values()) else "bias_up"
        return lambda acc: argument(Value(name, (acc,)), bias)

    result: Value = fold(own, operands | {ACCUMULATOR: acc if own.pairs else argument(acc)}, of)[0]
    return result


@cache
def gradient(activation: str) -> EpilogueFunction:
    """Return the epilogue that multiplies gradients by the derivative of an activation.

    Its operand ``kept`` is the activation's argument or result, as `keeps_argument` says.
    """
    rule = ACTIVATIONS[activation].gradient
    return EpilogueFunction(f"{activation}_gradient", trace(lambda acc, kept: rule(acc, kept)))


def is_elementwise(activation: str) -> bool:
    """Return whether an activation, or None, is in `ACTIVATIONS`, whose gradients are fused."""
    return not activation or activation in ACTIVATIONS


def keeps_argument(activation: str) -> bool:
    """Return whether the gradient of an activation takes its argument; otherwise its result."""
    return activation in ACTIVATIONS and not ACTIVATIONS[activation].keeps_result


def text_of(activation: Any) -> str:
    """Return the name or text of an activation of PyTorch's layers; refuse other values."""
    if activation is None:
        return ""
    if isinstance(activation, str) and (activation in ACTIVATIONS or activation in GATED):
        return activation
    if isinstance(activation, EpilogueFunction):
        if activation.expression.results[1:]:
            raise OptionError(
                f"activation={activation.name!r} has several results; expected one result: "
                "call cute_gemm.gemm with it"
            )
        return activation.text
    raise OptionError(
        f"activation={activation!r}; expected one of {', '.join((*ACTIVATIONS, *GATED))}, the "
        "result of cute_gemm.epilogue, or None"
    )


def check_activation(activation: str | None) -> None:
    """Refuse an unknown activation."""
    if activation is not None and activation not in ACTIVATIONS:
        raise OptionError(
            f"activation={activation!r}; expected one of {', '.join(ACTIVATIONS)}, or None"
        )


def check_real(activation: Any, x: Any, real: bool) -> None:
    """Refuse an activation for x, unless the type of x is real and floating-point."""
    if activation is not None and not real:
        name = getattr(activation, "name", activation)
        raise DTypeError(
            f"activation={name!r} came with x of {x.dtype}; expected a real floating-point "
            "type: leave activation out"
        )


def check_product(a: Any, b: Any, convert: str) -> None:
    """Refuse arrays other than (..., M, K) and (..., K, N) of one type."""
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
    """Refuse an array with fewer than two dimensions."""
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
    """Refuse an array whose type differs from another array's."""
    if x.dtype != like.dtype:
        converted = convert.format(name=name, other=other, dtype=like.dtype)
        raise DTypeError(
            f"{name} has dtype {x.dtype} and {other} {like.dtype}; expected one type: pass "
            f"{converted}"
        )


def check_layer(
    x: Any, w: Any, b: Any, convert: str, names: tuple[str, str, str] = ("x", "w", "b")
) -> None:
    """Refuse arrays other than (..., K), (N, K) and (N,), or None, of one type."""
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
