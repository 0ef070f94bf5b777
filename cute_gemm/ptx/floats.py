"""Floating point as PTX rounds it, if NumPy has no function for it.

The bits of a NaN are not reproduced: PTX makes all NaNs canonical (ISA, section 9.7.3), NumPy does
not always.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from cute_gemm.dtypes import DTYPES
from cute_gemm.ptx.memory import Array

_HALFWAY = np.uint64((1 << 28) - 1)
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_SPLIT = 134217729.0  # 2**27 + 1
_TINY = 2.0**-900


def _to_odd(total: Array, rest: Array) -> Array:
    """Round to odd: a float64 sum and its rest become one number, which is no later tie."""
    even = (total.view(np.uint64) & _ONE) == 0
    moved = np.nextafter(total, np.copysign(np.inf, rest))
    return np.where((rest != 0) & even, moved, total)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its error (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` rounded once to float32, to the last bit.

    The product is exact in float64, in which the sum is rounded. Rounding it again is wrong only at
    a tie of float32 or of its subnormal numbers, whose last 28 bits in float64 are 0.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    tie = (total.view(np.uint64) & _HALFWAY) == _ZERO
    if tie.any():
        _, rest = _two_sum(*np.broadcast_arrays(product, c.astype(np.float64)))
        if rest.any():
            # An infinity has no rest, although computing it gives NaN.
            rest = np.where(np.isfinite(total), rest, 0.0)
            total = np.where(tie, _to_odd(total, rest), total)
    return total.astype(np.float32)


def fma_f32_down(a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` rounded once to float32, towards minus infinity.

    The exact sum is below the sum in float64 if the rest is negative.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total, rest = _two_sum(*np.broadcast_arrays(product, c.astype(np.float64)))
    nearest = total.astype(np.float32)
    above = (nearest > total) | ((nearest == total) & (rest < 0))
    return np.where(above, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` rounded once to float64, to the last bit.

    S. Boldo and G. Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd (IEEE Transactions on Computers 57, 2008). If a product is tiny or an
    intermediate result overflows, exact fractions are used.
    """
    product = a * b
    scaled = a * _SPLIT
    high_a = scaled - (scaled - a)
    low_a = a - high_a
    scaled = b * _SPLIT
    high_b = scaled - (scaled - b)
    low_b = b - high_b
    rest = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    upper, lower = _two_sum(c, rest)
    upper, error = _two_sum(product, upper)
    total, error = _two_sum(lower, error)
    if error.any():
        total = _to_odd(total, error)
    result: Array = upper + total
    zero = result == 0
    if zero.any():  # its sign is that of the plain sum
        result = np.where(zero, product + c, result)
    wrong = ~np.isfinite(result) | (abs(product) < _TINY)
    if wrong.any():
        result = _exactly(wrong, a, b, c, product, result)
    return result


def _exactly(wrong: Array, a: Array, b: Array, c: Array, product: Array, result: Array) -> Array:
    """Recompute exactly the numbers of a result that ``wrong`` selects."""
    a, b, c, wrong, product, result = np.broadcast_arrays(a, b, c, wrong, product, result)
    plain = product + c
    # A product by zero needs no rounding, and infinities and NaN stay.
    plainly = (a == 0) | (b == 0) | ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    result = np.where(wrong & plainly, plain, result)
    for index in zip(*np.nonzero(wrong & ~plainly), strict=True):
        exact = Fraction(float(a[index])) * Fraction(float(b[index])) + Fraction(float(c[index]))
        try:
            result[index] = float(exact) if exact else 0.0
        except OverflowError:
            result[index] = math.inf if exact > 0 else -math.inf
    return result


def to_bf16(x: Array) -> Array:
    """Return the bits of the nearest bfloat16 of float32, ties to even; NaN is 0x7fff."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(np.isnan(x), np.uint16(0x7FFF), (rounded >> np.uint32(16)).astype(np.uint16))


def from_bf16(bits: Array) -> Array:
    """Return float32 from the bits of a bfloat16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_f16(x: Array) -> Array:
    """Return the bits of the nearest float16, ties to even; NaN is 0x7fff."""
    return np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float16).view(np.uint16))


def from_f16(bits: Array) -> Array:
    """Return float32 from the bits of a float16."""
    return bits.view(np.float16).astype(np.float32)


@lru_cache(maxsize=2)
def _of_f8(name: str) -> Array:
    """Return float32 for each of the 256 bit patterns of an 8-bit float."""
    return np.arange(256, dtype=np.uint8).view(DTYPES[name].numpy).astype(np.float32)


def from_f8(bits: Array, name: str) -> Array:
    """Return float32 from the bits of a float8_e4m3fn or float8_e5m2."""
    return np.asarray(_of_f8(name)[bits])


def to_f8(x: Array, name: str) -> Array:
    """Return the bits of the nearest 8-bit float, ties to even, clipped; NaN is 0x7f."""
    row = DTYPES[name]
    clipped = np.clip(x, -row.saturates, row.saturates).astype(row.numpy)
    return np.where(np.isnan(x), np.uint8(0x7F), clipped.view(np.uint8))


def to_tf32(x: Array, even: bool) -> Array:
    """Return the bits of the nearest tf32, ties to even or away from 0; NaN is 0x7fffffff."""
    bits = x.view(np.uint32)
    half = np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) if even else np.uint32(0x1000)
    rounded = bits + half & np.uint32(0xFFFFE000)
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF), rounded)
