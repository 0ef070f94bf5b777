"""Element types: every fact of a type stands in its row.

Adding a type to the project is adding a row here, and its MMA atoms to `cute_gemm.cute.atoms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cute_gemm.errors import DTypeError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type and what a GEMM over it accumulates in and may return.

    Attributes
    ----------
    name
        NumPy (or ``ml_dtypes``) name.
    bytes
        Size of an element.
    tag
        Member of ``cutlass_library.DataType``.
    accumulator
        Type of the sums, and of alpha and beta.
    outputs
        Types that C may have; the first is the default.
    computes
        Values of ``compute=``, the arithmetic of the products, which for complex types is that of
        their real and imaginary parts; the first is the default.
    roundoff
        Unit roundoff: half the distance from 1 to the next number; 0 for integers.

    Examples
    --------
    >>> dtype("float16").accumulator
    'float32'
    """

    name: str
    bytes: int
    tag: str
    accumulator: str
    outputs: tuple[str, ...]
    computes: tuple[str, ...]
    roundoff: float

    @property
    def is_complex(self) -> bool:
        """Whether the elements have a real and an imaginary part."""
        return self.name.startswith("complex")

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype; ``ml_dtypes`` is imported for the types that NumPy does not have."""
        import numpy as np

        if self.name == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.name)


DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType("float16", 2, "f16", "float32", ("float16", "float32"), ("float32",), 2.0**-11),
        DType("bfloat16", 2, "bf16", "float32", ("bfloat16", "float32"), ("float32",), 2.0**-8),
        DType("float32", 4, "f32", "float32", ("float32",), ("float32", "tf32"), 2.0**-24),
        DType("float64", 8, "f64", "float64", ("float64",), ("float64",), 2.0**-53),
        DType("complex64", 8, "cf32", "complex64", ("complex64",), ("float32",), 2.0**-24),
        DType("complex128", 16, "cf64", "complex128", ("complex128",), ("float64",), 2.0**-53),
        DType("int8", 1, "s8", "int32", ("int32",), ("int32",), 0.0),
        DType("int32", 4, "s32", "int32", (), (), 0.0),
    )
}


def dtype(name: str) -> DType:
    """Return the row of ``name``.

    Raises
    ------
    DTypeError
        When there is no such row; the message lists those there are.
    """
    try:
        return DTYPES[name]
    except KeyError:
        known = ", ".join(row.name for row in DTYPES.values() if row.outputs)
        raise DTypeError(f"dtype {name!r} is not supported; expected one of {known}") from None


def operand_types() -> tuple[str, ...]:
    """Return all types of A and B, with ``compute`` where it is not the default.

    Examples
    --------
    >>> operand_types()[2:5]
    ('float32', 'float32/tf32', 'float64')
    """
    return tuple(
        row.name if compute == row.computes[0] else f"{row.name}/{compute}"
        for row in DTYPES.values()
        for compute in row.computes
    )
