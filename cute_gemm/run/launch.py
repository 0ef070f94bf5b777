"""Loaded kernels, launches, and copies for callers whose arrays are on the host.

Everything goes through ``cuda.bindings.driver``. A repeated launch writes three addresses into a
block of arguments that was built once and hands over its address, which costs 1.2 us beside
the driver's own work; the same call through ctypes costs 2.5 us.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cute_gemm.errors import CubinError, LaunchError, OutOfMemoryError, ScalarError, StrideError
from cute_gemm.run.driver import (
    arch_of,
    checked,
    compute_capability,
    device_arch,
    device_count,
    device_name,
    device_properties,
    driver_version,
    entered,
    error_name,
    load_driver,
    multiprocessors,
    primary_context,
    shared_memory_limit,
    synchronize,
    total_memory,
    why_no_gpu,
)

if TYPE_CHECKING:
    import numpy as np

    from cute_gemm.kernels.base import Launch
    from cute_gemm.toolchain.cubin import Build

__all__ = [
    "BoundLaunch",
    "DeviceBuffer",
    "Event",
    "LoadedKernel",
    "allocate_like",
    "compute_capability",
    "device_arch",
    "device_count",
    "device_name",
    "download",
    "driver_version",
    "load",
    "multiprocessors",
    "pack_scalar",
    "runs_on",
    "shared_memory_limit",
    "synchronize",
    "time_launches",
    "total_memory",
    "upload",
    "why_no_gpu",
]

#: Dynamic shared memory in bytes that a kernel gets without asking.
_SMEM_FREE = 48 * 1024
#: Largest pitch that a 2-D copy takes.
_MAX_PITCH = 2**31 - 1
#: ``struct`` format of a scalar argument.
_SCALARS = {"float32": "f", "float64": "d", "int32": "i", "complex64": "2f", "complex128": "2d"}


# Kernels ----------------------------------------------------------------------------------------

_loaded: dict[tuple[int, str, bytes], LoadedKernel] = {}


def load(build: Build, device: int = 0) -> LoadedKernel:
    """Return the kernel of ``build`` on ``device``; the same object for the same cubin.

    Raises
    ------
    CubinError
        When the cubin is for another architecture.
    """
    key = (device, build.symbol, build.cubin)
    kernel = _loaded.get(key)
    if kernel is None:
        kernel = _loaded.setdefault(key, LoadedKernel(build, device))
    return kernel


class LoadedKernel:
    """A cubin in the primary context of one device, until the process ends.

    Parameters
    ----------
    build
        What `cute_gemm.toolchain.nvrtc.build` gave.
    device
        CUDA ordinal.

    Raises
    ------
    CubinError
        When the cubin is for another architecture.
    NoGpuError, DeviceError
        When there is no such device.
    """

    def __init__(self, build: Build, device: int = 0) -> None:
        properties = device_properties(device)
        if not runs_on(build.arch, properties.capability):
            raise CubinError(
                f"the cubin of {build.symbol} is for {build.arch}, and device {device} "
                f"({properties.name}) is {arch_of(properties.capability)}: compile it for that"
            )
        driver = load_driver()
        with entered(device):
            code, module = driver.cuModuleLoadData(build.cubin)
            if int(code):
                raise CubinError(
                    f"device {device} ({properties.name}, driver for CUDA {driver_version()}) "
                    f"refuses the {build.arch} cubin of {build.symbol}: {error_name(int(code))}"
                )
            (function,) = checked(
                driver.cuModuleGetFunction(module, build.symbol.encode()),
                f"looking up {build.symbol} in its cubin",
            )
        self.build = build
        self.device = device
        self._module = module
        self._function = function
        self._smem = _SMEM_FREE - build.resources.shared_static

    def __repr__(self) -> str:
        return f"LoadedKernel({self.build.symbol!r}, device={self.device})"

    def bind(
        self,
        launch: Launch,
        *,
        m: int,
        n: int,
        k: int,
        lda: int,
        ldb: int,
        ldc: int,
        scalar: str = "float32",
        alpha: complex = 1,
        beta: complex = 0,
        alpha_pointer: int = 0,
        beta_pointer: int = 0,
    ) -> BoundLaunch:
        """Return a launch with everything but the three matrices and the stream settled.

        Parameters
        ----------
        launch
            CTAs, threads, dynamic shared memory in bytes.
        m, n, k, lda, ldb, ldc
            Extents, and leading dimensions in elements.
        scalar
            Type of alpha and beta.
        alpha, beta
            Their values, where the pointers are 0.
        alpha_pointer, beta_pointer
            Device addresses that the kernel reads them from, or 0.

        Raises
        ------
        LaunchError
            When the device cannot have that many CTAs, threads or bytes of shared memory.
        """
        self._allow(launch)
        bound = BoundLaunch(self, launch, (m, n, k), (lda, ldb, ldc), scalar)
        bound.set_scalars(alpha, beta, alpha_pointer, beta_pointer)
        return bound

    def _allow(self, launch: Launch) -> None:
        """Check a launch against the device, and ask for the shared memory that it needs."""
        what = f"{self.build.symbol} on device {self.device}"
        if not 0 <= launch.grid <= 2**31 - 1:
            raise LaunchError(f"{what} cannot have {launch.grid} CTAs; at most {2**31 - 1}")
        if not 0 < launch.block <= 1024:
            raise LaunchError(f"{what} cannot have {launch.block} threads per CTA; at most 1024")
        static = self.build.resources.shared_static
        limit = shared_memory_limit(self.device)
        if launch.smem + static > limit:
            raise LaunchError(
                f"{what} cannot have {launch.smem + static} bytes of shared memory per CTA; "
                f"at most {limit}: use fewer stages or a smaller tile"
            )
        if launch.smem > self._smem:
            driver = load_driver()
            which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            with entered(self.device):
                checked(
                    driver.cuFuncSetAttribute(self._function, which, launch.smem),
                    f"giving {what} {launch.smem} bytes of shared memory",
                )
            self._smem = launch.smem


class BoundLaunch:
    """A launch that needs only the matrices' addresses and a stream: ``bound(a, b, c, stream)``.

    The 13 arguments of every kernel of this package lie in one block of memory, with a table of
    their addresses that the driver reads; a call writes three of them. Made by `LoadedKernel.bind`.
    """

    # a b c | m n k . | lda ldb ldc | alpha | beta | alpha_ptr beta_ptr, 16 bytes for a scalar
    _OFFSETS = (0, 8, 16, 24, 28, 32, 40, 48, 56, 64, 80, 96, 104)
    _SIZE = 112
    _MATRICES = struct.Struct("=3Q").pack_into

    __slots__ = (
        "_after",
        "_before",
        "_block",
        "_context",
        "_get_current",
        "_launch",
        "_lock",
        "_scalar",
        "_table",
        "kernel",
        "launch",
    )

    def __init__(
        self,
        kernel: LoadedKernel,
        launch: Launch,
        extents: tuple[int, int, int],
        leading: tuple[int, int, int],
        scalar: str,
    ) -> None:
        self.kernel = kernel
        self.launch = launch
        self._scalar = scalar
        self._block = ctypes.create_string_buffer(self._SIZE)
        struct.pack_into("=3i", self._block, 24, *extents)
        struct.pack_into("=3q", self._block, 40, *leading)
        base = ctypes.addressof(self._block)
        self._table = (ctypes.c_void_p * 13)(*(base + offset for offset in self._OFFSETS))

        driver = load_driver()
        self._launch = driver.cuLaunchKernel if launch.grid else _nothing
        self._get_current = driver.cuCtxGetCurrent
        self._context = primary_context(kernel.device)
        self._before = (kernel._function, launch.grid, 1, 1, launch.block, 1, 1, launch.smem)
        self._after = (ctypes.addressof(self._table), 0)
        self._lock = threading.Lock()

    def set_scalars(
        self, alpha: complex, beta: complex, alpha_pointer: int = 0, beta_pointer: int = 0
    ) -> None:
        """Change alpha and beta for the calls that follow."""
        with self._lock:
            pack_scalar(self._scalar, self._block, 64, alpha, "alpha")
            pack_scalar(self._scalar, self._block, 80, beta, "beta")
            struct.pack_into("=2Q", self._block, 96, alpha_pointer, beta_pointer)

    def __call__(self, a: int, b: int, c: int, stream: int = 0) -> None:
        """Start the kernel on the matrices at these device addresses, in stream order.

        Raises
        ------
        LaunchError
            When the driver refuses, which it also does after an earlier kernel failed.
        """
        # The block is shared by the threads that call this.
        with self._lock:
            self._MATRICES(self._block, 0, a, b, c)
            if int(self._get_current()[1]) == self._context:
                (code,) = self._launch(*self._before, stream, *self._after)
            else:  # another context, or none, is current on this thread
                with entered(self.kernel.device):
                    (code,) = self._launch(*self._before, stream, *self._after)
        if int(code):
            raise LaunchError(
                f"launching {self.kernel.build.symbol} failed: {error_name(int(code))}"
            )


def _nothing(*_: object) -> tuple[int]:
    """Stand in for a launch without CTAs, which the driver would refuse."""
    return (0,)


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Return whether a cubin for ``arch`` runs on a device of that compute capability.

    A plain cubin runs on its own major version from its minor version on; one of an ``a`` target on
    that very version.

    Examples
    --------
    >>> runs_on("sm_80", (8, 6)), runs_on("sm_80", (9, 0)), runs_on("sm_90a", (9, 0))
    (True, False, True)
    """
    number = int(arch.removeprefix("sm_").rstrip("af"))
    major, minor = divmod(number, 10)
    if arch.endswith("a"):
        return (major, minor) == tuple(capability)
    return major == capability[0] and minor <= capability[1]


