"""The functions of epilogues, one row each: C++, NumPy, PyTorch, JAX, error bound, gradient.

Functions composed of others (`relu`, `hardswish`) are Python functions of values, and need
a row only for layers. The public functions here are exported by ``cute_gemm``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from cute_gemm.arrays.base import dtype_name
from cute_gemm.errors import OptionError
from cute_gemm.problem.epilogue import bound, rounding
from cute_gemm.problem.epilogue.bound import Interval, Rules
from cute_gemm.problem.epilogue.rows import (
    ACTIVATIONS,
    FUNCTIONS,
    Activation,
    Error,
    Errors,
    Function,
)
from cute_gemm.problem.epilogue.value import (
    KNOWN,
    Returned,
    Value,
    apply,
    as_value,
    check_kind,
)

__all__ = [
    "erf", "exp", "gelu", "hardswish", "log", "maximum", "minimum", "relu", "relu2", "round_to",
    "rsqrt", "sigmoid", "silu", "sqrt", "tanh", "where",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Value])


def _named(names: str) -> Callable[[F], F]:
    """Trace calls of NumPy's and PyTorch's functions and methods of these names by a function."""

    def register(function: F) -> F:
        KNOWN.update(dict.fromkeys(names.split(), function))
        return function

    return register


def _row(names: str, cpp: str, numpy: Callable[..., Any], **facts: Any) -> Callable[[F], F]:
    """Add a row, named by the first of the names.

    Calls of these names are traced by the decorated function. A row without one traces them itself.
    """
    name = names.split()[0]
    FUNCTIONS[name] = Function(cpp, numpy, **facts)
    _named(names)((lambda x, y: apply(name, x, y)) if "{1}" in cpp else lambda x: apply(name, x))
    return _named(names)


def _activation(name: str, gradient: Callable[[Any, Any], Value], **facts: Any) -> Callable[[F], F]:
    """Add a function, with its gradient, to layers and to names of epilogues."""

    def register(function: F) -> F:
        ACTIVATIONS[name] = Activation(function, gradient, **facts)
        return _named(name)(function)

    return register


def _of_bits(name: str, bits: str | None) -> str:
    """Return the name of a function's row, or of the row with PyTorch's bits (``bits="torch"``)."""
    if bits not in (None, "torch"):
        raise OptionError(f"bits={bits!r}; expected 'torch', or None")
    return f"{name}_torch" if bits else name


# ---- arithmetic and conditions ------------------------------------------------------------------

_row("add", "cute_gemm::add({0}, {1})", np.add)
_row("subtract sub", "cute_gemm::subtract({0}, {1})", np.subtract, interval=bound.difference)


@_row("multiply mul", "{0} * {1}", np.multiply, interval=bound.product)
def _multiply(a: Any, b: Any) -> Value:
    """Return a product; a condition is a mask, 1 if it is true and 0 otherwise."""
    a, b = as_value(a), as_value(b)
    if a.is_condition and b.is_condition:
        return a & b
    a, b = (apply("where", x, 1, 0) if x.is_condition else x for x in (a, b))
    return apply("multiply", a, b)


_row("divide true_divide div", "cute_gemm::divide<ElementC>({0}, {1})", np.divide,
     errors=Errors(float16=Error(2)), interval=bound.quotient)  # fmt: skip
_row("negative neg", "-{0}", np.negative, errors=None, interval=bound.negative)
_row("less lt", "{0} < {1}", np.less, errors=None, interval=bound.comparison(np.less),
     is_condition=True)  # fmt: skip
_row("less_equal le", "{0} <= {1}", np.less_equal, errors=None,
     interval=bound.comparison(np.less_equal), is_condition=True)  # fmt: skip


@_row("equal eq", "{0} == {1}", np.equal, errors=None, interval=bound.equality,
      torch=lambda torch, x, y: torch.eq(x, y), is_condition=True)  # fmt: skip
def _equal(a: Any, b: Any) -> Value:
    """Return whether two numbers or conditions are equal."""
    a, b = as_value(a), as_value(b)
    return ~_exclusive(a, b) if a.is_condition and b.is_condition else apply("equal", a, b)


_row("logical_and bitwise_and and", "{0} && {1}", np.logical_and, errors=None, conditions=(0, 1),
     is_condition=True)  # fmt: skip
_row("logical_or bitwise_or or", "{0} || {1}", np.logical_or, errors=None, conditions=(0, 1),
     is_condition=True)  # fmt: skip
_row("logical_not bitwise_not invert", "!{0}", np.logical_not, errors=None, conditions=(0,),
     interval=bound.negation, is_condition=True)  # fmt: skip


@_named("logical_xor bitwise_xor xor")
def _exclusive(a: Any, b: Any) -> Value:
    """Return whether exactly one of two conditions is true."""
    both = apply("logical_and", a, b)
    return apply("logical_or", a, b) & ~both


_named("greater gt")(lambda x, y: apply("less", y, x))
_named("greater_equal ge")(lambda x, y: apply("less_equal", y, x))
_named("not_equal ne")(lambda x, y: ~_equal(x, y))


@_named("positive")
def _positive(x: Any) -> Value:
    """Return a number unchanged."""
    value = as_value(x)
    check_kind("positive", value, False)
    return value


@_row("where", "{0} ? {1} : {2}", np.where, errors=None, interval=bound.either, conditions=(0,))
def where(condition: Any, a: Any, b: Any) -> Value:
    """Return a if the condition is true, and b otherwise."""
    return apply("where", condition, a, b)


def _greater(numpy: Any, a: Any, b: Any) -> Any:
    """Return the greater of two by a library like NumPy; if equal, b has the gradient.

    The gradient of relu at 0 is therefore 0.
    """
    return numpy.where((b >= a) | numpy.isnan(b), b, a)


def _less(numpy: Any, a: Any, b: Any) -> Any:
    return numpy.where((b <= a) | numpy.isnan(b), b, a)


@_row("maximum", "cute_gemm::maximum({0}, {1})", np.maximum, errors=None,
      torch=_greater, jax=lambda jax, a, b: _greater(jax.numpy, a, b))  # fmt: skip
def maximum(a: Any, b: Any) -> Value:
    """Return the greater of two values; NaN if one of them is NaN."""
    return apply("maximum", a, b)


@_row("minimum", "cute_gemm::minimum({0}, {1})", np.minimum, errors=None,
      torch=_less, jax=lambda jax, a, b: _less(jax.numpy, a, b))  # fmt: skip
def minimum(a: Any, b: Any) -> Value:
    """Return the lesser of two values; NaN if one of them is NaN."""
    return apply("minimum", a, b)


@_named("clip clamp")
def _clip(x: Any, min: Any = None, max: Any = None) -> Value:
    """Return the nearest number that is not below ``min`` and not above ``max``."""
    x = as_value(x) if min is None else maximum(x, min)
    return x if max is None else minimum(x, max)


_row("abs absolute fabs", "cute_gemm::abs({0})", np.abs, errors=None, interval=bound.magnitude)

for _type, _cpp in rounding.TYPES.items():
    FUNCTIONS[f"round_to_{_type}"] = Function(
        f"cute_gemm::{_cpp}({{0}})", rounding.by_numpy(_type), None,
        torch=rounding.by_torch(_type), jax=rounding.by_jax(_type),
    )  # fmt: skip


def round_to(x: Any, dtype: Any) -> Value:
    """Round a value to what a type holds, to nearest and ties to even; it stays in registers.

    ``dtype``: bfloat16, float16, ``"tf32"``, float8_e4m3fn, float8_e5m2 or float32. 8-bit floats
    saturate, as results do. The derivative is 1.

    Examples
    --------
    >>> import cute_gemm as cg
    >>> print(cg.epilogue(lambda acc, bias: cg.relu(round_to(acc + bias, "bfloat16"))).expression)
    v0 = acc
    v1 = bias
    v2 = add(v0, v1)
    v3 = round_to_bfloat16(v2)
    v4 = 0.0
    v5 = maximum(v3, v4)
    return v5
    """
    name, value = dtype_name(dtype), as_value(x)
    if name == "float64":  # the widest type of sums
        return value
    if name not in rounding.TYPES:
        raise OptionError(
            f"round_to(..., dtype={dtype!r}); expected one of {', '.join(rounding.TYPES)}"
        )
    return apply(f"round_to_{name}", value)


# ---- functions ----------------------------------------------------------------------------------

# Errors are those of CUDA's functions in float32 and float64 (CUDA C++ Programming Guide,
# Mathematical Functions), where results have 16 bits those of ``templates/common/functions.cuh``:
# for float16 ``ex2.approx`` is off by 2 ulp, as ``div.approx`` and ``rcp.approx`` are, and the
# exponential's argument is rounded; ``tanh.approx`` is off by a factor of 2^-10.987 (PTX ISA,
# 9.7.3); Abramowitz and Stegun's 7.1.26 by 1.5e-7. For bfloat16 tanh.approx gives more: the fit of
# erf is off by 2.9e-6, its first two terms by 2.81e-4.


@_row("exp", "cute_gemm::exp<ElementC>({0})", np.exp,
      errors=Errors(Error(2), Error(1), Error(3, 0, 1.2)))  # fmt: skip
def exp(x: Any) -> Value:
    """Return e to the power of x."""
    return apply("exp", x)


@_row("log", "cute_gemm::log({0})", np.log, errors=Errors(Error(1), Error(1)),
      interval=bound.of_positive(np.log))  # fmt: skip
def log(x: Any) -> Value:
    """Return the natural logarithm."""
    return apply("log", x)


@_row("sqrt", "cute_gemm::sqrt({0})", np.sqrt, interval=bound.of_positive(np.sqrt))
def sqrt(x: Any) -> Value:
    """Return the square root."""
    return apply("sqrt", x)


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


@_row("rsqrt", "cute_gemm::rsqrt({0})", _rsqrt, errors=Errors(Error(2), Error(1)),
      interval=bound.of_positive(_rsqrt))  # fmt: skip
def rsqrt(x: Any) -> Value:
    """Return 1 / sqrt(x)."""
    return apply("rsqrt", x)


@_named("power pow float_power")
def _power(x: Any, exponent: Any) -> Value:
    """Return a power: products, and a square root, of exponents that are multiples of 1/2."""
    if isinstance(exponent, (Value, Returned)):
        base = "x" if isinstance(x, Value) else repr(x)
        raise OptionError(
            "an epilogue writes ** with an exponent that is a value; expected a number: "
            f"{base} ** y is cute_gemm.exp(y * cute_gemm.log({base}))"
        )
    p = as_value(exponent).constant
    if not math.isfinite(p) or 2 * p % 1:
        raise OptionError(
            f"an epilogue writes ** {exponent!r}; expected a multiple of 0.5: of positive numbers "
            f"x ** {exponent!r} is cute_gemm.exp({exponent!r} * cute_gemm.log(x))"
        )
    if p == -0.5:
        return rsqrt(x)
    left, square = int(abs(p)), x
    result = sqrt(x) if abs(p) % 1 else None
    while left:
        if left % 2:
            result = square if result is None else apply("multiply", result, square)
        left //= 2
        square = apply("multiply", square, square) if left else square
    result = as_value(1 if result is None else result)
    return apply("divide", 1, result) if p < 0 else result


_named("square")(lambda x: _power(x, 2))
_named("reciprocal")(lambda x: _power(x, -1))


@_activation(
    "relu", lambda g, y: where(y <= 0, 0.0, g), keeps_result=True,
    backward=lambda aten, g, y: aten.threshold_backward(g, y, 0),
)  # fmt: skip
def relu(x: Any, *, bits: str | None = None) -> Value:
    """Return max(x, 0); ``bits``: as for `gelu`."""
    _of_bits("relu", bits)  # checks: it has PyTorch's bits anyway
    return maximum(x, 0)


@_activation("relu2", lambda g, x: g * (2 * relu(x)))
def relu2(x: Any, *, bits: str | None = None) -> Value:
    """Return max(x, 0)^2."""
    return relu(x, bits=bits) ** 2


@_activation(
    "tanh", lambda g, y: g * (1 - y * y), keeps_result=True,
    backward=lambda aten, g, y: aten.tanh_backward(g, y),
)  # fmt: skip
@_row("tanh", "cute_gemm::tanh<ElementC>({0})", np.tanh,
      errors=Errors(Error(2), Error(1), Error(2**12.1)))  # fmt: skip
def tanh(x: Any, *, bits: str | None = None) -> Value:
    """Return the hyperbolic tangent; ``bits``: as for `gelu`."""
    return apply(_of_bits("tanh", bits), x)


def _erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return np.asarray(erf(x))


@_row("erf", "cute_gemm::erf<ElementC>({0})", _erf,
      errors=Errors(Error(2), Error(2), Error(8, 1e-6), Error(2**12.2, 3e-6)))  # fmt: skip
def erf(x: Any) -> Value:
    """Return the error function."""
    return apply("erf", x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


@_activation(
    "sigmoid", lambda g, y: g * y * (1 - y), keeps_result=True,
    backward=lambda aten, g, y: aten.sigmoid_backward(g, y),
)  # fmt: skip
@_row("sigmoid expit", "cute_gemm::sigmoid<ElementC>({0})", _sigmoid,  # exp, a sum and a quotient
      errors=Errors(Error(4), Error(2), Error(5, 0, 1.2), Error(2, 2**-11.9)))  # fmt: skip
def sigmoid(x: Any, *, bits: str | None = None) -> Value:
    """Return 1 / (1 + exp(-x)); ``bits``: as for `gelu`."""
    return apply(_of_bits("sigmoid", bits), x)


def _silu_gradient(g: Any, x: Any) -> Value:
    s = sigmoid(x)
    return g * s * (1 + x * (1 - s))


@_activation("silu", _silu_gradient, backward=lambda aten, g, x: aten.silu_backward(g, x))
@_row("silu", "cute_gemm::silu<ElementC>({0})", lambda x: x * _sigmoid(x),
      errors=Errors(Error(2), Error(2)),
      interval=lambda rules, x: bound.product(rules, x, rules.apply("sigmoid", x)))  # fmt: skip
def silu(x: Any, *, bits: str | None = None) -> Value:
    """Return x / (1 + exp(-x)); ``bits``: as for `gelu`."""
    return apply(_of_bits("silu", bits), x)


def _gelu(x: np.ndarray) -> np.ndarray:
    """Return ``x (1 + erf(x / sqrt(2))) / 2``.

    For negative numbers, where the sum cancels, it is ``x erfcx(-x / sqrt(2)) exp(-x^2 / 2) / 2``.
    The square of a few bits of x is exact.
    """
    from scipy.special import erfcx

    x = np.asarray(x)
    tail = np.clip(x, -64, 0)  # beyond, the exponential is 0
    few = np.rint(16 * tail) / 16
    square = np.exp(-0.5 * few * few) * np.exp(-0.5 * (tail - few) * (tail + few))
    below = 0.5 * x * (erfcx(_erf_argument(np.maximum(-x, 0))) * square)
    return np.where(x < -0.5, below, 0.5 * x * (1 + _erf(_erf_argument(x))))


def _gelu_gradient(g: Any, x: Any) -> Value:
    density = exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return g * (0.5 * (1 + erf(_erf_argument(x))) + x * density)


def _erf_argument(x: Any) -> Any:
    return x * math.sqrt(0.5)


def _half_of_sum(rules: Rules, x: Interval, f: Interval) -> Interval:
    """Return the interval of ``x (1 + f) / 2``."""
    factor = rules.rounded(Interval(*(0.5 + 0.5 * end for end in f)), Error())
    return bound.product(rules, x, factor)


def _gelu_interval(rules: Rules, x: Interval) -> Interval:
    """Return the interval of ``x (1 + erf(x / sqrt(2))) / 2``, whose erf is not that of `erf`."""
    errors = Errors(Error(3), Error(3), Error(8, 1e-6), Error(2**12.1, 2.82e-4))
    of_x = Interval(*(_erf(_erf_argument(end)) for end in x))
    return _half_of_sum(rules, x, rules.rounded(of_x, errors.of(rules.dtype.name, rules.output)))


@_activation("gelu", _gelu_gradient, backward=lambda aten, g, x: aten.gelu_backward(g, x))
@_row("gelu", "cute_gemm::gelu<ElementC>({0})", _gelu, errors=Errors(Error(2), Error(2)),
      interval=_gelu_interval, jax=lambda jax, x: jax.nn.gelu(x, approximate=False))  # fmt: skip
def gelu(x: Any, approximate: str = "none", *, bits: str | None = None) -> Value:
    """Return x times the normal CDF of x, as ``torch.nn.functional.gelu``.

    Parameters
    ----------
    x
        A value of the epilogue.
    approximate
        ``"none"``, or ``"tanh"`` for ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``.
    bits
        ``"torch"`` computes the operations of PyTorch's CUDA kernel in its order, in the type of
        the accumulators, also if C has 16 bits. On a GPU, equal x then give the bits of PyTorch.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise OptionError(f"approximate={approximate!r}; expected 'none' or 'tanh'")
    return apply(_of_bits("gelu" if approximate == "none" else "gelu_tanh", bits), x)


