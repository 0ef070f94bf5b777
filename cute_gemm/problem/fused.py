"""An expression as an `Epilogue`: its C++ functor, its NumPy, and its error bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.dtypes import DType
from cute_gemm.problem.epilogue import (
    LINEAR_COMBINATION,
    Epilogue,
    EpilogueArguments,
    EpilogueOperand,
)
from cute_gemm.problem.expression import ACCUMULATOR, CONDITIONS, FUNCTIONS, Expression, Step

#: The C++ class template of an expression.
FUNCTOR = """\
#include "common/epilogue.cuh"
#include "common/functions.cuh"

template <{parameters}>
struct {name} : cute_gemm::LinearCombination<Accumulator, ElementC> {{
  using Base = cute_gemm::LinearCombination<Accumulator, ElementC>;
  struct Params : Base::Params {{
    {declarations}
  }};

  Params params;

  CUTE_DEVICE explicit {name}(Params const& params) : Base(params), params(params) {{}}

  CUTE_DEVICE ElementC apply(Accumulator const& acc, cute_gemm::Coord const& at) const {{
    {values}
    return ElementC(v{last});
  }}
  CUTE_DEVICE ElementC operator()(Accumulator const& sum, cute_gemm::Coord const& at) const {{
    return apply(this->combine(sum), at);
  }}
  CUTE_DEVICE ElementC operator()(Accumulator const& sum, ElementC const& c,
                                  cute_gemm::Coord const& at) const {{
    return apply(this->combine(sum, c), at);
  }}
}};

"""


@dataclass(frozen=True)
class Fused(Epilogue):
    """An expression of ``alpha * accumulator + beta * C`` and of operands.

    Everything is computed in the type of the sums. ``tensors`` are the expression's operands, in
    its order.
    """

    expression: Expression
    tensors: tuple[EpilogueOperand, ...] = ()

    @property
    def operands(self) -> tuple[EpilogueOperand, ...]:
        """The tensors that it reads beside C."""
        return self.tensors

    @cached_property
    def name(self) -> str:
        """Part of kernels' symbols, other for another expression or other operands."""
        said = f"{self.expression}\n{self.tensors}"
        return f"epilogue_{sha256(said.encode()).hexdigest()[:12]}"

    @property
    def functor(self) -> str:
        """The C++ class template."""
        return f"Functor_{self.name}"

    @cached_property
    def source(self) -> str:
        """C++ that declares the class template."""
        names = [tensor.name for tensor in self.tensors]
        tensors = [f"cute_gemm::EpilogueTensor<Element_{x}> {x};" for x in names]
        types = ("Accumulator", "ElementC", *(f"Element_{x}" for x in names))
        values = [
            f"{'bool' if step.function in CONDITIONS else 'Accumulator'} const v{i} = {_cpp(step)};"
            for i, step in enumerate(self.expression.steps)
        ]
        return FUNCTOR.format(
            parameters=", ".join(f"class {each}" for each in types), name=self.functor,
            declarations="\n    ".join(tensors), values="\n    ".join(values),
            last=len(values) - 1,
        )  # fmt: skip

    def apply(self, accumulator: np.ndarray, arguments: EpilogueArguments) -> np.ndarray:
        """Return the expression, in the accumulator's type."""
        kind = accumulator.dtype
        values = {name: np.asarray(x).astype(kind) for name, x in arguments.operands.items()}
        values[ACCUMULATOR] = LINEAR_COMBINATION.apply(accumulator, arguments)
        with np.errstate(all="ignore"):
            result = self.expression.evaluate(values)
        return np.broadcast_to(result, accumulator.shape).astype(kind, copy=False)

    def bound(
        self,
        accumulator: np.ndarray,
        error: np.ndarray,
        magnitude: np.ndarray,
        dtype: DType,
        arguments: EpilogueArguments,
    ) -> np.ndarray:
        """Return how far the expression can be off, by interval arithmetic.

        Every value is an interval that its computed value lies in: that of the operands' intervals,
        wider by the function's own error (half a unit in the last place of arithmetic, which IEEE
        754 rounds to nearest; `ULPS` of other functions).
        """
        linear = LINEAR_COMBINATION.apply(accumulator, arguments)
        off = LINEAR_COMBINATION.bound(accumulator, error, magnitude, dtype, arguments)
        rules = Rules(dtype)
        leaves = {
            name: rules.rounded(Interval(array, array), 0.5)
            for name, array in arguments.operands.items()
        }
        leaves[ACCUMULATOR] = Interval(linear - off, linear + off)
        with np.errstate(all="ignore"):
            computed = rules.evaluate(self.expression, leaves)
            exact = self.apply(accumulator, arguments)
            return np.fmax(computed.high - exact, exact - computed.low)


def _cpp(step: Step) -> str:
    """What C++ writes for a value."""
    if step.function == "operand":
        accumulator = step.name == ACCUMULATOR
        return "acc" if accumulator else f"Accumulator(params.{step.name}(at))"
    if step.function == "constant":
        return f"Accumulator({_literal(step.constant)})"
    return FUNCTIONS[step.function].cpp.format(*(f"v{place}" for place in step.inputs))


