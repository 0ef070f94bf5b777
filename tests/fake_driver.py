"""A fake CUDA driver with its own memory and two devices of compute capability 9.0."""

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver as cuda_driver

from cute_gemm.run import driver as devices
from cute_gemm.run import flags, memory
from cute_gemm.run import launch as runtime

ILLEGAL_ADDRESS = 700


class FakeDriver:
    """The functions of ``cuda.bindings.driver`` that the runtime calls, for two devices of 9.0."""

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
        self.contexts = [0]  # the context stack of this thread
        self.memory: dict[int, ctypes.Array] = {}
        self.launches: list[dict[str, Any]] = []
        self.smem: list[int] = []
        self.unloaded: list[tuple[str, int]] = []
        self.copies: list[str] = []
        self.code = 0
        self.load_code = 0
        self.context = 0x1000  # the context in which kernels are loaded

    # devices
    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 2

    def cuDeviceGet(self, device: int) -> tuple[int, int]:
        return 0, device

    def cuDeviceGetName(self, length: int, handle: int) -> tuple[int, bytes]:
        return 0, b"Fake H200" + b"\0" * (length - 9)

    def cuDeviceGetPCIBusId(self, length: int, handle: int) -> tuple[int, bytes]:
        return 0, b"0000:%02x:00.0" % handle + b"\0"

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
        at = (ctypes.c_void_p * 21).from_address(table)

        def read(kind: type, *indices: int) -> list[Any]:
            return [kind.from_address(at[index]).value for index in indices]

        self.launches.append(
            {
                "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
                "launch": (config.gridDimX, config.blockDimX, config.sharedMemBytes),
                "attributes": [int(one.id) for one in config.attrs], "stream": int(config.hStream),
                "context": self.contexts[-1], "matrices": read(ctypes.c_uint64, 0, 1, 2),
                "extents": read(ctypes.c_int32, 3, 4, 5, 6, 7, 8),
                "leading": read(ctypes.c_int64, 9, 10, 11),
                "batch": read(ctypes.c_int64, 12, 13, 14, 15, 16),
                "scalars": read(ctypes.c_float, 17, 18), "doubles": read(ctypes.c_double, 17, 18),
                "ints": read(ctypes.c_int32, 17, 18),
                "bytes": [ctypes.string_at(at[i], 16) for i in (17, 18)],
                "pointers": read(ctypes.c_uint64, 19, 20),
            }
        )  # fmt: skip
        return (self.code,)

    # memory
    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        if size > 2**33:
            return 2, 0
        block = ctypes.create_string_buffer(b"\xee" * size, size)
        self.memory[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP = 1, 2

    def cuMemHostAlloc(self, size: int, options: int) -> tuple[int, int]:
        assert options == 3
        return self.cuMemAlloc(size)

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


def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Replace the real driver until the generator continues."""
    fake = FakeDriver()
    for module in (devices, runtime, memory, flags):
        monkeypatch.setattr(module, "load_driver", lambda: fake)
    for module in (devices, runtime):
        monkeypatch.setattr(module, "error_name", lambda code: f"CUDA_ERROR {code}")
    monkeypatch.setattr(devices, "why_no_gpu", lambda: None)
    monkeypatch.setattr(runtime, "_loaded", {})
    monkeypatch.setattr(flags, "_flags", {})
    for function in (devices.device_properties, devices.primary_context):
        function.cache_clear()
    yield fake
    for function in (devices.device_properties, devices.primary_context):
        function.cache_clear()
