"""XLA's FFI without a compiler: handlers of custom calls that are Python functions.

XLA calls a C function ``XLA_FFI_Error* (XLA_FFI_CallFrame*)``, which ctypes makes from a Python
function. The structures are those of ``xla/ffi/api/c_api.h``, which jaxlib ships. Unless noted, all
fields here have kept their offsets since version 0.1 of the interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax

#: The interface's major version, within which structures only grow.
_MAJOR = 0
#: The first minor version with the fields read here, for versions of XLA that do not give theirs.
_LEAST_MINOR = 1
#: XLA_FFI_Extension_Metadata.
_METADATA = 1
#: Error codes: XLA_FFI_Error_Code_INVALID_ARGUMENT and INTERNAL.
_INVALID_ARGUMENT, _INTERNAL = 3, 13
#: XLA_FFI_DataType by number.
_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32",
    9: "uint64", 10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16",
    18: "complex128", 19: "float8_e5m2", 20: "float8_e4m3fn",
}  # fmt: skip
#: XLA's names of the platforms with handlers.
PLATFORMS = ("cpu", "CUDA")


class _Sized(ctypes.Structure):
    """The first fields of every structure of the interface."""

    _fields_: ClassVar[Any] = (("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p))


class _Version(_Sized):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p),
        ("metadata", ctypes.c_void_p),
    )  # fmt: skip


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32),
    )  # fmt: skip


class _Arrays(_Sized):
    """Arguments or results: pointers to their types and to themselves."""

    _fields_ = (
        ("size", ctypes.c_int64), ("types", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )  # fmt: skip


class _Attributes(_Sized):
    _fields_ = (
        ("size", ctypes.c_int64), ("types", ctypes.c_void_p), ("names", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )  # fmt: skip


class _Frame(_Sized):
    _fields_ = (
        ("api", ctypes.c_void_p), ("context", ctypes.c_void_p), ("stage", ctypes.c_int),
        ("arguments", _Arrays), ("results", _Arrays), ("attributes", _Attributes),
    )  # fmt: skip


class _BufferOf(_Sized):
    _fields_ = (
        ("dtype", ctypes.c_int), ("data", ctypes.c_void_p), ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )  # fmt: skip


class _Span(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Api(_Sized):
    _fields_ = (
        ("version", _Version), ("internal", ctypes.c_void_p),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "error_create", "error_get_message", "error_destroy", "handler_register",
                "stream_get", "type_register", "context_get", "state_set", "state_get", "allocate",
                "free", "schedule", "threads", "future_create", "future_set_available",
                "future_set_error", "run_id_get", "device_ordinal_get",
            )
        ),
    )  # fmt: skip


class _ErrorCreate(_Sized):
    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int))


class _ErrorMessage(_Sized):
    _fields_ = (("error", ctypes.c_void_p), ("message", ctypes.c_char_p))


class _StreamGet(_Sized):
    _fields_ = (("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))


class _DeviceOrdinalGet(_Sized):
    _fields_ = (("context", ctypes.c_void_p), ("ordinal", ctypes.c_int32))


#: Functions of the interface, which take the address of a structure.
_function = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class Buffer(NamedTuple):
    """An argument or a result of a call: row-major, at an address of the host or the device."""

    dtype: str
    shape: tuple[int, ...]
    pointer: int


class Context:
    """Properties of the call that a handler runs in."""

    def __init__(self, api: _Api, context: int) -> None:
        self._api, self._context = api, context

    @property
    def stream(self) -> int:
        """Raw ``CUstream`` of the call."""
        given = _StreamGet(ctypes.sizeof(_StreamGet), None, self._context, None)
        self._call(self._api.stream_get, given)
        return given.stream or 0

    @property
    def device(self) -> int | None:
        """Ordinal of the device; None if XLA is too old to give it."""
        if self._api.struct_size < ctypes.sizeof(_Api):
            return None
        given = _DeviceOrdinalGet(ctypes.sizeof(_DeviceOrdinalGet), None, self._context, 0)
        self._call(self._api.device_ordinal_get, given)
        return int(given.ordinal)

    def _call(self, function: int, given: _Sized) -> None:
        error = _function(function)(ctypes.addressof(given))
        if error:
            said = _ErrorMessage(ctypes.sizeof(_ErrorMessage), None, error, None)
            _function(self._api.error_get_message)(ctypes.addressof(said))
            text = (said.message or b"").decode(errors="replace")
            _function(self._api.error_destroy)(ctypes.addressof(said))
            raise RuntimeError(f"XLA does not return the stream or device of the call: {text}")


#: A handler, called with the attribute's text, the arguments, the results, and the call's context.
Handler = Callable[[bytes, list[Buffer], list[Buffer], Context], None]

#: Functions whose addresses XLA has.
_registered: list[Any] = []


def register(name: str, handlers: dict[str, Handler]) -> None:
    """Register a custom call's handlers, by platform.

    The call has one attribute, a text. If a handler raises, the call fails with its message. Calls
    do not become part of a command buffer (a CUDA graph), since the first call compiles and loads a
    kernel, which is not allowed during a capture.
    """
    for platform, handler in handlers.items():
        entry = _handler(_entry(handler))
        _registered.append(entry)
        capsule = jax.ffi.pycapsule(ctypes.cast(entry, ctypes.c_void_p).value)
        jax.ffi.register_ffi_target(name, capsule, platform=platform)


def _entry(handler: Handler) -> Callable[[int], int | None]:
    """Return the C function's body, which maps a frame's address to an error's or None."""

    def entry(address: int) -> int | None:
        frame = _Frame.from_address(address)
        if _answered(frame):
            return None
        api = _Api.from_address(frame.api)
        try:
            text, given, outputs = _read(frame)
            handler(text, given, outputs, Context(api, frame.context))
        except BaseException as error:  # XLA's threads cannot catch it
            return _error(api, error)
        return None

    return entry


def _answered(frame: _Frame) -> bool:
    """Answer XLA's query of a handler before its call: the version, and no traits."""
    place = frame.extension
    while place:
        extension = _Extension.from_address(place)
        if extension.type == _METADATA:
            metadata = _Metadata.from_address(extension.metadata)
            metadata.version.major = _MAJOR
            minor = _Api.from_address(frame.api).version.minor if frame.api else 0
            metadata.version.minor = max(minor, _LEAST_MINOR)
            metadata.traits = 0
            return True
        place = extension.next
    return False


def _read(frame: _Frame) -> tuple[bytes, list[Buffer], list[Buffer]]:
    """Return a call's text, arguments and results."""
    span = _Span.from_address(frame.attributes.values[0])
    text = ctypes.string_at(span.pointer, span.length)
    return text, _buffers(frame.arguments), _buffers(frame.results)


def _buffers(arrays: _Arrays) -> list[Buffer]:
    buffers = []
    values = arrays.values
    for place in range(arrays.size):
        buffer = _BufferOf.from_address(values[place])
        dtype = _DTYPES.get(buffer.dtype) or f"of XLA's number {buffer.dtype}"
        buffers.append(Buffer(dtype, tuple(buffer.dims[: buffer.rank]), buffer.data or 0))
    return buffers


def _error(api: _Api, error: BaseException) -> int | None:
    """Return the address of an error object, which XLA owns."""
    code = _INVALID_ARGUMENT if isinstance(error, (ValueError, TypeError)) else _INTERNAL
    text = str(error) or type(error).__name__
    given = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, text.encode(), code)
    address: int | None = _function(api.error_create)(ctypes.addressof(given))
    return address