def _gelu_argument(x: Any) -> Any:
    """Return the argument of the sigmoid in gelu's approximation.

    It is ``2 sqrt(2/pi) (x + 0.044715 x^3)``.
    """
    return 2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * (x * x))


def _gelu_tanh_gradient(g: Any, x: Any) -> Value:
    square = x * x
    s = sigmoid(_gelu_argument(x))
    slope = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * square)
    return g * (s + x * s * (1 - s) * slope)


def _gelu_tanh_interval(rules: Rules, x: Interval) -> Interval:
    argument = rules.rounded(Interval(*map(_gelu_argument, x)), Error(4))
    return bound.product(rules, x, rules.apply("sigmoid", argument))


@_activation(
    "gelu_tanh", _gelu_tanh_gradient,
    backward=lambda aten, g, x: aten.gelu_backward(g, x, approximate="tanh"),
)  # fmt: skip
@_row("gelu_tanh", "cute_gemm::gelu_tanh<ElementC>({0})",
      lambda x: x * _sigmoid(_gelu_argument(x)), errors=Errors(Error(2), Error(2)),
      interval=_gelu_tanh_interval, jax=lambda jax, x: jax.nn.gelu(x),
      torch=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"))  # fmt: skip
def _gelu_tanh(x: Any, *, bits: str | None = None) -> Value:
    return gelu(x, "tanh", bits=bits)


@_activation(
    "hardswish",
    lambda g, x: where(x <= -3, 0.0, where(x >= 3, g, g * (x * (1 / 3) + 0.5))),
    backward=lambda aten, g, x: aten.hardswish_backward(g, x),
)
def hardswish(x: Any, *, bits: str | None = None) -> Value:
    """Return x min(max(x + 3, 0), 6) / 6; ``bits``: as for `gelu`."""
    sixth = 1 / 6 if _of_bits("hardswish", bits) == "hardswish" else float(np.float32(1 / 6))
    return x * _clip(x + 3, 0, 6) * sixth


# ---- with the bits of PyTorch -------------------------------------------------------------------


def _tanh_argument(x: Any) -> Any:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))


