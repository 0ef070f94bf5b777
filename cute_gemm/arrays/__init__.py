"""Arrays of any library, each read by its own module here into an ``Operand``.

No array library but NumPy is imported. The package that an array's class comes from says whose it
is: arrays of NumPy, CuPy and PyTorch are read through their own attributes, which takes about a
microsecond; all others by DLPack or ``__cuda_array_interface__``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cute_gemm._kept import Kept
from cute_gemm.arrays.base import Adapter, Fingerprint, Operand
from cute_gemm.arrays.cupy import CUPY
from cute_gemm.arrays.dlpack import DLPack
from cute_gemm.arrays.jax import JAX
from cute_gemm.arrays.numpy import NUMPY
from cute_gemm.arrays.torch import TORCH
from cute_gemm.errors import ShapeError

#: By ``Operand.library``.
ADAPTERS: dict[str, Adapter] = {x.name: x for x in (NUMPY, CUPY, TORCH, JAX, DLPack())}
#: Whose the arrays of a class are, by its package and name, or by the package alone.
_CLASSES = {
    "numpy.ndarray": "numpy", "cupy.ndarray": "cupy", "torch.Tensor": "torch", "jax": "jax",
    "jaxlib": "jax",
}  # fmt: skip
#: Dimensions of a matrix, and of a batch of them.
_MATRIX = (2, 3)
#: Dimensions of an epilogue's operand.
BROADCAST = (0, 1, 2, 3)


class _ByClass(Kept[type, Adapter]):
    """The adapters of the classes that were seen."""

    def __missing__(self, kind: type) -> Adapter:
        library = "dlpack"
        for base in reversed(kind.__mro__):
            package = base.__module__.partition(".")[0]
            library = _CLASSES.get(f"{package}.{base.__name__}") or _CLASSES.get(package) or library
        self[kind] = adapter = ADAPTERS[library]
        return adapter


_BY_CLASS = _ByClass(256)


def read(array: Any, name: str, dimensions: tuple[int, ...] = _MATRIX) -> Operand:
    """Return what an array is and where it is, without copying or synchronising.

    ``name`` is what error messages call it; ``dimensions`` are those that it may have: those of a
    matrix or a batch of them, (0,) for alpha and beta, or `BROADCAST`. Any other number is a
    ShapeError; what is no array, or one that does not give its memory away, is an ArrayError.
    """
    operand = _BY_CLASS[type(array)].read(array, name)
    if len(operand.shape) not in dimensions:
        if dimensions == BROADCAST:
            expected = "an array of three dimensions at most, which broadcasts to C"
        elif dimensions != _MATRIX:
            expected = "a number or a 0-d array: that of a single element is reshape(())"
        elif len(operand.shape) < _MATRIX[0]:
            expected = "a matrix, which has two dimensions: a column is reshape(-1, 1)"
        else:
            rows, columns = operand.shape[-2:]
            expected = (
                "a matrix or a batch of them, which has three dimensions: one batch dimension "
                f"is reshape(-1, {rows}, {columns})"
            )
        raise ShapeError(f"{name} has shape {operand.shape}; expected {expected}")
    return operand


def fingerprint(
    A: Any, B: Any, C: Any, others: Mapping[str, Any] | None = None
) -> Fingerprint | None:
    """Return all that ``read`` looks at of device arrays of one library; C may be None.

    ``others``: further arguments by name, whose arrays are of that library too; the others count
    as they are.

    The layouts, with how addresses are aligned, and the addresses. None for arrays of several, for
    a library where it is no quicker to get, and for an array that has no memory to look at:
    ``read`` says what is wrong with it.
    """
    adapter = _BY_CLASS[type(A)]
    if _BY_CLASS[type(B)] is not adapter or not (C is None or _BY_CLASS[type(C)] is adapter):
        return None
    try:
        key = adapter.fingerprint(A, B, C)
        if not others or key is None:
            return key
        layouts: list[Any] = [key[0]]
        addresses = list(key[1])
        for name, value in others.items():
            if _BY_CLASS[type(value)] is adapter:
                of_value = adapter.fingerprint_of(value)
                if of_value is None:
                    return None
                layouts += name, of_value[0]
                addresses += of_value[1]
            else:
                layouts += name, type(value), value
        return tuple(layouts), tuple(addresses)
    except RuntimeError:
        return None


def host_array(operand: Operand) -> np.ndarray:
    """Return a host operand as a NumPy array on the same memory."""
    return ADAPTERS[operand.library].to_numpy(operand)


def is_array(value: Any) -> bool:
    """Return whether a value is an array of any library, be it one that `read` refuses."""
    return _BY_CLASS[type(value)].is_array(value)
