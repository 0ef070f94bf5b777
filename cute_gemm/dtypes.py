"""Element types: the row of a type has all its properties.

To add a type, add a row here, and its MMA atoms, which name it by ``tag``, to
`cute_gemm.cute.atoms`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: its properties, the type of its accumulators, and its other names."""

    #: In NumPy (or ``ml_dtypes``), PyTorch, CuPy and JAX.
    name: str
    #: Size of an element.
    bytes: int
    #: Member of ``cutlass_library.DataType``.
    tag: str
    #: Unit roundoff: half the distance from 1 to the next number; 0 for integers.
    roundoff: float
    #: Half the smallest subnormal number: the rounding error of numbers below the normal range (of
    #: complex numbers both parts are rounded); 0 if it is too small for float64.
    underflow: float
    #: Type of the accumulators.
    accumulator: str
    #: ``cudaDataType`` of library_types.h.
    cublas: int
    #: ``cublasComputeType_t`` of products in this type (cublas_api.h); -1: none.
    cublas_compute: int = -1
    #: Types of C, the default first; empty for a type that A and B cannot have.
    outputs: tuple[str, ...] = ()
    #: Values of ``compute=``, the default first: the arithmetic of the products, which for complex
    #: types is that of their real and imaginary parts. `FAST_ACCUM` is float32 accumulated in
    #: tensor cores; those of `COMPONENT_PRODUCTS` compute a product as several.
    computes: tuple[str, ...] = ()
    #: Types of B, in addition to its own, that an A of this type is multiplied by.
    partners: tuple[str, ...] = ()
    #: ``struct`` format of alpha and beta.
    scalar: str = ""
    #: Other names, in addition to ``tag``, in lower case.
    synonyms: tuple[str, ...] = ()
    #: Greatest number, to which larger results saturate; 0 without saturation.
    saturates: float = 0.0

    @property
    def is_complex(self) -> bool:
        """Whether the elements have a real and an imaginary part."""
        return self.name.startswith("complex")

    @property
    def in_numpy(self) -> bool:
        """Whether NumPy itself has the type; if so, ``Tensor.numpy()`` returns it."""
        import numpy as np

        return hasattr(np, self.name)

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype; ``ml_dtypes`` is imported for the types that NumPy does not have."""
        import numpy as np

        if self.in_numpy:
            return np.dtype(self.name)
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.name))

    def spelled(self, compute: str) -> str:
        """Return the name, with ``compute`` if it is not the default: ``"float32/tf32"``."""
        return self.name if compute == self.computes[0] else f"{self.name}/{compute}"


#: A value of ``compute=`` for types whose accumulators are otherwise promoted to float32: they stay
#: in tensor cores, whose accumulators have fewer bits.
FAST_ACCUM = "fast_accum"

#: Values of ``compute=`` that split a float32 into a sum of three bfloat16 numbers, its components,
#: with the number of products of components for a product. bf16x6 omits the three smallest.
COMPONENT_PRODUCTS = {"bf16x6": 6, "bf16x9": 9}
#: Components of a factor, and their type.
COMPONENTS, COMPONENT = 3, "bfloat16"

_OF_FLOAT8: Any = {
    "outputs": ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32"),
    "computes": ("float32", FAST_ACCUM),
}

#: tf32 is not a type of matrices: float32 factors are rounded to it.
DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType("float16", 2, "f16", 2.0**-11, 2.0**-25, "float32", 2,
              outputs=("float16", "float32"), computes=("float32",),
              synonyms=("fp16", "half", "half_t")),
        DType("bfloat16", 2, "bf16", 2.0**-8, 2.0**-134, "float32", 14,
              outputs=("bfloat16", "float32"), computes=("float32",), synonyms=("bfloat16_t",)),
        DType("float32", 4, "f32", 2.0**-24, 2.0**-150, "float32", 0, 68,
              outputs=("float32",), computes=("float32", "tf32", *COMPONENT_PRODUCTS), scalar="f",
              synonyms=("fp32", "single")),
        DType("float64", 8, "f64", 2.0**-53, 0.0, "float64", 1, 70,
              outputs=("float64",), computes=("float64",), scalar="d",
              synonyms=("fp64", "double")),
        DType("complex64", 8, "cf32", 2.0**-24, 2.0**-149.5, "complex64", 4,
              outputs=("complex64",), computes=("float32",), scalar="2f"),
        DType("complex128", 16, "cf64", 2.0**-53, 0.0, "complex128", 5,
              outputs=("complex128",), computes=("float64",), scalar="2d"),
        DType("int8", 1, "s8", 0.0, 0.0, "int32", 3,
              outputs=("int32", "bfloat16", "float16", "float32"), computes=("int32",),
              synonyms=("i8", "int8_t")),
        DType("float8_e4m3fn", 1, "e4m3", 2.0**-4, 2.0**-10, "float32", 28, **_OF_FLOAT8,
              partners=("float8_e5m2",), synonyms=("e4m3fn", "fp8_e4m3", "float8_e4m3"),
              saturates=448.0),
        DType("float8_e5m2", 1, "e5m2", 2.0**-3, 2.0**-17, "float32", 29, **_OF_FLOAT8,
              partners=("float8_e4m3fn",), synonyms=("fp8_e5m2",), saturates=57344.0),
        DType("int32", 4, "s32", 0.0, 0.0, "int32", 10, 72, scalar="i",
              synonyms=("i32", "int32_t")),
        DType("tf32", 4, "tf32", 2.0**-11, 0.0, "float32", 0, 77),
    )
}  # fmt: skip


#: Tags and synonyms -> names.
_NAMES = {name: row.name for row in DTYPES.values() for name in (row.tag, *row.synonyms)}


def integer(value: Any) -> int:
    """Return an integer of any library; TypeError for other values, also True and False."""
    if isinstance(value, bool):
        raise TypeError("a truth value is not an integer")
    return operator.index(value)


def canonical(name: str) -> str:
    """Return the name of a row for any of its synonyms, in letters of either case.

    >>> canonical("FP16"), canonical("bf16"), canonical("float32"), canonical("quad")
    ('float16', 'bfloat16', 'float32', 'quad')
    """
    plain = name.strip().lower()
    return plain if plain in DTYPES else _NAMES.get(plain, name)


def holding(*names: str) -> str:
    """Return the smallest type of A and B that holds every number of these types."""
    rows = [DTYPES[name] for name in names]
    fitting = [row for row in DTYPES.values() if row.outputs and all(_holds(row, x) for x in rows)]
    return min(fitting, key=lambda row: row.bytes).name


def _holds(row: DType, other: DType) -> bool:
    """Return whether the first type has every number of the second."""
    if row is other or row.roundoff == 0:
        return row is other
    if other.roundoff == 0:  # an int8 has 8 digits
        return row.roundoff <= 2.0**-8
    own, its = (DTYPES[x.computes[0]] if x.is_complex else x for x in (row, other))
    fits = own.roundoff <= its.roundoff and own.underflow <= its.underflow
    return fits and (row.is_complex or not other.is_complex)


def scalar_of(accumulator: DType, out: DType) -> DType:
    """Return the type of alpha, beta and the epilogue, from the types of accumulators and C.

    It is the accumulators' type, or float32 if C is floating-point and the accumulators are not.
    """
    return DTYPES["float32"] if out.roundoff and not accumulator.roundoff else accumulator


def factor(name: str, compute: str) -> DType:
    """Return the type of the factors that the hardware multiplies, for elements of type ``name``.

    It is the type of a complex number's parts, the type that ``compute`` rounds to if that is
    coarser (tf32), and otherwise that of the element.
    """
    row = DTYPES[name]
    if compute in COMPONENT_PRODUCTS:
        return DTYPES[COMPONENT]
    products = DTYPES.get(compute, row)
    return products if row.is_complex or products.roundoff > row.roundoff else row


def operand_types() -> tuple[str, ...]:
    """Return the types of A and B, joined by ``" x "`` if they differ.

    A value of ``compute=`` that is not the default follows after a slash.
    """
    return tuple(
        f"{' x '.join(dict.fromkeys((row.name, b)))}{row.spelled(compute)[len(row.name) :]}"
        for row in DTYPES.values()
        for compute in row.computes
        for b in (row.name, *row.partners)
    )


#: `operand_types` whose products are computed as products of components.
OF_COMPONENTS = tuple(DTYPES["float32"].spelled(compute) for compute in COMPONENT_PRODUCTS)

#: `operand_types` of 8-bit floats.
FLOAT8 = tuple(name for name in operand_types() if name.startswith("float8"))
