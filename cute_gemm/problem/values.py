"""Saturation of numbers, and random numbers to multiply."""

from __future__ import annotations

import numpy as np

from cute_gemm.dtypes import DTYPES


def random_values(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return normally distributed elements of a type; for int8 and int32 integers of 8 bits."""
    if name in ("int8", "int32"):
        return rng.integers(-128, 128, shape, np.int8).astype(name, copy=False)
    row = DTYPES[name]
    if row.is_complex:
        part = np.float32 if name == "complex64" else np.float64
        return rng.standard_normal((*shape, 2), part).view(name)[..., 0]
    kind = np.float64 if name == "float64" else np.float32
    return rng.standard_normal(shape, kind).astype(row.numpy, copy=False)


def saturated(array: np.ndarray, name: str) -> np.ndarray:
    """Return numbers clipped to a type that saturates, not yet rounded; NaN stays NaN.

    Integer types also round, and turn NaN into 0; other types return the numbers unchanged.
    """
    row = DTYPES[name]
    if row.saturates:
        return np.clip(array, -row.saturates, row.saturates)
    if row.roundoff:
        return array
    about = np.iinfo(row.numpy)
    return np.clip(np.rint(np.where(np.isnan(array), 0, array)), about.min, about.max)
