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


def by_numpy(dtype: str) -> Callable[[Any], np.ndarray]:
    """Return a function of arrays; float64 is rounded to float32 first, as on a GPU."""

    def rounded(x: Any) -> np.ndarray:
        x = np.asarray(x)
        single = x.astype(np.float32)
        if dtype == "tf32":
            bits = single.view(np.uint32)
            single = np.where(np.isfinite(single), _even(bits, np.uint32).view(np.float32), single)
        else:
            single = saturated(single, dtype).astype(DTYPES[dtype].numpy)
        return single.astype(x.dtype)

    return rounded


def _even(bits: Any, unit: Callable[[int], Any]) -> Any:
    """Return the bits of float32 numbers, in integers, rounded to those of tf32, ties to even."""
    odd = bits >> unit(_LOST) & unit(1)
    return bits + unit((1 << _LOST - 1) - 1) + odd >> unit(_LOST) << unit(_LOST)


def by_torch(dtype: str) -> Callable[[Any, Any], Any]:
    """Return a function of PyTorch and a tensor, whose derivative is 1."""

    def rounded(torch: Any, x: Any) -> Any:
        value = x.detach()
        single = value.to(torch.float32)
        if dtype == "tf32":
            even = _even(single.view(torch.int32), int).view(torch.float32)
            single = torch.where(single.isfinite(), even, single)
        else:
            most = DTYPES[dtype].saturates
            single = single.clamp(-most, most) if most else single
            single = single.to(getattr(torch, dtype))
        # The difference is 0; adding it would turn -0 into 0.
        return single.to(x.dtype) - torch.where(value.isfinite(), value - x, 0.0)

    return rounded


def by_jax(dtype: str) -> Callable[[Any, Any], Any]:
    """Return a function of JAX and an array, whose derivative is 1."""

    def rounded(jax: Any, x: Any) -> Any:
        np_, value = jax.numpy, jax.lax.stop_gradient(x)
        single = value.astype(np_.float32)
        if dtype == "tf32":
            even = _even(single.view(np_.int32), int).view(np_.float32)
            single = np_.where(np_.isfinite(single), even, single)
        else:
            most = DTYPES[dtype].saturates
            single = np_.clip(single, -most, most) if most else single
            # XLA may otherwise remove the two conversions.
            single = jax.lax.optimization_barrier(single.astype(dtype))
        return single.astype(x.dtype) - np_.where(np_.isfinite(value), value - x, 0.0)

    return rounded
