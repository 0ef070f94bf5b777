"""Expressions of an element of C: what a Python function computes, traced once.

A `Value` stands for a number of every element: the accumulator, an operand of the epilogue, or what
is computed of them. Arithmetic (`value`) and the functions below make new ones; `trace` calls a
function with them and returns what it returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from cute_gemm.arrays.base import dtype_name, dtype_row
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OptionError
from cute_gemm.problem.epilogue.functions import COLUMNS, FUNCTIONS, PAIRS
from cute_gemm.problem.epilogue.value import (
    KNOWN,
    Returned,
    Value,
    apply,
    as_value,
    equal,
    exclusive,
    multiply,
    positive,
    power,
)

#: The accumulator's name: ``alpha * op(A) @ op(B) + beta * C``.
ACCUMULATOR = "acc"
#: Names that no operand may have: arguments of calls and of kernels, names in the functor, C++.
_RESERVED = """
    op A B C alpha beta order out_dtype compute kernel backend arch stream tune epilogue storage
    dtype gpu base_offset m n k l lda ldb ldc batch_a batch_b batch_c slice_a slice_b slices k_last
    scale_a scale_b alpha_ptr beta_ptr map_a map_b map_c batch product slice acc
    at sum params Base Params scaled
    alignas alignof asm auto bool case catch char const constexpr decltype default delete do double
    enum explicit export extern float friend goto inline int long mutable namespace new operator
    private protected public register short signed sizeof static struct switch template this throw
    typedef typeid typename union unsigned using virtual void volatile
"""
RESERVED = frozenset(_RESERVED.split())


# ---- functions of values ------------------------------------------------------------------------


def where(condition: Any, a: Any, b: Any) -> Value:
    """Return a where the condition holds, and b elsewhere."""
    return apply("where", condition, a, b)


def maximum(a: Any, b: Any) -> Value:
    """Return the greater of two; a NaN of either is the result."""
    return apply("maximum", a, b)


def minimum(a: Any, b: Any) -> Value:
    """Return the less of two; a NaN of either is the result."""
    return apply("minimum", a, b)


def exp(x: Any) -> Value:
    """Return e to the power of x."""
    return apply("exp", x)


def log(x: Any) -> Value:
    """Return the natural logarithm."""
    return apply("log", x)


def sqrt(x: Any) -> Value:
    """Return the square root."""
    return apply("sqrt", x)


def rsqrt(x: Any) -> Value:
    """Return 1 / sqrt(x)."""
    return apply("rsqrt", x)


def tanh(x: Any) -> Value:
    """Return the hyperbolic tangent."""
    return apply("tanh", x)


def erf(x: Any) -> Value:
    """Return the error function."""
    return apply("erf", x)


def sigmoid(x: Any) -> Value:
    """Return 1 / (1 + exp(-x))."""
    return apply("sigmoid", x)


def relu(x: Any) -> Value:
    """Return max(x, 0)."""
    return maximum(x, 0)


def silu(x: Any) -> Value:
    """Return x / (1 + exp(-x))."""
    return apply("silu", x)


def gelu(x: Any, approximate: str = "none") -> Value:
    """Return x times the normal distribution's function of x, as ``torch.nn.functional.gelu``.

    ``approximate="tanh"``: ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise OptionError(f"approximate={approximate!r}; expected 'none' or 'tanh'")
    return apply("gelu" if approximate == "none" else "gelu_tanh", x)


def clip(x: Any, min: Any = None, max: Any = None) -> Value:
    """Return the nearest number that is not below ``min`` and not above ``max``."""
    x = as_value(x) if min is None else maximum(x, min)
    return x if max is None else minimum(x, max)


def _of_one(name: str) -> Callable[..., Value]:
    return lambda x: apply(name, x)


def _of_two(name: str) -> Callable[..., Value]:
    return lambda x, y: apply(name, x, y)


