"""An expression as an `Epilogue`: its C++ functor, its NumPy, and its error bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.dtypes import DType
from cute_gemm.problem.epilogue.epilogue import (
    LINEAR_COMBINATION,
    Epilogue,
    EpilogueArguments,
    EpilogueOperand,
)
from cute_gemm.problem.epilogue.expression import ACCUMULATOR, Expression, Step
from cute_gemm.problem.epilogue.functions import (
    COLUMNS,
    CONDITIONS,
    FUNCTIONS,
    LOGICAL,
    gelu_argument,
)
from cute_gemm.problem.values import saturated

#: The C++ class template of an expression.
FUNCTOR = """\
#include "common/epilogue.cuh"
#include "common/functions.cuh"

template <{parameters}>
struct {name} : cute_gemm::LinearCombination<Accumulator, ElementC> {{
  using Base = cute_gemm::LinearCombination<Accumulator, ElementC>;{pairs}
  struct Params : Base::Params {{
    {declarations}
  }};

  Params params;
  {gathered}

  CUTE_DEVICE explicit {name}(Params const& params) : Base(params), params(params) {{}}
  {destructor}

  template <class Block>
  struct Operands {{
    enum : int {{ kLoads = {count} }};
    {fragments}
  }};
  template <class Block>
  CUTE_DEVICE Operands<Block> load(cute_gemm::Coord const& at) const {{
    return {{{loads}}};
  }}
  template <int M, int N, int Threads>
  CUTE_DEVICE void prefetch(cute_gemm::Coord const& at, int thread) const {{
    {prefetches}
  }}
  template <class Block>
  CUTE_DEVICE void store(cute_gemm::Coord const& at, Operands<Block> const& operands) const {{
    {stores}
  }}

  template <class Operands>
  CUTE_DEVICE ElementC apply({sums} const& acc, Operands& operands, int i, int j) const {{
    {values}
    {results}
    return ElementC(v{first});
  }}
  template <class Operands>
  CUTE_DEVICE Accumulator scaled(Accumulator const& sum, Operands& operands, int i, int j) const {{
    return {scaled};
  }}
{calls}}};

"""
#: What a kernel calls with an accumulator, and where beta is not 0 with the element of C too.
CALLS = """\
  template <class Operands>
  CUTE_DEVICE ElementC operator()(Accumulator const& sum, Operands& operands, int i, int j) const {
    return apply(this->combine(scaled(sum, operands, i, j)), operands, i, j);
  }
  template <class Operands>
  CUTE_DEVICE ElementC operator()(Accumulator const& sum, ElementC const& c, Operands& operands,
                                  int i, int j) const {
    return apply(this->combine(scaled(sum, operands, i, j), c), operands, i, j);
  }
"""
#: The same of an expression that takes pairs of columns, where beta is 0.
PAIRED = """
  using Sum = cute_gemm::Pair<Accumulator>;
  enum : int {{ kPairs = cute_gemm::{kind} }};
  CUTE_DEVICE static constexpr bool reads_c() {{ return false; }}
"""
PAIRED_CALLS = """\
  template <class Operands>
  CUTE_DEVICE ElementC operator()(Sum const& sum, Operands& operands, int i, int j) const {
    return apply({this->combine(scaled(sum.first, operands, i, j)),
                  this->combine(scaled(sum.second, operands, i, j))}, operands, i, j);
  }
  template <class Operands>
  CUTE_DEVICE ElementC operator()(Sum const& sum, ElementC const&, Operands& operands, int i,
                                  int j) const {
    return (*this)(sum, operands, i, j);
  }
