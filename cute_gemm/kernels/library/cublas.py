"""The cuBLAS that another package installed, a baseline for timings.

The library, which PyTorch, CuPy, nvmath and the CUDA toolkit install, is called directly:
``cublasGemmEx``, or ``cublasGemmStridedBatchedEx`` for batches. So the op, the strides and the
order of C equal ours, and the time includes no wrapper of an array library. cuBLAS computes results
only for ``kernel="cublas"``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.dtypes import DTYPES, FLOAT8
from cute_gemm.errors import UnsupportedError
from cute_gemm.problem.scalars import ZERO, Scalar
from cute_gemm.run.driver import synchronize
from cute_gemm.run.memory import upload
from cute_gemm.toolchain.signature import pack_scalar

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: ``cublasOperation_t``: the matrix as it is stored, its transpose, its conjugate transpose.
_N, _T, _C = 0, 1, 2
#: ``cublasPointerMode_t``: alpha and beta are in host memory, or both in device memory.
_HOST, _DEVICE = 0, 1
_DEFAULT_ALGORITHM = -1
_NOT_SUPPORTED = 15
#: Bytes of the largest scalar.
_SCALAR = 16


class CublasError(UnsupportedError):
    """cuBLAS is missing or reports an error; the message says which."""


#: The arguments after the handle, from the addresses of A, B, C, alpha and beta.
Arguments = Callable[[int, int, int, int, int], tuple[int, ...]]


def call(problem: GemmProblem) -> tuple[str, Arguments]:
    """Return the function of the library that computes ``problem``, and its arguments.

    Raise CublasError if cuBLAS cannot express the problem: a conjugate without a transpose, a
    leading dimension below the extent, 8-bit floats, or groups.
    """
    if problem.groups:
        raise CublasError("cuBLAS has no grouped GEMM whose sizes are on the device")
    if problem.A.dtype in FLOAT8:
        raise CublasError(
            f"cublasGemmEx takes no {problem.dtype}, which is for cublasLtMatmul: time "
            "torch._scaled_mm instead, as a function of --against"
        )
    C = problem.C
    try:
        return _call(problem, C.unit == 1, C.ld)
    except CublasError:
        if C.shape[1 - C.unit] > 1:
            raise
        return _call(problem, C.unit == 0, 1)  # a vector has either order


def _call(problem: GemmProblem, swap_ab: bool, ldc: int) -> tuple[str, Arguments]:
    """Return the cuBLAS call, whose matrices are column-major.

    With ``swap_ab`` C is row-major, and cuBLAS computes its transpose, op(B)^T op(A)^T.
    """
    left, right = (problem.B, problem.A) if swap_ab else (problem.A, problem.B)
    # CuTe's left operand is (rows, K) and its right one (columns, K): if the first mode has unit
    # stride, the left one is stored as used and the right one transposed.
    left_op, left_ld = _operand(left, left.unit == 1)
    right_op, right_ld = _operand(right, right.unit == 0)
    rows, columns = (problem.n, problem.m) if swap_ab else (problem.m, problem.n)
    one = problem.l == 1
    # cudaDataType, leading dimension and, for a batch, elements to the next matrix.
    of_left, of_right, of_c = (
        (matrix.element.cublas, ld, matrix.batch_stride)[: 2 if one else 3]
        for matrix, ld in ((left, left_ld), (right, right_ld), (problem.C, ldc))
    )
    head = left_op, right_op, rows, columns, problem.k
    tail = *(() if one else (problem.l,)), DTYPES[problem.compute].cublas_compute

    def arguments(a: int, b: int, c: int, alpha: int, beta: int) -> tuple[int, ...]:
        first, second = (b, a) if swap_ab else (a, b)
        factors = first, *of_left, second, *of_right
        return *head, alpha, *factors, beta, c, *of_c, *tail, _DEFAULT_ALGORITHM

    return "cublasGemmEx_64" if one else "cublasGemmStridedBatchedEx_64", arguments


def _operand(matrix: Matrix, transposed: bool) -> tuple[int, int]:
    """Return the operation and the leading dimension of an operand."""
    if matrix.conj and not transposed:
        if matrix.shape[1 - matrix.unit] <= 1:
            return _C, 1  # a vector has the memory layout of its transpose
        raise CublasError(
            f"cuBLAS conjugates only with a transpose, and {matrix.name}, stored as {matrix}, "
            f"needs no transpose: pass a conjugated copy, or store {matrix.name} and C in "
            "the same order"
        )
    if matrix.ld < matrix.shape[matrix.unit]:
        raise CublasError(
            f"cuBLAS takes no leading dimension below the extent, and {matrix.name} is {matrix}: "
            f"pass a copy of {matrix.name}"
        )
    return (_C if matrix.conj else _T) if transposed else _N, matrix.ld


class Cublas:
    """A cuBLAS handle on the device whose primary context is current.

    Raise CublasError if no cuBLAS is installed or it does not start.
    """

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        self._library = _load()
        self._check(self._library.cublasCreate_v2(ctypes.byref(self._handle)), "starting")
        self._lock = threading.Lock()
        #: Stream and pointer mode, as cublasCreate leaves them.
        self._state = (0, _HOST)

    @property
    def version(self) -> str:
        """Major and minor version, as in ``"13.1"``."""
        value = ctypes.c_int()
        parts = []
        for part in (0, 1):  # MAJOR_VERSION, MINOR_VERSION
            self._check(self._library.cublasGetProperty(part, ctypes.byref(value)), "its version")
            parts.append(str(value.value))
        return ".".join(parts)

    def launcher(
        self, problem: GemmProblem, alpha: Scalar, beta: Scalar, device: int = 0
    ) -> Callable[..., None]:
        """Return a function of the matrices' addresses and a stream, for any thread.

        The primary context of ``device`` must be current in calls. If one scalar is on the device,
        the other is copied there, because cuBLAS requires both in the same memory. Raise
        CublasError if cuBLAS has no such GEMM; the function raises it for types or sizes.
        """
        if alpha == ZERO:
            problem = replace(problem, k=0)  # or some of its kernels let NaN of A and B through
        name, arguments = call(problem)
        function = getattr(self._library, name)
        block, alpha_at, beta_at = _scalars(problem, alpha.value, beta.value)
        mode, copy = _HOST, None
        if alpha.pointer or beta.pointer:
            mode = _DEVICE
            if not (alpha.pointer and beta.pointer):
                copy = upload(np.frombuffer(block, np.uint8)[None], device)
                synchronize(device)  # streams that do not wait for the default one read it too
                alpha_at, beta_at = copy.pointer, copy.pointer + _SCALAR
            alpha_at, beta_at = alpha.pointer or alpha_at, beta.pointer or beta_at

        def launch(
            a: int, b: int, c: int, stream: int = 0, keep_alive: Any = (block, copy)
        ) -> None:
            with self._lock:
                self._set(stream, mode)
                code = function(self._handle, *arguments(a, b, c, alpha_at, beta_at))
            if code:
                self._check(code, f"{problem.op} of {problem.dtype}")

        return launch

    def _set(self, stream: int, mode: int) -> None:
        if self._state != (stream, mode):
            library, handle = self._library, self._handle
            self._check(library.cublasSetStream_v2(handle, stream), "taking a stream")
            self._check(library.cublasSetPointerMode_v2(handle, mode), "taking a pointer mode")
            self._state = (stream, mode)

    def _check(self, code: int, doing: str) -> None:
        if code == _NOT_SUPPORTED:
            raise CublasError(f"cuBLAS does not support {doing} with these types or sizes")
        if code:
            text = self._library.cublasGetStatusString(code).decode()
            raise CublasError(f"cuBLAS failed at {doing}: {text}")


def _scalars(problem: GemmProblem, alpha: complex, beta: complex) -> tuple[Any, int, int]:
    """Return alpha and beta in host memory, in their type, and their addresses."""
    block = ctypes.create_string_buffer(2 * _SCALAR)
    kind = problem.accumulator.name
    # Without products alpha, which may be infinite, must not affect the result.
    pack_scalar(kind, block, 0, alpha if problem.k else 0, "alpha")
    pack_scalar(kind, block, _SCALAR, beta, "beta")
    return block, ctypes.addressof(block), ctypes.addressof(block) + _SCALAR


def _load() -> Any:
    """Return the library with the signatures of the functions called."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        library = ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (DynamicLibNotFoundError, OSError, RuntimeError):
        raise CublasError(
            "no cuBLAS found (PyTorch, CuPy and nvmath install one): pip install nvidia-cublas"
        ) from None
    integer, long, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    matrix: list[Any] = [pointer, integer, long]  # address, type, leading dimension
    batched = [*matrix, long]  # and elements to the next matrix
    library.cublasCreate_v2.argtypes = [pointer]
    library.cublasSetStream_v2.argtypes = [pointer, pointer]
    library.cublasSetPointerMode_v2.argtypes = [pointer, integer]
    library.cublasGetProperty.argtypes = [integer, pointer]
    library.cublasGetStatusString.argtypes = [integer]
    library.cublasGetStatusString.restype = ctypes.c_char_p
    library.cublasGemmEx_64.argtypes = [
        pointer, integer, integer, long, long, long, pointer, *matrix, *matrix, pointer, *matrix,
        integer, integer,
    ]  # fmt: skip
    library.cublasGemmStridedBatchedEx_64.argtypes = [
        pointer, integer, integer, long, long, long, pointer, *batched, *batched, pointer, *batched,
        long, integer, integer,
    ]  # fmt: skip
    return library
