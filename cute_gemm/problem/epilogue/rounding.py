"""Rounding of numbers to another type without changing theirs, by NumPy, PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cute_gemm.dtypes import DTYPES
from cute_gemm.problem.values import saturated

#: Types of `round_to`, and the C++ types that round.
TYPES = {
    "bfloat16": "round_to<cutlass::bfloat16_t>",
    "float16": "round_to<cutlass::half_t>",
    "tf32": "round_to_tf32",
    "float8_e4m3fn": "round_to<cutlass::float_e4m3_t>",
    "float8_e5m2": "round_to<cutlass::float_e5m2_t>",
    "float32": "round_to<float>",
}
#: Bits of a float32 that tf32 lacks.
_LOST = 13


def _rounded(library: Any, dtype: str, single: Any, convert: Callable[[Any], Any]) -> Any:
    """Return float32 numbers rounded to a type; they have this type, or float32 for tf32.

    ``library``: NumPy, PyTorch or ``jax.numpy``; ``convert`` converts an array to the type.
    """
    if dtype != "tf32":
        return convert(saturated(single, dtype, library))
    bits = single.view(library.int32)
    # Half a unit, or one less if the last bit is 0, rounds to nearest, ties to even.
    even = bits + ((1 << _LOST - 1) - 1) + (bits >> _LOST & 1) >> _LOST << _LOST
    return library.where(library.isfinite(single), even.view(library.float32), single)


def by_numpy(dtype: str) -> Callable[[Any], np.ndarray]:
    """Return a function of arrays; float64 is rounded to float32 first, as on a GPU."""

    def rounded(x: Any) -> np.ndarray:
        x = np.asarray(x)
        single = _rounded(np, dtype, x.astype(np.float32), lambda y: y.astype(DTYPES[dtype].numpy))
        return np.asarray(single.astype(x.dtype))

    return rounded


def by_torch(dtype: str) -> Callable[[Any, Any], Any]:
    """Return a function of PyTorch and a tensor, whose derivative is 1."""

    def rounded(torch: Any, x: Any) -> Any:
        value = x.detach()
        single = value.to(torch.float32)
        single = _rounded(torch, dtype, single, lambda y: y.to(getattr(torch, dtype)))
        # The difference is 0; adding it would turn -0 into 0.
        return single.to(x.dtype) - torch.where(value.isfinite(), value - x, 0.0)

    return rounded


def by_jax(dtype: str) -> Callable[[Any, Any], Any]:
    """Return a function of JAX and an array, whose derivative is 1."""

    def rounded(jax: Any, x: Any) -> Any:
        np_, value = jax.numpy, jax.lax.stop_gradient(x)
        # XLA may otherwise remove the two conversions.
        barrier = jax.lax.optimization_barrier
        single = value.astype(np_.float32)
        single = _rounded(np_, dtype, single, lambda y: barrier(y.astype(dtype)))
        return single.astype(x.dtype) - np_.where(np_.isfinite(value), value - x, 0.0)

    return rounded
