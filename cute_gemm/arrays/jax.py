"""JAX's arrays, by DLPack; JAX is not imported here.

JAX runs on its own streams, which neither it nor DLPack reports and which do not wait for the
legacy default stream, so a result is complete before JAX may see it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from cute_gemm.arrays.base import Operand, Order
from cute_gemm.arrays.dlpack import DLPack
from cute_gemm.arrays.numpy import NUMPY
from cute_gemm.errors import ArrayError


class _JAX(DLPack):
    name = "jax"

    def is_array(self, value: Any) -> bool:
        return super().is_array(value) or _is_tracer(value)

    def read(self, array: Any, name: str) -> Operand:
        if _is_tracer(array):
            raise ArrayError(
                f"{name} is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call "
                "cute_gemm.jax.gemm, which JAX traces and differentiates, or call this outside"
            )
        # They are immutable, though the DLPack export does not report it.
        return replace(super().read(array, name), library="jax", owner=array, readonly=True)

    def host_view(self, array: Any) -> np.ndarray:
        # NumPy's DLPack has no bfloat16; JAX converts it to that of ml_dtypes.
        return np.asarray(array)

    def new_order(self, order: Order) -> Order:
        return "C"  # JAX has no other orders

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        if like.device is None:  # `result` makes a JAX array of it, since JAX arrays are immutable
            return NUMPY.new(like, shape, "C", dtype)
        # JAX fills the array asynchronously, on a stream that our stream does not wait for.
        empty = sys.modules["jax"].numpy.empty
        return empty(shape, dtype, device=like.owner.device).block_until_ready()

    def result(self, like: Operand, array: Any) -> Any:
        return array if like.device is not None else sys.modules["jax"].numpy.asarray(array)

    def to_numpy(self, operand: Operand) -> np.ndarray:
        return np.asarray(operand.owner)


def _is_tracer(value: Any) -> bool:
    return any(base.__name__ == "Tracer" for base in type(value).__mro__)


JAX = _JAX()
