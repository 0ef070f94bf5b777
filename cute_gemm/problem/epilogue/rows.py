"""What is known of an elementwise function: a row, which `functions` has one of for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class Error(NamedTuple):
    """The most by which a function is off: in units of the last place, and absolute.

    ``by_argument``: units more for each unit of the argument's magnitude.
    """

    ulps: float = 0.5
    absolute: float = 0.0
    by_argument: float = 0.0


class Errors(NamedTuple):
    """A function's errors in float32 and float64, and in float32 for results of 16 bits.

    ``float16``: None where it is float32's; ``bfloat16``: None where it is float16's.
    """

    float32: Error = Error()
    float64: Error = Error()
    float16: Error | None = None
    bfloat16: Error | None = None

    def of(self, dtype: str, output: str) -> Error:
        """Return the error in a type, for results of another one."""
        if dtype == "float64":
            return self.float64
        float16 = self.float16 or self.float32
        return {"float16": float16, "bfloat16": self.bfloat16 or float16}.get(output, self.float32)


class Function(NamedTuple):
    """A function that an expression has steps of.

    ``cpp`` is how C++ spells it of ``{0}``, ``{1}``, ...; ``errors`` its errors, and None if it is
    exact. ``interval`` makes the interval of exact results of `bound.Rules` and the arguments'
    intervals; without it, it rises with every argument. ``torch`` and ``jax`` compute it, of the
    library and the arguments; without them the library has it by the same name. ``conditions`` are
    the places of the arguments that are conditions.
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

    ``gradient`` is that of the argument, of the gradient g of the result and of what is kept: the
    argument x or, where ``keeps_result``, the result. ``backward`` is PyTorch's kernel for it, of
    ``torch.ops.aten``, g and what is kept, if there is one.
    """

    function: Callable[..., Any]
    gradient: Callable[[Any, Any], Any]
    keeps_result: bool = False
    backward: Callable[..., Any] | None = None


#: Rows by name. Of ``maximum`` and ``minimum`` a NaN of either is the result, as in NumPy.
FUNCTIONS: dict[str, Function] = {}
#: Of two columns of the product that an epilogue takes together the one and the other: those beside
#: each other, or those of the first and of the second half.
COLUMNS = {
    "even_columns": Function("{0}.first", lambda acc: acc[..., 0::2], None),
    "odd_columns": Function("{0}.second", lambda acc: acc[..., 1::2], None),
    "first_half": Function("{0}.first", lambda acc: acc[..., : acc.shape[-1] // 2], None),
    "second_half": Function("{0}.second", lambda acc: acc[..., acc.shape[-1] // 2 :], None),
}
#: The functions that make values of each kind.
PAIRS = {"pairs": ("even_columns", "odd_columns"), "halves": ("first_half", "second_half")}
ACTIVATIONS: dict[str, Activation] = {}


def functions_of(library: Any, *modules: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of ``torch`` or ``jax`` of all rows, of which modules have most."""
    functions: dict[str, Callable[..., Any]] = {}
    for name, row in FUNCTIONS.items():
        own = {"torch": row.torch, "jax": row.jax}[library.__name__]
        functions[name] = (
            partial(own, library)
            if own
            else next(getattr(module, name) for module in modules if hasattr(module, name))
        )
    return functions


def row_of(step: str) -> Function:
    """Return the row of a step's function."""
    return FUNCTIONS.get(step) or COLUMNS[step]
