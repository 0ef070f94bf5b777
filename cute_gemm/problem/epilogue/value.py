"""``Value``: a number of every element of C, and what Python, NumPy and PyTorch make of it.

Every operator of Python, and every function that takes a value by NumPy's and PyTorch's protocols,
is traced or refused: what Python would compute itself (``==`` by identity, say) is silently wrong.
"""

from __future__ import annotations

import dis
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from cute_gemm.errors import OptionError
from cute_gemm.problem.epilogue.functions import CONDITIONS, FUNCTIONS, LOGICAL

_ELEMENTWISE = "a value stands for one number of every element of C"
_OPERATORS = (
    "expected + - * /, ** with a number, comparisons, & | ~ of conditions, abs, or a function of "
    "cute_gemm"
)
_NUMBER = f"{_ELEMENTWISE}: compute with the value itself, and by cute_gemm.sqrt, exp, ..."
_ROUND = "cute_gemm.cast(value, 'int32') as a further result, which rounds"
_WHERE = "use cute_gemm.where(condition, a, b)"

#: What Python does with a value and no expression has, by special methods, and what is expected.
_REFUSED = (
    ("__mod__ __rmod__", "writes % with {}", _OPERATORS),
    ("__floordiv__ __rfloordiv__", "writes // with {}", _OPERATORS),
    ("__divmod__ __rdivmod__", "calls divmod() with {}", _OPERATORS),
    ("__matmul__ __rmatmul__", "writes @ with {}", f"{_ELEMENTWISE}: a product of these is *"),
    ("__lshift__ __rlshift__", "writes << with {}", _OPERATORS),
    ("__rshift__ __rrshift__", "writes >> with {}", _OPERATORS),
    ("__add__ __radd__", "writes + with {}", _OPERATORS),
    ("__sub__ __rsub__", "writes - with {}", _OPERATORS),
    ("__mul__ __rmul__", "writes * with {}", _OPERATORS),
    ("__truediv__ __rtruediv__", "writes / with {}", _OPERATORS),
    ("__pow__ __rpow__", "writes ** with {}", _OPERATORS),
    ("__and__ __rand__", "writes & with {}", _OPERATORS),
    ("__or__ __ror__", "writes | with {}", _OPERATORS),
    ("__xor__ __rxor__", "writes ^ with {}", _OPERATORS),
    ("__eq__", "writes == with {}", _OPERATORS),
    ("__ne__", "writes != with {}", _OPERATORS),
    ("__lt__ __gt__", "writes < or > with {}", _OPERATORS),
    ("__le__ __ge__", "writes <= or >= with {}", _OPERATORS),
    ("__neg__ __pos__", "writes - or + before {}", _OPERATORS),
    ("__invert__", "writes ~ before {}", _OPERATORS),
    ("__abs__", "calls abs() with {}", _OPERATORS),
    ("__round__", "calls round() with {}", f"expected {_ROUND}"),
    ("__floor__", "calls math.floor() with {}", f"expected {_ROUND}"),
    ("__ceil__", "calls math.ceil() with {}", f"expected {_ROUND}"),
    ("__trunc__", "calls math.trunc() with {}", f"expected {_ROUND}"),
    ("__int__", "calls int() with {}", _NUMBER),
    ("__float__", "calls float(), or a function of math, with {}", _NUMBER),
    ("__complex__", "calls complex() with {}", _NUMBER),
    ("__index__", "takes {} for an index or a size", _NUMBER),
    ("__bool__", "asks whether {} is true", _ELEMENTWISE),
    ("__hash__", "looks up {} in a dict or a set, or a cache", f"{_ELEMENTWISE}: {_WHERE}"),
    ("__contains__", "asks by 'in' what is in {}", f"{_ELEMENTWISE}: {_WHERE}"),
    ("__len__", "calls len() with {}", _ELEMENTWISE),
    ("__iter__ __reversed__", "loops over {}, or unpacks it", _ELEMENTWISE),
    ("__getitem__ __setitem__ __delitem__", "takes elements of {} by [...]", _ELEMENTWISE),
    ("__call__", "calls {}", _ELEMENTWISE),
    ("__enter__", "enters {} by with", _ELEMENTWISE),
    ("__array__", "makes an array of {}", _ELEMENTWISE),
    ("__jax_array__", "gives JAX {}", "expected functions of cute_gemm, NumPy or PyTorch"),
)
#: What is expected in place of functions, methods and attributes that arrays have.
_INSTEAD = {
    **dict.fromkeys(("max", "amax", "min", "amin"), "cute_gemm.maximum(a, b) or minimum(a, b) of "
                    "two, or cute_gemm.amax(value) as a further result"),
    **dict.fromkeys(("sum", "mean"), "a sum of what the call returns"),
    **dict.fromkeys(("to", "type", "astype", "float", "half", "double", "bfloat16", "int"),
                    "cute_gemm.cast(value, dtype) as a further result"),
    **dict.fromkeys(("round", "rint", "floor", "ceil", "trunc"), _ROUND),
}  # fmt: skip

