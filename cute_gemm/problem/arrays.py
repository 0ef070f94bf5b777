"""An array of any library as one ``Operand``: where it is, its shape, strides and data type.

No array library but NumPy is imported here. PyTorch and CuPy arrays are recognised by the module
that their class comes from and read through their own attributes, which takes about a microsecond;
everything else goes through DLPack or ``__cuda_array_interface__``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from cute_gemm.errors import ArrayError, ShapeError, StrideError
from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.problem.dtypes import dtype as dtype_row

Order = Literal["F", "C"]

#: DLPack device types whose memory the CPU may read: kDLCPU and kDLCUDAHost.
_DLPACK_HOST = (1, 3)
#: CU_STREAM_LEGACY, the default stream; also the number that DLPack has for it.
_LEGACY_STREAM = 1


# Not frozen, though nothing changes it: setting eight fields past that guard would take as long as
# all of the reading, three times a call.
@dataclass(slots=True, eq=False)
class Operand:
    """One array as it was given.

    Attributes
    ----------
    pointer
        Address of the first element.
    shape
        Extents as stored.
    strides
        Steps between neighbours along each axis, in elements.
    dtype
        NumPy (or ``ml_dtypes``) name, ``"float16"``.
    device
        CUDA ordinal, or None for host memory.
    library
        Where the array comes from, and where a result goes: ``"numpy"``, ``"cupy"``, ``"torch"``,
        ``"jax"`` or ``"dlpack"`` (any other library with device arrays). Host arrays of any library
        but PyTorch count as NumPy's.
    owner
        The array itself, which keeps the memory alive.
    readonly
        Whether writing to it is forbidden.
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


def read(array: Any, name: str, dimensions: int = 2) -> Operand:
    """Return what an array is and where it is, without copying or synchronising.

    Parameters
    ----------
    array
        A NumPy, CuPy, PyTorch or JAX array, or anything else with DLPack or
        ``__cuda_array_interface__``.
    name
        What error messages call it: ``"A"``, ``"B"``, ``"C"``.
    dimensions
        How many it must have: 2 for a matrix, 0 for alpha and beta.

    Raises
    ------
    ShapeError
        When it has another number of dimensions.
    ArrayError
        When it is no array, or one that does not give its memory away.

    Examples
    --------
    >>> A = read(np.zeros((3, 5), np.float32, order="F"), "A")
    >>> A.shape, A.strides, A.dtype, A.device
    ((3, 5), (1, 3), 'float32', None)
    """
    kind: Any = type(array)
    operand = _reader(kind)(array, name)
    if len(operand.shape) != dimensions:
        expected, mend = (
            ("a matrix, which has two dimensions", "a column is reshape(-1, 1)")
            if dimensions
            else ("a number or a 0-d array", "that of a single element is reshape(())")
        )
        raise ShapeError(f"{name} has shape {operand.shape}; expected {expected}: {mend}")
    return operand


def host_array(operand: Operand) -> np.ndarray:
    """Return a host operand as a NumPy array on the same memory.

    Examples
    --------
    >>> host_array(read(np.eye(2), "A"))
    array([[1., 0.],
           [0., 1.]])
    """
    if operand.library == "torch":
        return _torch_to_numpy(operand.owner, operand.dtype)
    return operand.owner


def fingerprint(array: Any) -> tuple[Any, ...] | None:
    """Return all that ``read`` looks at, or None for a library where that is no quicker to get."""
    kind: Any = type(array)
    return _fingerprinter(kind)(array)


def stream_handle(operand: Operand) -> int:
    """Return the raw ``CUstream`` that the array's library is working on now.

    It is 0, the legacy default stream, for libraries that do not say; see ``needs_synchronize``.
    """
    if operand.library == "torch" and operand.device is not None:
        return sys.modules["torch"]._C._cuda_getCurrentRawStream(operand.device)
    if operand.library == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream(operand.device).ptr
    return 0


def needs_synchronize(operand: Operand) -> bool:
    """Return whether a result must be complete before the array's library may see it.

    JAX runs on streams of its own, which neither it nor DLPack tells and which do not wait for the
    legacy default stream.
    """
    return operand.library in ("jax", "dlpack")


