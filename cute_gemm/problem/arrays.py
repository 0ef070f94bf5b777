"""An array of any library as one ``Operand``: where it is, its shape, strides and data type.

No array library but NumPy is imported here. One adapter per library says how its arrays are read,
made, and ordered with the rest of its work; PyTorch and CuPy arrays are recognised by the module
that their class comes from and read through their own attributes, which takes about a microsecond;
everything else goes through DLPack or ``__cuda_array_interface__``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from cute_gemm._cuda_core import cuda_core
from cute_gemm._kept import Kept
from cute_gemm.errors import ArrayError, ShapeError, StrideError
from cute_gemm.problem.dtypes import DTYPES, canonical
from cute_gemm.problem.dtypes import dtype as dtype_row

Order = Literal["F", "C"]

#: DLPack device types whose memory the CPU may read: kDLCPU and kDLCUDAHost.
_DLPACK_HOST = (1, 3)
#: CU_STREAM_LEGACY, the default stream; also the number that DLPack has for it.
_LEGACY_STREAM = 1
#: What the driver's allocations are aligned to at least, and more than any kernel asks for, bytes.
ALIGNMENT = 256
#: Dimensions of a matrix, and of a batch of them.
_MATRIX = (2, 3)


# Not frozen, though nothing changes it: setting eight fields past that guard would take as long as
# all of the reading, three times a call.
@dataclass(slots=True, eq=False)
class Operand:
    """One array as it was given.

    ``pointer`` is the address of the first element, ``shape`` and ``strides`` (in elements) are as
    stored, ``dtype`` is a NumPy (or ``ml_dtypes``) name, ``device`` the CUDA ordinal, or None for
    host memory. ``library`` is where the array comes from, and where a result goes: ``"numpy"``,
    ``"cupy"``, ``"torch"``, ``"jax"`` or ``"dlpack"`` (any other library with device arrays); host
    arrays of any library but PyTorch and JAX count as NumPy's. ``owner`` is the array itself, which
    keeps the memory alive; ``readonly`` forbids writing to it.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int | None
    library: str
    owner: Any = field(repr=False)
    readonly: bool

    @property
    def place(self) -> str:
        """Where the array is, in words: ``"the host (numpy)"``, ``"CUDA device 0 (torch)"``."""
        where = "the host" if self.device is None else f"CUDA device {self.device}"
        return f"{where} ({self.library})"


def read(array: Any, name: str, dimensions: tuple[int, ...] = _MATRIX) -> Operand:
    """Return what an array is and where it is, without copying or synchronising.

    ``name`` is what error messages call it; ``dimensions`` are those that it may have: those of a
    matrix or a batch of them, or (0,) for alpha and beta. Any other number is a ShapeError; what is
    no array, or one that does not give its memory away, is an ArrayError.
    """
    operand = _ADAPTERS[type(array)].read(array, name)
    if len(operand.shape) not in dimensions:
        if dimensions != _MATRIX:
            expected = "a number or a 0-d array: that of a single element is reshape(())"
        elif len(operand.shape) < _MATRIX[0]:
            expected = "a matrix, which has two dimensions: a column is reshape(-1, 1)"
        else:
            rows, columns = operand.shape[-2:]
            expected = (
                "a matrix or a batch of them, which has three dimensions: one batch dimension "
                f"is reshape(-1, {rows}, {columns})"
            )
        raise ShapeError(f"{name} has shape {operand.shape}; expected {expected}")
    return operand


def host_array(operand: Operand) -> np.ndarray:
    """Return a host operand as a NumPy array on the same memory."""
    return LIBRARIES[operand.library].to_numpy(operand)


