"""Test rounding of the interpreter against exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from cute_gemm.ptx import floats


def _nearest(exact: Fraction, kind: type[np.floating]) -> float:
    """Return the number of a type nearest to a fraction, ties to even, from its two neighbors."""
    if exact == 0:
        return 0.0
    with np.errstate(all="ignore"):
        guess = kind(float(exact))
        candidates = {guess, np.nextafter(guess, kind(np.inf)), np.nextafter(guess, kind(-np.inf))}
    finite = [x for x in candidates if math.isfinite(x)]
    ways = [(abs(Fraction(float(x)) - exact), x) for x in finite]
    least = min(way for way, _ in ways)
    nearest = [x for way, x in ways if way == least]
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(kind).itemsize]
    return float(next(x for x in nearest if len(nearest) == 1 or not int(x.view(bits)) & 1))


def _random(kind: type[np.floating], count: int, spread: int) -> list[np.ndarray]:
    generator = np.random.default_rng(count + spread)
    bits = {np.float32: 12, np.float64: 27}[kind]
    found = []
    for _ in range(3):
        # Numbers with few digits have ties, and results that cancel.
        digits = generator.integers(-(2**bits), 2**bits, count)
        digits[::3] = digits[::3] * 2**bits + generator.integers(0, 2**bits, len(digits[::3]))
        scale = generator.integers(-spread, spread + 1, count)
        found.append(np.ldexp(digits.astype(kind), scale).astype(kind))
    return found


@pytest.mark.parametrize("spread", [2, 30, 75])
def test_fma_f32_to_the_last_bit(spread):
    a, b, c = _random(np.float32, 1500, spread)
    a, b = np.ldexp(a, -spread - 24), np.ldexp(b, -spread)
    c[::2] = -(a[::2] * b[::2])
    c[1::4] = np.float32(2) ** (24 + spread // 3)
    got = floats.fma_f32(a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert float(result) == _nearest(exact, np.float32), (x, y, z)


@pytest.mark.parametrize("spread", [2, 30, 75])
def test_fma_f32_towards_minus_infinity(spread):
    a, b, c = _random(np.float32, 1500, spread)
    a, b = np.ldexp(a, -spread - 24), np.ldexp(b, -spread)
    c[::2] = -(a[::2] * b[::2])
    c[1::4] = np.float32(2) ** (24 + spread // 3)
    got = floats.fma_f32_down(a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        above = np.nextafter(result, np.float32(np.inf))
        assert Fraction(float(result)) <= exact < Fraction(float(above)), (x, y, z)


def test_fma_f32_of_a_tie_that_is_none():
    # (2**12 + 1) * (2**24 - 2**12 + 1) = 2**36 + 1: the sum with 1 is just above the tie between 1
    # and 1 + 2**-23, to which float64 rounds it.
    a = np.ldexp(np.float32([2**12 + 1]), -36)
    b = np.ldexp(np.float32([2**24 - 2**12 + 1]), -24)
    one = np.float32([1])
    assert floats.fma_f32(a, b, one)[0] == np.float32(1 + 2**-23)
    assert floats.fma_f32(-a, b, one + np.float32(2**-22)) == np.float32(1 + 2**-23)
    assert floats.fma_f32(a, np.float32([1]) * 0, one)[0] == 1
    # The same between two subnormal numbers.
    small = np.ldexp(np.float32([2**12 + 1]), -87), np.ldexp(np.float32([2**24 - 2**12 + 1]), -99)
    tiny = np.ldexp(one, -149)
    assert floats.fma_f32(*small, 0 * one)[0] == tiny[0]


@pytest.mark.parametrize("spread", [3, 60, 400])
def test_fma_f64_to_the_last_bit(spread):
    a, b, c = _random(np.float64, 600, spread)
    c[::2] = -(a[::2] * b[::2])
    c[::4] = np.nextafter(c[::4], 0)
    with np.errstate(all="ignore"):
        got = floats.fma_f64(a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert float(result) == _nearest(exact, np.float64), (x, y, z)


def test_fma_of_what_is_not_finite_and_of_zeros():
    inf, nan = math.inf, math.nan
    cases = [(inf, 1, 1, inf), (1, 1, -inf, -inf), (inf, 0, 1, nan), (inf, 1, -inf, nan)]
    cases += [(nan, 1, 1, nan), (-0.0, 1, -0.0, -0.0), (-0.0, 1, 0.0, 0.0), (3, -2, 6, 0.0)]
    for function, kind in ((floats.fma_f32, np.float32), (floats.fma_f64, np.float64)):
        for a, b, c, expected in cases:
            with np.errstate(all="ignore"):
                got = function(*(np.array([x], kind) for x in (a, b, c)))[0]
            assert repr(float(got)) == repr(float(expected)), (function, a, b, c)


def test_fma_f64_beyond_the_range_of_its_parts():
    for a, b, c in ((1e300, 1e300, -1e308), (2.0**1010, 2.0**-100, 1.0), (1e-200, 1e-200, 5e-324),
                    (1e-160, 1e-160, 0.0), (2.0**1023, 2.0, -(2.0**1023))):  # fmt: skip
        with np.errstate(all="ignore"):
            got = float(floats.fma_f64(*(np.array([x]) for x in (a, b, c)))[0])
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        try:
            assert got == float(exact)
        except OverflowError:
            assert got == (math.inf if exact > 0 else -math.inf)


def test_sixteen_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.frombuffer(np.random.default_rng(0).bytes(4 * 20000), np.float32)
    x = np.concatenate([x, np.float32([1 + 2**-8, 1 + 3 * 2**-8, 65519, 65520, 2**-25, 3.3e38])])
    x = x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        assert (floats.to_bf16(x) == x.astype(ml_dtypes.bfloat16).view(np.uint16)).all()
        assert (floats.to_f16(x) == x.astype(np.float16).view(np.uint16)).all()
    assert floats.to_bf16(np.float32([np.nan]))[0] == 0x7FFF
    bits = np.arange(2**16, dtype=np.uint16)
    wide = floats.from_bf16(bits)
    with np.errstate(all="ignore"):
        same = wide.astype(ml_dtypes.bfloat16).view(np.uint16) == bits
    assert (same | np.isnan(wide)).all()


def test_tf32_has_10_bits():
    random = np.frombuffer(np.random.default_rng(1).bytes(4 * 20000), np.float32)
    ties = np.float32([1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, 0, -0.0, np.inf, -np.inf])
    x = np.concatenate([random[np.isfinite(random) & (abs(random) < 1e38)], ties])
    exponent = np.maximum(np.frexp(x.astype(np.float64))[1], -125)
    step = np.ldexp(1.0, exponent - 11)
    finite = np.isfinite(x)
    for even in (True, False):
        got = floats.to_tf32(x, even).view(np.float32)
        scaled = np.where(finite, x, 0) / step
        rounded = np.rint(scaled) if even else np.trunc(scaled + np.copysign(0.5, scaled))
        assert (got[finite] == (rounded * step)[finite]).all()
        assert (got[~finite] == x[~finite]).all()
    assert np.isnan(floats.to_tf32(np.float32([np.nan]), True).view(np.float32)).all()