def new_order(like: Operand, order: Order) -> Order:
    """Return the order that a new array in ``like``'s library has when ``order`` is asked for.

    JAX has no column-major arrays; all others have both.
    """
    return "C" if like.library == "jax" else order


def new_matrix(like: Operand, shape: tuple[int, int], order: Order, dtype: str) -> Any:
    """Return an uninitialised matrix in the library and on the device of ``like``.

    Parameters
    ----------
    like
        The operand whose library and device to follow.
    shape
        Rows and columns.
    order
        ``"F"`` for column-major, ``"C"`` for row-major, subject to ``new_order``.
    dtype
        Name of the data type.

    Raises
    ------
    ArrayError
        When the library is one that only gives arrays and is not known to make them.

    Examples
    --------
    >>> new_matrix(read(np.eye(2), "A"), (4, 3), "F", "float32").strides
    (4, 16)
    """
    order = new_order(like, order)
    rows, columns = shape
    if like.library == "numpy":
        return np.empty(shape, dtype_row(dtype).numpy, order)
    if like.library == "torch":
        torch = sys.modules["torch"]
        strides = (1, max(rows, 1)) if order == "F" else (max(columns, 1), 1)
        return torch.empty_strided(
            shape, strides, dtype=getattr(torch, dtype), device=like.owner.device
        )
    if like.library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device):
            return cupy.empty(shape, dtype_row(dtype).numpy, order)
    if like.library == "jax":
        # JAX fills the array asynchronously, on a stream that ours does not follow.
        empty = sys.modules["jax"].numpy.empty
        return empty(shape, dtype, device=like.owner.device).block_until_ready()
    raise ArrayError(
        f"A is a {_type_name(like.owner)}, and how to make another is not known: pass a C of shape "
        f"{shape} and dtype {dtype} to be written to"
    )


def overlap(a: Operand, b: Operand) -> bool:
    """Return whether any byte belongs to both; strides must not be negative.

    Examples
    --------
    >>> buffer = np.zeros((4, 6))
    >>> left, right, middle = buffer[:, :3], buffer[:, 3:], buffer[:, 2:5]
    >>> overlap(read(left, "A"), read(right, "C")), overlap(read(left, "A"), read(middle, "C"))
    (False, True)
    """
    if (
        a.pointer + _span(a.shape, a.strides, a.dtype) <= b.pointer
        or b.pointer + _span(b.shape, b.strides, b.dtype) <= a.pointer
    ):
        return False
    # Interleaved: blocks of one buffer, say. NumPy solves that exactly, and reads no memory for it.
    return np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)))


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """Return the name of a data type, however a library spells it.

    Examples
    --------
    >>> dtype_name("float16"), dtype_name(np.float16), dtype_name(np.dtype("float16"))
    ('float16', 'float16', 'float16')
    """
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, np.dtype):
        # In the other byte order the name is the same and the numbers are not: '>f4' says so.
        return dtype.name if dtype.isnative else dtype.str
    if isinstance(dtype, type):
        return dtype.__name__
    return str(dtype).rpartition(".")[2]  # torch.float16


