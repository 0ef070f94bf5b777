"""Arrays for the cases of ``blas_contract``, in buffers with poison values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.dtypes import DTYPES

if TYPE_CHECKING:
    from blas_contract import Case

#: Value of each byte around C.
SENTINEL = 0x5A


def view(case: Case, shape: tuple[int, int], order: str, dtype: str) -> np.ndarray:
    """Return a matrix in a buffer of its own, filled with NaN or 99, which must not be read."""
    row = DTYPES[dtype]
    step = 16 // row.bytes if case.layout == "wide" else 1
    run, count = shape if order == "F" else shape[::-1]
    ld = max(1, -(-run // step)) * step
    if case.layout == "wide":
        ld = (ld // step | 1) * step + 2 * step * case.pad
    else:
        ld += case.pad
    offset = max(1, 16 // row.bytes) if case.layout == "wide" else 1
    size = offset + ld * max(count, 1) + offset + 3
    poison: Any = complex(np.nan, np.nan) if row.is_complex else np.nan if row.roundoff else 99
    buffer = np.full(size, poison, row.numpy)
    strides = [x * row.bytes for x in ((1, ld) if order == "F" else (ld, 1))]
    return np.ndarray(shape, buffer.dtype, buffer, offset * row.bytes, strides)


def stored(X: np.ndarray, letter: str) -> np.ndarray:
    """Return op(X) as stored for the letter."""
    return X if letter == "N" else X.T if letter == "T" else X.conj().T


def order_of_c(case: Case) -> str:
    return "C" if case.layout == "wide" else "F"


def arrays(case: Case, A: np.ndarray, B: np.ndarray, C: np.ndarray) -> list[np.ndarray]:
    """Return the stored A, B and C, with NaN in those that must not be read."""
    kind = case.kind
    found = []
    for given, letter, order, dtype, reads in (
        (A, case.op[0], "F", kind.a, not case.unread),
        (B, case.op[1], "F", kind.b, not case.unread),
        (C, "N", order_of_c(case), kind.out, case.beta != 0),
    ):
        held = stored(given, letter)
        place = view(case, held.shape, order, dtype)
        if reads and DTYPES[dtype].roundoff == 0:
            place[...] = held.astype(np.int64).astype(place.dtype)
        elif reads:
            place[...] = held.astype(place.dtype)
        found.append(place)
    C_bytes = whole(found[2])
    inside = np.zeros_like(C_bytes)
    same_place(found[2], inside)[...] = 255
    C_bytes[inside == 0] = SENTINEL
    return found


def whole(array: np.ndarray) -> np.ndarray:
    """Return the bytes of the buffer of an array."""
    buffer = array.base
    assert isinstance(buffer, np.ndarray)
    return buffer.view(np.uint8)


def same_place(array: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    """Return the bytes of another buffer at an array's position: (rows, columns, bytes)."""
    offset = array.ctypes.data - whole(array).ctypes.data
    shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
    return np.ndarray(shape, np.uint8, buffer, offset, strides)
