"""``Value``: a number of every element of C, with operators of Python, NumPy and PyTorch.

Every operator of Python, and every function that takes a value by NumPy's and PyTorch's protocols,
is traced or refused: a result of Python itself (``==`` by identity) is silently wrong.
"""

from __future__ import annotations

import dis
import inspect
import numbers
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from cute_gemm.errors import OptionError
from cute_gemm.problem.epilogue.rows import FUNCTIONS

_ELEMENTWISE = "a value stands for one number of every element of C"
_OPERATORS = (
    "expected + - * /, ** with a number, comparisons, & | ~ of conditions, abs, or a function of "
    "cute_gemm"
)
_NUMBER = f"{_ELEMENTWISE}: compute with the value itself, and by cute_gemm.sqrt, exp, ..."
_ROUND = "cute_gemm.cast(value, 'int32') as a further result, which rounds"
_WHERE = "use cute_gemm.where(condition, a, b)"

#: Binary operators, by the names of their methods.
_BINARY = {
    "mod": "%", "floordiv": "//", "lshift": "<<", "rshift": ">>", "add": "+", "sub": "-",
    "mul": "*", "truediv": "/", "pow": "**", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
#: Special methods that no expression has, with the text of the error and the expected text.
_REFUSED = (
    *(
        (f"__{name}__ __r{name}__", f"writes {symbol} with {{}}", _OPERATORS)
        for name, symbol in _BINARY.items()
    ),
    ("__divmod__ __rdivmod__", "calls divmod() with {}", _OPERATORS),
    ("__matmul__ __rmatmul__", "writes @ with {}", f"{_ELEMENTWISE}: a product of these is *"),
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
#: Text expected instead of functions, methods and attributes that arrays have.
_INSTEAD = {
    **dict.fromkeys(("max", "amax", "min", "amin"), "cute_gemm.maximum(a, b) or minimum(a, b) of "
                    "two, or cute_gemm.amax(value) as a further result"),
    **dict.fromkeys(("sum", "mean"), "a sum of what the call returns"),
    **dict.fromkeys(("to", "type", "astype", "float", "half", "double", "bfloat16", "int"),
                    "cute_gemm.round_to(value, dtype), or cast(value, dtype) as a further result"),
    **dict.fromkeys(("round", "rint", "floor", "ceil", "trunc"), _ROUND),
}  # fmt: skip

#: Functions of values by their names in NumPy and PyTorch, and methods; `functions` fills it.
KNOWN: dict[str, Callable[..., Any]] = {}
#: Keywords of these functions that are not KNOWN's.
_KEYWORDS = {"a_min": "min", "a_max": "max"}


class _Refusing:
    """An object that refuses every operator and every attribute but its own."""

    @property
    def _noun(self) -> str:
        raise NotImplementedError

    def _refuse(self, does: str, expected: str) -> NoReturn:
        raise OptionError(f"an epilogue {does.format(self._noun)}; {expected}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python and libraries look up such names on every object
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
    """Return the result of a function of NumPy or PyTorch on values."""
    function = KNOWN.get(name)
    if function is None:
        traced = ", ".join(x for x in FUNCTIONS if x in KNOWN)
        expected = _INSTEAD.get(name, f"one of {traced}")
        raise OptionError(
            f"an epilogue calls {library}.{name}, which is not known; expected {expected}"
        )
    # None and False count as not given: inplace=False.
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


def _prefix(name: str) -> Callable[[Value], Value]:
    """Return the method of a prefix operator."""
    return lambda self: KNOWN[name](self)


def _operator(name: str) -> tuple[Callable[[Value, Any], Value], Callable[[Value, Any], Value]]:
    """Return the methods of an operator for a value on the left, and on the right."""
    return (
        lambda self, other: KNOWN[name](self, other),
        lambda self, other: KNOWN[name](other, self),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Value(_Refusing):
    """A number of every element of C, or a condition.

    ``function`` is a key of `FUNCTIONS`; ``"operand"``, with ``name``; or ``"constant"``, with
    ``constant``.
    """

    function: str
    inputs: tuple[Value, ...] = ()
    name: str = ""
    constant: float = 0.0

    @property
    def is_condition(self) -> bool:
        """Whether it is a condition."""
        row = FUNCTIONS.get(self.function)
        return row is not None and row.is_condition

    @property
    def _noun(self) -> str:
        return "a condition" if self.is_condition else "a value"

    def __repr__(self) -> str:
        """Return its function, without its inputs."""
        if self.function == "constant":
            return repr(self.constant)
        return self.name or f"{self.function}(...)"

    def __getattr__(self, name: str) -> Any:
        if name in KNOWN:
            return lambda *args, **keywords: _called("Tensor", name, (self, *args), keywords)
        return super().__getattr__(name)

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")
    __and__, __rand__ = _operator("logical_and")
    __or__, __ror__ = _operator("logical_or")
    __xor__, __rxor__ = _operator("logical_xor")
    __lt__, __gt__ = _operator("less")
    __le__, __ge__ = _operator("less_equal")
    __eq__ = _operator("equal")[0]  # type: ignore[assignment]
    __ne__ = _operator("not_equal")[0]  # type: ignore[assignment]
    __neg__ = _prefix("negative")
    __pos__ = _prefix("positive")
    __abs__ = _prefix("abs")
    __invert__ = _prefix("logical_not")

    __hash__ = _Refusing.__hash__  # a class with __eq__ loses it otherwise

    def __pow__(self, exponent: Any, modulus: Any = None) -> Value:
        if modulus is not None:
            self._refuse("calls pow() with three arguments, of which one is {}", _OPERATORS)
        return KNOWN["power"](self, exponent)

    def __rpow__(self, base: Any, modulus: Any = None) -> Value:
        return KNOWN["power"](base, self)

    def __bool__(self) -> bool:
        raise OptionError(_truth(sys._getframe(1)))


def _truth(frame: Any) -> str:
    """Return the error for a truth test of a value, by the caller's current instruction."""
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
    """The result of `amax` or `cast`, to be returned."""

    value: Value
    amax: bool = False
    dtype: str = ""

    @property
    def maker(self) -> str:
        """The name of the function that made it."""
        return "amax" if self.amax else "cast"

    @property
    def _noun(self) -> str:
        return f"what {self.maker} returns"

    def __repr__(self) -> str:
        return f"{self.maker}({self.value!r})"

    def _refuse(self, does: str, expected: str) -> NoReturn:
        raise OptionError(
            f"an epilogue {does.format(self._noun)}; {self.maker}(...) can only be returned: "
            "compute with its argument"
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
    """Return a value of a row of `FUNCTIONS`, of inputs that are numbers or conditions."""
    values = tuple(map(as_value, inputs))
    for place, value in enumerate(values):
        check_kind(function, value, place in FUNCTIONS[function].conditions)
    return Value(function, values)


def check_kind(function: str, value: Value, condition: bool) -> None:
    """Refuse a number in place of a condition, or a condition in place of a number."""
    if value.is_condition == condition:
        return
    has, wants = ("a number", "a condition")[:: 1 if condition else -1]
    instead = "x > 0, for example" if condition else f"{_WHERE} to make one"
    named = {"logical_and": "&", "logical_or": "|", "logical_not": "~"}.get(function, function)
    raise OptionError(f"an epilogue gives {named} {has}; expected {wants}: {instead}")