def traced() -> bool:
    """Return whether PyTorch's compiler is looking at the caller, rather than running it."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def refuse_grad(tensor: Any, name: str) -> None:
    """Refuse a PyTorch tensor whose gradient would be asked for later."""
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise ArrayError(
            f"{name} requires grad and gemm is not differentiable: pass {name}.detach(), or call "
            "it under torch.no_grad()"
        )


#: What `fingerprint` gives: layouts, and the addresses.
Fingerprint = tuple[tuple[Any, ...], tuple[int, int, int]]


def fingerprint(A: Any, B: Any, C: Any) -> Fingerprint | None:
    """Return all that ``read`` looks at of device arrays of one library; C may be None.

    The layouts, with how addresses are aligned, and the addresses. None for arrays of several, for
    a library where it is no quicker to get, and for an array that has no memory to look at:
    ``read`` says what is wrong with it.
    """
    kind = type(A)
    if type(B) is not kind or not (C is None or type(C) is kind):
        return None
    try:
        return _ADAPTERS[kind].fingerprint(A, B, C)
    except RuntimeError:
        return None


def stream_source(operand: Operand) -> Callable[[], int]:
    """Return what gives the raw ``CUstream`` that the array's library is working on at the time.

    It is 0, the legacy default stream, for libraries that do not say; see ``needs_synchronize``.
    """
    return LIBRARIES[operand.library].stream(operand)


def needs_synchronize(operand: Operand) -> bool:
    """Return whether a result must be complete before the array's library may see it.

    JAX runs on streams of its own, which neither it nor DLPack tells and which do not wait for the
    legacy default stream.
    """
    return LIBRARIES[operand.library].synchronizes


def new_order(like: Operand, order: Order) -> Order:
    """Return the order that a new array in ``like``'s library has when ``order`` is asked for.

    JAX has no column-major arrays; all others have both.
    """
    return order if LIBRARIES[like.library].column_major else "C"


def new_matrix(like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
    """Return an uninitialised array in the library and on the device of ``like``.

    Of a batch (L, M, N) each matrix is whole and has the order, subject to ``new_order``. An
    ArrayError when the library only gives arrays and is not known to make them.
    """
    return LIBRARIES[like.library].new(like, shape, new_order(like, order), dtype)


def converted(operand: Operand, dtype: str, stream: int | None) -> Any:
    """Return a device array as one of another type, made on a stream or the library's current one.

    None for a library that is not known to make one.
    """
    return LIBRARIES[operand.library].converted(operand.owner, dtype, stream)


def finished(like: Operand, made: Any) -> Any:
    """Return what the caller gets of a new matrix, once it is computed."""
    return LIBRARIES[like.library].result(like, made)


# Libraries --------------------------------------------------------------------------------------


class _SwapAB:
    """Any library with DLPack or ``__cuda_array_interface__``, which gives arrays and makes none.

    What is read is what the legacy default stream sees.
    """

    #: ``Operand.library``.
    name = "dlpack"
    #: See ``needs_synchronize`` and ``new_order``.
    synchronizes, column_major = True, True

    def read(self, array: Any, name: str) -> Operand:
        if _traced_by_jax(array):
            raise ArrayError(
                f"{name} is traced by JAX (jit, grad, vmap, ...) and has no memory yet: call gemm "
                "outside, or by jax.pure_callback, which has no gradient"
            )
        dlpack = hasattr(array, "__dlpack_device__")
        if not dlpack and not hasattr(array, "__cuda_array_interface__"):
            raise ArrayError(
                f"{name} is a {_type_name(array)}; expected an array of NumPy, CuPy, PyTorch or "
                f"JAX, or anything with DLPack or __cuda_array_interface__{_made_from(array, name)}"
            )
        jax = type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
        view: Any
        try:
            if on_host := dlpack and array.__dlpack_device__()[0] in _DLPACK_HOST:
                # NumPy's DLPack has no bfloat16, and JAX gives it as that of ml_dtypes.
                view = np.asarray(array) if jax else np.from_dlpack(array)
            else:
                cuda_core()
                from cuda.core.utils import StridedMemoryView

                view = StridedMemoryView.from_any_interface(
                    array if dlpack else _Interface(array), stream_ptr=_LEGACY_STREAM
                )
        except Exception as error:  # whatever another library's export raises
            raise ArrayError(
                f"{name}, a {_type_name(array)}, does not give its memory away ({error}): a copy "
                f"in another library, such as np.asarray({name}), may"
            ) from error
        if on_host:
            operand = LIBRARIES["numpy"].read(view, name)
            return replace(operand, library="jax", owner=array, readonly=True) if jax else operand
        return Operand(
            view.ptr,
            view.shape,
            view.strides or (),
            dtype_name(view.dtype),
            view.device_id,
            "jax" if jax else "dlpack",
            array,
            view.readonly or jax,  # JAX's are immutable, though its DLPack export does not say so
        )

    def fingerprint(self, A: Any, B: Any, C: Any) -> Fingerprint | None:
        return None

    def stream(self, operand: Operand) -> Callable[[], int]:
        return int  # which is 0

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        raise ArrayError(
            f"A is a {_type_name(like.owner)}, and how to make another is not known: pass a C of "
            f"shape {shape} and dtype {dtype} to be written to"
        )

    def result(self, like: Operand, made: Any) -> Any:
        """Return what the caller gets of a matrix that ``new`` made."""
        return made

    def to_numpy(self, operand: Operand) -> np.ndarray:
        return operand.owner

    def converted(self, array: Any, dtype: str, stream: int | None) -> Any:
        return None

    def cast(self, name: str, dtype: str) -> str:
        """Return the expression that makes ``name`` one of another type, for error messages."""
        return f"{name}.astype('{dtype}')"

    def copy(self, name: str, batched: bool) -> str:
        """Return the expression that gives ``name`` a unit stride, for error messages."""
        return "a contiguous copy"


class _Interface:
    """Gives a ``__cuda_array_interface__`` of version 2 as version 3, which only adds a stream."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "version": 3}


