"""Rows of elementwise functions; `functions` has one for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class Error(NamedTuple):
    """The largest error of a function, in units in the last place, and absolute.

    ``by_argument``: further units per unit of the argument's magnitude.
    """

    ulps: float = 0.5
    absolute: float = 0.0
    by_argument: float = 0.0


class Errors(NamedTuple):
    """A function's errors in float32 and float64, and in float32 for results of 16 bits.

    ``float16``: None if equal to float32's; ``bfloat16``: None if equal to float16's.
    """

    float32: Error = Error()
    float64: Error = Error()
    float16: Error | None = None
    bfloat16: Error | None = None

    def of(self, dtype: str, output: str) -> Error:
        """Return the error in a type, for results of type ``output``."""
        if dtype == "float64":
            return self.float64
        float16 = self.float16 or self.float32
        return {"float16": float16, "bfloat16": self.bfloat16 or float16}.get(output, self.float32)


class Function(NamedTuple):
    """An elementwise function of the steps of expressions.

    ``cpp`` is its C++ with ``{0}``, ``{1}``, ... for the arguments; ``errors`` its errors, None if
    exact. ``interval`` makes the interval of exact results from `bound.Rules` and the arguments'
    intervals; without it, the function increases in every argument. ``torch`` and ``jax`` compute
    it from the library and the arguments; without them the library has it by the same name.
    ``conditions`` are the indices of arguments that are conditions.
    """

    cpp: str
    numpy: Callable[..., Any]
    errors: Errors | None = Errors()
    interval: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None
    jax: Callable[..., Any] | None = None
    conditions: tuple[int, ...] = ()
    is_condition: bool = False


class Activation(NamedTuple):
    """A function that layers and names of epilogues have, with its gradient.

    ``gradient`` returns the gradient of the argument, from the gradient g of the result and a kept
    tensor: the argument x or, with ``keeps_result``, the result. ``backward`` is PyTorch's kernel
    for it, of ``torch.ops.aten``, g and the kept tensor, if it exists.
    """

    function: Callable[..., Any]
    gradient: Callable[[Any, Any], Any]
    keeps_result: bool = False
    backward: Callable[..., Any] | None = None


#: Rows by name. ``maximum`` and ``minimum`` propagate NaN, as in NumPy.
FUNCTIONS: dict[str, Function] = {}
#: First and second of the two columns of the product that an epilogue combines: adjacent columns,
#: or columns of the first and of the second half.
COLUMNS = {
    "even_columns": Function("{0}.first", lambda acc: acc[..., 0::2], None),
    "odd_columns": Function("{0}.second", lambda acc: acc[..., 1::2], None),
    "first_half": Function("{0}.first", lambda acc: acc[..., : acc.shape[-1] // 2], None),
    "second_half": Function("{0}.second", lambda acc: acc[..., acc.shape[-1] // 2 :], None),
}
#: Functions that make values of each kind.
PAIRS = {"pairs": ("even_columns", "odd_columns"), "halves": ("first_half", "second_half")}
ACTIVATIONS: dict[str, Activation] = {}


def functions_of(library: Any, *modules: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of ``torch`` or ``jax`` for all rows, most of them from modules."""

    def function(name: str, row: Function) -> Callable[..., Any]:
        own = {"torch": row.torch, "jax": row.jax}[library.__name__]
        if own:
            return partial(own, library)
        name = name.removesuffix("_torch")  # only the kernel has PyTorch's bits
        return next(getattr(module, name) for module in modules if hasattr(module, name))

    return {name: function(name, row) for name, row in FUNCTIONS.items()}


def row_of(step: str) -> Function:
    """Return the row of a step's function."""
    return FUNCTIONS.get(step) or COLUMNS[step]
