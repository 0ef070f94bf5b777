"""Expressions of an element of C: a Python function, traced once.

A `Value` stands for a number of every element: the accumulator, an operand of the epilogue, or a
result computed from them. Arithmetic (`value`) and `functions` make new values; `trace` calls a
function with them and returns the expression of its results.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from cute_gemm.arrays.base import dtype_name, dtype_row
from cute_gemm.errors import OptionError
from cute_gemm.problem.epilogue.rows import COLUMNS, PAIRS
from cute_gemm.problem.epilogue.value import Returned, Value, apply, as_value

#: The accumulator's name: ``alpha * op(A) @ op(B) + beta * C``.
ACCUMULATOR = "acc"
#: Reserved names of operands: arguments of calls and of kernels, names in the functor, C++.
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


# ---- columns and results ------------------------------------------------------------------------


def pairs(acc: Value) -> tuple[Value, Value]:
    """Return columns 2 j and 2 j + 1 of the product, from which a call makes column j of C.

    C, operands and further results are then (M, N / 2), and ``acc`` has no other use.

    Examples
    --------
    >>> import cute_gemm as cg
    >>> def swiglu(acc):
    ...     gate, up = cg.pairs(acc)
    ...     return cg.silu(gate) * up
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
    """Return columns j and N / 2 + j of the product; otherwise as `pairs`.

    Examples
    --------
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
            f"an epilogue gives {name} {given}; expected the accumulator itself: {name}(acc)"
        )
    first, second = PAIRS[name]
    return Value(first, (acc,)), Value(second, (acc,))


def amax(x: Any) -> Returned:
    """Return the greatest magnitude of all elements, as a further result: ``return y, amax(y)``.

    It is a number of the type of the accumulators, on the device. It is NaN if an element is NaN.

    Examples
    --------
    >>> import cute_gemm as cg, numpy as np
    >>> A, B = np.array([[1.0, -9.0]]), np.eye(2)
    >>> cg.gemm("NN", A, B, epilogue=lambda acc: (cg.relu(acc), amax(acc)), backend="cpu")
    (array([[1., 0.]]), array(9.))
    """
    return Returned(as_value(x), amax=True)


def cast(x: Any, dtype: Any) -> Returned:
    """Return a value in another type, as a further result: ``return y, cast(y * scale, "int8")``.

    Parameters
    ----------
    x
        A value of the epilogue.
    dtype
        A real type. Integers are rounded to nearest, ties to even, and saturated: a value beyond
        the type becomes its least or greatest number. NaN becomes 0.

    Examples
    --------
    >>> import cute_gemm as cg, numpy as np
    >>> A, B = np.array([[1.0, -9.0]]), np.eye(2)
    >>> C, q = cg.gemm("NN", A, B, epilogue=lambda x: (x, cast(x * 100, "int8")), backend="cpu")
    >>> q
    array([[ 100, -128]], dtype=int8)
    """
    row = dtype_row(dtype_name(dtype)) if isinstance(dtype, Hashable) else None
    if row is None or row.is_complex:
        raise OptionError(f"cast(..., dtype={dtype!r}); expected a real type")
    return Returned(as_value(x), dtype=row.name)


# ---- tracing ------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A value of an expression; ``inputs`` are the indices of its inputs."""

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
    """A result of an expression: the value at an index, or its greatest magnitude (``amax``).

    ``dtype``: the type in which it is stored; "" for C's.
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
    """The values that a function computes, each after its inputs, and the returned ones.

    ``operands`` are the names of its operands without the accumulator. The first of the
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
        """The fields, which JSON can write and `from_parts` reads."""
        return self.steps, self.operands, self.results

    @cached_property
    def pairs(self) -> str:
        """The columns of the product that it combines, a key of `PAIRS`; "" for none."""
        used = {step.function for step in self.steps}
        return next((name for name, both in PAIRS.items() if not used.isdisjoint(both)), "")

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
        operands = *names, *self.operands
        values = {name: Value("operand", name=name) for name in (ACCUMULATOR, *operands)}
        product = values[ACCUMULATOR]
        for name in names:
            product = apply("multiply", product, values[name])
        values[ACCUMULATOR] = product
        computed = fold(self, values, lambda name: partial(apply, name), as_value)
        steps, (_, *places) = _placed([product, *computed])
        results = zip(self.results, places, strict=True)
        return Expression(steps, operands, tuple(x._replace(place=place) for x, place in results))