def pack_scalar(scalar: str, block: Any, offset: int, value: complex, name: str) -> None:
    """Write alpha or beta into ``block`` as a number of the type called ``scalar``.

    Raises
    ------
    ScalarError
        When it is not one.
    """
    form = f"={_SCALARS[scalar]}"
    parts = [value.real, value.imag] if form[1] == "2" else [value]
    try:
        struct.pack_into(form, block, offset, *parts)
    except OverflowError:  # a float64 beyond float32: what a cast gives is infinity
        parts = [_clipped(part) for part in parts]
        struct.pack_into(form, block, offset, *parts)
    except struct.error as error:
        raise ScalarError(f"{name}={value!r} is not a number of type {scalar}: {error}") from None


def _clipped(value: Any) -> float:
    return math.copysign(math.inf, value) if abs(value) > 3.4e38 else float(value)


# Host arrays ------------------------------------------------------------------------------------


class DeviceBuffer:
    """Device memory, freed by ``free()``, at the end of a ``with`` block, or with the object.

    Parameters
    ----------
    nbytes
        Size in bytes; may be 0.
    device
        CUDA ordinal.

    Raises
    ------
    OutOfMemoryError
        When the device does not have that much.
    """

    __slots__ = ("_pointer", "device", "nbytes")

    def __init__(self, nbytes: int, device: int = 0) -> None:
        self._pointer = 0
        self.nbytes = nbytes
        self.device = device
        driver = load_driver()
        with entered(device):
            code, pointer = driver.cuMemAlloc(max(nbytes, 1))
            if int(code) == int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY):
                free, total = checked(driver.cuMemGetInfo(), "asking for the free memory")
                raise OutOfMemoryError(
                    f"{nbytes} bytes ({nbytes / 2**30:.1f} GiB) were asked for on device {device} "
                    f"({device_name(device)}), where {free} of {total} bytes are free"
                )
            checked((code,), f"allocating {nbytes} bytes on device {device}")
        self._pointer = int(pointer)

    @property
    def pointer(self) -> int:
        """The device address; 0 once freed."""
        return self._pointer

    def free(self) -> None:
        """Give the memory back, after what uses it has ended; a second time does nothing."""
        pointer, self._pointer = self._pointer, 0
        if pointer:
            with entered(self.device):
                checked(load_driver().cuMemFree(pointer), f"freeing {self.nbytes} bytes")

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __del__(self) -> None:
        if self._pointer and not sys.is_finalizing():
            try:
                self.free()
            except Exception:  # after a failed kernel the context is lost, and its memory with it
                self._pointer = 0

    def __repr__(self) -> str:
        return f"DeviceBuffer({self._pointer:#x}, {self.nbytes} bytes, device={self.device})"