#: What NumPy and PyTorch call the functions here, and how their methods are called.
_NAMES: tuple[tuple[str, Callable[..., Value]], ...] = (
    ("add", _of_two("add")),
    ("subtract sub", _of_two("subtract")),
    ("multiply mul", multiply),
    ("divide true_divide div", _of_two("divide")),
    ("power pow float_power", power),
    ("square", lambda x: power(x, 2)),
    ("reciprocal", lambda x: power(x, -1)),
    ("negative neg", _of_one("negative")),
    ("positive", positive),
    ("abs absolute fabs", _of_one("abs")),
    ("less lt", _of_two("less")),
    ("less_equal le", _of_two("less_equal")),
    ("greater gt", lambda x, y: apply("less", y, x)),
    ("greater_equal ge", lambda x, y: apply("less_equal", y, x)),
    ("equal eq", equal),
    ("not_equal ne", lambda x, y: ~equal(x, y)),
    ("logical_and bitwise_and and", _of_two("logical_and")),
    ("logical_or bitwise_or or", _of_two("logical_or")),
    ("logical_xor bitwise_xor xor", exclusive),
    ("logical_not bitwise_not invert", _of_one("logical_not")),
    ("where", where),
    ("maximum", maximum),
    ("minimum", minimum),
    ("clip clamp", clip),
    ("exp", exp),
    ("log", log),
    ("sqrt", sqrt),
    ("rsqrt", rsqrt),
    ("tanh", tanh),
    ("erf", erf),
    ("sigmoid expit", sigmoid),
    ("relu", relu),
    ("silu", silu),
    ("gelu", gelu),
)
KNOWN.update((name, function) for names, function in _NAMES for name in names.split())


def pairs(acc: Value) -> tuple[Value, Value]:
    """Return columns 2 j and 2 j + 1 of the product, of which a call makes column j of its results.

    C, operands and further results are then of (M, N / 2), and nothing else may be made of ``acc``.

    >>> def swiglu(acc):
    ...     gate, up = pairs(acc)
    ...     return silu(gate) * up
    >>> print(trace(swiglu))
    v0 = acc
    v1 = even_columns(v0)
    v2 = silu(v1)
    v3 = odd_columns(v0)
    v4 = multiply(v2, v3)
    return v4
    """
    return _columns("pairs", acc)


def halves(acc: Value) -> tuple[Value, Value]:
    """Return columns j and N / 2 + j of the product, and else what `pairs` does.

    >>> print(trace(lambda acc: halves(acc)[0] - halves(acc)[1]))
    v0 = acc
    v1 = first_half(v0)
    v2 = second_half(v0)
    v3 = subtract(v1, v2)
    return v3
    """
    return _columns("halves", acc)


def _columns(name: str, acc: Value) -> tuple[Value, Value]:
    if not (isinstance(acc, Value) and acc.name == ACCUMULATOR):
        given = (acc.name or acc.function) if isinstance(acc, Value) else repr(acc)
        raise OptionError(
            f"an epilogue gives {name} {given}; expected the accumulator as it comes: {name}(acc)"
        )
    first, second = PAIRS[name]
    return Value(first, (acc,)), Value(second, (acc,))


def amax(x: Any) -> Returned:
    """Return the greatest magnitude of all elements, as a further result: ``return y, amax(y)``.

    It is a number of the accumulator's type, on the device; with a NaN among them it is NaN.
    """
    return Returned(as_value(x), amax=True)


def cast(x: Any, dtype: Any) -> Returned:
    """Return a value in another type, as a further result: ``return y, cast(y * scale, "int8")``.

    To integers it is rounded to nearest, ties to even, and saturates: what is beyond the type
    becomes its least or greatest number, and NaN 0.
    """
    if isinstance(dtype, (list, dict, set)):  # which have no hash
        raise OptionError(f"cast(..., dtype={dtype!r}); expected a real type")
    name = dtype_row(dtype_name(dtype)).name
    if DTYPES[name].is_complex:
        raise OptionError(f"cast(..., dtype={dtype!r}); expected a real type")
    return Returned(as_value(x), dtype=name)


