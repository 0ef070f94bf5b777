"""``epilogue=``: a Python function or a name, and its operands, as a problem's `Fused` epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import DTypeError, OptionError, ShapeError, StrideError
from cute_gemm.frameworks.base import ALIGNMENT, Operand
from cute_gemm.problem.epilogue import EpilogueOperand
from cute_gemm.problem.expression import (
    Expression,
    Value,
    gelu,
    relu,
    sigmoid,
    silu,
    tanh,
    trace,
)
from cute_gemm.problem.fused import Fused
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem

#: Parts of names: what each does with the value before it; those with an operand have its name.
_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": tanh,
}
_WITH_OPERAND: dict[str, Callable[[Value, Value], Value]] = {
    "bias": lambda x, bias: x + bias,
    "residual": lambda x, residual: x + residual,
    "scale": lambda x, scale: x * scale,
}


@dataclass(frozen=True)
class EpilogueFunction:
    """An epilogue that was traced: its name, and what it computes. `epilogue` makes one."""

    name: str
    expression: Expression


@lru_cache(maxsize=256)
def epilogue(function: Callable[..., Any]) -> EpilogueFunction:
    """Trace a function of the accumulator and operands; a decorator.

    The accumulator is ``alpha * op(A) @ op(B) + beta * C`` in the type of the sums. Operands are
    arrays that broadcast to C.

    Raises
    ------
    OptionError
        For what cannot be traced: an ``if`` on a value, a function that is not known.

    Examples
    --------
    >>> @epilogue
    ... def leaky(acc, bias):
    ...     y = acc + bias
    ...     return y * 0.1 + relu(y) * 0.9
    >>> leaky.name, leaky.expression.operands
    ('leaky', ('bias',))
    """
    return EpilogueFunction(getattr(function, "__name__", "epilogue"), trace(function))


@lru_cache(maxsize=256)
def named(name: str) -> EpilogueFunction:
    """Return the epilogue of a name, whose parts are joined by ``+``: ``"bias+gelu"``.

    Parts are ``bias``, ``residual`` (added) and ``scale`` (a factor), which are operands' names
    too, and activations: ``relu``, ``gelu``, ``gelu_tanh``, ``silu``, ``sigmoid``, ``tanh``.

    >>> print(named("bias+relu").expression)
    v0 = acc
    v1 = bias
    v2 = add(v0, v1)
    v3 = 0.0
    v4 = maximum(v2, v3)
    """
    parts = name.split("+")
    operands = [part for part in parts if part in _WITH_OPERAND]
    unknown = [part for part in parts if part not in (*_WITH_OPERAND, *_ACTIVATIONS)]
    if unknown or len(set(operands)) < len(operands):
        known = ", ".join((*_WITH_OPERAND, *_ACTIVATIONS))
        wrong = f"{unknown[0]!r} is not known" if unknown else "an operand is there twice"
        raise OptionError(
            f"epilogue={name!r}: {wrong}; expected some of {known}, each once, joined by '+'"
        )
    return EpilogueFunction(name, trace(_composed(parts), operands))


def _composed(parts: list[str]) -> Callable[..., Value]:
    """The function of a name's parts, one after the other."""

    def composed(acc: Value, **operands: Value) -> Value:
        for part in parts:
            if part in _WITH_OPERAND:
                acc = _WITH_OPERAND[part](acc, operands[part])
            else:
                acc = _ACTIVATIONS[part](acc)
        return acc

    return composed


def as_function(value: Any) -> EpilogueFunction:
    """Return what ``epilogue=`` was given: a name, a function, or one that was traced."""
    if isinstance(value, EpilogueFunction):
        return value
    if isinstance(value, str):
        return named(value)
    if callable(value):
        return epilogue(value)
    raise OptionError(
        f"epilogue={value!r}; expected a name such as 'bias+gelu', or a function of the "
        "accumulator and operands"
    )


def fuse(
    problem: GemmProblem, function: EpilogueFunction, operands: Mapping[str, Operand]
) -> GemmProblem:
    """Return the problem with an epilogue, its operands described and checked.

    Parameters
    ----------
    problem
        One with BLAS's epilogue, of real floats.
    function
        The epilogue.
    operands
        Its operands by name, which broadcast to C, (M, N) or (L, M, N), as in NumPy.

    Raises
    ------
    OptionError
        For an operand that is missing, or that the epilogue does not have.
    ShapeError, StrideError, DTypeError
        For one that does not broadcast to C, that has negative strides, that is complex; and for
        sums that are integers or complex.
    """
    if problem.is_complex or not problem.accumulator.roundoff:
        raise DTypeError(
            f"epilogue {function.name!r} came with A and B of {problem.dtype}; expected real "
            "floating-point types"
        )
    names = function.expression.operands
    missing = [name for name in names if name not in operands]
    if missing:
        raise OptionError(f"epilogue {function.name!r} reads {missing[0]}: pass {missing[0]}=")
    others = [name for name in operands if name not in names]
    if others:
        reads = f"reads {', '.join(names)}" if names else "reads no operand"
        raise OptionError(f"{others[0]}= came with epilogue {function.name!r}, which {reads}")
    matrices = tuple(_matrix(name, operands[name], problem) for name in names)
    tensors = tuple(EpilogueOperand(x.name, x.dtype, _modes(x)) for x in matrices)
    return replace(problem, epilogue=Fused(function.expression, tensors), operands=matrices)


def _matrix(name: str, operand: Operand, problem: GemmProblem) -> Matrix:
    """Return the descriptor of an operand, with stride 0 in a mode that it lacks."""
    whole = (problem.l, problem.m, problem.n)
    shape = (1, 1, 1, *operand.shape)[-3:]
    strides = (0, 0, 0, *operand.strides)[-3:]
    fits = all(own in (1, extent) for own, extent in zip(shape, whole, strict=True))
    if len(operand.shape) > 3 or not fits:
        m, n = problem.m, problem.n
        batch = f" in a batch of {problem.l}" * (problem.l != 1)
        raise ShapeError(
            f"{name} has shape {operand.shape}, and C is ({m}, {n}){batch}; expected ({n},), "
            f"({m}, 1), ({m}, {n}) or another shape that broadcasts to C"
        )
    if min(strides) < 0:
        raise StrideError(
            f"{name} has strides {operand.strides} in elements; expected none to be negative: "
            f"pass a copy"
        )
    row = DTYPES.get(operand.dtype)
    if row is None or row.is_complex:
        raise DTypeError(f"{name} has dtype {operand.dtype}; expected a real type")
    step, along_m, along_n = (
        0 if own == 1 else stride for own, stride in zip(shape, strides, strict=True)
    )
    address = ALIGNMENT if operand.device is None else operand.pointer | ALIGNMENT
    return Matrix(
        name, (problem.m, problem.n), (along_m, along_n), operand.dtype, address & -address,
        l=problem.l, batch_stride=step,
    )  # fmt: skip


def _modes(matrix: Matrix) -> str:
    """The modes in which an operand has more than one element: ``"N"`` of a bias."""
    return "".join(mode for mode, stride in zip("MN", matrix.stride, strict=True) if stride)
