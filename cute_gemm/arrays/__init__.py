"""Arrays of any library, each read by its module here into an ``Operand``.

No array library but NumPy is imported. The package of an array's class names its library:
arrays of NumPy, CuPy and PyTorch are read through their own attributes, which takes about a
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

#: Adapters by ``Operand.library``.
ADAPTERS: dict[str, Adapter] = {x.name: x for x in (NUMPY, CUPY, TORCH, JAX, DLPack())}
#: Libraries of classes, by package and name, or by package alone.
_CLASSES = {
    "numpy.ndarray": "numpy", "cupy.ndarray": "cupy", "torch.Tensor": "torch", "jax": "jax",
    "jaxlib": "jax",
}  # fmt: skip
#: Numbers of dimensions of a matrix, and of a batch.
_MATRIX = (2, 3)
#: Numbers of dimensions of an epilogue's operand.
BROADCAST = (0, 1, 2, 3)


class _ByClass(Kept[type, Adapter]):
    """Adapters by class."""

    def __missing__(self, kind: type) -> Adapter:
        library = "dlpack"
        for base in reversed(kind.__mro__):
            package = base.__module__.partition(".")[0]
            library = _CLASSES.get(f"{package}.{base.__name__}") or _CLASSES.get(package) or library
        self[kind] = adapter = ADAPTERS[library]
        return adapter


_BY_CLASS = _ByClass(256)


def read(array: Any, name: str, dimensions: tuple[int, ...] = _MATRIX) -> Operand:
    """Return the descriptor of an array, without copying or synchronizing.

    ``name`` is its name in errors; ``dimensions`` are the allowed numbers of dimensions: those of a
    matrix or a batch of them, (0,) for alpha and beta, or `BROADCAST`. Any other number is a
    ShapeError; an object that is not an array, or whose memory is not accessible, is an ArrayError.
    """
    operand = _BY_CLASS[type(array)].read(array, name)
    if len(operand.shape) not in dimensions:
        if dimensions == BROADCAST:
            expected = "an array of three dimensions at most, which broadcasts to C"
        elif dimensions != _MATRIX:
            expected = "a number or a 0-d array: reshape(()) makes one of a single element"
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
    """Return everything that ``read`` uses of device arrays of one library; C may be None.

    ``others``: further arguments by name, whose arrays are of the same library; other arguments
    are compared by value.

    The result is the layouts, with alignments of addresses, and the addresses. None for arrays
    of several libraries, for a library without a faster way, and for an array without memory:
    ``read`` raises the error.
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
    """Return whether a value is an array of any library, also one that `read` refuses."""
    return _BY_CLASS[type(value)].is_array(value)
