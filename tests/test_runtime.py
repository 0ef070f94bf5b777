"""What can be seen without a GPU; the driver is a Python object with memory of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda_driver

from cute_gemm.arch import Arch
from cute_gemm.errors import (
    CubinError,
    DeviceError,
    LaunchError,
    NoGpuError,
    OutOfMemoryError,
    ScalarError,
    StrideError,
)
from cute_gemm.problem.problem import from_sizes
from cute_gemm.problem.scalars import Scalar
from cute_gemm.run import driver as devices
from cute_gemm.run import launch as runtime
from cute_gemm.run import memory
from cute_gemm.toolchain.cubin import Build, Resources
from cute_gemm.toolchain.signature import GEMM, Arguments, Launch

without_gpu = pytest.mark.skipif(devices.why_no_gpu() is None, reason="there is a GPU")

ILLEGAL_ADDRESS = 700


class FakeDriver:
    """The calls of ``cuda.bindings.driver`` that the runtime makes, for two devices of 9.0."""

    CUresult = SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=2)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_HOST=1, CU_MEMORYTYPE_DEVICE=2)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=132,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=232448,
    )
    CUDA_MEMCPY2D = SimpleNamespace

    def __init__(self) -> None:
        self.contexts = [0]  # the stack of this thread
        self.memory: dict[int, ctypes.Array] = {}
        self.launches: list[dict[str, Any]] = []
        self.smem: list[int] = []
        self.unloaded: list[tuple[str, int]] = []
        self.copies: list[str] = []
        self.code = 0
        self.load_code = 0
        self.context = 0x1000  # that kernels are loaded in

    # devices
    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 2

    def cuDeviceGet(self, device: int) -> tuple[int, int]:
        return 0, device

    def cuDeviceGetName(self, length: int, handle: int) -> tuple[int, bytes]:
        return 0, b"Fake H200" + b"\0" * (length - 9)

    def cuDeviceTotalMem(self, handle: int) -> tuple[int, int]:
        return 0, 2**34

    def cuDeviceGetAttribute(self, which: int, handle: int) -> tuple[int, int]:
        return 0, which

    def cuDevicePrimaryCtxRetain(self, handle: int) -> tuple[int, int]:
        return 0, 0x1000 + handle

    # contexts
    def cuCtxPushCurrent(self, context: int) -> tuple[int]:
        self.contexts.append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, int]:
        return 0, self.contexts.pop()

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, self.contexts[-1]

    def cuCtxSynchronize(self) -> tuple[int]:
        return (self.code,)

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:
        return (self.code,)

    # kernels
    def cuModuleLoadData(self, image: bytes) -> tuple[int, str]:
        return self.load_code, "module"

    def cuModuleUnload(self, module: str) -> tuple[int]:
        self.unloaded.append((module, self.contexts[-1]))
        return (0,)

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, int]:
        return (0, 0x88) if name == b"entry" else (500, 0)

    def cuFuncSetAttribute(self, function: int, which: int, value: int) -> tuple[int]:
        assert which == 8
        self.smem.append(value)
        return (0,)

    CUlaunchConfig = cuda_driver.CUlaunchConfig
    CUlaunchAttribute = cuda_driver.CUlaunchAttribute
    CUlaunchAttributeID = cuda_driver.CUlaunchAttributeID

    def cuLaunchKernelEx(self, config: Any, function: int, table: int, extra: int) -> tuple[int]:
        assert (function, extra) == (0x88, 0)
        assert (config.blockDimY, config.blockDimZ) == (1, 1)
        if self.contexts[-1] != self.context:
            return (201,)
        at = (ctypes.c_void_p * 18).from_address(table)

        def read(kind: type, *indices: int) -> list[Any]:
            return [kind.from_address(at[index]).value for index in indices]

        self.launches.append(
            {
                "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
                "launch": (config.gridDimX, config.blockDimX, config.sharedMemBytes),
                "attributes": [int(one.id) for one in config.attrs],
                "stream": int(config.hStream),
                "context": self.contexts[-1],
                "matrices": read(ctypes.c_uint64, 0, 1, 2),
                "extents": read(ctypes.c_int32, 3, 4, 5, 6, 7),
                "leading": read(ctypes.c_int64, 8, 9, 10),
                "batch": read(ctypes.c_int64, 11, 12, 13),
                "scalars": read(ctypes.c_float, 14, 15),
                "doubles": read(ctypes.c_double, 14, 15),
                "ints": read(ctypes.c_int32, 14, 15),
                "bytes": [ctypes.string_at(at[i], 16) for i in (14, 15)],
                "pointers": read(ctypes.c_uint64, 16, 17),
            }
        )
        return (self.code,)

    # memory
    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        if size > 2**33:
            return 2, 0
        block = ctypes.create_string_buffer(b"\xee" * size, size)
        self.memory[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def cuMemFree(self, pointer: int) -> tuple[int]:
        del self.memory[pointer]
        return (0,)

    def cuMemGetInfo(self) -> tuple[int, int, int]:
        return 0, 1000, 2000

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> tuple[int]:
        self.copies.append("1-D")
        ctypes.memmove(target, source, size)
        return (0,)

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> tuple[int]:
        return self.cuMemcpyHtoDAsync(target, source, size, stream)

    def cuMemcpy2DAsync(self, copy: Any, stream: int) -> tuple[int]:
        self.copies.append("2-D")
        source = copy.srcHost if copy.srcMemoryType == 1 else copy.srcDevice
        target = copy.dstHost if copy.dstMemoryType == 1 else copy.dstDevice
        for row in range(copy.Height):
            ctypes.memmove(
                target + row * copy.dstPitch, source + row * copy.srcPitch, copy.WidthInBytes
            )
        return (0,)

    # events
    def cuEventCreate(self, flags: int) -> tuple[int, list[float]]:
        return 0, [0.0]

    def cuEventRecord(self, event: list[float], stream: int) -> tuple[int]:
        event[0] = float(len(self.launches)) ** 2
        return (0,)

    def cuEventSynchronize(self, event: list[float]) -> tuple[int]:
        return (0,)

    def cuEventElapsedTime(self, start: list[float], end: list[float]) -> tuple[int, float]:
        return 0, end[0] - start[0]

    def cuEventDestroy(self, event: list[float]) -> tuple[int]:
        return (0,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    for module in (devices, runtime, memory):
        monkeypatch.setattr(module, "load_driver", lambda: fake)
    for module in (devices, runtime):
        monkeypatch.setattr(module, "error_name", lambda code: f"CUDA_ERROR {code}")
    monkeypatch.setattr(devices, "why_no_gpu", lambda: None)
    monkeypatch.setattr(runtime, "_loaded", {})
    for function in (devices.device_properties, devices.primary_context):
        function.cache_clear()
    yield fake
    for function in (devices.device_properties, devices.primary_context):
        function.cache_clear()


def a_build(arch: str = "sm_90a", symbol: str = "entry", static: int = 0) -> Build:
    return Build(b"cubin", symbol, arch, Resources(32, static, 0, 0, 0), 0.0, False, "")


def arguments(
    dtype: str = "float32", alpha: complex = 1, beta: complex = 0, beta_pointer: int = 0
) -> Arguments:
    """Those of a batch of two GEMMs."""
    sizes = {"m": 3, "n": 4, "k": 5, "lda": 2**33, "ldb": 7, "ldc": 8}
    problem = from_sizes("NN", dtype=dtype, **sizes)
    A, B = replace(problem.A, l=2, batch_stride=2**40), replace(problem.B, l=2)
    C = replace(problem.C, l=2, batch_stride=99)
    problem = replace(problem, l=2, A=A, B=B, C=C)
    return GEMM.arguments(problem, Scalar(alpha), Scalar(beta, beta_pointer))


class TestDevices:
    def test_why_no_gpu_never_raises_and_is_a_sentence(self) -> None:
        reason = devices.why_no_gpu()
        assert reason is None or len(reason) > 10

    @without_gpu
    def test_without_a_gpu(self) -> None:
        assert devices.device_count() == 0
        for call in (devices.device_name, devices.device_arch, devices.synchronize):
            with pytest.raises(NoGpuError, match="driver"):
                call(0)
        with pytest.raises(NoGpuError):
            memory.upload(np.zeros((2, 2)))
        with pytest.raises(NoGpuError):
            runtime.load(a_build())

    def fake_library(self, init: int = 0, count: int = 1, version: int = 13000) -> Any:
        def into(value: int) -> Callable[[Any], int]:
            def call(reference: Any) -> int:
                reference._obj.value = value
                return 0

            return call

        def text(code: int, reference: Any) -> int:
            reference._obj.value = b"CUDA_ERROR_NO_DEVICE"
            return 0

        return SimpleNamespace(
            cuInit=lambda flags: init,
            cuDeviceGetCount=into(count),
            cuDriverGetVersion=into(version),
            cuGetErrorName=text,
            cuGetErrorString=lambda code, reference: 1,
        )

    @pytest.mark.parametrize(
        ("about", "reason"),
        [
            ({"init": 100}, "no usable GPU (CUDA_ERROR_NO_DEVICE; CUDA_VISIBLE_DEVICES is '')"),
            ({"count": 0}, "found no GPU"),
            ({"version": 11080}, "for CUDA 11.8 and does not load cubins"),
        ],
    )
    def test_reasons(
        self, monkeypatch: pytest.MonkeyPatch, about: dict[str, int], reason: str
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setattr(devices, "load_libcuda", lambda: self.fake_library(**about))
        assert reason in (devices._why_no_gpu() or "")

    def test_a_good_driver_has_no_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "load_libcuda", self.fake_library)
        assert devices._why_no_gpu() is None

    def test_properties(self, driver: FakeDriver) -> None:
        assert devices.device_name(1) == "Fake H200"
        assert devices.device_arch(1) == "sm_90a"
        assert devices.multiprocessors(1) == 132
        assert devices.total_memory(1) == 2**34
        with pytest.raises(DeviceError, match="device=2 does not exist; expected 0 to 1"):
            devices.device_name(2)
        with pytest.raises(DeviceError, match="device=-1"):
            devices.device_name(-1)

    @pytest.mark.parametrize(
        ("capability", "arch"),
        [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")],
    )
    def test_arch_of(self, capability: tuple[int, int], arch: str) -> None:
        assert Arch.of_device(capability) == arch
        assert Arch(arch).runs_on(capability)

    def test_a_failure_of_the_device_has_a_name(self, driver: FakeDriver) -> None:
        driver.code = ILLEGAL_ADDRESS
        with pytest.raises(LaunchError, match="waiting for device 0 failed with CUDA_ERROR 700"):
            devices.synchronize(0)
        assert driver.contexts == [0]


def test_which_context_is_current(driver: FakeDriver) -> None:
    assert not devices.is_current(0)  # none is
    with devices.entered(1):
        assert devices.is_current(1) and not devices.is_current(0)
    with devices.entered(0):
        assert devices.is_current(0)


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_120", (12, 1), True),
    ],
)
def test_runs_on(arch: str, capability: tuple[int, int], runs: bool) -> None:
    assert Arch(arch).runs_on(capability) is runs


class TestLaunch:
    def test_the_arguments_arrive(self, driver: FakeDriver) -> None:
        bound = runtime.load(a_build()).bind(
            Launch(7, 128, 1000), arguments(alpha=1.5, beta=-0.5, beta_pointer=2**63 + 1)
        )
        bound(2**63 + 11, 12, 13, 17)
        (seen,) = driver.launches
        assert seen["launch"] == (7, 128, 1000) and seen["grid"] == (7, 1, 1)
        assert seen["attributes"] == []
        assert seen["stream"] == 17
        assert seen["matrices"] == [2**63 + 11, 12, 13]
        assert seen["extents"] == [3, 4, 5, 2, 0]
        assert seen["leading"] == [2**33, 7, 8]
        assert seen["batch"] == [2**40, 0, 99]
        assert seen["scalars"] == [1.5, -0.5]
        assert seen["pointers"] == [0, 2**63 + 1]

    @pytest.mark.parametrize("kind", ["complex64", "complex128"])
    def test_complex_scalars(self, driver: FakeDriver, kind: str) -> None:
        kernel = runtime.load(a_build())
        for given in ((1.5 - 2j, 3), (complex(1e60, float("nan")), 0)):
            kernel.bind(Launch(7, 128, 0), arguments(kind, *given))(1, 2, 3)
        found = [np.frombuffer(x, kind)[0] for seen in driver.launches for x in seen["bytes"]]
        assert found[:2] == [1.5 - 2j, 3] and found[3] == 0
        assert found[2].real == (np.inf if kind == "complex64" else 1e60)
        assert np.isnan(found[2].imag)

    def test_only_the_matrices_and_the_stream_change(self, driver: FakeDriver) -> None:
        bound = runtime.load(a_build()).bind(Launch(7, 128, 0), arguments(alpha=2))
        bound(1, 2, 3)
        bound(4, 5, 6, 2**47)
        first, second = driver.launches
        assert second["matrices"] == [4, 5, 6] and second["stream"] == 2**47
        changed = ("matrices", "stream")
        assert {k: v for k, v in first.items() if k not in changed} == {
            k: v for k, v in second.items() if k not in changed
        }

    @pytest.mark.parametrize(
        ("batch", "grid"),
        [(1, (7, 1, 1)), (65535, (7, 65535, 1)), (65536, (7, 65535, 2)), (0, None)],
    )
    def test_a_batch_is_layers_of_the_grid(
        self, driver: FakeDriver, batch: int, grid: tuple[int, int, int] | None
    ) -> None:
        runtime.load(a_build()).bind(Launch(7, 128, 0, batch), arguments())(1, 2, 3)
        assert [seen["grid"] for seen in driver.launches] == ([grid] if grid else [])

    def test_attributes_of_a_launch(self, driver: FakeDriver) -> None:
        launch = Launch(8, 128, 0, cluster=2, dependent=True)
        runtime.load(a_build()).bind(launch, arguments())(1, 2, 3)
        names = cuda_driver.CUlaunchAttributeID
        assert driver.launches[0]["attributes"] == [
            int(names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
            int(names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
        ]

    @pytest.mark.parametrize("before", [0, 0x1000, 0x1001, 0x9999])
    def test_any_context_may_be_current(self, driver: FakeDriver, before: int) -> None:
        bound = runtime.load(a_build(), 1).bind(Launch(7, 128, 0), arguments())
        driver.contexts, driver.context = [before], 0x1001
        bound(1, 2, 3)
        (seen,) = driver.launches
        assert seen["context"] == 0x1001
        assert driver.contexts == [before]

    def test_no_ctas_is_no_launch(self, driver: FakeDriver) -> None:
        runtime.load(a_build()).bind(Launch(0, 128, 0), arguments())(1, 2, 3)
        assert driver.launches == []

    def test_a_refused_launch(self, driver: FakeDriver) -> None:
        bound = runtime.load(a_build()).bind(Launch(1, 128, 0), arguments())
        driver.contexts, driver.code = [0x1000], ILLEGAL_ADDRESS
        with pytest.raises(LaunchError, match="launching entry failed: CUDA_ERROR 700"):
            bound(1, 2, 3)
        assert len(driver.launches) == 1 and driver.contexts == [0x1000]

    def test_shared_memory_is_asked_for_once(self, driver: FakeDriver) -> None:
        kernel = runtime.load(a_build(static=1024))
        for smem in (0, 47 * 1024, 47 * 1024 + 1, 100_000, 60_000, 100_000):
            kernel.bind(Launch(1, 128, smem), arguments())
        assert driver.smem == [47 * 1024 + 1, 100_000]

    @pytest.mark.parametrize(
        ("launch", "message"),
        [
            (Launch(2**31, 128, 0), "cannot have 2147483648 CTAs"),
            (Launch(1, 128, 0, 65535**2 + 1), "CTAs for each of 4294836226 matrices"),
            (Launch(1, 1025, 0), "cannot have 1025 threads per CTA; at most 1024"),
            (Launch(1, 128, 232_448), "232449 bytes of shared memory per CTA; at most 232448"),
        ],
    )
    def test_limits(self, driver: FakeDriver, launch: Launch, message: str) -> None:
        with pytest.raises(LaunchError, match=message):
            runtime.load(a_build(static=1)).bind(launch, arguments())

    def test_one_cubin_is_loaded_once_per_device(self, driver: FakeDriver) -> None:
        assert runtime.load(a_build()) is runtime.load(a_build())
        assert runtime.load(a_build(), 1) is not runtime.load(a_build(), 0)

    def test_kernels_are_unloaded_in_their_context(self, driver: FakeDriver) -> None:
        kernels = [runtime.load(a_build(), device) for device in (0, 1)]
        runtime.unload()
        assert sorted(driver.unloaded) == [("module", 0x1000), ("module", 0x1001)]
        assert runtime.load(a_build()) not in kernels

    def test_cubin_for_another_arch(self, driver: FakeDriver) -> None:
        with pytest.raises(CubinError, match="is for sm_80, and device 0 .* is sm_90a"):
            runtime.load(a_build("sm_80"))
        driver.load_code = 209
        with pytest.raises(CubinError, match="refuses the sm_90 cubin of entry: CUDA_ERROR 209"):
            runtime.load(a_build("sm_90"))
        assert driver.contexts == [0]

    def test_missing_symbol(self, driver: FakeDriver) -> None:
        with pytest.raises(LaunchError, match="looking up other in its cubin"):
            runtime.load(a_build(symbol="other"))


class TestScalars:
    def bound(self, scalar: str, alpha: Any, beta: Any = 0) -> None:
        given = arguments({"int32": "int8"}.get(scalar, scalar), alpha, beta)
        runtime.load(a_build()).bind(Launch(1, 1, 0), given)(1, 2, 3)

    def test_types(self, driver: FakeDriver) -> None:
        self.bound("float64", 0.1, np.float64(1e300))
        assert driver.launches[-1]["doubles"] == [0.1, 1e300]
        self.bound("int32", -3, np.int64(5))
        assert driver.launches[-1]["ints"] == [-3, 5]
        self.bound("float32", np.float16(0.5), True)
        assert driver.launches[-1]["scalars"] == [0.5, 1.0]

    def test_what_float32_cannot_hold(self, driver: FakeDriver) -> None:
        self.bound("float32", 1e300, -1e300)
        assert driver.launches[-1]["scalars"] == [np.inf, -np.inf]
        self.bound("float32", np.nan, -np.inf)
        alpha, beta = driver.launches[-1]["scalars"]
        assert np.isnan(alpha)
        assert beta == -np.inf

    @pytest.mark.parametrize("value", [2**31, 0.5, "1"])
    def test_what_int32_cannot_hold(self, driver: FakeDriver, value: Any) -> None:
        with pytest.raises(ScalarError, match="beta="):
            self.bound("int32", 1, value)


def numbered(shape: tuple[int, int], order: str = "F") -> np.ndarray:
    return np.arange(1, 1 + shape[0] * shape[1], dtype=np.int32).reshape(shape, order=order)


WINDOWS = {
    "F": lambda: (p := numbered((5, 7)), p[:]),
    "C": lambda: (p := numbered((5, 7), "C"), p[:]),
    "rows of F": lambda: (p := numbered((9, 7)), p[2:6]),
    "columns of F": lambda: (p := numbered((9, 7)), p[:, 2:6]),
    "columns of C": lambda: (p := numbered((9, 7), "C"), p[:, 1:4]),
    "one row of F": lambda: (p := numbered((9, 7)), p[2:3]),
    "one column of F": lambda: (p := numbered((9, 7)), p[:, 3:4]),
    "one column of C": lambda: (p := numbered((9, 7), "C"), p[:, 3:4]),
    "every other of one row": lambda: (p := numbered((9, 7)), p[2:3, ::2]),
    "every other of one column": lambda: (p := numbered((9, 7), "C"), p[::2, 2:3]),
    "one element": lambda: (p := numbered((9, 7)), p[3:4, 3:4]),
    "no rows": lambda: (p := numbered((9, 7)), p[3:3]),
    "no columns": lambda: (p := numbered((9, 7)), p[:, 3:3]),
}


def batch(layout: tuple[int, ...], axes: tuple[int, ...], *window: slice) -> Any:
    """Numbers in a buffer of this layout, and a window of it with its axes in this order."""
    parent = np.arange(1, 1 + np.prod(layout), dtype=np.int32).reshape(layout)
    return parent, parent.transpose(axes)[window]


BATCHES = {
    # one matrix after the other, of rows or columns: one run
    "whole": (lambda: batch((3, 4, 5), (0, 1, 2)), ["1-D"]),
    "whole columns": (lambda: batch((3, 4, 5), (0, 2, 1)), ["1-D"]),
    "one": (lambda: batch((3, 4, 5), (0, 1, 2), slice(1, 2)), ["1-D"]),
    "none": (lambda: batch((3, 4, 5), (0, 1, 2), slice(0, 0)), []),
    # whole matrices apart, rows with padding that goes on from matrix to matrix, between each other
    "every other": (lambda: batch((5, 4, 5), (0, 1, 2), slice(0, 5, 2)), ["2-D"]),
    "rows apart": (
        lambda: batch((3, 4, 7), (0, 1, 2), slice(3), slice(4), slice(1, 5)), ["2-D"] * 3,
    ),
    "few long matrices": (
        lambda: batch((2, 9, 7), (0, 1, 2), slice(2), slice(2, 8), slice(5)), ["2-D"] * 2,
    ),
    "many flat matrices": (
        lambda: batch((9, 3, 7), (0, 1, 2), slice(9), slice(2), slice(5)), ["2-D"] * 2,
    ),
    "between each other": (lambda: batch((4, 3, 5), (1, 0, 2)), ["1-D"]),
    "between each other, apart": (
        lambda: batch((4, 3, 7), (1, 0, 2), slice(3), slice(4), slice(5)), ["2-D"] * 3,
    ),
}  # fmt: skip


class TestCopies:
    @pytest.mark.parametrize("pitch_limit", [2**31 - 1, 4])
    @pytest.mark.parametrize("name", BATCHES)
    def test_batches_there_and_back(
        self, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str, pitch_limit: int
    ) -> None:
        """Every element at its offset, nothing else written, in as few copies as there can be."""
        monkeypatch.setattr(memory, "_MAX_PITCH", pitch_limit)
        make, copies = BATCHES[name]
        parent, window = make()
        before = parent.copy()
        with memory.upload(window) as buffer:
            for index, value in np.ndenumerate(window):
                offset = int(np.dot(index, window.strides))
                assert offset + 4 <= buffer.nbytes
                assert ctypes.c_int32.from_address(buffer.pointer + offset).value == value
            if pitch_limit > 4:
                assert driver.copies == copies
            window[...] = -1
            canaries = np.where(parent == -1, before, parent + 1000)
            parent[parent != -1] += 1000
            memory.download(buffer, window)
        assert np.array_equal(parent, canaries)
        assert driver.memory == {}

    def test_a_shared_matrix_is_copied_once(self, driver: FakeDriver) -> None:
        matrix = numbered((4, 5))
        for array in (np.broadcast_to(matrix, (3, 4, 5)), np.broadcast_to(matrix, (2**31, 4, 5))):
            assert memory.upload(array).nbytes == matrix.nbytes
        assert driver.copies == ["1-D"] * 2

    def test_matrices_that_slide_over_each_other_are_one_run(self, driver: FakeDriver) -> None:
        steps = [4 * step for step in (3, 1, 2)]
        array = np.lib.stride_tricks.as_strided(numbered((30, 1)), (3, 2, 4), steps)
        assert memory.upload(array).nbytes == 4 * (2 * 3 + 2 + 3 * 2)
        assert driver.copies == ["1-D"]

    @pytest.mark.parametrize("pitch_limit", [2**31 - 1, 4])
    @pytest.mark.parametrize("name", WINDOWS)
    def test_there_and_back(
        self,
        driver: FakeDriver,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        pitch_limit: int,
    ) -> None:
        monkeypatch.setattr(memory, "_MAX_PITCH", pitch_limit)
        parent, window = WINDOWS[name]()
        want, everything = window.copy(), parent.copy()
        with memory.upload(window) as buffer:
            # Each element lies where the host array has it.
            for (i, j), value in np.ndenumerate(window):
                offset = i * window.strides[0] + j * window.strides[1]
                assert offset + 4 <= buffer.nbytes
                assert ctypes.c_int32.from_address(buffer.pointer + offset).value == value
            window[...] = -1
            around = parent.copy()  # a marker in the window, the old values around it
            parent[...] = np.where(around == -1, 0, around + 1000)
            outside = np.where(around == -1, 0, around + 1000)
            memory.download(buffer, window)
        assert np.array_equal(window, want)
        # Nothing but the window was written.
        assert np.array_equal(parent, np.where(around == -1, everything, outside))
        assert driver.memory == {}
        assert driver.contexts == [0]

    def test_a_whole_array_is_one_copy(self, driver: FakeDriver) -> None:
        memory.upload(numbered((5, 7))).free()
        memory.upload(numbered((9, 7))[:, 2:6]).free()
        assert driver.copies == ["1-D", "1-D"]
        memory.upload(numbered((9, 7))[2:6]).free()
        assert driver.copies[2:] == ["2-D"]

    @pytest.mark.parametrize("step", [0, 1, 2])
    def test_rows_that_overlap_are_one_run(self, driver: FakeDriver, step: int) -> None:
        item = numbered((1, 9)).itemsize
        array = np.lib.stride_tricks.as_strided(numbered((1, 9)), (3, 4), (step * item, item))
        assert memory.upload(array).nbytes == (2 * step + 4) * item

    def test_two_strides(self, driver: FakeDriver) -> None:
        with pytest.raises(StrideError, match="one unit stride"):
            memory.upload(numbered((9, 9))[::2])
        with pytest.raises(StrideError, match="one unit stride"):
            memory.upload(numbered((9, 9))[:, ::-1])
        with pytest.raises(StrideError, match="one unit stride"):
            memory.upload(np.zeros((3, 3, 9))[..., ::2])
        with pytest.raises(StrideError, match="4 dimensions"):
            memory.upload(np.zeros((2, 2, 2, 2)))
        assert driver.memory == {}

    def test_out_of_memory_says_how_much(self, driver: FakeDriver) -> None:
        message = r"10000000000 bytes \(9.3 GiB\) .* device 1 \(Fake H200\), where 1000 of 2000"
        with pytest.raises(OutOfMemoryError, match=message):
            memory.DeviceBuffer(10**10, 1)
        assert driver.contexts == [0]

    def test_memory_goes_with_its_owner(self, driver: FakeDriver) -> None:
        buffer = memory.DeviceBuffer(16)
        assert len(driver.memory) == 1
        buffer.free()
        buffer.free()
        assert (buffer.pointer, driver.memory) == (0, {})
        buffer = memory.DeviceBuffer(0)
        assert buffer.pointer
        del buffer
        assert driver.memory == {}

    def test_a_failed_kernel_is_reported_by_the_download(self, driver: FakeDriver) -> None:
        array = numbered((2, 2))
        with memory.upload(array) as buffer:
            driver.code = ILLEGAL_ADDRESS
            with pytest.raises(LaunchError, match="waiting for the result.*700"):
                memory.download(buffer, array)


def test_events_tell_the_time_between_them(driver: FakeDriver) -> None:
    bound = runtime.load(a_build()).bind(Launch(1, 1, 0), arguments())
    marks = [runtime.Event() for _ in range(4)]
    for mark in marks:
        mark.record()
        bound(1, 2, 3)
    marks[-1].synchronize()
    assert [b.since(a) for a, b in zip(marks, marks[1:], strict=False)] == [1.0, 3.0, 5.0]


def test_nothing_of_cuda_is_imported_before_it_is_needed() -> None:
    script = (
        "import sys, cute_gemm.toolchain.nvrtc, cute_gemm.toolchain.cache;"
        "import cute_gemm.run.launch, cute_gemm.commands.doctor;"
        "print(sorted(n for n in sys.modules if n.split('.')[0] in ('cuda', 'cutlass_library')))"
    )
    root = str(Path(runtime.__file__).parent.parent)
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "[]"


def test_a_call_tells_the_tensor_maps_and_writes_its_scratch(driver: FakeDriver) -> None:
    """Maps are where the table says at its end; a token is drawn for each launch."""
    from cute_gemm.kernels.sm90.wgmma import SIGNATURE

    class Maps:
        memory = ctypes.create_string_buffer(3 * 128)
        places = tuple(range(ctypes.addressof(memory), ctypes.addressof(memory) + 384, 128))

        def tell(self, *addresses: int) -> None:
            for place, address in zip(self.places, addresses, strict=True):
                ctypes.memset(place, address // 256, 128)

    problem = from_sizes("NN", m=64, n=64, k=64, dtype="float16")
    given = SIGNATURE.arguments(problem, Scalar(1), Scalar(0))
    kernel = runtime.load(a_build())
    bound = kernel.bind(Launch(1, 384, 0, 1, 2, True), given, Maps())  # type: ignore[arg-type]
    for addresses in ((256, 512, 768), (512, 256, 1024)):
        bound(*addresses, 7)
        last = driver.launches[-1]
        assert (last["matrices"], last["extents"][:3]) == ([*addresses], [64] * 3)
        assert last["attributes"] == [4, 6]  # cluster, programmatic stream serialization
        for number, address in enumerate(addresses, len(given.table) - 3):
            at = given.table[number]
            assert at is not None and ctypes.string_at(at, 128) == bytes([address // 256]) * 128
    at = SIGNATURE.offset("scratch")
    assert given.block.raw[at : at + 8] == bytes(8)
    bound(256, 512, 768, 7, 4096)
    assert given.block.raw[at : at + 8] == (4096).to_bytes(8, "little")
    token = SIGNATURE.offset("token")
    drawn = {given.block.raw[token : token + 8]}
    drawn |= {
        SIGNATURE.arguments(problem, Scalar(1), Scalar(0)).block.raw[token : token + 8]
        for _ in range(50)
    }
    assert len(drawn) == 51 and bytes(8) not in drawn
    assert SIGNATURE.offset("nothing") == -1