# ---- tracing ------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A value of an expression; ``inputs`` are the places of those that it is made of."""

    function: str
    inputs: tuple[int, ...] = ()
    name: str = ""
    constant: float = 0.0

    def __str__(self) -> str:
        if self.function == "operand":
            return self.name
        if self.function == "constant":
            return repr(self.constant)
        return f"{self.function}({', '.join(f'v{place}' for place in self.inputs)})"


class Result(NamedTuple):
    """A result of an expression: the value at a place, or its greatest magnitude (``amax``).

    ``dtype``: the type that it is stored as; "" for C's.
    """

    place: int
    amax: bool = False
    dtype: str = ""

    def __str__(self) -> str:
        if self.dtype:
            return f"cast(v{self.place}, {self.dtype!r})"
        return f"amax(v{self.place})" if self.amax else f"v{self.place}"


@dataclass(frozen=True)
class Expression:
    """What a function computes: values in order, each of values before it, and which are returned.

    ``operands`` are the names of its operands, the accumulator left out. The first of the
    ``results`` is C's.
    """

    steps: tuple[Step, ...]
    operands: tuple[str, ...]
    results: tuple[Result, ...]

    def __str__(self) -> str:
        lines = [f"v{place} = {step}" for place, step in enumerate(self.steps)]
        return "\n".join((*lines, f"return {', '.join(map(str, self.results))}"))

    @property
    def parts(self) -> tuple[Any, ...]:
        """Its fields, which JSON can write and `from_parts` reads."""
        return self.steps, self.operands, self.results

    @cached_property
    def pairs(self) -> str:
        """Which columns of the product it takes together, a key of `PAIRS`; "" for none."""
        used = {step.function for step in self.steps}
        return next((name for name, both in PAIRS.items() if not used.isdisjoint(both)), "")

    def only(self, result: int) -> Expression:
        """Return the expression that has this result alone."""
        return Expression(self.steps, self.operands, (Result(self.results[result].place),))

    def scaled(self, names: Sequence[str]) -> Expression:
        """Return the expression of the accumulator times operands of these names.

        >>> print(trace(lambda acc: 2 * acc).scaled(["scale"]))
        v0 = acc
        v1 = scale
        v2 = multiply(v0, v1)
        v3 = 2.0
        v4 = multiply(v3, v2)
        return v4
        """
        acc = Step("operand", name=ACCUMULATOR)
        steps, product = [acc], 0
        for name in names:
            steps += [Step("operand", name=name), Step("multiply", (product, len(steps)))]
            product = len(steps) - 1
        places: list[int] = []
        for step in self.steps:
            if step == acc:
                places.append(product)
            else:
                steps.append(step._replace(inputs=tuple(places[x] for x in step.inputs)))
                places.append(len(steps) - 1)
        results = tuple(result._replace(place=places[result.place]) for result in self.results)
        return Expression(tuple(steps), (*names, *self.operands), results)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return its first result by NumPy, of arrays by name, the accumulator among them."""
        found: list[Any] = []
        for step in self.steps:
            if step.function == "operand":
                found.append(values[step.name])
            elif step.function == "constant":
                found.append(step.constant)
            else:
                function = FUNCTIONS.get(step.function) or COLUMNS[step.function]
                found.append(function.numpy(*(found[x] for x in step.inputs)))
        return found[self.results[0].place]


def from_parts(steps: Any, operands: Any, results: Any) -> Expression:
    """Return the expression of `Expression.parts`, in which JSON has made tuples lists."""
    return Expression(
        tuple(Step(function, tuple(inputs), *rest) for function, inputs, *rest in steps),
        tuple(operands),
        tuple(Result(*result) for result in results),
    )


def trace(function: Callable[..., Any], operands: Sequence[str] | None = None) -> Expression:
    """Call a function with the accumulator and its operands; return what it computes.

    It returns a value, or a tuple: C's, and further matrices, `cast` or `amax` of values.

    The first parameter is the accumulator, the others are operands by their names, or those named
    in ``operands``. OptionError for what cannot be traced.

    >>> print(trace(lambda acc, bias: relu(acc + bias)))
    v0 = acc
    v1 = bias
    v2 = add(v0, v1)
    v3 = 0.0
    v4 = maximum(v2, v3)
    return v4
    """
    named = getattr(function, "__name__", repr(function))
    names = _operands(function, named) if operands is None else tuple(operands)
    taken = [name for name in names if name in RESERVED]
    if taken:
        raise OptionError(
            f"epilogue {named} has an operand called {taken[0]}, which is an argument or a word of "
            "C++: call it otherwise"
        )
    values = {name: Value("operand", name=name) for name in names}
    returned = function(Value("operand", name=ACCUMULATOR), **values)
    results = returned if isinstance(returned, tuple) and returned else (returned,)
    places = _Places()
    found = []
    for result in results:
        value = result.value if isinstance(result, Returned) else result
        if not isinstance(value, Value):
            raise OptionError(
                f"epilogue {named} returns {result!r}; expected a value of its arguments"
            )
        if value.is_condition:
            raise OptionError(
                f"epilogue {named} returns a condition; expected cute_gemm.where(...)"
            )
        how = (result.amax, result.dtype) if isinstance(result, Returned) else ()
        found.append(Result(places.of(value), *how))
    if isinstance(results[0], Returned):
        which = str(found[0]).partition("(")[0]
        raise OptionError(f"epilogue {named} returns {which} first; expected what C becomes")
    expression = Expression(tuple(places.steps), names, tuple(found))
    _check_pairs(named, expression)
    return expression


def _check_pairs(named: str, expression: Expression) -> None:
    """Refuse an epilogue that takes pairs of columns, and other columns or kinds of pairs too."""
    whole = [x for x, step in enumerate(expression.steps) if step.name == ACCUMULATOR]
    takes = {x.function for x in expression.steps if not set(whole).isdisjoint(x.inputs)}
    kinds = [name for name, both in PAIRS.items() if not takes.isdisjoint(both)]
    if len(kinds) > 1:
        raise OptionError(f"epilogue {named} takes pairs and halves of acc; expected one of them")
    others = takes - COLUMNS.keys()
    if kinds and (others or any(result.place in whole for result in expression.results)):
        what = f"in {min(others)}" if others else "as a result"
        raise OptionError(
            f"epilogue {named} has {kinds[0]}(acc) beside acc itself, {what}; expected the values "
            f"of {kinds[0]}(acc) in its place"
        )


def _operands(function: Callable[..., Any], named: str) -> tuple[str, ...]:
    """The names of a function's parameters behind the first."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C, which does not say
        raise OptionError(
            f"epilogue {named} does not say what its parameters are; expected a function of the "
            f"accumulator and operands in Python: lambda acc: {named}(acc)"
        ) from None
    parameters = list(signature.parameters.values())
    first = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY
    others = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    if (
        not parameters
        or parameters[0].kind not in first
        or any(parameter.kind not in others for parameter in parameters[1:])
    ):
        raise OptionError(
            f"epilogue {named} takes {signature}; expected the accumulator and "
            "operands by name: (acc, bias)"
        )
    return tuple(parameter.name for parameter in parameters[1:])


class _Places:
    """The steps of values, each behind those that it is made of, and equal ones once."""

    def __init__(self) -> None:
        self.steps: dict[Step, int] = {}
        #: By the ids of values, which are kept so that none is used again.
        self._seen: dict[int, tuple[int, Value]] = {}

    def of(self, value: Value) -> int:
        """Return the place of a value; without recursion, which Python has only so much of."""
        left = [value]
        while left:
            value = left[-1]
            missing = next((each for each in value.inputs if id(each) not in self._seen), None)
            if missing is not None:
                left.append(missing)
                continue
            left.pop()
            inputs = tuple(self._seen[id(each)][0] for each in value.inputs)
            step = Step(value.function, inputs, value.name, value.constant)
            self._seen[id(value)] = self.steps.setdefault(step, len(self.steps)), value
        return self._seen[id(value)][0]