@lru_cache(maxsize=1024)
def _span(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> int:
    """Return the bytes from the first element to the end of the last."""
    steps = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return (steps + 1) * dtype_row(dtype).bytes


class _Addresses:
    """An operand that NumPy takes for an array, wherever its memory is."""

    def __init__(self, operand: Operand) -> None:
        itemsize = dtype_row(operand.dtype).bytes
        self.__array_interface__ = {
            "version": 3,
            "shape": operand.shape,
            "strides": tuple(stride * itemsize for stride in operand.strides),
            "typestr": f"|V{itemsize}",
            "data": (operand.pointer, True),
        }


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


def _read_numpy(array: np.ndarray, name: str) -> Operand:
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


def _read_cupy(array: Any, name: str) -> Operand:
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


def _read_torch(array: Any, name: str) -> Operand:
    if array.requires_grad:
        raise ArrayError(
            f"{name} requires grad and gemm is not differentiable: pass {name}.detach()"
        )
    if array.is_conj() or array.is_neg():
        lazy = "conj" if array.is_conj() else "neg"
        raise ArrayError(
            f"{name} is a view whose {lazy} bit is set: PyTorch applies it to what it reads, and "
            f"the memory is without it: pass {name}.resolve_{lazy}()"
        )
    if array.is_cuda:
        device = array.get_device()
    elif array.is_cpu:
        device = None
    else:
        raise ArrayError(
            f"{name} is a tensor on {array.device}; expected one on a CUDA device or the CPU: "
            f"{name}.cuda() or {name}.cpu()"
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
    except RuntimeError as error:  # sparse tensors and others without one block of memory
        raise ArrayError(
            f"{name} is a tensor of layout {array.layout}; expected a strided one, as "
            f"{name}.to_dense() makes"
        ) from error


def _torch_to_numpy(tensor: Any, dtype: str) -> np.ndarray:
    row = DTYPES.get(dtype)
    if row is None or row.in_numpy:
        return tensor.numpy()
    # PyTorch does not know ml_dtypes: the bits travel as integers.
    bits = getattr(sys.modules["torch"], f"int{8 * row.bytes}")
    return tensor.view(bits).numpy().view(row.numpy)


def _read_exchange(array: Any, name: str) -> Operand:
    """Read through DLPack or ``__cuda_array_interface__``, as the legacy default stream sees it."""
    dlpack = hasattr(array, "__dlpack_device__")
    if not dlpack and not hasattr(array, "__cuda_array_interface__"):
        raise ArrayError(
            f"{name} is a {_type_name(array)}; expected an array of NumPy, CuPy, PyTorch or JAX, "
            f"or anything with DLPack or __cuda_array_interface__: np.asarray({name}) makes one"
        )
    view: Any
    try:
        if on_host := dlpack and array.__dlpack_device__()[0] in _DLPACK_HOST:
            view = np.from_dlpack(array)
        else:
            from cuda.core.utils import StridedMemoryView

            view = StridedMemoryView.from_any_interface(
                array if dlpack else _Interface(array), stream_ptr=_LEGACY_STREAM
            )
    except Exception as error:  # whatever another library's export raises
        raise ArrayError(
            f"{name}, a {_type_name(array)}, does not give its memory away ({error}): a copy in "
            f"another library, such as np.asarray({name}), may"
        ) from error
    if on_host:
        return _read_numpy(view, name)
    jax = type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
    return Operand(
        view.ptr,
        view.shape,
        view.strides or (),
        dtype_name(view.dtype),
        view.device_id,
        "jax" if jax else "dlpack",
        array,
        view.readonly or jax,  # JAX arrays are immutable, though its DLPack export does not say so
    )


class _Interface:
    """Gives a ``__cuda_array_interface__`` of version 2 as version 3, which only adds a stream."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "version": 3}


_READERS: dict[tuple[str, str], Callable[[Any, str], Operand]] = {
    ("numpy", "ndarray"): _read_numpy,
    ("cupy", "ndarray"): _read_cupy,
    ("torch", "Tensor"): _read_torch,
}


_FINGERPRINTS: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("cupy", "ndarray"): lambda a: (a.data.ptr, a.shape, a.strides, a.dtype),
    ("torch", "Tensor"): lambda t: (
        t.data_ptr(),
        t.shape,
        t.stride(),
        t.dtype,
        t.is_cuda,
        t.requires_grad,
        t.is_conj(),
        t.is_neg(),
    ),
}


@lru_cache(maxsize=256)
def _fingerprinter(kind: Any) -> Callable[[Any], tuple[Any, ...] | None]:
    for base in kind.__mro__:
        found = _FINGERPRINTS.get((base.__module__.partition(".")[0], base.__name__))
        if found:
            return found
    return lambda array: None


@lru_cache(maxsize=256)
def _reader(kind: Any) -> Callable[[Any, str], Operand]:
    for base in kind.__mro__:
        reader = _READERS.get((base.__module__.partition(".")[0], base.__name__))
        if reader:
            return reader
    return _read_exchange
