"""Arrays of any other library, by DLPack or ``__cuda_array_interface__``."""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm._cuda_core import cuda_core
from cute_gemm.arrays.base import Adapter, Operand, Order, dtype_name
from cute_gemm.arrays.numpy import NUMPY
from cute_gemm.errors import ArrayError

#: DLPack device types of memory that the CPU may read: kDLCPU and kDLCUDAHost.
_HOST = (1, 3)
#: CU_STREAM_LEGACY, the default stream; also the number that DLPack has for it.
_LEGACY_STREAM = 1


class DLPack(Adapter):
    """A library whose arrays can be read but not made."""

    name, synchronizes = "dlpack", True

    def host_view(self, array: Any) -> np.ndarray:
        """Return an array on the host as NumPy's, on the same memory."""
        return np.from_dlpack(array)

    def is_array(self, value: Any) -> bool:
        """Return whether an object has one of the two protocols."""
        return hasattr(value, "__dlpack_device__") or hasattr(value, "__cuda_array_interface__")

    def read(self, array: Any, name: str) -> Operand:
        """Return the operand, synchronized with the legacy default stream."""
        if not self.is_array(array):
            raise ArrayError(
                f"{name} is a {_type_name(array)}; expected an array of NumPy, CuPy, PyTorch or "
                f"JAX, or anything with DLPack or __cuda_array_interface__{_made_from(array, name)}"
            )
        dlpack = hasattr(array, "__dlpack_device__")
        view: Any
        try:
            if on_host := dlpack and array.__dlpack_device__()[0] in _HOST:
                view = self.host_view(array)
            else:
                cuda_core()
                from cuda.core.utils import StridedMemoryView

                view = StridedMemoryView.from_any_interface(
                    array if dlpack else _Interface(array), stream_ptr=_LEGACY_STREAM
                )
        except Exception as error:  # other libraries may raise any error
            raise ArrayError(
                f"{name}, a {_type_name(array)}, does not export its memory ({error}): a copy "
                f"in another library, such as np.asarray({name}), may"
            ) from error
        if on_host:
            return NUMPY.read(view, name)
        return Operand(
            view.ptr, view.shape, view.strides or (), dtype_name(view.dtype), view.device_id,
            "dlpack", array, view.readonly,
        )  # fmt: skip

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        """Refuse to make an array; ask for a C."""
        raise ArrayError(
            f"A is a {_type_name(like.owner)}, which cannot be made here: pass a C of "
            f"shape {shape} and dtype {dtype} for the result"
        )


class _Interface:
    """Gives a ``__cuda_array_interface__`` of version 2 as version 3, which only adds a stream."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "version": 3}


def _type_name(array: Any) -> str:
    kind = type(array)
    return f"{kind.__module__}.{kind.__qualname__}"


def _made_from(value: Any, name: str) -> str:
    """Return how to make an array of this value, for the end of a sentence; "" if unknown."""
    if hasattr(value, "toarray"):  # a sparse one of SciPy or CuPy
        return f": {name}.toarray() makes one"
    if isinstance(value, (list, tuple, memoryview)) or hasattr(value, "__array__"):
        return f": np.asarray({name}) makes one"
    return ""
