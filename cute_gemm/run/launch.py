"""Loaded kernels, launches, and events.

Everything goes through ``cuda.bindings.driver``. A repeated launch writes three addresses into a
block of arguments that was built once and passes its address, which takes 1.2 us in addition to
the driver's own work; the same call through ctypes costs 2.5 us.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cute_gemm.arch import Arch
from cute_gemm.errors import CubinError, LaunchError
from cute_gemm.run.driver import (
    checked,
    device_arch,
    device_properties,
    driver_version,
    entered,
    error_name,
    load_driver,
)

if TYPE_CHECKING:
    from cute_gemm.run.tensormap import TensorMaps
    from cute_gemm.toolchain.cubin import Build
    from cute_gemm.toolchain.signature import Arguments, Launch

#: Errors of a kernel whose context is not current: CUDA_ERROR_INVALID_CONTEXT,
#: INVALID_HANDLE, CONTEXT_IS_DESTROYED; nothing has been started then.
_OTHER_CONTEXT = (201, 400, 709)
#: Dynamic shared memory in bytes that a kernel has without an attribute.
_SMEM_FREE = 48 * 1024
#: Largest extents of a grid along x, and along z.
_MOST_CTAS, _MOST_ALONG_Z = 2**31 - 1, 65535


# Kernels ----------------------------------------------------------------------------------------

_loaded: dict[tuple[int, str, bytes], LoadedKernel] = {}


def load(build: Build, device: int = 0) -> LoadedKernel:
    """Return the kernel of ``build`` on ``device``; the same object for the same cubin."""
    key = (device, build.symbol, build.cubin)
    kernel = _loaded.get(key)
    if kernel is None:
        kernel = _loaded.setdefault(key, LoadedKernel(build, device))
    return kernel


def unload() -> None:
    """Unload all kernels; launches bound to them must not be called again."""
    driver = load_driver()
    while _loaded:
        _, kernel = _loaded.popitem()
        with entered(kernel.device):
            checked(driver.cuModuleUnload(kernel._module), f"unloading {kernel.build.symbol}")


class LoadedKernel:
    """A cubin in the primary context of one device, until the process ends or `unload`.

    Raises CubinError if it is for another architecture; NoGpuError or DeviceError without such a
    device.
    """

    def __init__(self, build: Build, device: int = 0) -> None:
        properties = device_properties(device)
        if not Arch(build.arch).runs_on(properties.capability):
            raise CubinError(
                f"the cubin of {build.symbol} is for {build.arch}, and device {device} "
                f"({properties.name}) is {device_arch(device)}: compile it for that"
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
        self, launch: Launch, arguments: Arguments, maps: TensorMaps | None = None
    ) -> BoundLaunch:
        """Return a launch that lacks only the operands and the stream.

        ``maps``: the tensor maps at the end of the arguments.
        LaunchError if the device cannot have so many CTAs, threads or bytes of shared memory.
        """
        self._allow(launch)
        return BoundLaunch(self, launch, arguments, maps)

    def _allow(self, launch: Launch) -> None:
        """Check a launch against the device, and allow the shared memory that it needs."""
        what = f"{self.build.symbol} on device {self.device}"
        if not 0 <= launch.grid <= _MOST_CTAS or launch.dimensions[2] > _MOST_ALONG_Z:
            raise LaunchError(
                f"{what} cannot have {launch.grid} CTAs for each of {launch.batch} matrices; at "
                f"most {_MOST_CTAS} and {_MOST_ALONG_Z**2}"
            )
        if not 0 < launch.block <= 1024:
            raise LaunchError(f"{what} cannot have {launch.block} threads per CTA; at most 1024")
        static = self.build.resources.shared_static
        limit = device_properties(self.device).shared_memory
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
    """A launch that needs only its operands' addresses and a stream: ``bound(addresses, stream)``.

    The arguments lie in one block of memory, with a table of their addresses that the driver reads;
    a call writes the operands' into it, and the stream into the launch's configuration, and
    makes one call of the driver. Made by `LoadedKernel.bind`.
    """

    _STREAM = struct.Struct("=Q").pack_into

    __slots__ = (
        "_arguments", "_attributes", "_block", "_configuration", "_function", "_launch", "_lock",
        "_maps", "_pack_operands", "_stream", "_table", "kernel", "launch",
    )  # fmt: skip

    def __init__(
        self, kernel: LoadedKernel, launch: Launch, arguments: Arguments, maps: TensorMaps | None
    ) -> None:
        self.kernel = kernel
        self.launch = launch
        driver = load_driver()
        self._arguments = arguments
        self._block = arguments.block
        self._pack_operands = struct.Struct(f"={arguments.operands}Q").pack_into
        self._table = ctypes.addressof(arguments.table)
        self._maps = maps
        if maps is not None:
            arguments.table[-len(maps.places) :] = list(maps.places)
        self._function = kernel._function
        configuration = driver.CUlaunchConfig()
        grid = launch.dimensions
        configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = grid
        configuration.blockDimX = launch.block
        configuration.blockDimY = configuration.blockDimZ = 1
        configuration.sharedMemBytes = launch.smem
        self._attributes = _attributes(driver, launch)
        if self._attributes:
            configuration.attrs, configuration.numAttrs = self._attributes, len(self._attributes)
        self._configuration = configuration
        # Offset of the stream in the configuration: after seven words and their padding.
        self._stream = (ctypes.c_char * 8).from_address(configuration.getPtr() + 32)
        self._launch = driver.cuLaunchKernelEx if all(grid) else _nothing
        self._lock = threading.Lock()

    def __call__(self, addresses: Sequence[int], stream: int = 0) -> None:
        """Start the kernel on the operands at these device addresses, in stream order.

        Raises LaunchError if the driver refuses, also after an earlier kernel failed.
        """
        # Threads that call this share the block.
        with self._lock:
            self._pack_operands(self._block, 0, *addresses)
            if self._maps is not None:
                self._maps.set_addresses(addresses)
            self._STREAM(self._stream, 0, stream)
            (code,) = self._launch(self._configuration, self._function, self._table, 0)
            if code:
                code = self._in_its_context(int(code))
        if code:
            raise LaunchError(f"launching {self.kernel.build.symbol} failed: {error_name(code)}")

    def _in_its_context(self, code: int) -> int:
        """Repeat a launch that failed because its context was not current."""
        if code not in _OTHER_CONTEXT:
            return code
        with entered(self.kernel.device):
            (again,) = self._launch(self._configuration, self._function, self._table, 0)
        return int(again)


def _attributes(driver: Any, launch: Launch) -> list[Any]:
    """Return the launch attributes: clusters, and programmatic dependent launch."""
    attributes = []
    if launch.cluster > 1:
        entry = driver.CUlaunchAttribute()
        entry.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        entry.value.clusterDim.x = launch.cluster
        entry.value.clusterDim.y = entry.value.clusterDim.z = 1
        attributes.append(entry)
    if launch.dependent:
        entry = driver.CUlaunchAttribute()
        entry.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        entry.value.programmaticStreamSerializationAllowed = 1
        attributes.append(entry)
    return attributes


def _nothing(*_: object) -> tuple[int]:
    """Replace a launch without CTAs, which the driver would refuse."""
    return (0,)


def is_capturing(stream: int) -> bool:
    """Return whether work that is started on a stream is captured, or may not be started."""
    driver = load_driver()
    code, status = driver.cuStreamIsCapturing(stream)
    return bool(code) or status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


# Timing -----------------------------------------------------------------------------------------


class Event:
    """A mark in a stream, with the time at which the device reached it."""

    __slots__ = ("_event", "device")

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self._event: Any = None
        driver = load_driver()
        with entered(device):
            (self._event,) = checked(driver.cuEventCreate(0), "making an event")

    def record(self, stream: int = 0) -> None:
        """Record the mark after the work started in ``stream``."""
        with entered(self.device):
            checked(load_driver().cuEventRecord(self._event, stream), "recording an event")

    def record_in_graph(self, stream: int) -> None:
        """Record the mark in the graph that ``stream`` captures, each time the graph runs."""
        driver = load_driver()
        external = driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        with entered(self.device):
            recorded = driver.cuEventRecordWithFlags(self._event, stream, external)
            checked(recorded, "recording an event in a graph")

    def is_reached(self) -> bool:
        """Return whether the device has reached the mark."""
        with entered(self.device):
            (code,) = load_driver().cuEventQuery(self._event)
        return not code

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
