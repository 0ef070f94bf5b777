"""Error bounds of expressions by interval arithmetic: its rules, and those of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.problem.epilogue.expression import Expression, fold
from cute_gemm.problem.epilogue.rows import Error, row_of

if TYPE_CHECKING:
    from cute_gemm.dtypes import DType


class Interval(NamedTuple):
    """Numbers between two others, element by element; 0 to 1 for a condition."""

    low: Any
    high: Any


class Rules:
    """Interval arithmetic for values computed in one type, for results of another."""

    def __init__(self, dtype: DType, output: str = "") -> None:
        about = np.finfo(dtype.numpy)
        self.dtype, self.output = dtype, output
        # In float64 the reference has errors of the same size.
        self.ulp = 2 * dtype.roundoff * (2 if dtype.name == "float64" else 1)
        self.least, self.most = float(about.tiny), float(about.max)

    def evaluate(self, expression: Expression, leaves: Mapping[str, Interval]) -> Interval:
        """Return the interval of an expression's result."""
        with np.errstate(all="ignore"):
            results = fold(
                expression, leaves, lambda name: partial(self.apply, name), self._constant
            )
        interval: Interval = results[0]
        return interval

    def _constant(self, number: float) -> Interval:
        rounded = float(np.asarray(number, self.dtype.numpy))
        return Interval(rounded, rounded)

    def apply(self, function: str, *inputs: Interval) -> Interval:
        """Return the interval of a function's computed result, with its error."""
        row = row_of(function)
        exact = row.interval(self, *inputs) if row.interval else Interval(*map(row.numpy, *inputs))
        if row.errors is None:
            return exact
        error = row.errors.of(self.dtype.name, self.output)
        argument = np.fmax(*map(abs, inputs[0])) if error.by_argument else 0.0
        return self.rounded(exact, error, argument)

    def rounded(self, x: Interval, error: Error, argument: Any = 0.0) -> Interval:
        """Return the interval widened by a function's error, with overflow as infinity."""
        low, high = (np.asarray(end, np.float64) for end in x)
        # Beyond 128 exponentials are 0 or infinite.
        ulps = error.ulps + error.by_argument * np.minimum(argument, 128)
        low = low - ulps * self.ulp * abs(low) - self.least - error.absolute
        high = high + ulps * self.ulp * abs(high) + self.least + error.absolute
        low = np.where(low < -self.most, -np.inf, np.minimum(low, self.most))
        high = np.where(high > self.most, np.inf, np.maximum(high, -self.most))
        return Interval(low, high)


# ---- intervals of functions that do not increase in every argument -----------------------------


def difference(rules: Rules, x: Interval, y: Interval) -> Interval:
    """``x - y``."""
    return Interval(x.low - y.high, x.high - y.low)


def product(rules: Rules, x: Interval, y: Interval) -> Interval:
    """``x * y``."""
    return _of_all_ends(np.multiply, x, y)


def quotient(rules: Rules, x: Interval, y: Interval) -> Interval:
    """``x / y``; everything if y may be 0."""
    low, high = _of_all_ends(np.divide, x, y, (y.low <= 0) & (y.high >= 0))
    if rules.dtype.name == "float64" or rules.output not in ("float16", "bfloat16"):
        return Interval(low, high)
    # An approximate quotient by more than 2^126 is 0.
    lost = 2.0**-126 * np.fmax(abs(x.low), abs(x.high))
    lost = np.where(np.isfinite(lost), lost, 0.0)
    return Interval(low - lost, high + lost)


def _of_all_ends(
    compute: Callable[..., Any], x: Interval, y: Interval, anything: Any = False
) -> Interval:
    """Return the interval of a function of all ends, everything if one of them has no result."""
    every = np.stack(np.broadcast_arrays(*(compute(a, b) for a in x for b in y)))
    low, high = every.min(axis=0), every.max(axis=0)
    anything = anything | np.isnan(low)
    return Interval(np.where(anything, -np.inf, low), np.where(anything, np.inf, high))


def negative(rules: Rules, x: Interval) -> Interval:
    """``-x``."""
    return Interval(-x.high, -x.low)


def magnitude(rules: Rules, x: Interval) -> Interval:
    """``abs(x)``."""
    ends = np.abs(x.low), np.abs(x.high)
    inside = (x.low <= 0) & (x.high >= 0)
    return Interval(np.where(inside, 0.0, np.minimum(*ends)), np.maximum(*ends))


def of_positive(function: Callable[..., Any]) -> Callable[[Rules, Interval], Interval]:
    """Return the interval of a monotonic function, everything if x may be negative."""

    def interval(rules: Rules, x: Interval) -> Interval:
        ends = function(x.low), function(x.high)
        low = np.where(x.low < 0, -np.inf, np.minimum(*ends))
        return Interval(low, np.where(x.low < 0, np.inf, np.maximum(*ends)))

    return interval


def either(rules: Rules, condition: Interval, a: Interval, b: Interval) -> Interval:
    """Return the interval of one of two, or of both if the condition may be true or false."""
    holds, may = condition.low > 0, condition.high > 0
    low = np.where(holds, a.low, np.where(may, np.fmin(a.low, b.low), b.low))
    high = np.where(holds, a.high, np.where(may, np.fmax(a.high, b.high), b.high))
    return Interval(low, high)


def comparison(compare: Callable[..., Any]) -> Callable[[Rules, Interval, Interval], Interval]:
    """Return whether ``<`` or ``<=`` is true for all, or for some, numbers of two intervals."""
    return lambda rules, x, y: Interval(1.0 * compare(x.high, y.low), 1.0 * compare(x.low, y.high))


def equality(rules: Rules, x: Interval, y: Interval) -> Interval:
    """Return whether all, or some, numbers of two intervals are equal."""
    point = (x.low == x.high) & (y.low == y.high)
    some = (x.low <= y.high) & (y.low <= x.high)
    return Interval(1.0 * (point & some), 1.0 * some)


def negation(rules: Rules, x: Interval) -> Interval:
    """Return the interval of the negation of a condition."""
    return Interval(1.0 - x.high, 1.0 - x.low)
