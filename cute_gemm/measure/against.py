"""Functions of the user's own, which a benchmark checks and times like kernels."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.measure.compare import Start
    from cute_gemm.measure.matrices import Place

#: ``f(op, A, B, C)``: what ``--against`` names.
Function = Callable[[str, Any, Any, Any], object]


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A matrix as stored on the device; of bfloat16 it only says that it has two bytes."""

    __cuda_array_interface__: dict[str, Any]


def of_function(
    function: Function, op: str, matrices: Sequence[np.ndarray], places: Sequence[Place]
) -> Start:
    """Return what calls ``function(op, A, B, C)`` with copies, at ``places``, of host matrices."""

    def shown(pointer: int, like: np.ndarray) -> DeviceArray:
        # Nothing is under way on it when a function is called: to wait would only take time.
        interface = {"version": 3, "shape": like.shape, "strides": like.strides, "stream": None}
        return DeviceArray({**interface, "typestr": like.dtype.str, "data": (pointer, False)})

    arrays = [[shown(*pair) for pair in zip(place, matrices, strict=True)] for place in places]
    return lambda index: function(op, *arrays[index])


def named_function(given: str | Function) -> tuple[str, Function]:
    """Return name and function of ``"module:function"``, or of a function.

    Python must find the module, also in the working directory.
    """
    if not isinstance(given, str):
        name = getattr(given, "__qualname__", type(given).__name__)
        return f"{getattr(given, '__module__', '')}:{name}", given
    module, colon, name = given.partition(":")
    if not (module and colon and name):
        raise OptionError(f"against={given!r}; expected MODULE:FUNCTION")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except ImportError as error:
        raise OptionError(
            f"against={given!r} cannot be imported ({error}); expected a module of the working "
            "directory or an installed one"
        ) from error
    except AttributeError:
        raise OptionError(f"against={given!r}: {module} has no {name}") from None
    if not callable(function):
        raise OptionError(
            f"against={given!r} is a {type(function).__name__}; expected a function f(op, A, B, C)"
        )
    return given, function
