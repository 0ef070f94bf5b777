"""The primitives of expressions: how C++ spells each, and NumPy's function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Function(NamedTuple):
    """A primitive: how C++ spells it of ``{0}``, ``{1}``, ..., and NumPy's function."""

    cpp: str
    numpy: Callable[..., Any]


def _erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return np.asarray(erf(x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _gelu(x: np.ndarray) -> np.ndarray:
    """``x (1 + erf(x / sqrt(2))) / 2``; of negative numbers without 1 - 1, which has no digits.

    ``x erfcx(-x / sqrt(2)) exp(-x^2 / 2) / 2``, where the square of a few bits of x is exact.
    """
    from scipy.special import erfcx

    x = np.asarray(x)
    tail = np.clip(x, -64, 0)  # beyond, the exponential is 0
    few = np.rint(16 * tail) / 16
    square = np.exp(-0.5 * few * few) * np.exp(-0.5 * (tail - few) * (tail + few))
    below = 0.5 * x * (erfcx(np.maximum(-x, 0) * math.sqrt(0.5)) * square)
    return np.where(x < -0.5, below, 0.5 * x * (1 + _erf(x * math.sqrt(0.5))))


def gelu_argument(x: Any) -> Any:
    """Return what gelu's approximation has the sigmoid of: ``2 sqrt(2/pi) (x + 0.044715 x^3)``."""
    return 2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * (x * x))


#: Primitives by name. Of ``maximum`` and ``minimum`` a NaN of either is the result, as in NumPy.
FUNCTIONS = {
    "add": Function("cute_gemm::add({0}, {1})", np.add),
    "subtract": Function("cute_gemm::subtract({0}, {1})", np.subtract),
    "multiply": Function("{0} * {1}", np.multiply),
    "divide": Function("cute_gemm::divide<ElementC>({0}, {1})", np.divide),
    "negative": Function("-{0}", np.negative),
    "less": Function("{0} < {1}", np.less),
    "less_equal": Function("{0} <= {1}", np.less_equal),
    "equal": Function("{0} == {1}", np.equal),
    "logical_and": Function("{0} && {1}", np.logical_and),
    "logical_or": Function("{0} || {1}", np.logical_or),
    "logical_not": Function("!{0}", np.logical_not),
    "where": Function("{0} ? {1} : {2}", np.where),
    "maximum": Function("cute_gemm::maximum({0}, {1})", np.maximum),
    "minimum": Function("cute_gemm::minimum({0}, {1})", np.minimum),
    "abs": Function("cute_gemm::abs({0})", np.abs),
    "exp": Function("cute_gemm::exp<ElementC>({0})", np.exp),
    "log": Function("cute_gemm::log({0})", np.log),
    "sqrt": Function("cute_gemm::sqrt({0})", np.sqrt),
    "rsqrt": Function("cute_gemm::rsqrt({0})", lambda x: 1 / np.sqrt(x)),
    "tanh": Function("cute_gemm::tanh<ElementC>({0})", np.tanh),
    "erf": Function("cute_gemm::erf<ElementC>({0})", _erf),
    "sigmoid": Function("cute_gemm::sigmoid<ElementC>({0})", _sigmoid),
    "silu": Function("cute_gemm::silu<ElementC>({0})", lambda x: x * _sigmoid(x)),
    "gelu": Function("cute_gemm::gelu<ElementC>({0})", _gelu),
    "gelu_tanh": Function(
        "cute_gemm::gelu_tanh<ElementC>({0})", lambda x: x * _sigmoid(gelu_argument(x))
    ),
}
#: Of two columns of the product that an epilogue takes together the one and the other: those beside
#: each other, or those of the first and of the second half.
COLUMNS = {
    "even_columns": Function("{0}.first", lambda acc: acc[..., 0::2]),
    "odd_columns": Function("{0}.second", lambda acc: acc[..., 1::2]),
    "first_half": Function("{0}.first", lambda acc: acc[..., : acc.shape[-1] // 2]),
    "second_half": Function("{0}.second", lambda acc: acc[..., acc.shape[-1] // 2 :]),
}
#: The functions that make values of each kind.
PAIRS = {"pairs": ("even_columns", "odd_columns"), "halves": ("first_half", "second_half")}
#: Those of conditions, and those whose result is one.
LOGICAL = frozenset(("logical_and", "logical_or", "logical_not"))
CONDITIONS = LOGICAL | {"less", "less_equal", "equal"}