class _Numpy(_SwapAB):
    name, synchronizes = "numpy", False

    def read(self, array: np.ndarray, name: str) -> Operand:
        if hasattr(array, "mask"):
            raise ArrayError(f"{name} is a masked array; pass {name}.filled(0), or its .data")
        return Operand(
            array.__array_interface__["data"][0],
            array.shape,
            _in_elements(array.strides, max(array.itemsize, 1), name),
            dtype_name(array.dtype),
            None,
            "numpy",
            array,
            not array.flags.writeable,
        )

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        return _whole_matrices(np.empty, shape, order, dtype_row(dtype).numpy)

    def copy(self, name: str, batched: bool) -> str:
        return f"np.ascontiguousarray({name})" if batched else f"np.asfortranarray({name})"


class _Cupy(_SwapAB):
    name, synchronizes = "cupy", False

    def read(self, array: Any, name: str) -> Operand:
        memory = array.data
        return Operand(
            memory.ptr,
            array.shape,
            _in_elements(array.strides, array.itemsize, name),
            dtype_name(array.dtype),
            memory.device_id,
            "cupy",
            array,
            False,
        )

    def fingerprint(self, A: Any, B: Any, C: Any) -> Fingerprint:
        of_a, of_b = A.data, B.data
        a, b = of_a.ptr, of_b.ptr
        factors = (
            a % ALIGNMENT, A.shape, A.strides, A.dtype, of_a.device_id,
            b % ALIGNMENT, B.shape, B.strides, B.dtype, of_b.device_id,
        )  # fmt: skip
        if C is None:
            return factors, (a, b, 0)
        of_c = C.data
        c = of_c.ptr
        return factors + (c % ALIGNMENT, C.shape, C.strides, C.dtype, of_c.device_id), (a, b, c)

    def stream(self, operand: Operand) -> Callable[[], int]:
        return lambda: sys.modules["cupy"].cuda.get_current_stream(operand.device).ptr

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device):
            return _whole_matrices(cupy.empty, shape, order, dtype_row(dtype).numpy)

    def converted(self, array: Any, dtype: str, stream: int | None) -> Any:
        cuda = sys.modules["cupy"].cuda
        with cuda.Device(array.data.device_id):
            if stream is None:
                return array.astype(dtype)
            with cuda.ExternalStream(stream):
                return array.astype(dtype)

    def copy(self, name: str, batched: bool) -> str:
        return f"cupy.ascontiguousarray({name})" if batched else f"cupy.asfortranarray({name})"


