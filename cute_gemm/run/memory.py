"""Device memory, and copies for callers whose arrays are on the host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cute_gemm._text import counted, size
from cute_gemm.errors import OutOfMemoryError, StrideError
from cute_gemm.run.driver import checked, device_name, entered, load_driver

if TYPE_CHECKING:
    import numpy as np

#: Largest pitch of a 2-D copy.
_MAX_PITCH = 2**31 - 1


class DeviceBuffer:
    """Device memory, freed by ``free()``, at the end of a ``with`` block, or with the object.

    ``nbytes`` may be 0; OutOfMemoryError if the device (a CUDA ordinal) does not have them.
    """

    __slots__ = ("_pointer", "device", "nbytes")

    def __init__(self, nbytes: int, device: int = 0) -> None:
        self._pointer = 0
        self.nbytes = nbytes
        self.device = device
        with entered(device):
            self._pointer = _allocated(load_driver().cuMemAlloc(max(nbytes, 1)), nbytes, device)

    @property
    def pointer(self) -> int:
        """The device address; 0 once freed."""
        return self._pointer

    def free(self) -> None:
        """Free the memory after the work that uses it; a second call does nothing."""
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
            except Exception:  # a failed kernel loses the context and its memory
                self._pointer = 0

    def __repr__(self) -> str:
        return f"DeviceBuffer({self._pointer:#x}, {self.nbytes} bytes, device={self.device})"


def _allocated(result: tuple[Any, int], nbytes: int, device: int, kind: str = "") -> int:
    """Return the address of memory that the driver allocated; the device's context is current."""
    code, pointer = result
    if code:
        driver = load_driver()
        if int(code) == int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY):
            free, total = checked(driver.cuMemGetInfo(), "asking for the free memory")
            raise OutOfMemoryError(
                f"{counted(nbytes, 'byte')} ({size(nbytes)}) were asked for on device {device} "
                f"({device_name(device)}), where {size(free)} of {size(total)} are free"
            )
        checked((code,), f"allocating {nbytes} bytes{kind} on device {device}")
    return int(pointer)


def upload(array: np.ndarray, device: int = 0) -> DeviceBuffer:
    """Copy a host matrix, or a batch, to new device memory, each element at its host offset.

    The copy therefore has the descriptor of the host array, strides included. The bytes between
    columns (or rows) are neither read nor set, and a shared matrix is copied once. One stride
    must be the unit. The copy runs on the default stream.
    """
    buffer = allocate_like(array, device)
    try:
        _copy(array, buffer, to_device=True)
    except BaseException:
        buffer.free()
        raise
    return buffer


def allocate_like(array: np.ndarray, device: int = 0) -> DeviceBuffer:
    """Return device memory for an array of these extents and strides, not initialised."""
    width, axes = _runs(array)
    return DeviceBuffer(width + sum((count - 1) * step for step, count in axes), device)


def download(buffer: DeviceBuffer, array: np.ndarray) -> None:
    """Copy memory of `upload` or `allocate_like` back into a host array, and wait for it.

    Only the elements of ``array`` are written, nothing between columns (or rows). LaunchError
    if an earlier kernel on the default stream failed.
    """
    _copy(array, buffer, to_device=False)
    with entered(buffer.device):
        checked(load_driver().cuStreamSynchronize(0), "waiting for the result")


def _runs(array: np.ndarray) -> tuple[int, list[tuple[int, int]]]:
    """Return the bytes of an array's contiguous runs, and the (step, count) of their repetition.

    Steps are in bytes, ascending, and longer than a run. A matrix with padding repeats its columns
    (or rows); a batch repeats its matrices too. Overlapping runs, as of a broadcast, are one run.
    """
    if array.ndim not in (2, 3):
        raise StrideError(
            f"a copy to the device takes a matrix or a batch of them, not {array.ndim} dimensions"
        )
    if not array.size:
        return 0, []
    width = array.itemsize
    axes = sorted(axis for axis in zip(array.strides, array.shape, strict=True) if axis[1] > 1)
    while axes and 0 <= axes[0][0] <= width:
        step, count = axes.pop(0)
        width += (count - 1) * step
    if len(axes) == array.ndim or (axes and axes[0][0] < 0):
        raise StrideError(
            f"a copy to the device takes an array with one unit stride and none negative; the "
            f"strides of this one are {array.strides} bytes"
        )
    return width, axes


def _copy(array: np.ndarray, buffer: DeviceBuffer, *, to_device: bool) -> None:
    """Copy every run of ``array``, as many per call as the driver takes."""
    width, axes = _runs(array)
    if not width:
        return
    # One call copies all runs along the longer axis.
    axes.sort(key=lambda axis: axis[1])
    pitch, height = axes.pop() if axes and max(axes[-1][0], width) <= _MAX_PITCH else (width, 1)
    offsets = [0]
    for step, count in axes:
        offsets = [offset + step * i for offset in offsets for i in range(count)]
    driver, host = load_driver(), array.ctypes.data
    kinds = driver.CUmemorytype
    with entered(buffer.device):
        for offset in offsets:
            there, here = buffer.pointer + offset, host + offset
            if height == 1 and to_device:
                result = driver.cuMemcpyHtoDAsync(there, here, width, 0)
            elif height == 1:
                result = driver.cuMemcpyDtoHAsync(here, there, width, 0)
            else:
                copy = driver.CUDA_MEMCPY2D()
                copy.WidthInBytes, copy.Height = width, height
                copy.srcPitch = copy.dstPitch = pitch
                if to_device:
                    copy.srcMemoryType = kinds.CU_MEMORYTYPE_HOST
                    copy.dstMemoryType = kinds.CU_MEMORYTYPE_DEVICE
                    copy.srcHost, copy.dstDevice = here, there
                else:
                    copy.srcMemoryType = kinds.CU_MEMORYTYPE_DEVICE
                    copy.dstMemoryType = kinds.CU_MEMORYTYPE_HOST
                    copy.srcDevice, copy.dstHost = there, here
                result = driver.cuMemcpy2DAsync(copy, 0)
            checked(result, "copying a matrix")


def zero(pointer: int, nbytes: int, device: int, stream: int) -> None:
    """Set device memory to zeros, in stream order."""
    with entered(device):
        checked(load_driver().cuMemsetD8Async(pointer, 0, nbytes, stream), "setting a result to 0")


# Scratch of a sequence of launches ---------------------------------------------------------------

_pools: dict[int, Any] = {}


def scratch(nbytes: int, device: int, stream: int) -> int:
    """Allocate so many bytes in the order of ``stream``, to be freed by `give_back`.

    The device's context is current. A pool of the device keeps freed memory.
    During graph capture the memory belongs to the graph. OutOfMemoryError if the device does not
    have so many bytes.
    """
    pool = _pools.get(device)
    if pool is None:
        pool = _pools.setdefault(device, _new_pool(device))
    result = load_driver().cuMemAllocFromPoolAsync(nbytes, pool, stream)
    return _allocated(result, nbytes, device, " of scratch")


def give_back(pointer: int, stream: int) -> None:
    """Free scratch, in the order of ``stream``; its device's context is current."""
    checked(load_driver().cuMemFreeAsync(pointer, stream), "giving scratch back")


def _new_pool(device: int) -> Any:
    """Create a pool that keeps all freed memory."""
    driver = load_driver()
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    with entered(device):
        (pool,) = checked(driver.cuMemPoolCreate(properties), "making a pool for scratch")
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        keep_all = driver.cuuint64_t(2**64 - 1)
        checked(driver.cuMemPoolSetAttribute(pool, threshold, keep_all), "keeping scratch")
    return pool
