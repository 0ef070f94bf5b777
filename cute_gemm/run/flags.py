"""Flags in host memory that kernels write and the host reads without waiting."""

from __future__ import annotations

import ctypes
import threading

from cute_gemm.run.driver import checked, entered, load_driver

_flags: dict[int, Flag] = {}
_lock = threading.Lock()


class Flag:
    """An int in page-locked memory, initially 0, with one address on the host and on devices.

    It is never freed: a launch may write it at any time.
    """

    def __init__(self, device: int) -> None:
        driver = load_driver()
        with entered(device):
            options = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
            code, address = driver.cuMemHostAlloc(4, options)
            checked((code,), "allocating 4 bytes of page-locked memory")
        self.pointer = int(address)
        self._value = ctypes.c_int.from_address(self.pointer)
        self._value.value = 0

    def take(self) -> int:
        """Return the value, and reset it to 0."""
        value = self._value.value
        if value:
            self._value.value = 0
        return value


def flag_of(device: int) -> Flag:
    """Return the flag of a device."""
    with _lock:
        if device not in _flags:
            _flags[device] = Flag(device)
        return _flags[device]