class _Torch(_SwapAB):
    name, synchronizes = "torch", False

    def read(self, array: Any, name: str) -> Operand:
        refuse_grad(array, name)
        if array.is_conj() or array.is_neg():
            lazy = "conj" if array.is_conj() else "neg"
            raise ArrayError(
                f"{name} is a view whose {lazy} bit is set: PyTorch applies it to what it reads, "
                f"and the memory is without it: pass {name}.resolve_{lazy}()"
            )
        if array.is_cuda:
            device = array.get_device()
        elif array.is_cpu:
            device = None
        else:
            hint = f": {name}.cuda() or {name}.cpu()" * (array.device.type != "meta")
            raise ArrayError(
                f"{name} is a tensor on {array.device}; expected one on a CUDA device or the "
                f"CPU{hint}"
            )
        try:
            return Operand(
                array.data_ptr(),
                tuple(array.shape),
                array.stride(),
                dtype_name(array.dtype),
                device,
                "torch",
                array,
                False,
            )
        except RuntimeError as error:  # it has no one block of memory
            if str(array.layout) != "torch.strided":
                raise ArrayError(
                    f"{name} is a tensor of layout {array.layout}; expected a strided one, as "
                    f"{name}.to_dense() makes"
                ) from error
            raise ArrayError(
                f"{name} is a tensor without memory of its own, as in torch.vmap and torch.func, "
                "or nested: call gemm outside; a batch of matrices has three dimensions"
            ) from error

    def fingerprint(self, A: Any, B: Any, C: Any) -> Fingerprint | None:
        # `resize_`, `t_` and others change the object itself, `x.data = y` also its type and bits.
        if A.is_neg() or B.is_neg():
            return None
        grad = A.requires_grad or B.requires_grad or (C is not None and C.requires_grad)
        if grad and sys.modules["torch"].is_grad_enabled():
            return None
        kind = A.dtype
        # PyTorch sets that bit of no real type, and a product has real operands or complex ones.
        if (lazy := kind.is_complex) and (A.is_conj() or B.is_conj()):
            return None
        a, b = A.data_ptr(), B.data_ptr()
        layouts = (
            a % ALIGNMENT, A.shape, A.stride(), kind, A.get_device(),
            b % ALIGNMENT, B.shape, B.stride(), B.dtype, B.get_device(),
        )  # fmt: skip
        if C is None:
            return layouts, (a, b, 0)
        if C.is_neg() or (lazy and C.is_conj()):
            return None
        c = C.data_ptr()
        return (layouts, c % ALIGNMENT, C.shape, C.stride(), C.dtype, C.get_device()), (a, b, c)

    def stream(self, operand: Operand) -> Callable[[], int]:
        if operand.device is None:
            return int
        return partial(sys.modules["torch"]._C._cuda_getCurrentRawStream, operand.device)

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        torch = sys.modules["torch"]
        rows, columns = shape[-2:]
        batch = (rows * columns,) * (len(shape) - 2)
        strides = (*batch, *((1, max(rows, 1)) if order == "F" else (max(columns, 1), 1)))
        on_host = like.device is None
        return torch.empty_strided(
            shape, strides, dtype=getattr(torch, dtype), device="cpu" if on_host else like.device
        )

    def to_numpy(self, operand: Operand) -> np.ndarray:
        tensor = operand.owner
        row = DTYPES.get(operand.dtype)
        if row is None or row.in_numpy:
            return tensor.numpy()
        # PyTorch does not know ml_dtypes: the bits travel as integers.
        bits = getattr(sys.modules["torch"], f"int{8 * row.bytes}")
        return tensor.view(bits).numpy().view(row.numpy)

    def converted(self, array: Any, dtype: str, stream: int | None) -> Any:
        torch = sys.modules["torch"]
        if stream is None:
            return array.to(getattr(torch, dtype))
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, array.device)):
            return array.to(getattr(torch, dtype))

    def cast(self, name: str, dtype: str) -> str:
        return f"{name}.to(torch.{dtype})"

    def copy(self, name: str, batched: bool) -> str:
        return f"{name}.contiguous()"


