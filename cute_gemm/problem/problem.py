"""op and operands as a ``GemmProblem``: the CuTe descriptors of A, B and C, and every check.

``C <- alpha * op(A) @ op(B) + beta * C`` with op(A) (M, K), op(B) (K, N) and C (M, N). CuTe wants
A (M, K), B (N, K) and C (M, N), so A is turned round for T and B for N, which costs nothing: only
shape and strides change places.
"""

from __future__ import annotations

import ctypes
import numbers
import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.errors import (
    AlignmentError,
    ArrayError,
    DeviceError,
    DTypeError,
    OpError,
    OptionError,
    OverlapError,
    ReadOnlyError,
    ScalarError,
    ShapeError,
    StrideError,
)
from cute_gemm.problem.arrays import (
    Operand,
    Order,
    dtype_name,
    host_array,
    new_order,
    overlap,
    read,
)
from cute_gemm.problem.dtypes import DTYPES, DType
from cute_gemm.problem.dtypes import dtype as dtype_row

#: Extents are ints in the kernels; offsets have 64 bits.
_LARGEST_EXTENT = 2**31 - 1
_LARGEST_OFFSET = 2**63 - 1
#: What the driver's allocations have at least, and more than any kernel asks for. In bytes.
_LARGEST_ALIGNMENT = 256
_OPS = frozenset(a + b for a in "NTCH" for b in "NTCH")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A GEMM operand as CuTe sees it: A (M, K), B (N, K), C (M, N).

    Attributes
    ----------
    name
        ``"A"``, ``"B"`` or ``"C"``.
    shape
        Extents of the two modes.
    stride
        Strides of the two modes, in elements. One is the unit (a static 1 in CuTe), the other the
        leading dimension. When both are 1 the first is the unit.
    dtype
        Name of the element type.
    alignment
        Largest power of two, up to 256, that divides the base address in bytes.
    conj
        Whether the conjugate is meant, as op letters C and H have it; False for real types.

    Examples
    --------
    >>> A = Matrix("A", (1024, 512), (1, 1024), "float16", 256)
    >>> print(A, A.major, A.ld, A.nbytes)
    (1024,512):(1,1024) MN 1024 1048576
    """

    name: str
    shape: tuple[int, int]
    stride: tuple[int, int]
    dtype: str
    alignment: int
    conj: bool = False
    l: int = 1
    batch_stride: int = 0

    @property
    def unit(self) -> int:
        """The mode whose stride is 1: 0 or 1."""
        return self.stride.index(1)

    @property
    def ld(self) -> int:
        """The leading dimension, in elements: the stride of the other mode."""
        return self.stride[1 - self.unit]

    @property
    def major(self) -> str:
        """The mode with the unit stride: ``"MN"`` or ``"K"``; for C ``"M"`` or ``"N"``."""
        return (("M", "N") if self.name == "C" else ("MN", "K"))[self.unit]

    @property
    def modes(self) -> tuple[str, str]:
        """Names of the modes: A is (M, K), B (N, K), C (M, N)."""
        return {"A": ("M", "K"), "B": ("N", "K")}.get(self.name, ("M", "N"))

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, padding between them left out."""
        return self.shape[0] * self.shape[1] * dtype_row(self.dtype).bytes

    def __str__(self) -> str:
        return "({},{}):({},{})".format(*self.shape, *self.stride)


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """Everything about a GEMM that a kernel may depend on, but for the addresses.

    Attributes
    ----------
    op
        As asked for, in upper case: ``"TN"``, ``"CN"``.
    m, n, k
        Extents of the product; any may be 0.
    A, B, C
        The descriptors.
    compute
        What products are made in: ``"float32"``, ``"tf32"``, ``"float64"`` or ``"int32"``; of
        complex numbers, what the products of their parts are made in.

    Examples
    --------
    >>> problem = from_sizes("TN", m=1024, n=768, k=512, dtype="float16", storage="C")
    >>> problem.op, problem.blas_op, str(problem.A), str(problem.B), str(problem.C)
    ('TN', 'NT', '(1024,512):(1,1024)', '(768,512):(1,768)', '(1024,768):(1,1024)')
    """

    op: str
    m: int
    n: int
    k: int
    A: Matrix
    B: Matrix
    C: Matrix
    compute: str
    l: int = 1

    @property
    def blas_op(self) -> str:
        """The op that BLAS, whose matrices are column-major, would be given for this storage."""
        return "NT"[self.A.unit] + "TN"[self.B.unit]

    @property
    def inputs(self) -> DType:
        """The type of A and of B: what takes them to be of one type asks here."""
        return DTYPES[self.A.dtype]

    @property
    def types(self) -> str:
        """What people read: ``"float16 -> float32, compute float32"``."""
        return f"{self.inputs.name} -> {self.C.dtype}, compute {self.compute}"

    @property
    def flops(self) -> int:
        """Real operations: two for a multiplication and an addition, eight for complex ones."""
        return (8 if self.inputs.is_complex else 2) * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Scalar:
    """alpha or beta.

    Attributes
    ----------
    value
        The number, rounded to the accumulator's type; 1 when only the device knows it.
    pointer
        Address of the 0-d device array that the kernel is to read, or 0.
    """

    value: float | int | complex
    pointer: int = 0


