"""``Operand``, which arrays are read into, and ``Adapter``, the protocol of a library's adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from cute_gemm.dtypes import DTYPES, DType, canonical
from cute_gemm.errors import DTypeError, StrideError

Order = Literal["F", "C"]

#: Alignment of the driver's allocations in bytes, more than any kernel needs.
ALIGNMENT = 256

#: `Operand.device` of PyTorch's meta tensors, which have no memory: shapes, strides and types.
META = -1

#: The layouts of A, B, C and other arrays with the alignments of addresses, and the addresses.
Fingerprint = tuple[tuple[Any, ...], tuple[int, ...]]


# Not frozen, though it never changes: setting eight fields of a frozen class takes as long as
# reading the array, three times per call.
@dataclass(slots=True, eq=False)
class Operand:
    """One array as it was given.

    ``pointer`` is the address of the first element, ``shape`` and ``strides`` (in elements) are as
    stored, ``dtype`` is a NumPy (or ``ml_dtypes``) name, ``device`` the CUDA ordinal, None for host
    memory, or `META`. ``library`` is where the array comes from, and where a result goes:
    ``"numpy"``, ``"cupy"``, ``"torch"``, ``"jax"`` or ``"dlpack"`` (any other library with device
    arrays); host arrays of any library but PyTorch and JAX count as NumPy's. ``owner`` is the array
    itself, which keeps the memory alive; ``readonly`` forbids writing to it.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int | None
    library: str
    owner: Any = field(repr=False)
    readonly: bool

    @property
    def place(self) -> str:
        """The location as text: ``"the host (numpy)"``, ``"CUDA device 0 (torch)"``."""
        return f"{place_of(self.device)} ({self.library})"


def place_of(device: int | None) -> str:
    """Return an `Operand.device` as text."""
    if device is None:
        return "the host"
    return "the meta device" if device == META else f"CUDA device {device}"


class Adapter:
    """Reads, makes and synchronizes arrays of one library."""

    #: ``Operand.library``.
    name: str
    #: Whether a result must be complete before the library may see it.
    synchronizes = False

    def read(self, array: Any, name: str) -> Operand:
        """Return the descriptor of an array; ``name`` is its name in errors."""
        raise NotImplementedError

    def is_array(self, value: Any) -> bool:
        """Return whether a value of one of this library's classes is an array, readable or not."""
        return True

    def fingerprint(self, A: Any, B: Any, C: Any) -> Fingerprint | None:
        """Return everything that ``read`` uses; see `cute_gemm.arrays.fingerprint`."""
        return None

    def fingerprint_of(self, array: Any) -> Fingerprint | None:
        """Return the fingerprint of one array."""
        return None

    def stream(self, operand: Operand) -> Callable[[], int]:
        """Return a function of the raw ``CUstream`` that the library currently uses.

        It returns 0, the legacy default stream, for libraries that do not report one.
        """
        return int

    def new_order(self, order: Order) -> Order:
        """Return the order of a new array when ``order`` is requested."""
        return order

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        """Return an uninitialised array on the device of ``like``.

        In a batch (L, M, N) each matrix is contiguous and has the order, subject to ``new_order``.
        """
        raise NotImplementedError

    def maker(
        self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str
    ) -> Callable[[], tuple[Any, int]]:
        """Return a function that makes such an array, and returns it with its address."""

        def make() -> tuple[Any, int]:
            operand = self.read(self.new(like, shape, order, dtype), "C")
            return self.result(like, operand.owner), operand.pointer

        return make

    def result(self, like: Operand, array: Any) -> Any:
        """Return the caller's array for a computed matrix that ``new`` made."""
        return array

    def to_numpy(self, operand: Operand) -> np.ndarray:
        """Return a host operand as a NumPy array on the same memory."""
        return operand.owner

    def converted(self, array: Any, dtype: str, stream: int | None) -> Any:
        """Return a device array converted to another type, on a stream or the current one.

        None for a library without a known conversion.
        """
        return None

    def cast(self, name: str, dtype: str) -> str:
        """Return the expression that converts ``name`` to another type, for error messages."""
        return f"{name}.astype('{dtype}')"

    def copy(self, name: str, batched: bool) -> str:
        """Return the expression that gives ``name`` a unit stride, for error messages."""
        return "a contiguous copy"


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """Return the name of a data type in any spelling, such as ``np.float16`` or ``"f16"``."""
    if isinstance(dtype, str):
        return canonical(dtype)
    if isinstance(dtype, np.dtype):
        # In the other byte order the name is the same and the numbers are not: '>f4' says so.
        return dtype.name if dtype.isnative else dtype.str
    if isinstance(dtype, type):
        return dtype.__name__
    name = str(dtype).rpartition(".")[2]  # torch.float16
    return name if name.isidentifier() else dtype_row(repr(dtype)).name


def dtype_row(name: str) -> DType:
    """Return the row of ``name``; raise ``DTypeError`` with the known names otherwise."""
    try:
        return DTYPES[canonical(name)]
    except KeyError:
        known = ", ".join(row.name for row in DTYPES.values() if row.outputs)
        raise DTypeError(f"dtype {name!r} is not supported; expected one of {known}") from None


@lru_cache(maxsize=256)
def in_elements(strides: tuple[int, ...], itemsize: int, name: str) -> tuple[int, ...]:
    """Return strides in bytes as strides in elements."""
    if any(stride % itemsize for stride in strides):
        raise StrideError(
            f"{name} has strides {strides} in bytes, which are not multiples of its "
            f"{itemsize}-byte elements: {name}.copy() has such strides"
        )
    return tuple(stride // itemsize for stride in strides)


def whole_matrices(empty: Any, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
    """Return a new array whose last two dimensions have the order, one matrix after the other."""
    kind = DTYPES[dtype].numpy
    if len(shape) == 3 and order == "F":
        batch, rows, columns = shape
        return empty((batch, columns, rows), kind).swapaxes(1, 2)
    return empty(shape, kind, order)
