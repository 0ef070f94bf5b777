"""alpha and beta: numbers of the accumulator's type, or addresses that the kernel reads."""

from __future__ import annotations

import ctypes
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.arrays import ADAPTERS, host_array, is_array, read
from cute_gemm.arrays.base import Operand, place_of
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import ArrayError, DeviceError, DTypeError, ScalarError, ShapeError

#: Converts a 0-d device array to another type, in stream order; returns None if it cannot.
Convert = Callable[[Operand, str], Any]


class Scalar(NamedTuple):
    """alpha or beta.

    ``value`` is the number, rounded to the accumulator's type, and 1 if only the device knows it;
    ``pointer`` the address of the 0-d device array that the kernel reads, or 0; ``owner`` an object
    that keeps the array alive.
    """

    value: complex
    pointer: int = 0
    owner: Any = None


ONE, ZERO = Scalar(1), Scalar(0)


def scalar(
    x: Any, name: str, dtype: str, device: int | None, convert: Convert | None = None
) -> Scalar:
    """Check alpha or beta (``name``), and round it to the type that the kernel multiplies in.

    ``x`` is any number, a 0-d array on the host, or one on the operands' ``device``, which only
    the kernel reads; a `Scalar` is returned unchanged. ``dtype`` is the type of A and B, or of
    the accumulator. Raises ScalarError for a value of another kind: complex for real
    types, fractional or too large for integers. A device array of another type is a DTypeError,
    unless ``convert`` converts it; one on another device is a DeviceError.
    """
    if isinstance(x, Scalar):
        return x
    accumulator = DTYPES[dtype].accumulator
    if isinstance(x, np.generic):
        x = x.item()
    elif not isinstance(x, numbers.Number):
        try:
            operand = read(x, name, (0,))
        except (ArrayError, ShapeError) as error:
            if is_array(x):
                raise ScalarError(str(error)) from None
            raise ScalarError(f"{name} is {x!r}; expected a number or a 0-d array") from None
        if operand.device is not None:
            return _device_scalar(operand, name, accumulator, device, convert)
        x = host_array(operand).item()
    return Scalar(_rounded(x, name, accumulator))


def check_beta(beta: Scalar, C: object | None, pairs: str = "") -> None:
    """Refuse a beta that is not known to be 0 without a C to scale.

    ``pairs``: columns of the product that make one of C (`Epilogue.pairs`); beta must be 0 then.
    """
    if not (beta.pointer or beta.value != 0):
        return
    value = "on the device" if beta.pointer else f"= {beta.value}"
    if pairs:
        raise ScalarError(
            f"beta {value} scales C, and the epilogue makes C of {pairs} of the product's columns; "
            "expected beta = 0, and C as an operand of the epilogue"
        )
    if C is None:
        raise ScalarError(f"beta {value} scales C, and no C is given: pass C, or beta = 0")


def _device_scalar(
    operand: Operand, name: str, accumulator: str, device: int | None, convert: Convert | None
) -> Scalar:
    if operand.device != device:
        raise DeviceError(
            f"{name} is on {operand.place} and A is on {place_of(device)}; expected one for both, "
            f"or a number: {name}.item()"
        )
    if operand.dtype == accumulator:
        return Scalar(1, operand.pointer)
    converted = None
    if convert is not None and _holds(accumulator, operand.dtype):
        converted = convert(operand, accumulator)
    if converted is None:
        raise DTypeError(
            f"{name} is a device array of dtype {operand.dtype}; expected {accumulator}, the type "
            f"of the accumulators: {ADAPTERS[operand.library].cast(name, accumulator)}"
        )
    return Scalar(1, read(converted, name, (0,)).pointer, converted)


def _holds(accumulator: str, dtype: str) -> bool:
    """Return whether numbers of a type may be rounded to the accumulator's; never to integers."""
    given = "float16" if dtype == "bfloat16" else dtype
    try:
        return np.can_cast(given, accumulator, "safe" if accumulator == "int32" else "same_kind")
    except TypeError:  # a type that NumPy does not know
        return False


def _rounded(x: Any, name: str, accumulator: str) -> complex:
    try:
        if accumulator == "int32":
            value = int(x)
            if value == x and -(2**31) <= value < 2**31:
                return value
        else:
            number = complex(x) if DTYPES[accumulator].is_complex else float(x)
            if accumulator in ("float64", "complex128"):
                return number
            parts = [ctypes.c_float(part).value for part in (number.real, number.imag)]
            return complex(*parts) if accumulator == "complex64" else parts[0]
    except (TypeError, ValueError, OverflowError):  # complex, NaN to int, inf to int
        pass
    real = "a number" if DTYPES[accumulator].is_complex else "a real number"
    expected = "an integer of 32 bits" if accumulator == "int32" else real
    raise ScalarError(f"{name} is {x!r}; expected {expected}: accumulators are {accumulator}")
