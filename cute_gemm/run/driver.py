"""GPUs and their driver: whether a GPU can be used, its properties, and contexts.

``libcuda`` is asked for GPUs through ctypes, which takes microseconds without
one; everything else uses ``cuda.bindings.driver``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cute_gemm.arch import Arch
from cute_gemm.errors import DeviceError, HeaderError, LaunchError, NoGpuError


@functools.cache
def why_no_gpu() -> str | None:
    """Return None if a GPU can be used, otherwise a sentence with the reason.

    Never raises; takes microseconds without a driver. The result is cached.
    """
    try:
        return _why_no_gpu()
    except Exception as error:
        return f"the CUDA driver cannot be used: {type(error).__name__}: {error}"


#: Whether this process was forked from one that had initialised CUDA.
_forked = False
_FORKED = (
    "CUDA was in use before this process was forked, which cannot use it: start processes by "
    "multiprocessing's 'spawn'"
)


def _after_fork() -> None:
    """Note in a forked child that the driver refuses every call."""
    global _forked
    if why_no_gpu.cache_info().currsize and why_no_gpu() is None:
        _forked = True
    why_no_gpu.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _why_no_gpu() -> str | None:
    if _forked:
        return _FORKED
    try:
        libcuda = load_libcuda()
    except OSError:
        return "there is no NVIDIA driver (libcuda cannot be loaded)"
    code = libcuda.cuInit(0)
    if code:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        note = "" if hidden is None else f"; CUDA_VISIBLE_DEVICES is {hidden!r}"
        return f"the NVIDIA driver found no usable GPU ({error_name(code)}{note})"
    count, version = ctypes.c_int(), ctypes.c_int()
    libcuda.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        return "the NVIDIA driver found no GPU"
    libcuda.cuDriverGetVersion(ctypes.byref(version))
    needed = _needed_major()
    if version.value < needed * 1000:
        return (
            f"the NVIDIA driver is for CUDA {_dotted(version.value)} and does not load cubins of "
            f"CUDA {needed} (update the driver)"
        )
    return None


def _needed_major() -> int:
    """Return the CUDA release whose cubins the driver must load: the release of NVRTC."""
    from cute_gemm.toolchain.nvrtc import nvrtc_version

    try:
        return int(nvrtc_version().partition(".")[0])
    except HeaderError:  # without NVRTC there may still be cubins in the cache
        return 12


def device_count() -> int:
    """Return the number of usable GPUs, 0 without a driver."""
    if why_no_gpu() is not None:
        return 0
    (count,) = checked(load_driver().cuDeviceGetCount(), "counting the devices")
    return int(count)


def driver_version() -> str | None:
    """Return the CUDA version that the driver supports (``"13.0"``), or None without a driver."""
    try:
        version = ctypes.c_int()
        code = load_libcuda().cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if code else _dotted(version.value)


def device_name(device: int = 0) -> str:
    """Return the name of a device, ``"NVIDIA H200"``."""
    return device_properties(device).name


def compute_capability(device: int = 0) -> tuple[int, int]:
    """Return the compute capability of a device, ``(9, 0)``."""
    return device_properties(device).capability


def device_arch(device: int = 0) -> Arch:
    """Return the architecture to compile for."""
    capability = compute_capability(device)
    return Arch.of_device(capability)


@functools.cache
def bus_id(device: int = 0) -> str:
    """Return the PCI bus id of a device, which is the same in all processes: ``0000:19:00.0``."""
    handle = device_properties(device).handle
    (name,) = checked(load_driver().cuDeviceGetPCIBusId(32, handle), "reading the PCI bus id")
    return str(name.partition(b"\0")[0].decode())


def multiprocessors(device: int = 0) -> int:
    """Return the number of multiprocessors of a device."""
    return device_properties(device).multiprocessors


def total_memory(device: int = 0) -> int:
    """Return the memory of a device in bytes."""
    return device_properties(device).memory


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties of a device; memory in bytes, and the most shared memory of a CTA."""

    handle: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_memory: int
    memory: int


@functools.cache
def device_properties(device: int) -> Properties:
    """Return the properties of a device, without making a context on it.

    NoGpuError without a usable GPU, DeviceError if there is no device of that ordinal.
    """
    driver = load_driver()
    count = device_count()
    if not 0 <= device < count:
        raise DeviceError(f"device={device} does not exist; expected 0 to {count - 1}")
    (handle,) = checked(driver.cuDeviceGet(device), f"opening device {device}")
    (name,) = checked(driver.cuDeviceGetName(256, handle), "reading the device's name")
    (memory,) = checked(driver.cuDeviceTotalMem(handle), "reading the device's memory")

    def attribute(suffix: str) -> int:
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{suffix}")
        (value,) = checked(driver.cuDeviceGetAttribute(which, handle), f"reading {suffix}")
        return int(value)

    return Properties(
        handle=int(handle),
        name=name.partition(b"\0")[0].decode(errors="replace"),
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        shared_memory=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        memory=int(memory),
    )


@functools.cache
def primary_context(device: int) -> int:
    """Return the primary context of a device, which PyTorch, CuPy and cudart also use.

    It is retained once and kept until the process ends, as cudart does.
    """
    handle = device_properties(device).handle
    (context,) = checked(
        load_driver().cuDevicePrimaryCtxRetain(handle), f"making a context on device {device}"
    )
    return int(context)


def is_current(device: int) -> bool:
    """Return whether the primary context of ``device`` is current."""
    (context,) = checked(load_driver().cuCtxGetCurrent(), "asking for the context")
    return int(context) == primary_context(device)


@contextmanager
def entered(device: int) -> Iterator[None]:
    """Make the primary context of ``device`` current within a ``with`` block."""
    driver = load_driver()
    checked(driver.cuCtxPushCurrent(primary_context(device)), "entering the context")
    try:
        yield
    finally:
        driver.cuCtxPopCurrent()


def synchronize(device: int = 0) -> None:
    """Wait until all work that was started on ``device`` has ended.

    Raises LaunchError if any of it failed, for example by an illegal address.
    """
    with entered(device):
        checked(load_driver().cuCtxSynchronize(), f"waiting for device {device}")


# The driver library -----------------------------------------------------------------------------


@functools.cache
def load_libcuda() -> Any:
    """Return libcuda, for calls that must be fast; OSError without it."""
    names = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in names[:-1]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    return ctypes.CDLL(names[-1])


@functools.cache
def load_driver() -> Any:
    """Return ``cuda.bindings.driver``, initialised; NoGpuError without a usable GPU."""
    reason = why_no_gpu()
    if reason is not None:
        raise NoGpuError(reason)
    from cuda.bindings import driver

    checked(driver.cuInit(0), "initialising the driver")
    return driver


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def error_name(code: int) -> str:
    """Return ``"CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"``."""
    libcuda, parts = load_libcuda(), []
    for function in (libcuda.cuGetErrorName, libcuda.cuGetErrorString):
        text = ctypes.c_char_p()
        if function(code, ctypes.byref(text)) == 0 and text.value:
            parts.append(text.value.decode())
    return ": ".join(parts) or f"CUDA error {code}"


def checked(result: tuple[Any, ...], doing: str | Callable[[], str]) -> tuple[Any, ...]:
    """Return the results of a driver call without its code; raise LaunchError if it failed.

    ``doing``: the action in the message, or a function that returns it.
    """
    code = int(result[0])
    if code:
        if _forked:
            raise NoGpuError(_FORKED)
        said = doing if isinstance(doing, str) else doing()
        raise LaunchError(f"{said} failed with {error_name(code)}")
    return result[1:]
