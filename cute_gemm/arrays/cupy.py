"""CuPy's arrays, read through their own attributes; CuPy is not imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cute_gemm.arrays.base import (
    ALIGNMENT,
    Adapter,
    Fingerprint,
    Operand,
    Order,
    dtype_name,
    in_elements,
    whole_matrices,
)  # fmt: skip


class _CuPy(Adapter):
    name = "cupy"

    def read(self, array: Any, name: str) -> Operand:
        memory = array.data
        return Operand(
            memory.ptr, array.shape, in_elements(array.strides, array.itemsize, name),
            dtype_name(array.dtype), memory.device_id, "cupy", array, False,
        )  # fmt: skip

    def fingerprint(self, A: Any, B: Any, C: Any) -> Fingerprint:
        of_a, of_b = A.data, B.data
        a, b = of_a.ptr, of_b.ptr
        layouts = (
            a % ALIGNMENT, A.shape, A.strides, A.dtype, of_a.device_id,
            b % ALIGNMENT, B.shape, B.strides, B.dtype, of_b.device_id,
        )  # fmt: skip
        if C is None:
            return layouts, (a, b, 0)
        of_c = C.data
        c = of_c.ptr
        return layouts + (c % ALIGNMENT, C.shape, C.strides, C.dtype, of_c.device_id), (a, b, c)

    def fingerprint_of(self, array: Any) -> Fingerprint:
        memory = array.data
        at = memory.ptr
        return (at % ALIGNMENT, array.shape, array.strides, array.dtype, memory.device_id), (at,)

    def stream(self, operand: Operand) -> Callable[[], int]:
        return lambda: sys.modules["cupy"].cuda.get_current_stream(operand.device).ptr

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device):
            return whole_matrices(cupy.empty, shape, order, dtype)

    def converted(self, array: Any, dtype: str, stream: int | None) -> Any:
        cuda = sys.modules["cupy"].cuda
        with cuda.Device(array.data.device_id):
            if stream is None:
                return array.astype(dtype)
            with cuda.ExternalStream(stream):
                return array.astype(dtype)

    def copy(self, name: str, batched: bool) -> str:
        return f"cupy.ascontiguousarray({name})" if batched else f"cupy.asfortranarray({name})"


CUPY = _CuPy()
