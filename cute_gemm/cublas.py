"""The cuBLAS that another package brought, as what results are timed against.

``cublasGemmEx`` is called in the library itself, which PyTorch, CuPy, nvmath and the CUDA toolkit
all bring: so the op, the leading dimensions and the order of C are the same as ours, and no array
library's wrapper is in the time. Nothing here is used to compute a result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cute_gemm.problem import GemmProblem

#: ``cudaDataType`` of library_types.h.
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "int8": 3, "int32": 10, "bfloat16": 14}
#: ``cublasComputeType_t`` of cublas_api.h, and the ctypes scalar that goes with it.
_COMPUTE: dict[str, tuple[int, Any]] = {
    "float32": (68, ctypes.c_float),
    "float64": (70, ctypes.c_double),
    "int32": (72, ctypes.c_int32),
    "tf32": (77, ctypes.c_float),
}
_DEFAULT_ALGORITHM = -1
_NOT_SUPPORTED = 15


class CublasError(Exception):
    """There is no cuBLAS, or it refuses; the message says which."""


class Cublas:
    """A cuBLAS handle on the device whose primary context is current, to be closed there too.

    Raises
    ------
    CublasError
        When no cuBLAS is installed or it does not start.
    """

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        self._library = _load()
        self._check(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "starting")

    @property
    def version(self) -> str:
        """Major and minor version, ``"13.1"``."""
        value = ctypes.c_int()
        parts = []
        for part in (0, 1):  # MAJOR_VERSION, MINOR_VERSION
            self._check(self._library.cublasGetProperty(part, ctypes.byref(value)), "its version")
            parts.append(str(value.value))
        return ".".join(parts)

    def bind(
        self, problem: GemmProblem, a: int, b: int, c: int, alpha: complex, beta: complex
    ) -> Callable[[], None]:
        """Return a function that starts this GEMM on the legacy default stream.

        Parameters
        ----------
        problem
            Descriptors, extents and types.
        a, b, c
            Device addresses of the first elements.
        alpha, beta
            Scalars.

        Raises
        ------
        CublasError
            By the function, when cuBLAS refuses the combination.
        """
        # cuBLAS writes column-major matrices: a row-major C is its transpose, B^T A^T.
        first, second = (problem.A, problem.B), (a, b)
        m, n = problem.m, problem.n
        if problem.C.unit == 1:
            first, second, m, n = first[::-1], second[::-1], n, m
        left, right = first
        compute, scalar = _COMPUTE[problem.compute]
        factors = scalar(alpha.real), scalar(beta.real)
        arguments = (
            self._handle,
            # CuTe's left operand is (rows, K) and its right one (columns, K): with the unit stride
            # in the first mode the left one is stored as it is used and the right one transposed.
            int(left.unit == 1),
            int(right.unit == 0),
            *(m, n, problem.k),
            ctypes.addressof(factors[0]),
            *(second[0], _TYPES[left.dtype], left.ld),
            *(second[1], _TYPES[right.dtype], right.ld),
            ctypes.addressof(factors[1]),
            *(c, _TYPES[problem.C.dtype], problem.C.ld),
            *(compute, _DEFAULT_ALGORITHM),
        )
        function = self._library.cublasGemmEx_64

        def call(keep_alive: tuple[Any, ...] = factors) -> None:
            code = function(*arguments)
            if code:
                self._check(code, f"{problem.op} of {problem.A.dtype}")

        return call

    def close(self) -> None:
        """Give the handle and its workspace back."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle.value:
            self._library.cublasDestroy_v2(handle)

    def __enter__(self) -> Cublas:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, code: int, doing: str) -> None:
        if code == _NOT_SUPPORTED:
            raise CublasError(f"cuBLAS does not support {doing} with these types or sizes")
        if code:
            text = self._library.cublasGetStatusString(code).decode()
            raise CublasError(f"cuBLAS failed at {doing}: {text}")


def _load() -> Any:
    """Return the library with the signatures of what is called."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (DynamicLibNotFoundError, OSError, RuntimeError):
        raise CublasError("no cuBLAS found (PyTorch, CuPy and nvmath bring one)") from None
    integer, long, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    matrix: list[Any] = [pointer, integer, long]  # address, type, leading dimension
    library.cublasCreate_v2.argtypes = [pointer]
    library.cublasDestroy_v2.argtypes = [pointer]
    library.cublasGetProperty.argtypes = [integer, pointer]
    library.cublasGetStatusString.argtypes = [integer]
    library.cublasGetStatusString.restype = ctypes.c_char_p
    library.cublasGemmEx_64.argtypes = [
        pointer, integer, integer, long, long, long, pointer, *matrix, *matrix, pointer, *matrix,
        integer, integer,
    ]  # fmt: skip
    return library
