"""JAX's arrays, by DLPack: nobody writes to them, and a trace has none; JAX is not imported here.

JAX runs on streams of its own, which neither it nor DLPack tells and which do not wait for the
legacy default stream: both sides wait for the other's result.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from cute_gemm.errors import ArrayError
from cute_gemm.frameworks.base import Operand, Order
from cute_gemm.frameworks.dlpack import DLPack
from cute_gemm.problem.dtypes import dtype as dtype_row


class JAX(DLPack):
    """``jax.Array``, and what stands for one in a function that JAX transforms."""

    name = "jax"

    def is_array(self, value: Any) -> bool:
        """See :meth:`Adapter.is_array`."""
        return super().is_array(value) or _traced(value)

    def read(self, array: Any, name: str) -> Operand:
        """See :meth:`Adapter.read`."""
        if _traced(array):
            raise ArrayError(
                f"{name} is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call gemm "
                "outside, or by jax.pure_callback, which has no gradient"
            )
        # They are immutable, though the DLPack export does not say so.
        return replace(super().read(array, name), library="jax", owner=array, readonly=True)

    def host_view(self, array: Any) -> np.ndarray:
        """See :meth:`DLPack.host_view`: NumPy's own has no bfloat16, and JAX has ml_dtypes'."""
        return np.asarray(array)

    def new_order(self, order: Order) -> Order:
        """See :meth:`Adapter.new_order`: no array is column-major."""
        return "C"

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        """See :meth:`Adapter.new`; on the host NumPy's, of which ``result`` makes one."""
        if like.device is None:
            return np.empty(shape, dtype_row(dtype).numpy)
        # JAX fills the array asynchronously, on a stream that ours does not follow.
        empty = sys.modules["jax"].numpy.empty
        return empty(shape, dtype, device=like.owner.device).block_until_ready()

    def result(self, like: Operand, made: Any) -> Any:
        """See :meth:`Adapter.result`."""
        return made if like.device is not None else sys.modules["jax"].numpy.asarray(made)

    def to_numpy(self, operand: Operand) -> np.ndarray:
        """See :meth:`Adapter.to_numpy`."""
        return np.asarray(operand.owner)


def _traced(value: Any) -> bool:
    """Whether a value stands for an array in a function that JAX transforms."""
    bases = ((base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__)
    return ("jax", "Tracer") in bases