def upload(array: np.ndarray, device: int = 0, stream: int = 0) -> DeviceBuffer:
    """Copy a host matrix to new device memory, every element at the same offset as on the host.

    So the descriptor of the host array, leading dimension and all, is that of the copy; the bytes
    between its columns (or rows) are neither read nor set.

    Parameters
    ----------
    array
        A matrix with one unit stride.
    device
        CUDA ordinal.
    stream
        Raw ``CUstream`` in whose order the copy is done.

    Raises
    ------
    OutOfMemoryError
        When the device does not have that much memory.
    """
    buffer = allocate_like(array, device)
    try:
        _copy(array, buffer, stream, to_device=True)
    except BaseException:
        buffer.free()
        raise
    return buffer


def allocate_like(array: np.ndarray, device: int = 0) -> DeviceBuffer:
    """Return device memory with room for a matrix of these extents and strides; not set."""
    width, count, pitch = _pitched(array)
    return DeviceBuffer((count - 1) * pitch + width if width and count else 0, device)


def download(buffer: DeviceBuffer, array: np.ndarray, stream: int = 0) -> None:
    """Copy back into a host matrix what `upload` or `allocate_like` made room for, and wait for it.

    Only the elements of ``array`` are written, nothing between its columns (or rows).

    Raises
    ------
    LaunchError
        When a kernel failed that ran in this stream before.
    """
    _copy(array, buffer, stream, to_device=False)
    with entered(buffer.device):
        checked(load_driver().cuStreamSynchronize(stream), "waiting for the result")