"""
#: C++ of the kinds of pairs.
PAIRS_CPP = {"pairs": "kPairsOfColumns", "halves": "kPairsOfHalves"}


@dataclass(frozen=True)
class Fused(Epilogue):
    """An expression of ``alpha * accumulator + beta * C`` and of operands.

    Everything is computed in the type of the sums. ``tensors`` are the expression's operands that
    lie in memory, in its order, and ``values`` the names of those that are given by value;
    ``further`` are its results beside C, without the sums, which a pass makes of them and of C.
    ``label`` is what messages call it, and ``output`` the type of C, by which functions are chosen.
    """

    expression: Expression
    tensors: tuple[EpilogueOperand, ...] = ()
    values: tuple[str, ...] = ()
    label: str = field(default="epilogue", compare=False)
    output: str = ""
    further: tuple[EpilogueOperand, ...] = ()
    #: Names of those, of tensors and values, that multiply the accumulator before anything else.
    scales: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[EpilogueOperand, ...]:
        """The tensors that it reads beside C."""
        return self.tensors

    @property
    def results(self) -> tuple[EpilogueOperand, ...]:
        """The tensors that it writes beside C."""
        return self.further

    @property
    def numbers(self) -> tuple[str, ...]:
        """The operands that are given by value."""
        return self.values

    @property
    def pairs(self) -> str:
        """Which columns of the product the expression takes together."""
        return self.expression.pairs

    @cached_property
    def name(self) -> str:
        """Part of kernels' symbols, other for another expression or other operands."""
        said = f"{self.expression}\n{self.tensors}\n{self.values}\n{self.further}"
        said += f"\n{self.scales}" * bool(self.scales)
        return f"epilogue_{sha256(said.encode()).hexdigest()[:12]}"

    @property
    def functor(self) -> str:
        """The C++ class template."""
        return f"Functor_{self.name}"

    @cached_property
    def source(self) -> str:
        """C++ that declares the class template."""
        tensors = [(x.name, _type(x)) for x in self.tensors]
        results = [(x.name, _type(x)) for x in self.further]
        greatest = [x.name for x in self.further if x.amax]
        members = [f"{kind} {x};" for x, kind in (*tensors, *results)]
        members += [f"Accumulator {x};" for x in self.values]
        fragments = [
            f"typename {kind}::template Values<Block> {x};" for x, kind in (*tensors, *results)
        ]
        loads = [f"{kind}::template Values<Block>::kLoads" for _, kind in tensors]
        prefetches = [
            f"params.{x}.template prefetch<M, N, Threads>(at, thread);" for x, _ in tensors
        ]
        stores = [
            f"params.{x}.template gather<Block>(at, operands.{x}, greatest_{x});"
            if x in greatest
            else f"params.{x}.template store<Block>(at, operands.{x});"
            for x, _ in results
        ]
        sums = "Sum" if self.pairs else "Accumulator"
        values = [
            f"{_kind(step, sums)} const v{i} = {self._cpp(step)};"
            for i, step in enumerate(self.expression.steps)
        ]
        set_results = [
            f"operands.{x.name}(i, j) = cute_gemm::converted<Element_{x.name}>(v{result.place});"
            for x, result in zip(self.further, self.expression.results[1:], strict=True)
        ]
        gathered = [
            f"mutable typename cute_gemm::EpilogueAmax<Accumulator>::Bits greatest_{x} = 0;"
            for x in greatest
        ]
        finishes = " ".join(f"params.{x}.finish(greatest_{x});" for x in greatest)
        types = ("Accumulator", "ElementC", *(f"Element_{x}" for x, _ in (*tensors, *results)))

        def lines(texts: list[str], indent: int = 4) -> str:
            return f"\n{' ' * indent}".join(texts)

        return FUNCTOR.format(
            parameters=", ".join(f"class {each}" for each in types), name=self.functor,
            declarations=lines(members), fragments=lines(fragments),
            count=" + ".join(("0", *loads)), prefetches=lines(prefetches), stores=lines(stores),
            loads=", ".join(f"params.{x}.template load<Block>(at)" for x, _ in tensors),
            values=lines(values), results=lines(set_results),
            first=self.expression.results[0].place, gathered=lines(gathered, 2),
            scaled=" * ".join(("sum", *map(self._named, self.scales))),
            destructor=f"CUTE_DEVICE ~{self.functor}() {{ {finishes} }}" if finishes else "",
            sums=sums, calls=PAIRED_CALLS if self.pairs else CALLS,
            pairs=PAIRED.format(kind=PAIRS_CPP[self.pairs]) if self.pairs else "",
        )  # fmt: skip

    def _cpp(self, step: Step) -> str:
        """What C++ writes for a value."""
        if step.function == "operand" and step.name != ACCUMULATOR:
            return self._named(step.name)
        if step.function == "operand":
            return "acc"
        if step.function == "constant":
            return f"Accumulator({_literal(step.constant)})"
        function = FUNCTIONS.get(step.function) or COLUMNS[step.function]
        return function.cpp.format(*(f"v{place}" for place in step.inputs))

    def _named(self, name: str) -> str:
        """What C++ writes for an operand."""
        by_value = name in self.values
        return f"params.{name}" if by_value else f"Accumulator(operands.{name}(i, j))"

    def _scale(self, arguments: EpilogueArguments) -> Any:
        """The product of the scales."""
        product: Any = 1
        for name in self.scales:
            product = product * np.asarray(arguments.operands[name])
        return product

    def apply(self, accumulator: np.ndarray, arguments: EpilogueArguments) -> np.ndarray:
        """Return the first result, in the accumulator's type."""
        return self._apply(self.expression, accumulator, arguments)

    def apply_further(
        self, accumulator: np.ndarray, arguments: EpilogueArguments
    ) -> Iterator[np.ndarray]:
        """Yield the results beside C: matrices, and the greatest magnitudes of all elements."""
        expression = self.expression
        for place, result in enumerate(expression.results[1:], 1):
            found = self._apply(expression.only(place), accumulator, arguments)
            if result.amax:
                yield np.abs(found).max(initial=0)
            else:
                yield saturated(found, result.dtype) if result.dtype else found

    def only(self, result: int) -> Fused:
        """Return the epilogue whose first result is this one, and its only one."""
        return replace(self, expression=self.expression.only(result), further=())

    def _apply(
        self, expression: Expression, accumulator: np.ndarray, arguments: EpilogueArguments
    ) -> np.ndarray:
        kind = accumulator.dtype
        values = {name: np.asarray(x).astype(kind) for name, x in arguments.operands.items()}
        if self.scales:
            accumulator = (accumulator * self._scale(arguments)).astype(kind, copy=False)
        values[ACCUMULATOR] = LINEAR_COMBINATION.apply(accumulator, arguments)
        with np.errstate(all="ignore"):
            result = expression.evaluate(values)
        *others, columns = accumulator.shape
        shape = *others, columns // 2 if self.pairs else columns
        return np.broadcast_to(result, shape).astype(kind, copy=False)

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
        754 rounds to nearest; `FLOAT32` and others of other functions).
        """
        sums = accumulator
        if self.scales:
            scale = self._scale(arguments)
            error, magnitude = error * abs(scale), magnitude * abs(scale)
            sums = accumulator * scale
            error = error + len(self.scales) * dtype.roundoff * (abs(sums) + error)
        linear = LINEAR_COMBINATION.apply(sums, arguments)
        off = LINEAR_COMBINATION.bound(accumulator, error, magnitude, dtype, arguments)
        rules = Rules(dtype, self.output)
        leaves = {
            name: rules.rounded(Interval(array, array), Error())
            for name, array in arguments.operands.items()
        }
        leaves[ACCUMULATOR] = Interval(linear - off, linear + off)
        with np.errstate(all="ignore"):
            computed = rules.evaluate(self.expression, leaves)
            exact = self.apply(accumulator, arguments)
            return np.fmax(computed.high - exact, exact - computed.low)


def _kind(step: Step, sums: str) -> str:
    """The C++ type of a value; ``sums``: that of the accumulator's."""
    if step.name == ACCUMULATOR:
        return sums
    return "bool" if step.function in CONDITIONS else "Accumulator"