class _Stored(NamedTuple):
    """What the descriptors depend on, of an array as it is stored."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    alignment: int
    library: str


def from_operands(
    op: str,
    A: Operand,
    B: Operand,
    C: Operand | None = None,
    *,
    order: Order = "F",
    out_dtype: Any = None,
    compute: str | None = None,
) -> GemmProblem:
    """Check op and operands, and write them down as CuTe descriptors.

    Equal arguments give the same object again: all that does not depend on addresses is looked up.

    Parameters
    ----------
    op
        Two letters of N, T, C and H in either case: what to do with A, then with B.
    A, B, C
        The operands as stored: A is (M, K) for N and (K, M) otherwise, B is (K, N) for N and (N, K)
        otherwise, C is (M, N), or None for a new one. One stride of each must be 1. A mode of
        extent 1 takes whatever stride it claims to have for nothing: it gets the unit stride when
        the other mode does not have it, and otherwise the stride of a matrix without padding.
        Matrices without elements are column-major.
    order
        ``"F"`` or ``"C"``: that of a new C.
    out_dtype
        Type of C; by default that of the given C, and for a new one what belongs to A's.
    compute
        ``"tf32"`` for float32 operands; otherwise what belongs to the type.

    Raises
    ------
    OpError, ShapeError, StrideError, DTypeError, AlignmentError, OptionError
        For what the argument of that name says.
    DeviceError
        When the operands do not live on one device.
    ReadOnlyError
        When C cannot be written to.
    OverlapError
        When C shares memory with A or B, or its own elements share memory.

    Examples
    --------
    >>> A, B = np.zeros((512, 1024), "f4", order="F"), np.zeros((512, 768), "f4", order="F")
    >>> problem = from_operands("TN", read(A, "A"), read(B, "B"))
    >>> print(problem.A, problem.B, problem.C)
    (1024,512):(512,1) (768,512):(512,1) (1024,768):(1,1024)
    """
    c = None
    if C is None:
        order = new_order(A, order)
    else:
        c = _stored(C)
    problem = _describe(_checked_op(op), _stored(A), _stored(B), c, order, out_dtype, compute)
    if A.device != B.device:
        raise DeviceError(f"A is on {A.place} and B is on {B.place}; expected one place for both")
    if C is not None:
        if A.device != C.device:
            raise DeviceError(f"A is on {A.place} and C is on {C.place}; expected one for both")
        if C.readonly:
            raise ReadOnlyError(
                f"C ({C.library}) is read-only and is to be written to: leave it out and take "
                f"gemm's result, or pass a copy"
            )
        for name, operand in (("A", A), ("B", B)):
            if overlap(C, operand):
                raise OverlapError(
                    f"C shares memory with {name}, which would be read after parts of it are "
                    f"written: pass a copy of {name}, or a C of its own"
                )
    return problem


def from_sizes(
    op: str,
    *,
    m: int,
    n: int,
    k: int,
    dtype: Any,
    lda: int | None = None,
    ldb: int | None = None,
    ldc: int | None = None,
    order: Order = "F",
    out_dtype: Any = None,
    compute: str | None = None,
    storage: Order = "F",
) -> GemmProblem:
    """Return the problem that BLAS arguments describe, without any arrays.

    Parameters
    ----------
    op
        Two letters of N, T, C and H in either case.
    m, n, k
        Extents of op(A) (M, K) and op(B) (K, N), from 0 to 2**31 - 1.
    dtype
        Type of A and B.
    lda, ldb, ldc
        Leading dimensions of the stored arrays, in elements; by default without padding.
    order
        ``"F"`` (BLAS) or ``"C"``: that of C.
    out_dtype, compute
        As for ``from_operands``.
    storage
        ``"F"`` (BLAS) or ``"C"``: that of A and B as stored.

    Raises
    ------
    OpError, ShapeError, StrideError, DTypeError, OptionError
        For what the argument of that name says.

    Examples
    --------
    >>> print(from_sizes("TN", m=1024, n=768, k=512, dtype="float16", lda=520).A)
    (1024,512):(520,1)
    """
    op = _checked_op(op)
    turn_A, turn_B = _turns(op)
    m, n, k = _extent("m", m), _extent("n", n), _extent("k", k)
    element = _element("A", dtype_name(dtype))
    out = _out(element, out_dtype)
    a = _sized("A", (k, m) if turn_A else (m, k), lda, storage, "storage", element.name)
    b = _sized("B", (n, k) if turn_B else (k, n), ldb, storage, "storage", element.name)
    c = _sized("C", (m, n), ldc, order, "order", out)
    return _describe(op, a, b, c, order, out, compute)


def scalar(x: Any, name: str, dtype: str, device: int | None) -> Scalar:
    """Check alpha or beta, and round it to the type that the kernel multiplies in.

    Parameters
    ----------
    x
        Any number, a 0-d array on the host, or a 0-d array on the operands' device, which is not
        read here: the kernel does.
    name
        ``"alpha"`` or ``"beta"``.
    dtype
        Type of A and B, or of the accumulator.
    device
        Where the operands are.

    Raises
    ------
    ScalarError
        When it is not a number, or not one of the accumulator's kind: complex for real types,
        fractional or too large for integers.
    DTypeError
        When a device array does not have the accumulator's type.
    DeviceError
        When a device array is not where the operands are.

    Examples
    --------
    >>> scalar(np.array(0.1), "alpha", "float16", None)
    Scalar(value=0.10000000149011612, pointer=0)
    """
    accumulator = dtype_row(dtype).accumulator
    if isinstance(x, np.generic):
        x = x.item()
    elif not isinstance(x, numbers.Number):
        try:
            operand = read(x, name, 0)
        except (ArrayError, ShapeError) as error:
            raise ScalarError(f"{name} is not a number, and no 0-d array either: {error}") from None
        if operand.device is not None:
            return _device_scalar(operand, name, accumulator, device)
        x = host_array(operand).item()
    return Scalar(_rounded(x, name, accumulator))


def check_beta(beta: Scalar, C: object | None) -> None:
    """Refuse a beta that is not known to be 0 when there is no C to scale.

    Raises
    ------
    ScalarError

    Examples
    --------
    >>> check_beta(Scalar(0.0), None)
    >>> check_beta(Scalar(2.0), None)
    Traceback (most recent call last):
        ...
    cute_gemm.errors.ScalarError: beta = 2.0 scales C, and no C is given: pass C, or beta = 0
    """
    if C is None and (beta.pointer or beta.value != 0):
        value = "on the device" if beta.pointer else f"= {beta.value}"
        raise ScalarError(f"beta {value} scales C, and no C is given: pass C, or beta = 0")


def _stored(operand: Operand) -> _Stored:
    # A host array travels to a device allocation of its own, so its address here says nothing. The
    # lowest bit of address | 256 is the alignment up to 256, of address 0 (no elements) too.
    address = _LARGEST_ALIGNMENT
    if operand.device is not None:
        address |= operand.pointer
    return _Stored(
        operand.shape, operand.strides, operand.dtype, address & -address, operand.library
    )


def _sized(
    name: str, shape: tuple[int, int], ld: int | None, order: str, argument: str, dtype: str
) -> _Stored:
    """Return what a matrix would be of which only the sizes are known."""
    _check_order(order, argument)
    major, minor = shape if order == "F" else shape[::-1]
    least = max(1, major)
    try:
        ld = least if ld is None else operator.index(ld)
    except TypeError:
        raise StrideError(f"ld{name.lower()} = {ld!r} is not an integer") from None
    # A bound on the last offset in bytes; 16 is the size of the largest type.
    if ld < least or ld * max(1, minor) * 16 > _LARGEST_OFFSET:
        kind = "column" if order == "F" else "row"
        raise StrideError(
            f"ld{name.lower()} = {ld}; expected at least {least}, because {name} is stored as "
            f"{shape[0]} x {shape[1]}, {kind}-major, and offsets that fit 64 bits"
        )
    return _Stored(shape, (1, ld) if order == "F" else (ld, 1), dtype, _LARGEST_ALIGNMENT, "numpy")


@lru_cache(maxsize=1024)
def _describe(
    op: str,
    a: _Stored,
    b: _Stored,
    c: _Stored | None,
    order: str,
    out_dtype: Any,
    compute: str | None,
) -> GemmProblem:
    """Return the problem of operands as stored, after every check that needs no address."""
    turn_A, turn_B = _turns(op)
    _check_order(order, "order")
    element = _element("A", a.dtype)
    if b.dtype != a.dtype:
        raise DTypeError(
            f"A has dtype {a.dtype} and B has dtype {b.dtype}; expected the same: "
            f"{_cast('B', b.library, a.dtype)}"
        )
    m, k = a.shape[::-1] if turn_A else a.shape
    n, k_of_B = b.shape if turn_B else b.shape[::-1]
    if k != k_of_B:
        raise ShapeError(
            f"op {op!r} with A of shape {a.shape} makes k = {k}, and with B of shape {b.shape} "
            f"k = {k_of_B}; expected A {'(k, m)' if turn_A else '(m, k)'} and "
            f"B {'(n, k)' if turn_B else '(k, n)'}"
        )
    m, n, k = _extent("m", m), _extent("n", n), _extent("k", k)
    if compute is None:
        compute = element.computes[0]
    elif compute not in element.computes:
        raise OptionError(
            f"compute = {compute!r} does not go with dtype {element.name}; expected "
            f"{_one_of(element.computes)}"
        )
    if c is None:
        out = _out(element, out_dtype)
        strides = (1, max(1, m)) if order == "F" else (max(1, n), 1)
        c = _Stored((m, n), strides, out, _LARGEST_ALIGNMENT, a.library)
    elif out_dtype is not None and dtype_name(out_dtype) != c.dtype:
        raise DTypeError(
            f"out_dtype is {dtype_name(out_dtype)} and the given C has dtype {c.dtype}; expected "
            f"the same: leave out_dtype out"
        )
    if c.dtype not in element.outputs:
        raise DTypeError(
            f"C of dtype {c.dtype} does not go with A and B of dtype {element.name}; expected "
            f"{_one_of(element.outputs)}"
        )
    if c.shape != (m, n):
        raise ShapeError(
            f"C has shape {c.shape}; expected {(m, n)}, because op {op!r} multiplies A of shape "
            f"{a.shape} by B of shape {b.shape}"
        )
    A = _matrix("A", a, turn_A, element.is_complex and op[0] in "CH")
    B = _matrix("B", b, not turn_B, element.is_complex and op[1] in "CH")
    C = _matrix("C", c, False, False)
    if C.ld < C.shape[C.unit]:
        raise OverlapError(
            f"C of shape {c.shape} has strides {c.strides} in elements, so its elements share "
            f"memory; expected a leading dimension of at least {C.shape[C.unit]}, not {C.ld}"
        )
    return GemmProblem(op, m, n, k, A, B, C, compute)


def _checked_op(op: str) -> str:
    """Return op in upper case."""
    if isinstance(op, str) and (letters := op.upper()) in _OPS:
        return letters
    raise OpError(
        f"op is {op!r}; expected two letters of N, T, C and H, A's and then B's, such as 'TN'"
    )


def _turns(op: str) -> tuple[bool, bool]:
    """Return whether op takes A and B as the transposes of what is stored."""
    return op[0] != "N", op[1] != "N"


def _extent(name: str, value: int) -> int:
    try:
        extent = operator.index(value)
    except TypeError:
        raise ShapeError(f"{name} = {value!r} is not an integer") from None
    if not 0 <= extent <= _LARGEST_EXTENT:
        raise ShapeError(f"{name} = {extent}; expected 0 to 2**31 - 1 = {_LARGEST_EXTENT}")
    return extent


def _check_order(order: str, argument: str) -> None:
    if order not in ("F", "C"):
        raise OptionError(
            f"{argument} = {order!r}; expected 'F' (column-major, as in BLAS) or 'C' (row-major)"
        )


def _element(name: str, dtype: str) -> DType:
    row = DTYPES.get(dtype)
    if row is None or not row.outputs:
        known = _one_of(tuple(row.name for row in DTYPES.values() if row.outputs))
        raise DTypeError(f"{name} has dtype {dtype}, which is not supported; expected {known}")
    return row


def _out(element: DType, out_dtype: Any) -> str:
    """Return the type that a new C has."""
    return element.outputs[0] if out_dtype is None else dtype_name(out_dtype)


def _one_of(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _cast(name: str, library: str, dtype: str) -> str:
    return f"{name}.to(torch.{dtype})" if library == "torch" else f"{name}.astype('{dtype}')"


def _matrix(name: str, stored: _Stored, turn: bool, conj: bool) -> Matrix:
    """Return the descriptor of a stored array, modes exchanged if it is to be turned round."""
    step = -1 if turn else 1
    rows, columns = stored.shape[::step]
    stride = _descriptor_stride((rows, columns), stored.strides[::step])
    if stride is None:
        copy = {
            "numpy": f"np.asfortranarray({name})",
            "cupy": f"cupy.asfortranarray({name})",
            "torch": f"{name}.contiguous()",
        }.get(stored.library, "a contiguous copy")
        mend = "assign the result to it, C[...] = gemm(...)" if name == "C" else f"pass {copy}"
        raise StrideError(
            f"{name} of shape {stored.shape} has strides {stored.strides} in elements; expected "
            f"one of them to be 1 and none negative: {mend}"
        )
    if stored.alignment < dtype_row(stored.dtype).bytes:
        raise AlignmentError(
            f"{name} starts at an address that is a multiple of {stored.alignment} only; expected "
            f"one of the {dtype_row(stored.dtype).bytes} bytes of {stored.dtype}: pass a copy"
        )
    return Matrix(name, (rows, columns), stride, stored.dtype, stored.alignment, conj)


def _descriptor_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the strides of a descriptor, one of which is the unit, or None if there are none.

    The one rule for modes that never step: their stride, of which arrays may claim anything, is the
    unit if the other mode's is not, and else what a matrix without padding has.
    """
    (rows, columns), (down, across) = shape, strides
    if rows == 0 or columns == 0:
        return 1, max(1, rows)
    if (rows > 1 and down < 0) or (columns > 1 and across < 0):
        return None
    if rows > 1 and down == 1:
        return 1, across if columns > 1 else rows
    if columns > 1 and across == 1:
        return down if rows > 1 else columns, 1
    if rows == 1:
        return 1, across if columns > 1 else 1
    if columns == 1:
        return down, 1
    return None