#: Functions of values by what NumPy and PyTorch call them, and methods; `expression` fills it.
KNOWN: dict[str, Callable[..., Any]] = {}
#: Keywords of theirs, where they are not KNOWN's.
_KEYWORDS = {"a_min": "min", "a_max": "max"}


class _Refusing:
    """What refuses every operator, and has no attributes but its own."""

    @property
    def _noun(self) -> str:
        raise NotImplementedError

    def _refuse(self, does: str, expected: str) -> NoReturn:
        raise OptionError(f"an epilogue {does.format(self._noun)}; {expected}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what Python and others ask everything for
            raise AttributeError(name)
        expected = f"expected {_INSTEAD[name]}" if name in _INSTEAD else _ELEMENTWISE
        self._refuse(f"takes .{name} of {{}}", expected)

    def __format__(self, spec: str) -> str:
        if spec:
            self._refuse("formats {} as a number", _ELEMENTWISE)
        return str(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return _called("numpy", name, inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        return _called("numpy", function.__name__, args, keywords)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), keywords: Any = None
    ) -> Any:
        return _called("torch", function.__name__.strip("_"), args, keywords or {})


def _refusal(does: str, expected: str) -> Callable[..., NoReturn]:
    def method(self: _Refusing, *_: Any) -> NoReturn:
        self._refuse(does, expected)

    return method


for _names, _does, _expected in _REFUSED:
    for _name in _names.split():
        setattr(_Refusing, _name, _refusal(_does, _expected))


def _called(library: str, name: str, args: Any, keywords: Mapping[str, Any]) -> Any:
    """Return what a function of NumPy or PyTorch makes of values."""
    function = KNOWN.get(name)
    if function is None:
        expected = _INSTEAD.get(name, f"one of {', '.join(FUNCTIONS)}")
        raise OptionError(
            f"an epilogue calls {library}.{name}, which is not known; expected {expected}"
        )
    # What None and False leave out is as if it were not given: inplace=False.
    given = {
        _KEYWORDS.get(x, x): y for x, y in keywords.items() if y is not None and y is not False
    }
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        raise OptionError(
            f"an epilogue calls {library}.{name} with arguments that are not known ({error}); "
            f"expected {name}({', '.join(signature.parameters)})"
        ) from None
    return function(*args, **given)


@dataclass(frozen=True, eq=False, repr=False)
class Value(_Refusing):
    """A number of every element of C, or a condition, which is true or false.

    ``function`` is a key of `FUNCTIONS`; ``"operand"``, with ``name``; or ``"constant"``, with
    ``constant``.
    """

    function: str
    inputs: tuple[Value, ...] = ()
    name: str = ""
    constant: float = 0.0

    @property
    def is_condition(self) -> bool:
        """Whether it is true or false."""
        return self.function in CONDITIONS

    @property
    def _noun(self) -> str:
        return "a condition" if self.is_condition else "a value"

    def __repr__(self) -> str:
        """What it is, without all that it is made of."""
        if self.function == "constant":
            return repr(self.constant)
        return self.name or f"{self.function}(...)"

    def __getattr__(self, name: str) -> Any:
        if name in KNOWN:
            return lambda *args, **keywords: _called("Tensor", name, (self, *args), keywords)
        return super().__getattr__(name)

    def __add__(self, other: Any) -> Value:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Value:
        return apply("subtract", other, self)

    def __mul__(self, other: Any) -> Value:
        return multiply(self, other)

    def __rmul__(self, other: Any) -> Value:
        return multiply(other, self)

    def __truediv__(self, other: Any) -> Value:
        return apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return apply("divide", other, self)

    def __pow__(self, exponent: Any, modulus: Any = None) -> Value:
        if modulus is not None:
            self._refuse("calls pow() with three arguments, of which one is {}", _OPERATORS)
        return power(self, exponent)

    def __rpow__(self, base: Any, modulus: Any = None) -> Value:
        return power(base, self)

    def __neg__(self) -> Value:
        return apply("negative", self)

    def __pos__(self) -> Value:
        return positive(self)

    def __abs__(self) -> Value:
        return apply("abs", self)

    def __lt__(self, other: Any) -> Value:
        return apply("less", self, other)

    def __le__(self, other: Any) -> Value:
        return apply("less_equal", self, other)

    def __gt__(self, other: Any) -> Value:
        return apply("less", other, self)

    def __ge__(self, other: Any) -> Value:
        return apply("less_equal", other, self)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return equal(self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return ~equal(self, other)

    __hash__ = _Refusing.__hash__  # which a class that has __eq__ would lose

    def __and__(self, other: Any) -> Value:
        return apply("logical_and", self, other)

    def __or__(self, other: Any) -> Value:
        return apply("logical_or", self, other)

    def __xor__(self, other: Any) -> Value:
        return exclusive(self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Value:
        return apply("logical_not", self)

    def __bool__(self) -> bool:
        raise OptionError(_truth(sys._getframe(1)))


def _truth(frame: Any) -> str:
    """Say what asked whether a value is true, by the instruction that the caller is at."""
    names = []
    for instruction in dis.get_instructions(frame.f_code):
        names.append(instruction.opname)
        if instruction.offset >= frame.f_lasti:
            break
    differs = "which differs from element to element"
    if names[-1] == "CONTAINS_OP":
        return (
            f"an epilogue asks by 'in' whether a value is among others, {differs}: use "
            "cute_gemm.where((x == a) | (x == b), ...)"
        )
    if names[-1].startswith("CALL"):
        return (
            f"an epilogue calls a function that asks whether a value is true, {differs}: use "
            "cute_gemm.maximum, minimum or where(condition, a, b) in place of max, min, bool, ..."
        )
    if names[-1].endswith("_OR_POP") or "COPY" in names[-3:]:
        return (
            f"an epilogue joins conditions by and, by or, or in a chain, {differs}: use "
            "(0 < x) & (x < 1) in place of 0 < x < 1, and | in place of or"
        )
    return (
        f"an epilogue asked in Python whether a value is true, {differs}: use "
        "cute_gemm.where(condition, a, b) in place of if, and, or, not"
    )


@dataclass(frozen=True, eq=False, repr=False)
class Returned(_Refusing):
    """What `amax` and `cast` make of a value, to be returned."""

    value: Value
    amax: bool = False
    dtype: str = ""

    @property
    def maker(self) -> str:
        """The function that made it."""
        return "amax" if self.amax else "cast"

    @property
    def _noun(self) -> str:
        return f"what {self.maker} returns"

    def __repr__(self) -> str:
        return f"{self.maker}({self.value!r})"

    def _refuse(self, does: str, expected: str) -> NoReturn:
        raise OptionError(
            f"an epilogue {does.format(self._noun)}; {self.maker}(...) can only be returned: "
            "compute with the value that it is made of"
        )


def as_value(x: Any) -> Value:
    """Return a value, or a number as a constant."""
    if isinstance(x, Value):
        return x
    if isinstance(x, Returned):
        x._refuse("computes with {}", "")
    if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and not x.shape):
        x = x.item()
    if isinstance(x, numbers.Real):
        try:
            return Value("constant", constant=float(x))
        except OverflowError:
            raise OptionError(
                "an epilogue computes with a number beyond float64's; expected a number of float64"
            ) from None
    if hasattr(x, "shape"):
        raise OptionError(
            f"an epilogue computes with an array of shape {tuple(x.shape)}; expected it as an "
            "operand: a parameter of the function, and an argument of the call by that name"
        )
    raise OptionError(
        f"an epilogue computes with {x!r}; expected a number, the accumulator or an operand"
    )


def apply(function: str, *inputs: Any) -> Value:
    """Return a function of values and numbers, which are numbers or conditions as it wants them."""
    values = tuple(map(as_value, inputs))
    for place, value in enumerate(values):
        _check(function, value, function in LOGICAL or (function == "where" and place == 0))
    return Value(function, values)


def _check(function: str, value: Value, condition: bool) -> None:
    """Refuse a number where a condition is wanted, or the other way round."""
    if value.is_condition == condition:
        return
    has, wants = ("a number", "a condition")[:: 1 if condition else -1]
    instead = "x > 0, say" if condition else f"{_WHERE} to make one"
    named = {"logical_and": "&", "logical_or": "|", "logical_not": "~"}.get(function, function)
    raise OptionError(f"an epilogue gives {named} {has}; expected {wants}: {instead}")


def multiply(a: Any, b: Any) -> Value:
    """Return a product, where a condition is a mask: 1 where it holds, and 0 elsewhere."""
    a, b = as_value(a), as_value(b)
    if a.is_condition and b.is_condition:
        return a & b
    a, b = (apply("where", x, 1, 0) if x.is_condition else x for x in (a, b))
    return apply("multiply", a, b)


def equal(a: Any, b: Any) -> Value:
    """Return whether two are equal, numbers or conditions."""
    a, b = as_value(a), as_value(b)
    return ~exclusive(a, b) if a.is_condition and b.is_condition else apply("equal", a, b)


def exclusive(a: Any, b: Any) -> Value:
    """Return whether one of two conditions holds and the other does not."""
    both = apply("logical_and", a, b)
    return apply("logical_or", a, b) & ~both


def positive(x: Any) -> Value:
    """Return a number as it is."""
    value = as_value(x)
    _check("positive", value, False)
    return value


def power(x: Any, exponent: Any) -> Value:
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
        return apply("rsqrt", x)
    left, square = int(abs(p)), x
    result = apply("sqrt", x) if abs(p) % 1 else None
    while left:
        if left % 2:
            result = square if result is None else apply("multiply", result, square)
        left //= 2
        square = apply("multiply", square, square) if left else square
    result = as_value(1 if result is None else result)
    return apply("divide", 1, result) if p < 0 else result