class _Jax(_SwapAB):
    name, column_major = "jax", False

    def new(self, like: Operand, shape: tuple[int, ...], order: Order, dtype: str) -> Any:
        if like.device is None:  # what `result` makes an array of, since nobody writes to theirs
            return np.empty(shape, dtype_row(dtype).numpy)
        # JAX fills the array asynchronously, on a stream that ours does not follow.
        empty = sys.modules["jax"].numpy.empty
        return empty(shape, dtype, device=like.owner.device).block_until_ready()

    def result(self, like: Operand, made: Any) -> Any:
        return made if like.device is not None else sys.modules["jax"].numpy.asarray(made)

    def to_numpy(self, operand: Operand) -> np.ndarray:
        return np.asarray(operand.owner)


LIBRARIES = {x.name: x for x in (_Numpy(), _Cupy(), _Torch(), _Jax(), _SwapAB())}
#: Classes that an adapter of their own reads: library, which is the first part of their module.
_CLASSES = {("numpy", "ndarray"), ("cupy", "ndarray"), ("torch", "Tensor")}


class _Adapters(Kept[type, _SwapAB]):
    """The adapters that read arrays of the classes that were seen."""

    def __missing__(self, kind: type) -> _SwapAB:
        names = ((base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__)
        self[kind] = found = LIBRARIES[next((x[0] for x in names if x in _CLASSES), "dlpack")]
        return found


_ADAPTERS = _Adapters(256)


def _whole_matrices(empty: Any, shape: tuple[int, ...], order: Order, dtype: np.dtype) -> Any:
    """Return a new array whose last two dimensions have the order, one matrix after the other."""
    if len(shape) == 2:
        return empty(shape, dtype, order)
    batch, rows, columns = shape
    if order == "C":
        return empty(shape, dtype)
    return empty((batch, columns, rows), dtype).swapaxes(1, 2)


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """Return the name of a data type, however it is spelled: ``np.float16``, ``"f16"``, say."""
    if isinstance(dtype, str):
        return canonical(dtype)
    if isinstance(dtype, np.dtype):
        # In the other byte order the name is the same and the numbers are not: '>f4' says so.
        return dtype.name if dtype.isnative else dtype.str
    if isinstance(dtype, type):
        return dtype.__name__
    return str(dtype).rpartition(".")[2]  # torch.float16


def is_array(thing: Any) -> bool:
    """Return whether a thing is an array of any library, be it one that `read` refuses."""
    exchanges = hasattr(thing, "__dlpack_device__") or hasattr(thing, "__cuda_array_interface__")
    adapter = _ADAPTERS[type(thing)]
    return exchanges or adapter is not LIBRARIES["dlpack"] or _traced_by_jax(thing)


def _traced_by_jax(thing: Any) -> bool:
    """Whether a thing stands for an array in a function that JAX transforms."""
    bases = ((base.__module__.partition(".")[0], base.__name__) for base in type(thing).__mro__)
    return ("jax", "Tracer") in bases


def _made_from(thing: Any, name: str) -> str:
    """How an array is made of what is none, for the end of a sentence; nothing if it is not."""
    if hasattr(thing, "toarray"):  # a sparse one of SciPy or CuPy
        return f": {name}.toarray() makes one"
    if isinstance(thing, (list, tuple, memoryview)) or hasattr(thing, "__array__"):
        return f": np.asarray({name}) makes one"
    return ""


def _type_name(array: Any) -> str:
    kind = type(array)
    return f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=256)
def _in_elements(strides: tuple[int, ...], itemsize: int, name: str) -> tuple[int, ...]:
    if any(stride % itemsize for stride in strides):
        raise StrideError(
            f"{name} has strides {strides} in bytes, which are no multiples of its {itemsize}-byte "
            f"elements: {name}.copy() has such strides"
        )
    return tuple(stride // itemsize for stride in strides)
