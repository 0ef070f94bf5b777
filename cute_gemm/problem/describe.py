"""op and operands as a ``GemmProblem``: CuTe descriptors of A, B and C, and every check.

``C <- alpha * op(A) @ op(B) + beta * C`` with op(A) (M, K), op(B) (K, N) and C (M, N), or L such
products at once, of arrays with a leading batch dimension. CuTe wants A (M, K, L), B (N, K, L) and
C (M, N, L), so A is transposed for T and B for N, which costs nothing: only shape and strides
change places.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.arrays import ADAPTERS
from cute_gemm.arrays.base import ALIGNMENT, Operand, Order, dtype_name, dtype_row
from cute_gemm.dtypes import COMPONENT_PRODUCTS, DTYPES, DType, canonical, holding, integer
from cute_gemm.errors import (
    AlignmentError,
    DeviceError,
    DTypeError,
    GemmError,
    OpError,
    OptionError,
    OverlapError,
    ReadOnlyError,
    ShapeError,
    StrideError,
)
from cute_gemm.problem.matrix import Matrix, alignment_of, alignments
from cute_gemm.problem.overlap import matrices_overlap, refuse_overlap
from cute_gemm.problem.problem import GemmProblem

#: Extents are ints in the kernels; offsets have 64 bits.
_LARGEST_EXTENT = 2**31 - 1
_LARGEST_OFFSET = 2**63 - 1
_OPS = frozenset(a + b for a in "NTCH" for b in "NTCH")


class _Stored(NamedTuple):
    """The properties of a stored array that the descriptors depend on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    alignment: int
    library: str


def from_operands(
    op: str, A: Operand, B: Operand, C: Operand | None = None, *, order: Order = "F",
    out_dtype: Any = None, compute: str | None = None, pairs: bool = False,
) -> GemmProblem:  # fmt: skip
    """Check op and operands, and return them as CuTe descriptors.

    ``op`` is two letters of N, T, C and H in either case, for A and for B. The
    operands are as stored: A is (M, K) for N and (K, M) otherwise, B is (K, N) for N and (N, K)
    otherwise, C is (M, N), or None for a new one of ``order`` and ``out_dtype``. One stride of each
    must be 1. The stride of a mode of extent 1 is ignored: it becomes the
    unit stride if the other mode does not have it, and otherwise the stride of a matrix without
    padding. Matrices without elements are column-major.

    A or B with a leading dimension L makes a batch: C is (L, M, N), and an operand without
    that dimension, or whose L is 1 or has stride 0, is shared by all. ``pairs``: two columns of
    the product make one of C, which is (M, N / 2).

    Equal arguments return the same object: everything that does not depend on addresses is cached.
    Each cause of refusal has its class in `errors`.
    """
    c = None
    if C is None:
        order = ADAPTERS[A.library].new_order(order)
    else:
        c = _stored(C)
    problem = _describe(checked_op(op), _stored(A), _stored(B), c, order, out_dtype, compute, pairs)
    if A.device != B.device:
        raise DeviceError(f"A is on {A.place} and B is on {B.place}; expected one place for both")
    if C is not None:
        if A.device != C.device:
            raise DeviceError(f"A is on {A.place} and C is on {C.place}; expected one for both")
        if C.readonly:
            why, instead = "read-only", ", or pass a copy"
            if C.library == "jax":
                why, instead = "immutable, as all arrays of JAX are,", ": C = gemm(...)"
            raise ReadOnlyError(
                f"C ({C.library}) is {why} but must be writable: leave it out and take "
                f"gemm's result{instead}"
            )
        refuse_overlap(C, A, "A")
        refuse_overlap(C, B, "B")
    return problem