def _type(operand: EpilogueOperand) -> str:
    """The C++ type of an operand or a result."""
    if operand.amax:
        return "cute_gemm::EpilogueAmax<Accumulator>"
    return f"cute_gemm::EpilogueTensor<Element_{operand.name}, {operand.cpp}>"


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


class Error(NamedTuple):
    """The most by which a function is off: in units of the last place, and absolute.

    ``by_argument``: units more for each unit of the argument's magnitude.
    """

    ulps: float = 0.5
    absolute: float = 0.0
    by_argument: float = 0.0


#: Of CUDA's functions in float32 (CUDA C++ Programming Guide, Mathematical Functions). A sigmoid is
#: an exponential, a sum and a quotient.
FLOAT32 = {
    "exp": Error(2), "log": Error(1), "sqrt": Error(0.5), "rsqrt": Error(2), "tanh": Error(2),
    "erf": Error(2), "sigmoid": Error(4), "erf of gelu": Error(3),
}  # fmt: skip
#: The same in float64.
FLOAT64 = {
    "exp": Error(1), "log": Error(1), "sqrt": Error(0.5), "rsqrt": Error(1), "tanh": Error(1),
    "erf": Error(2), "sigmoid": Error(2), "erf of gelu": Error(3),
}  # fmt: skip
#: Of ``templates/common/functions.cuh`` where results are float16: ``ex2.approx`` is off by 2 ulp,
#: as ``div.approx`` and ``rcp.approx`` are, ``tanh.approx`` by a factor of 2^-10.987 (PTX ISA,
#: 9.7.3); Abramowitz and Stegun's 7.1.26 by 1.5e-7. The exponential's argument is rounded.
FLOAT16 = FLOAT32 | {
    "exp": Error(3, 0, 1.2), "divide": Error(2), "tanh": Error(2**12.1), "erf": Error(8, 1e-6),
    "sigmoid": Error(5, 0, 1.2), "erf of gelu": Error(8, 1e-6),
}  # fmt: skip
#: And where they are bfloat16, of which tanh.approx gives more: the fit of erf is off by 2.9e-6,
#: its first two terms by 2.81e-4.
BFLOAT16 = FLOAT16 | {
    "erf": Error(2**12.2, 3e-6), "sigmoid": Error(2, 2**-11.9),
    "erf of gelu": Error(2**12.1, 2.82e-4),
}  # fmt: skip


