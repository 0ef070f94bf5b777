"""NumPy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.arrays.base import (
    Adapter,
    Operand,
    Order,
    dtype_name,
    in_elements,
    whole_matrices,
)  # fmt: skip
from cute_gemm.errors import ArrayError


class _NumPy(Adapter):
    name = "numpy"

    def read(self, array: np.ndarray, name: str) -> Operand:
        if hasattr(array, "mask"):
            raise ArrayError(f"{name} is a masked array; pass {name}.filled(0), or its .data")
        address, readonly = array.__array_interface__["data"][0], not array.flags.writeable
        strides = in_elements(array.strides, max(array.itemsize, 1), name)
        return Operand(
            address, array.shape, strides, dtype_name(array.dtype), None, "numpy", array, readonly
        )

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        return whole_matrices(np.empty, shape, order, dtype)

    def copy(self, name: str, batched: bool) -> str:
        return f"np.ascontiguousarray({name})" if batched else f"np.asfortranarray({name})"


NUMPY = _NumPy()