def _device_scalar(operand: Operand, name: str, accumulator: str, device: int | None) -> Scalar:
    if operand.device != device:
        place = "the host" if device is None else f"CUDA device {device}"
        raise DeviceError(
            f"{name} is on {operand.place} and A is on {place}; expected one for both, or a "
            f"number: {name}.item()"
        )
    if operand.dtype != accumulator:
        raise DTypeError(
            f"{name} is a device array of dtype {operand.dtype}; expected {accumulator}, which is "
            f"what the kernel multiplies in: {_cast(name, operand.library, accumulator)}"
        )
    return Scalar(1, operand.pointer)


def _rounded(x: Any, name: str, accumulator: str) -> complex:
    try:
        if accumulator == "int32":
            value = int(x)
            if value == x and -(2**31) <= value < 2**31:
                return value
        else:
            number = complex(x) if dtype_row(accumulator).is_complex else float(x)
            if accumulator in ("float64", "complex128"):
                return number
            parts = [ctypes.c_float(part).value for part in (number.real, number.imag)]
            return complex(*parts) if accumulator == "complex64" else parts[0]
    except (TypeError, ValueError, OverflowError):  # complex, NaN to int, inf to int
        pass
    real = "a number" if dtype_row(accumulator).is_complex else "a real number"
    expected = "an integer of 32 bits" if accumulator == "int32" else real
    raise ScalarError(f"{name} is {x!r}; expected {expected}, because sums are {accumulator}")