class Rules:
    """Interval arithmetic for values that are computed in a type, for results of another."""

    def __init__(self, dtype: DType, output: str = "") -> None:
        about = np.finfo(dtype.numpy)
        self.kind = dtype.numpy
        # In float64 the reference has errors of the same size.
        self.ulp = 2 * dtype.roundoff * (2 if dtype.name == "float64" else 1)
        self.least, self.most = float(about.tiny), float(about.max)
        by_output = {"float16": FLOAT16, "bfloat16": BFLOAT16}
        of_type = FLOAT64 if dtype.name == "float64" else by_output.get(output, FLOAT32)
        self.errors = dict.fromkeys(("add", "subtract", "multiply", "divide"), Error()) | of_type

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
        return found[expression.results[0].place]

    def rounded(self, x: Interval, error: Error, argument: Any = 0.0) -> Interval:
        """Return the interval wider by a function's error, with what overflows infinite."""
        low, high = (np.asarray(end, np.float64) for end in x)
        # Beyond 128 exponentials are 0 or infinite.
        ulps = error.ulps + error.by_argument * np.minimum(argument, 128)
        low = low - ulps * self.ulp * abs(low) - self.least - error.absolute
        high = high + ulps * self.ulp * abs(high) + self.least + error.absolute
        low = np.where(low < -self.most, -np.inf, np.minimum(low, self.most))
        high = np.where(high > self.most, np.inf, np.maximum(high, -self.most))
        return Interval(low, high)

    def _apply(self, function: str, *inputs: Interval) -> Interval:
        if function in CONDITIONS:
            return _condition(function, inputs[0], inputs[-1])
        if function in COLUMNS:
            return Interval(*map(COLUMNS[function].numpy, inputs[0]))
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
        if function in ("silu", "gelu", "gelu_tanh"):
            factor = self._gelu(x) if function == "gelu" else self._sigmoid(function, x)
            return self.rounded(_product("multiply", x, factor), Error(2))
        error = self.errors[function]
        if function == "add":
            return self.rounded(Interval(x.low + y.low, x.high + y.high), error)
        if function == "subtract":
            return self.rounded(Interval(x.low - y.high, x.high - y.low), error)
        if function in ("multiply", "divide"):
            # An approximate quotient by more than 2^126 is 0.
            lost = 2.0**-126 * np.fmax(abs(x.low), abs(x.high)) * (function == "divide")
            lost = np.where(np.isfinite(lost), lost, 0.0) if error.ulps > 0.5 else 0.0
            product = _product(function, x, y)
            return self.rounded(Interval(product.low - lost, product.high + lost), error)
        # The others rise with their argument, but for one.
        low, high = (FUNCTIONS[function].numpy(end) for end in x)
        if function == "rsqrt":
            low, high = high, low
        if function in ("sqrt", "rsqrt", "log"):
            low, high = np.where(x.low < 0, -np.inf, low), np.where(x.low < 0, np.inf, high)
        argument = np.fmax(abs(x.low), abs(x.high))
        return self.rounded(Interval(low, high), error, argument)

    def _sigmoid(self, function: str, x: Interval) -> Interval:
        """The sigmoid that silu and gelu's approximation multiply by."""
        if function == "gelu_tanh":
            x = self.rounded(Interval(*map(gelu_argument, x)), Error(4))
        return self._apply("sigmoid", x)

    def _gelu(self, x: Interval) -> Interval:
        """``(1 + erf(x / sqrt(2))) / 2``."""
        erf, error = FUNCTIONS["erf"].numpy, self.errors["erf of gelu"]
        found = self.rounded(Interval(*(erf(end * math.sqrt(0.5)) for end in x)), error)
        return self.rounded(Interval(0.5 + 0.5 * found.low, 0.5 + 0.5 * found.high), Error())


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
    if function == "logical_not":
        return Interval(1.0 - x.high, 1.0 - x.low)
    if function in LOGICAL:
        compute = FUNCTIONS[function].numpy
        return Interval(1.0 * compute(x.low, y.low), 1.0 * compute(x.high, y.high))
    if function == "equal":
        point = (x.low == x.high) & (y.low == y.high)
        some = (x.low <= y.high) & (y.low <= x.high)
        return Interval(1.0 * (point & some), 1.0 * some)
    compare = FUNCTIONS[function].numpy
    return Interval(1.0 * compare(x.high, y.low), 1.0 * compare(x.low, y.high))
