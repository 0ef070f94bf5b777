"""A fake GPU for tests of the benchmark: host memory, and kernels that compute with NumPy.

Its clock advances only while kernels run, by their specified time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from cute_gemm.dtypes import DTYPES, operand_types
from cute_gemm.errors import CompileError, LaunchError, UnsupportedError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.kernels import registry
from cute_gemm.kernels.base import Kernel
from cute_gemm.kernels.library.cublas import CublasError
from cute_gemm.measure import bench, timed
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scalars import ONE, ZERO, Scalar
from cute_gemm.run import driver as devices
from cute_gemm.run import launch as runtime
from cute_gemm.run import memory

L2_BYTES = 1 << 20


def on_device(pointer: int, matrix: Matrix) -> np.ndarray:
    """Return the matrix of a descriptor at an address."""
    kind = DTYPES[matrix.dtype].numpy
    extent = 1 + sum((e - 1) * s for e, s in zip(matrix.shape, matrix.stride, strict=True))
    held = (ctypes.c_byte * (extent * kind.itemsize)).from_address(pointer)
    strides = tuple(step * kind.itemsize for step in matrix.stride)
    return np.lib.stride_tricks.as_strided(np.frombuffer(held, kind), matrix.shape, strides)


def product(problem: GemmProblem, a: int, b: int, c: int) -> np.ndarray:
    """Compute C = op(A) op(B) at these addresses, and return C."""
    A, B, C = map(on_device, (a, b, c), (problem.A, problem.B, problem.C))
    A = A.conj() if problem.A.conj else A
    B = B.conj() if problem.B.conj else B
    wide = np.complex128 if DTYPES[problem.C.dtype].is_complex else np.float64
    C[...] = (A.astype(wide) @ B.astype(wide).T).astype(C.dtype)
    return C


class FakeConfig(NamedTuple):
    """A config that has only a name."""

    name: str


@dataclass
class FakeKernel(Kernel):
    """A kernel with a given time and a given behavior, ``kind``."""

    name: str
    gpu: FakeGpu
    milliseconds: float = 1.0
    kind: str = "good"
    summary: str = "a test's"
    minimum_cc: int = 80
    dtypes: tuple[str, ...] = operand_types()

    def footprints(
        self, problem: GemmProblem, arch: str, options: dict[str, Any], gpu: Gpu
    ) -> list[tuple[FakeConfig, None]]:
        if self.kind == "refuses" or (self.kind == "refuses TN" and problem.op == "TN"):
            raise UnsupportedError(f"kernel {self.name!r} takes no K of {problem.k}")
        return [(FakeConfig(f"{self.name}_{problem.op}"), None)]

    def bind(
        self, config: FakeConfig, problem: GemmProblem, arch: str, device: int, *scalars: Scalar
    ) -> Callable[..., None]:
        assert scalars == (ONE, ZERO)
        if self.kind == "does not compile":
            raise CompileError("it spills 12 bytes\nand more")
        if self.kind == "is not launched":
            raise LaunchError("too much shared memory")
        if self.kind == "crashes":
            self.gpu.code = 700
        run = self.gpu.run
        return lambda place: run(self.name, self.kind, self.milliseconds, problem, tuple(place))


@dataclass
class FakeGpu:
    """The device's kernels, memory and clock, and the kernels that ran."""

    kernels: dict[str, FakeKernel] = field(default_factory=dict)
    cublas: float | None = 2.0
    now: float = 0.0
    memory: dict[int, Any] = field(default_factory=dict)
    ran: list[tuple[str, str, int]] = field(default_factory=list)  # kernel, op, address of C
    code: int = 0

    def add(self, name: str, milliseconds: float = 1.0, kind: str = "good") -> str:
        self.kernels[name] = FakeKernel(name, self, milliseconds, kind)
        return name

    def get(self, name: str) -> Any:
        return self.kernels[name] if name in self.kernels else registry_get(name)

    def run(self, name: str, kind: str, ms: float, problem: GemmProblem, place: Any) -> None:
        self.ran.append((name, problem.op, place[2]))
        self.now += ms
        if kind == "does nothing":
            return
        C = product(problem, *place)
        if kind == "wrong" or kind == f"wrong {problem.op}":
            C[3, 4] += 1

    # replacements of the package's functions

    def upload(self, array: np.ndarray, device: int = 0) -> Any:
        memory._runs(array)  # rejects the same arrays as the package
        copy = array.copy(order="K")
        self.memory[copy.ctypes.data] = copy
        return FakeBuffer(copy, self)

    def download(self, buffer: Any, array: np.ndarray) -> None:
        if self.code:
            raise LaunchError("waiting for the result failed with CUDA_ERROR_ILLEGAL_ADDRESS")
        array[...] = buffer.array

    def blas(self, device: int) -> Any:
        if self.cublas is None:
            raise CublasError("no cuBLAS found")
        return SimpleNamespace(version="13.1", launcher=self.bind_cublas)

    def bind_cublas(
        self, problem: GemmProblem, alpha: Any, beta: Any, device: int
    ) -> Callable[..., None]:
        assert (alpha.value, beta.value) == (1, 0) and self.cublas is not None
        milliseconds = self.cublas
        return lambda *place: self.run("cublas", "good", milliseconds, problem, place)


@dataclass
class FakeBuffer:
    """Device memory of a matrix."""

    array: np.ndarray
    gpu: FakeGpu
    device: int = 0

    @property
    def pointer(self) -> int:
        return self.array.ctypes.data

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def __enter__(self) -> FakeBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.gpu.code:
            raise LaunchError("freeing it failed")
        del self.gpu.memory[self.pointer]


class Mark:
    """An event."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self.at = 0.0

    def record(self) -> None:
        self.at = self.gpu.now

    def synchronize(self) -> None:
        pass

    def since(self, earlier: Mark) -> float:
        return self.at - earlier.at


registry_get = registry.get


def install(patch: pytest.MonkeyPatch) -> FakeGpu:
    """Replace the driver functions that a benchmark calls by those of a fake GPU."""
    gpu = FakeGpu()

    def memset(pointer: int, value: int, size: int) -> tuple[int]:
        ctypes.memset(pointer, value, size)
        return (0,)

    driver = SimpleNamespace(
        CUdevice_attribute=SimpleNamespace(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE="L2"),
        cuDeviceGetAttribute=lambda which, handle: (0, L2_BYTES if which == "L2" else 0),
        cuDeviceGetPCIBusId=lambda length, handle: (0, b"0000:19:00.0\0"),
        cuMemsetD8=memset,
        cuCtxSynchronize=lambda: (0,),
    )
    properties = devices.Properties(0, "NVIDIA H200", (9, 0), 132, 232448, 2**37)
    patch.setattr(devices, "why_no_gpu", lambda: None)
    for module in (devices, runtime):
        patch.setattr(module, "load_driver", lambda: driver)
        patch.setattr(module, "device_properties", lambda device: properties)
        patch.setattr(module, "entered", lambda device: nullcontext())
    patch.setattr(memory, "upload", gpu.upload)
    patch.setattr(memory, "download", gpu.download)
    patch.setattr(runtime, "Event", lambda device: Mark(gpu))
    patch.setattr(timed, "handle_on", gpu.blas)
    patch.setattr(bench, "Builds", lambda plans: SimpleNamespace(finish=lambda tell: None))
    patch.setattr(registry, "get", gpu.get)
    return gpu