def _torch_row(
    name: str, numpy: Callable[..., Any], ulps: float = 2,
    interval: Callable[[Rules, Interval], Interval] | None = None,
) -> None:  # fmt: skip
    """Add the row of a function as PyTorch's CUDA kernel computes it, whatever C's type is."""
    FUNCTIONS[f"{name}_torch"] = FUNCTIONS[name]._replace(
        cpp=f"cute_gemm::torch::{name}({{0}})", numpy=numpy, interval=interval,
        errors=Errors(Error(ulps), Error(2)),
    )  # fmt: skip


def _of_argument(
    function: Callable[..., Any], argument: Callable[[Any], Any]
) -> Callable[[Rules, Interval], Interval]:
    """Return the rule of ``x (1 + function(argument(x))) / 2``."""

    def interval(rules: Rules, x: Interval) -> Interval:
        given = rules.rounded(Interval(*map(argument, x)), Error(4))
        return _half_of_sum(rules, x, rules.rounded(Interval(*map(function, given)), Error(2)))

    return interval


_torch_row("tanh", np.tanh)
_torch_row("sigmoid", _sigmoid, 4)
_torch_row(
    "silu", lambda x: x / (1 + np.exp(-x)),
    interval=lambda rules, x: bound.product(rules, x, rules.apply("sigmoid_torch", x)),
)  # fmt: skip
_torch_row("gelu", lambda x: 0.5 * x * (1 + _erf(_erf_argument(x))),
           interval=_of_argument(_erf, _erf_argument))  # fmt: skip
_torch_row("gelu_tanh", lambda x: 0.5 * x * (1 + np.tanh(_tanh_argument(x))),
           interval=_of_argument(np.tanh, _tanh_argument))  # fmt: skip
