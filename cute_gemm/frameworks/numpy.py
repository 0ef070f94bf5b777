"""NumPy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.errors import ArrayError
from cute_gemm.frameworks.base import (
    Adapter,
    Operand,
    Order,
    dtype_name,
    in_elements,
    whole_matrices,
)
from cute_gemm.problem.dtypes import dtype as dtype_row


class NumPy(Adapter):
    """``numpy.ndarray`` and its subclasses, on the host."""

    name = "numpy"

    def read(self, array: np.ndarray, name: str) -> Operand:
        """See :meth:`Adapter.read`."""
        if hasattr(array, "mask"):
            raise ArrayError(f"{name} is a masked array; pass {name}.filled(0), or its .data")
        return Operand(
            array.__array_interface__["data"][0],
            array.shape,
            in_elements(array.strides, max(array.itemsize, 1), name),
            dtype_name(array.dtype),
            None,
            "numpy",
            array,
            not array.flags.writeable,
        )

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        """See :meth:`Adapter.new`."""
        return whole_matrices(np.empty, shape, order, dtype_row(dtype).numpy)

    def copy(self, name: str, batched: bool) -> str:
        """See :meth:`Adapter.copy`."""
        return f"np.ascontiguousarray({name})" if batched else f"np.asfortranarray({name})"