def _literal(number: float) -> str:
    """A number in C++."""
    if math.isfinite(number):
        return number.hex()
    bits = "7fc00000" if math.isnan(number) else "7f800000" if number > 0 else "ff800000"
    return f"__int_as_float(0x{bits})"


# ---- intervals ----------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Numbers between two others, element by element; of a condition what it may be, 0 to 1."""

    low: Any
    high: Any


#: The most by which CUDA's functions are off, in units of the last place, in float32 and in float64
#: (CUDA C++ Programming Guide, Mathematical Functions).
ULPS = {
    "exp": (2, 1), "log": (1, 1), "sqrt": (0.5, 0.5), "rsqrt": (2, 1), "tanh": (2, 1),
    "erf": (2, 2),
}  # fmt: skip


class Rules:
    """Interval arithmetic for values that are computed in a type."""

    def __init__(self, dtype: DType) -> None:
        about = np.finfo(dtype.numpy)
        self.kind = dtype.numpy
        # In float64 the reference has errors of the same size.
        self.ulp = 2 * dtype.roundoff * (2 if dtype.name == "float64" else 1)
        self.least, self.most = float(about.tiny), float(about.max)
        self.wide = int(dtype.name == "float64")

    def evaluate(self, expression: Expression, leaves: dict[str, Interval]) -> Interval:
        """Return the interval of an expression's result."""
        found: list[Interval] = []
        for step in expression.steps:
            if step.function == "operand":
                found.append(leaves[step.name])
            elif step.function == "constant":
                constant = float(np.asarray(step.constant, self.kind))
                found.append(Interval(constant, constant))
            else:
                inputs = [found[place] for place in step.inputs]
                with np.errstate(all="ignore"):
                    found.append(self._apply(step.function, *inputs))
        return found[-1]

    def rounded(self, x: Interval, ulps: float) -> Interval:
        """Return the interval wider by a function's error, with what overflows infinite."""
        low, high = (np.asarray(end, np.float64) for end in x)
        low = low - ulps * self.ulp * abs(low) - self.least
        high = high + ulps * self.ulp * abs(high) + self.least
        low = np.where(low < -self.most, -np.inf, np.minimum(low, self.most))
        high = np.where(high > self.most, np.inf, np.maximum(high, -self.most))
        return Interval(low, high)

    def _apply(self, function: str, *inputs: Interval) -> Interval:
        if function in CONDITIONS:
            return _condition(function, *inputs)
        if function == "where":
            return _either(*inputs)
        x, y = inputs[0], inputs[-1]
        if function in ("maximum", "minimum"):
            return Interval(*map(FUNCTIONS[function].numpy, x, y))
        if function == "negative":
            return Interval(-x.high, -x.low)
        if function == "abs":
            ends = np.abs(x.low), np.abs(x.high)
            inside = (x.low <= 0) & (x.high >= 0)
            return Interval(np.where(inside, 0.0, np.minimum(*ends)), np.maximum(*ends))
        if function == "add":
            return self.rounded(Interval(x.low + y.low, x.high + y.high), 0.5)
        if function == "subtract":
            return self.rounded(Interval(x.low - y.high, x.high - y.low), 0.5)
        if function in ("multiply", "divide"):
            return self.rounded(_product(function, x, y), 0.5)
        # The others rise with their argument, but for one.
        low, high = (FUNCTIONS[function].numpy(end) for end in x)
        if function == "rsqrt":
            low, high = high, low
        if function in ("sqrt", "rsqrt", "log"):
            low, high = np.where(x.low < 0, -np.inf, low), np.where(x.low < 0, np.inf, high)
        return self.rounded(Interval(low, high), ULPS[function][self.wide])


def _either(condition: Interval, a: Interval, b: Interval) -> Interval:
    """Either of two, or both where the condition may hold or not."""
    holds, may = condition.low > 0, condition.high > 0
    low = np.where(holds, a.low, np.where(may, np.fmin(a.low, b.low), b.low))
    high = np.where(holds, a.high, np.where(may, np.fmax(a.high, b.high), b.high))
    return Interval(low, high)


def _product(function: str, x: Interval, y: Interval) -> Interval:
    """Products or quotients of all ends; anything where one of them is none."""
    compute = FUNCTIONS[function].numpy
    every = np.stack(np.broadcast_arrays(*(compute(a, b) for a in x for b in y)))
    low, high = every.min(axis=0), every.max(axis=0)
    nothing = np.isnan(low)
    if function == "divide":
        nothing = nothing | ((y.low <= 0) & (y.high >= 0))
    return Interval(np.where(nothing, -np.inf, low), np.where(nothing, np.inf, high))


def _condition(function: str, x: Interval, y: Interval) -> Interval:
    """Whether it holds for all, or for some, of two intervals' numbers."""
    if function == "equal":
        point = (x.low == x.high) & (y.low == y.high)
        some = (x.low <= y.high) & (y.low <= x.high)
        return Interval(1.0 * (point & some), 1.0 * some)
    compare = FUNCTIONS[function].numpy
    return Interval(1.0 * compare(x.high, y.low), 1.0 * compare(x.low, y.high))