def fold(  # no method: PyTorch's compiler only reads fields of a frozen dataclass
    expression: Expression, operands: Mapping[str, Any],
    function: Callable[[str], Callable[..., Any]],
    constant: Callable[[float], Any] = lambda number: number,
) -> list[Any]:  # fmt: skip
    """Return the results of an expression for operands by name, including the accumulator.

    ``function`` returns the function that computes a step of that name, and ``constant`` converts
    a number.
    """
    values: list[Any] = []
    for step in expression.steps:
        if step.function == "operand":
            values.append(operands[step.name])
        elif step.function == "constant":
            values.append(constant(step.constant))
        else:
            values.append(function(step.function)(*[values[x] for x in step.inputs]))
    return [values[result.place] for result in expression.results]


def from_parts(steps: Any, operands: Any, results: Any) -> Expression:
    """Return the expression of `Expression.parts`, whose tuples JSON has turned into lists."""
    return Expression(
        tuple(Step(function, tuple(inputs), *rest) for function, inputs, *rest in steps),
        tuple(operands),
        tuple(Result(*result) for result in results),
    )


def trace(function: Callable[..., Any], operands: Sequence[str] | None = None) -> Expression:
    """Call a function with the accumulator and its operands; return its expression.

    It returns C's value, or a tuple of it and further matrices, `cast` or `amax` of values.

    The first parameter is the accumulator, the others are operands by their names, or those named
    in ``operands``. Raises OptionError if it cannot be traced.

    >>> import cute_gemm as cg
    >>> print(trace(lambda acc, bias: cg.relu(acc + bias)))
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
            f"epilogue {named} has an operand called {taken[0]}, which is an argument or a keyword "
            "of C++: rename it"
        )
    values = {name: Value("operand", name=name) for name in names}
    returned = function(Value("operand", name=ACCUMULATOR), **values)
    results = returned if isinstance(returned, tuple) and returned else (returned,)
    values_of_results = []
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
        values_of_results.append(value)
    if isinstance(first := results[0], Returned):
        raise OptionError(f"epilogue {named} returns {first.maker} first; expected the value of C")
    steps, places = _placed(values_of_results)
    outputs = tuple(
        Result(place, *((x.amax, x.dtype) if isinstance(x, Returned) else ()))
        for x, place in zip(results, places, strict=True)
    )
    expression = Expression(steps, names, outputs)
    _check_pairs(named, expression)
    return expression


def _check_pairs(named: str, expression: Expression) -> None:
    """Refuse an epilogue that uses pairs of columns together with other columns or pairs."""
    whole = [x for x, step in enumerate(expression.steps) if step.name == ACCUMULATOR]
    takes = {x.function for x in expression.steps if not set(whole).isdisjoint(x.inputs)}
    kinds = [name for name, both in PAIRS.items() if not takes.isdisjoint(both)]
    if len(kinds) > 1:
        raise OptionError(f"epilogue {named} takes pairs and halves of acc; expected one of them")
    others = takes - COLUMNS.keys()
    if kinds and (others or any(result.place in whole for result in expression.results)):
        what = f"in {min(others)}" if others else "as a result"
        raise OptionError(
            f"epilogue {named} has {kinds[0]}(acc) and acc itself, {what}; expected the values "
            f"of {kinds[0]}(acc) instead of acc"
        )


def _operands(function: Callable[..., Any], named: str) -> tuple[str, ...]:
    """Return the names of a function's parameters after the first; keywords keep their defaults."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C has no signature
        raise OptionError(
            f"epilogue {named} has no signature; expected a function of the "
            f"accumulator and operands in Python: lambda acc: {named}(acc)"
        ) from None
    parameters = [
        x
        for x in signature.parameters.values()
        if x.kind is not x.KEYWORD_ONLY or x.default is x.empty
    ]
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


def _placed(values: Sequence[Value]) -> tuple[tuple[Step, ...], list[int]]:
    """Return the steps of values, each after its inputs, and the index of each value.

    Equal steps occur once. The function is iterative, since Python limits recursion.
    """
    steps: dict[Step, int] = {}
    places: dict[int, int] = {}  # by the ids of values
    for result in values:
        left = [result]
        while left:
            value = left[-1]
            missing = next((each for each in value.inputs if id(each) not in places), None)
            if missing is not None:
                left.append(missing)
                continue
            left.pop()
            inputs = tuple(places[id(each)] for each in value.inputs)
            step = Step(value.function, inputs, value.name, value.constant)
            places[id(value)] = steps.setdefault(step, len(steps))
    return tuple(steps), [places[id(value)] for value in values]