def _pitched(array: np.ndarray) -> tuple[int, int, int]:
    """Return (bytes in a row, number of rows, bytes from row to row) along the unit stride."""
    item = array.itemsize
    if array.ndim != 2:
        raise StrideError(f"a copy to the device takes a matrix, not {array.ndim} dimensions")
    for unit in (0, 1):
        other = 1 - unit
        if array.shape[unit] > 1 and array.strides[unit] != item:
            continue
        width, count = array.shape[unit] * item, array.shape[other]
        if count <= 1:
            return width, count, width
        pitch = array.strides[other]
        if pitch >= width:
            return width, count, pitch
        if pitch >= 0:  # rows that overlap, as of a broadcast: one run of memory
            whole = (count - 1) * pitch + width
            return whole, 1, whole
    raise StrideError(
        f"a copy to the device takes a matrix with one unit stride; the strides of this one are "
        f"{array.strides} bytes"
    )


def _copy(array: np.ndarray, buffer: DeviceBuffer, stream: int, *, to_device: bool) -> None:
    width, count, pitch = _pitched(array)
    if not width or not count:
        return
    driver, host = load_driver(), array.ctypes.data
    with entered(buffer.device):
        if pitch == width:
            blocks = [(0, width * count)]
        elif pitch > _MAX_PITCH or width > _MAX_PITCH:
            blocks = [(row * pitch, width) for row in range(count)]
        else:
            copy = driver.CUDA_MEMCPY2D()
            kinds = driver.CUmemorytype
            host_kind, device_kind = kinds.CU_MEMORYTYPE_HOST, kinds.CU_MEMORYTYPE_DEVICE
            copy.WidthInBytes, copy.Height = width, count
            copy.srcPitch = copy.dstPitch = pitch
            if to_device:
                copy.srcMemoryType, copy.srcHost = host_kind, host
                copy.dstMemoryType, copy.dstDevice = device_kind, buffer.pointer
            else:
                copy.srcMemoryType, copy.srcDevice = device_kind, buffer.pointer
                copy.dstMemoryType, copy.dstHost = host_kind, host
            checked(driver.cuMemcpy2DAsync(copy, stream), "copying a matrix")
            return
        for offset, length in blocks:
            if to_device:
                result = driver.cuMemcpyHtoDAsync(
                    buffer.pointer + offset, host + offset, length, stream
                )
            else:
                result = driver.cuMemcpyDtoHAsync(
                    host + offset, buffer.pointer + offset, length, stream
                )
            checked(result, "copying a matrix")


# Timing -----------------------------------------------------------------------------------------


class Event:
    """A mark in a stream, with the time at which the device reached it.

    Examples
    --------
    >>> start, end = Event(), Event()  # doctest: +SKIP
    >>> start.record(); work(); end.record(); end.synchronize()  # doctest: +SKIP
    >>> end.since(start)  # doctest: +SKIP
    0.185
    """

    __slots__ = ("_event", "device")

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self._event: Any = None
        driver = load_driver()
        with entered(device):
            (self._event,) = checked(driver.cuEventCreate(0), "making an event")

    def record(self, stream: int = 0) -> None:
        """Put the mark behind what was started in ``stream``."""
        with entered(self.device):
            checked(load_driver().cuEventRecord(self._event, stream), "recording an event")

    def synchronize(self) -> None:
        """Wait until the device has reached the mark."""
        with entered(self.device):
            checked(load_driver().cuEventSynchronize(self._event), "waiting for an event")

    def since(self, earlier: Event) -> float:
        """Return the milliseconds from ``earlier`` to this mark; both have been reached."""
        (milliseconds,) = checked(
            load_driver().cuEventElapsedTime(earlier._event, self._event), "reading an event"
        )
        return float(milliseconds)

    def __del__(self) -> None:
        if self._event is not None and not sys.is_finalizing():
            load_driver().cuEventDestroy(self._event)


def time_launches(
    function: Callable[[], object], repeats: int, stream: int = 0, device: int = 0
) -> list[float]:
    """Return the device time of each of ``repeats`` calls in milliseconds.

    Parameters
    ----------
    function
        Starts work in ``stream`` and does not wait for it.
    repeats
        How often it is called; call it before, so that caches and clocks are warm.
    stream
        Raw ``CUstream``.
    device
        CUDA ordinal.
    """
    marks = [Event(device) for _ in range(repeats + 1)]
    marks[0].record(stream)
    for mark in marks[1:]:
        function()
        mark.record(stream)
    marks[-1].synchronize()
    return [mark.since(before) for before, mark in zip(marks, marks[1:], strict=False)]
