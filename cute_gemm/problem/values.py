"""Saturation of numbers, and random numbers to multiply."""

from __future__ import annotations

from typing import Any

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


def saturated(array: Any, name: str, library: Any = np) -> Any:
    """Return numbers clipped to a type that saturates, not yet rounded; NaN stays NaN.

    Integer types also round, and turn NaN into 0; other types return the numbers unchanged.
    ``library``: NumPy, PyTorch or ``jax.numpy``.
    """
    row = DTYPES[name]
    if row.saturates:
        return library.clip(array, -row.saturates, row.saturates)
    if row.roundoff:
        return array
    about = np.iinfo(row.numpy)
    whole = library.round(library.where(library.isnan(array), 0, array))
    return library.clip(whole, about.min, about.max)
