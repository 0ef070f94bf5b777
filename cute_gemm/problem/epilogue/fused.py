"""``Fused``: an expression as an `Epilogue`, with its C++ functor, NumPy and error bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from cute_gemm.dtypes import DType
from cute_gemm.problem.epilogue.bound import Interval, Rules
from cute_gemm.problem.epilogue.epilogue import (
    LINEAR_COMBINATION,
    Epilogue,
    EpilogueArguments,
    EpilogueOperand,
)
from cute_gemm.problem.epilogue.expression import ACCUMULATOR, Expression, Step, fold
from cute_gemm.problem.epilogue.rows import FUNCTIONS, Error, row_of
from cute_gemm.problem.values import saturated

#: The C++ class template of an expression.
FUNCTOR = """\
#include "common/epilogue.cuh"
#include "common/functions.cuh"{include}

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
#: Operators that a kernel calls with an accumulator and, if beta is not 0, the element of C.
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
#: The same for an expression of pairs of columns, where beta is 0.
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
    """An expression of ``alpha * accumulator + beta * C`` and operands.

    Everything is computed in the accumulators' type. ``tensors`` are the operands in memory, in
    the order of the expression, and ``values`` the names of operands passed by value.
    ``further`` are its results in addition to C, without those that a reduction kernel computes.
    ``label`` is its name in messages, and ``output`` the type of C, which selects functions.
    """

    expression: Expression
    tensors: tuple[EpilogueOperand, ...] = ()
    values: tuple[str, ...] = ()
    label: str = field(default="epilogue", compare=False)
    output: str = ""
    further: tuple[EpilogueOperand, ...] = ()
    #: Names of tensors and values that multiply the accumulator before anything else.
    scales: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[EpilogueOperand, ...]:
        """The tensors that it reads in addition to C."""
        return self.tensors

    @property
    def results(self) -> tuple[EpilogueOperand, ...]:
        """The tensors that it writes in addition to C."""
        return self.further

    @property
    def numbers(self) -> tuple[str, ...]:
        """The operands that are passed by value."""
        return self.values

    @property
    def pairs(self) -> str:
        """The columns of the product that the expression combines."""
        return self.expression.pairs

    @property
    def rounds_to(self) -> tuple[str, ...]:  # type: ignore[override]
        """The types that `round_to` rounds values to."""
        steps = (step.function.partition("round_to_")[2] for step in self.expression.steps)
        return tuple(dict.fromkeys(filter(None, steps)))

    @cached_property
    def computes(self) -> bool:  # type: ignore[override]
        """Whether it has functions that are approximated, such as ``exp``."""
        rows = (FUNCTIONS.get(step.function) for step in self.expression.steps)
        return any(row and row.errors and row.errors.float32.ulps > 0.5 for row in rows)

    @cached_property
    def name(self) -> str:
        """Part of kernels' symbols, different for different expressions or operands."""
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

        float8 = any("float8" in step.function for step in self.expression.steps)
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
            include="\n#include <cutlass/float8.h>" * float8,
        )  # fmt: skip

    def _cpp(self, step: Step) -> str:
        """Return the C++ of a value."""
        if step.name == ACCUMULATOR:
            return "acc"
        if step.function == "operand":
            return self._named(step.name)
        if step.function == "constant":
            return f"Accumulator({_literal(step.constant)})"
        return row_of(step.function).cpp.format(*(f"v{place}" for place in step.inputs))

    def _named(self, name: str) -> str:
        """Return the C++ of an operand."""
        by_value = name in self.values
        return f"params.{name}" if by_value else f"Accumulator(operands.{name}(i, j))"

    def _scale(self, arguments: EpilogueArguments) -> Any:
        """Return the product of the scales."""
        return math.prod(np.asarray(arguments.operands[name]) for name in self.scales)

    def apply(self, accumulator: np.ndarray, arguments: EpilogueArguments) -> np.ndarray:
        """Return the first result, in the accumulator's type."""
        return self._computed(accumulator, arguments)[0]

    def apply_further(
        self, accumulator: np.ndarray, arguments: EpilogueArguments
    ) -> Iterator[np.ndarray]:
        """Yield the results in addition to C: matrices, and greatest magnitudes of all elements."""
        _, *computed = self._computed(accumulator, arguments)
        for result, array in zip(self.expression.results[1:], computed, strict=True):
            if result.amax:
                yield np.abs(array).max(initial=0)
            else:
                yield saturated(array, result.dtype) if result.dtype else array

    def _computed(self, accumulator: np.ndarray, arguments: EpilogueArguments) -> list[np.ndarray]:
        """Return the values of all results, in the accumulator's type."""
        kind = accumulator.dtype
        values = {name: np.asarray(x).astype(kind) for name, x in arguments.operands.items()}
        if self.scales:
            accumulator = (accumulator * self._scale(arguments)).astype(kind, copy=False)
        values[ACCUMULATOR] = LINEAR_COMBINATION.apply(accumulator, arguments)
        with np.errstate(all="ignore"):
            computed = fold(self.expression, values, lambda name: row_of(name).numpy)
        *others, columns = accumulator.shape
        shape = *others, columns // 2 if self.pairs else columns
        return [np.broadcast_to(x, shape).astype(kind, copy=False) for x in computed]

    def bound(
        self, accumulator: np.ndarray, error: np.ndarray, magnitude: np.ndarray, dtype: DType,
        arguments: EpilogueArguments,
    ) -> np.ndarray:  # fmt: skip
        """Return the error bound of the expression by interval arithmetic.

        Every computed value lies in an interval: that of exact results for the operands' intervals,
        widened by the function's error (half a unit in the last place for arithmetic, which IEEE
        754 rounds to nearest; those in the rows of `functions`).
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
    """Return the C++ type of a value; ``sums``: that of the accumulators."""
    if step.name == ACCUMULATOR:
        return sums
    row = FUNCTIONS.get(step.function)
    return "bool" if row and row.is_condition else "Accumulator"


def _type(operand: EpilogueOperand) -> str:
    """Return the C++ type of an operand or a result."""
    if operand.amax:
        return "cute_gemm::EpilogueAmax<Accumulator>"
    return f"cute_gemm::EpilogueTensor<Element_{operand.name}, {operand.cpp}>"


def _literal(number: float) -> str:
    """Return a number in C++."""
    if math.isfinite(number):
        return number.hex()
    bits = "7fc00000" if math.isnan(number) else "7f800000" if number > 0 else "ff800000"
    return f"__int_as_float(0x{bits})"
