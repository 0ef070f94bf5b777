"""Exact tests whether arrays share memory, and whether the matrices of a batch do."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cute_gemm.arrays.base import META
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import OverlapError

if TYPE_CHECKING:
    from cute_gemm.arrays.base import Operand


def overlap(a: Operand, b: Operand) -> bool:
    """Return whether any byte belongs to both; strides must not be negative."""
    if META in (a.device, b.device):
        return False
    if (
        a.pointer + _span(a.shape, a.strides, a.dtype) <= b.pointer
        or b.pointer + _span(b.shape, b.strides, b.dtype) <= a.pointer
    ):
        return False
    # Interleaved, such as blocks of one buffer. NumPy solves that exactly without reading memory.
    return np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)))


def refuse_overlap(
    c: Operand, operand: Operand, name: str, instead: str = "a C of its own"
) -> None:
    """Refuse a C that shares memory with an input; raise OverlapError."""
    if overlap(c, operand):
        raise OverlapError(
            f"C shares memory with {name}, which would be read after parts of it are written: "
            f"pass a copy of {name}" + f", or {instead}" * bool(instead)
        )


@lru_cache(maxsize=1024)
def _span(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> int:
    """Return the bytes from the first element to the end of the last."""
    steps = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return (steps + 1) * DTYPES[dtype].bytes


class _Addresses:
    """An operand that NumPy takes as an array, for memory anywhere."""

    def __init__(self, operand: Operand) -> None:
        itemsize = DTYPES[operand.dtype].bytes
        self.__array_interface__ = {
            "version": 3,
            "shape": operand.shape,
            "strides": tuple(stride * itemsize for stride in operand.strides),
            "typestr": f"|V{itemsize}",
            "data": (operand.pointer, True),
        }


def matrices_overlap(run: int, lines: int, ld: int, batch: int, step: int) -> bool:
    """Return whether matrices of a batch share elements; those of one matrix must not.

    Each has ``lines`` of ``run`` elements, ``ld >= run`` apart; matrices are ``step`` elements
    apart. Matrices i < j share elements if a whole number of lines is less than ``run``
    elements from ``(j - i) * step``. The least such ``j - i`` also takes the fewest lines, so
    only this one is tested.
    """
    if batch <= 1 or not run or not lines or step >= (lines - 1) * ld + run:
        return False
    # Counted from run - 1 before: less than run away is then at most 2 * run - 2 after a line.
    start, largest = step + run - 1, 2 * run - 2
    distance: int | None = 1
    if start % ld > largest:
        low = -start % ld
        more = _first_between(step % ld, ld, low, low + largest)
        distance = None if more is None else 1 + more
    return distance is not None and distance < batch and distance * step - run < (lines - 1) * ld


def _first_between(step: int, modulus: int, low: int, high: int) -> int | None:
    """Return the least x with ``low <= step * x % modulus <= high``, as Euclid's algorithm does.

    0 < low <= high < modulus and 0 <= step < modulus.
    """
    if step == 0:
        return None
    if 2 * step > modulus:
        step, low, high = modulus - step, modulus - high, modulus - low
    x = -(-low // step)
    if step * x <= high:
        return x
    # No multiple of step lies between: subtract multiples of the modulus first.
    turns = _first_between(-modulus % step, step, low % step, high % step)
    return None if turns is None else -(-(low + modulus * turns) // step)
