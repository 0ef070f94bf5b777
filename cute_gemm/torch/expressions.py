"""Epilogue expressions in PyTorch, which differentiates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from cute_gemm.arrays.base import dtype_name
from cute_gemm.problem.epilogue.expression import ACCUMULATOR, Expression, fold
from cute_gemm.problem.epilogue.fuse import from_text
from cute_gemm.problem.epilogue.rows import ACTIVATIONS as ROWS
from cute_gemm.problem.epilogue.rows import COLUMNS, functions_of
from cute_gemm.problem.layers import GATED, columns_of, gradient
from cute_gemm.problem.values import saturated

_FUNCTIONS = functions_of(torch, torch, torch.nn.functional) | {
    name: row.numpy for name, row in COLUMNS.items()
}
#: PyTorch's activations.
ACTIVATIONS: dict[str, Callable[..., Any]] = {
    name: _FUNCTIONS.get(name) or getattr(torch.nn.functional, name)
    for name in ROWS
    if name != "relu2"
}
ACTIVATIONS["relu2"] = lambda x: torch.relu(x).square()


def activated(activation: Any, z: Any, operands: dict[str, Any] | None = None) -> Any:
    """Return an activation of ``z = x w^T + b`` by PyTorch: a name, or an epilogue or its text.

    A name gives the unfused program; an epilogue computes in float32 at least.
    """
    if isinstance(activation, str) and activation[:1] == "[":
        activation = from_text(activation)
    if not isinstance(activation, str):
        given = {ACCUMULATOR: z, **(operands or {})}
        values = {
            name: torch.as_tensor(x, dtype=wide(z.dtype), device=z.device)
            for name, x in given.items()
        }
        return evaluate(activation.expression, values)[0].to(z.dtype)
    if activation not in GATED:
        return ACTIVATIONS[activation](z)
    gate, up = columns_of("pairs", z)
    return ACTIVATIONS[GATED[activation]](gate) * up


def evaluate(expression: Expression, values: dict[str, Any]) -> list[Any]:
    """Return the results of an expression of tensors by name, including the accumulator."""
    acc = values[ACCUMULATOR]
    return fold(expression, values, _FUNCTIONS.__getitem__, lambda number: acc.new_full((), number))


def results(expression: Expression, values: dict[str, Any], out: Any) -> Any:
    """Return results as `gemm` does: a tensor of one type, or a tuple with further results."""
    returned: list[Any] = []
    for result, value in zip(expression.results, evaluate(expression, values), strict=True):
        name = result.dtype or dtype_name(out)
        if result.amax:
            returned.append(value.abs().amax())
        else:
            returned.append(saturated(value, name, torch).to(getattr(torch, name)))
    return returned[0] if len(returned) == 1 else tuple(returned)


def times_derivative(activation: str, g: Any, kept: Any) -> Any:
    """Return g times the derivative of an activation; ``kept`` is its argument or its result.

    If nothing differentiates it, PyTorch's kernel computes it, which may have no derivative.
    """
    if not activation:
        return g
    kernel = ROWS[activation].backward
    if kernel and not torch.is_grad_enabled() and forward_ad._current_level < 0:
        return kernel(torch.ops.aten, g, kept)
    values = {ACCUMULATOR: g.to(wide(g.dtype)), "kept": kept.to(wide(g.dtype))}
    return evaluate(gradient(activation).expression, values)[0].to(g.dtype)


def wide(dtype: Any) -> Any:
    """Return the accumulation type of a type."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