def from_sizes(
    op: str, *, m: int, n: int, k: int, dtype: Any, dtype_b: Any = None, l: int = 1,
    lda: int | None = None, ldb: int | None = None, ldc: int | None = None,
    batch_a: int | None = None, batch_b: int | None = None, batch_c: int | None = None,
    order: Order = "F", out_dtype: Any = None, compute: str | None = None, storage: Order = "F",
    pairs: bool = False,
) -> GemmProblem:  # fmt: skip
    """Return the problem that BLAS arguments describe, without any arrays.

    ``m``, ``n``, ``k`` are the extents of op(A) (M, K) and op(B) (K, N) and ``l`` is the number of
    products, each from 0 to 2**31 - 1. Leading dimensions and batch strides are those of the stored
    arrays, in elements, by default without padding; a batch stride of 0 shares A or B. ``storage``
    is the order of A and B as stored, ``order`` that of C. ``dtype_b`` is B's type if it is not
    A's; ``dtype`` may name both, as `GemmProblem.dtype` does. ``pairs`` is as for `from_operands`.
    """
    op = checked_op(op)
    turn_A, turn_B = _turns(op)
    if isinstance(dtype, str) and " x " in dtype:
        dtype, dtype_b = dtype.split(" x ", 1)
    m, n, k, batch = map(_extent, "mnkl", (m, n, k, l))
    element = element_of("A", dtype_name(dtype))
    element_b = element if dtype_b is None else element_of("B", dtype_name(dtype_b))
    out = _out(element, out_dtype)
    a = _sized("A", (k, m) if turn_A else (m, k), lda, batch, batch_a, storage, element.name)
    b = _sized("B", (n, k) if turn_B else (k, n), ldb, batch, batch_b, storage, element_b.name)
    c = _sized("C", (m, n // 2 if pairs else n), ldc, batch, batch_c, order, out)
    return _describe(op, a, b, c, order, out, compute, pairs)


def _stored(operand: Operand) -> _Stored:
    return _Stored(
        operand.shape, operand.strides, operand.dtype, alignment_of(operand), operand.library
    )


def _sized(
    name: str, shape: tuple[int, int], ld: int | None, batch: int, batch_stride: int | None,
    order: str, dtype: str,
) -> _Stored:  # fmt: skip
    """Return the storage of a matrix, or a batch, of which only the sizes are known."""
    check_order(order, "order" if name == "C" else "storage")
    major, minor = shape if order == "F" else shape[::-1]
    least = max(1, major)
    ld = least if ld is None else _integer(f"ld{name.lower()}", ld, StrideError)
    stored = f"{shape[0]} x {shape[1]}, {'column' if order == 'F' else 'row'}-major"
    if ld < least:
        raise StrideError(
            f"ld{name.lower()} = {ld}; expected at least {least}, because {name} is stored as "
            f"{stored}"
        )
    # A bound on the last offset in bytes; 16 is the size of the largest type.
    if ld * max(1, minor) * 16 > _LARGEST_OFFSET:
        raise StrideError(
            f"{name} of {stored}, with ld{name.lower()} = {ld} is larger than memory can be; "
            f"expected offsets that fit 64 bits: at most 2**59 elements"
        )
    step = ld * minor
    if batch_stride is not None:
        step = _integer(f"batch_{name.lower()}", batch_stride, StrideError)
    if step < 0 or (ld * max(1, minor) + step * max(0, batch - 1)) * 16 > _LARGEST_OFFSET:
        raise StrideError(
            f"batch_{name.lower()} = {step}; expected 0 or more, in elements, and offsets that fit "
            f"64 bits, with l = {batch} matrices of {shape[0]} x {shape[1]}"
        )
    strides = (1, ld) if order == "F" else (ld, 1)
    if batch == 1:
        return _Stored(shape, strides, dtype, ALIGNMENT, "numpy")
    return _Stored((batch, *shape), (step, *strides), dtype, ALIGNMENT, "numpy")


def _integer(name: str, value: Any, error: type[GemmError]) -> int:
    try:
        return integer(value)
    except TypeError:
        raise error(f"{name} = {value!r} is not an integer") from None


@lru_cache(maxsize=1024)
def _describe(
    op: str, a: _Stored, b: _Stored, c: _Stored | None, order: str, out_dtype: Any,
    compute: str | None, pairs: bool,
) -> GemmProblem:  # fmt: skip
    """Return the problem of operands as stored, after every check that needs no address."""
    turn_A, turn_B = _turns(op)
    check_order(order, "order")
    for name, stored in (("A", a), ("B", b), ("C", c)):
        if stored is not None and stored.dtype.startswith(("<", ">")):
            native = ADAPTERS[stored.library].cast(name, np.dtype(stored.dtype).name)
            raise DTypeError(
                f"{name} has dtype {stored.dtype}, whose bytes are in the other order than this "
                f"machine's: pass {native}"
            )
    element, element_b = element_of("A", a.dtype), element_of("B", b.dtype)
    if element_b is not element and element_b.name not in element.partners:
        both = holding(a.dtype, b.dtype)
        casts = [
            ADAPTERS[stored.library].cast(name, both)
            for name, stored in (("A", a), ("B", b))
            if stored.dtype != both
        ]
        raise DTypeError(
            f"A has dtype {a.dtype} and B has dtype {b.dtype}; expected the same, and {both} holds "
            f"the numbers of both: {' and '.join(casts)}"
        )
    compute = canonical(compute) if isinstance(compute, str) else compute
    m, k = a.shape[-2:][::-1] if turn_A else a.shape[-2:]
    n, k_of_B = b.shape[-2:] if turn_B else b.shape[-2:][::-1]
    if k != k_of_B:
        raise ShapeError(
            f"op {op!r} with A of shape {a.shape} makes k = {k}, and with B of shape {b.shape} "
            f"k = {k_of_B}; expected A {'(k, m)' if turn_A else '(m, k)'} and "
            f"B {'(n, k)' if turn_B else '(k, n)'}"
        )
    m, n, k = map(_extent, "mnk", (m, n, k))
    leading = _batch(a, b)
    if pairs and n % 2:
        raise ShapeError(
            f"op {op!r} with B of shape {b.shape} makes n = {n}, and the epilogue takes pairs of "
            "columns; expected an even n"
        )
    columns = n // 2 if pairs else n
    if compute is None:
        compute = element.computes[0]
    elif not isinstance(compute, str) or compute not in element.computes:
        raise OptionError(
            f"compute = {compute!r} does not go with dtype {element.name}; expected "
            f"{_one_of(element.computes)}"
        )
    if compute in COMPONENT_PRODUCTS and 0 in (m, n, k, *leading):
        compute = element.computes[0]  # without products
    if c is None:
        out = _out(element, out_dtype)
        strides = (1, max(1, m)) if order == "F" else (max(1, columns), 1)
        steps = (m * columns,) * len(leading)
        shape = (*leading, m, columns)
        c = _Stored(shape, (*steps, *strides), out, ALIGNMENT, a.library)
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
    if c.shape != (*leading, m, columns):
        halved = ", two columns of which make one of C" * pairs
        raise ShapeError(
            f"C has shape {c.shape}; expected {(*leading, m, columns)}, because op {op!r} "
            f"multiplies A of shape {a.shape} by B of shape {b.shape}{halved}"
        )
    batch = leading[0] if leading else 1
    A = _matrix("A", a, batch, turn_A, element.is_complex and op[0] in "CH")
    B = _matrix("B", b, batch, not turn_B, element.is_complex and op[1] in "CH")
    C = _matrix("C", c, batch, False, False)
    if C.ld < C.shape[C.unit]:
        raise OverlapError(
            f"C of shape {c.shape} has strides {c.strides} in elements, so its elements share "
            f"memory; expected a leading dimension of at least {C.shape[C.unit]}, not {C.ld}"
        )
    run, lines = C.shape[C.unit], C.shape[1 - C.unit]
    if matrices_overlap(run, lines, C.ld, batch, C.batch_stride):
        raise OverlapError(
            f"C of shape {c.shape} has strides {c.strides} in elements, so its matrices share "
            f"memory; expected a batch stride of at least {(lines - 1) * C.ld + run}, or a smaller "
            f"one that puts each matrix into the gaps of the others, not {C.batch_stride}"
        )
    return GemmProblem(op, m, n, k, A, B, C, compute, batch)


def describe(op: str, name: str, operand: Operand, batch: int) -> Matrix:
    """Return the descriptor of A or B alone, as in a problem of so many products."""
    turn_A, turn_B = _turns(op)
    conj = dtype_row(operand.dtype).is_complex and op["AB".index(name)] in "CH"
    return _matrix(name, _stored(operand), batch, turn_A if name == "A" else not turn_B, conj)


def _batch(a: _Stored, b: _Stored) -> tuple[int, ...]:
    """Return (L,), or () where neither operand has a batch dimension."""
    extents = [(name, x.shape[0]) for name, x in (("A", a), ("B", b)) if len(x.shape) == 3]
    for name, extent in extents:
        _extent(f"l (the first dimension of {name})", extent)
    several = {extent for _, extent in extents} - {1}
    if len(several) > 1:
        raise ShapeError(
            f"A of shape {a.shape} is a batch of {a.shape[0]} and B of shape {b.shape} one of "
            f"{b.shape[0]}; expected equal batches, or one shared matrix, such as B[0]"
        )
    return tuple(several or {extent for _, extent in extents})


def checked_op(op: str) -> str:
    """Return op in upper case."""
    if isinstance(op, str) and (letters := op.upper()) in _OPS:
        return letters
    raise OpError(
        f"op is {op!r}; expected two letters of N, T, C and H, A's and then B's, such as 'TN'"
    )


def _turns(op: str) -> tuple[bool, bool]:
    """Return whether op takes A and B as transposes of the stored matrices."""
    return op[0] != "N", op[1] != "N"


def _extent(name: str, value: int) -> int:
    extent = _integer(name, value, ShapeError)
    if not 0 <= extent <= _LARGEST_EXTENT:
        raise ShapeError(f"{name} = {extent}; expected 0 to 2**31 - 1 = {_LARGEST_EXTENT}")
    return extent


def check_order(order: str, argument: str) -> None:
    """Refuse a value that is not an order; ``argument`` is the name in the error."""
    if not isinstance(order, str) or order not in ("F", "C"):
        raise OptionError(
            f"{argument} = {order!r}; expected 'F' (column-major, as in BLAS) or 'C' (row-major)"
        )


def element_of(name: str, dtype: str) -> DType:
    """Return the row of an operand's type; raise DTypeError if it is not supported."""
    row = DTYPES.get(dtype)
    if row is None or not row.outputs:
        known = _one_of(tuple(row.name for row in DTYPES.values() if row.outputs))
        raise DTypeError(f"{name} has dtype {dtype}, which is not supported; expected {known}")
    return row


def _out(element: DType, out_dtype: Any) -> str:
    """Return the type of a new C."""
    return element.outputs[0] if out_dtype is None else dtype_name(out_dtype)


def _one_of(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _matrix(name: str, stored: _Stored, batch: int, turn: bool, conj: bool) -> Matrix:
    """Return the descriptor of a stored array, with exchanged modes for a transpose."""
    modes = slice(None, -3, -1) if turn else slice(-2, None)
    rows, columns = stored.shape[modes]
    batched = len(stored.shape) == 3
    stride: tuple[int, int] | None = (1, max(1, rows))
    step = 0
    if 0 not in stored.shape:
        stride = _descriptor_stride((rows, columns), stored.strides[modes])
        step = stored.strides[0] if batched and stored.shape[0] > 1 else 0
    if stride is None or step < 0:
        copy = ADAPTERS[stored.library].copy(name, batched)
        # A copy of C would lose beta * C.
        back = f"assign the result of a copy to it, C[...] = gemm(op, A, B, {copy}, ...)"
        fix = back if name == "C" else f"pass {copy}"
        which = "one of the last two" if batched else "one of them"
        raise StrideError(
            f"{name} of shape {stored.shape} has strides {stored.strides} in elements; expected "
            f"{which} to be 1 and none negative: {fix}"
        )
    size = dtype_row(stored.dtype).bytes
    if stored.alignment < size:
        raise AlignmentError(
            f"{name} starts at an address that is a multiple of {stored.alignment} only; expected "
            f"one of the {size} bytes of {stored.dtype}: pass a copy"
        )
    return Matrix(
        name, (rows, columns), stride, stored.dtype, conj=conj, l=batch, batch_stride=step,
        **alignments(stored.alignment, step * size),
    )  # fmt: skip


def _descriptor_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the strides of a descriptor with one unit stride, or None if there are none.

    This is the one rule for modes of extent 1, whose stride is arbitrary: it becomes the unit if
    the other mode's is not, otherwise the stride of a matrix without padding.
    """
    (rows, columns), (down, across) = shape, strides
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
