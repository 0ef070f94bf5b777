"""Element types of a user's copy: names and bits."""

from __future__ import annotations

from typing import Any

from cute_gemm.arrays.base import dtype_name
from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import DTypeError

#: Names of types in PTX, C++ CuTe, CuTe DSL and NumPy by bits, in lower case and without ``_t``.
_NAMES = {
    8: "uint8 u8 s8 b8 i8 f8 byte char bool boolean float8_e4m3fn float8_e5m2 float8_e4m3 "
       "float8_e8m0fnu float_e4m3 float_e5m2 float_ue4m3 float_ue8m0 float8e4m3fn float8e4m3 "
       "float8e5m2 float8e8m0fnu f8e4m3fn f8e5m2 f8e8m0fnu e4m3 e5m2 ue8m0",
    16: "int16 uint16 u16 s16 b16 i16 half f16 fp16 bfloat16 bf16 short",
    32: "uint32 u32 s32 b32 i32 int unsigned float f32 fp32 tfloat32 tf32",
    64: "int64 uint64 u64 s64 b64 i64 double f64 fp64 cf32 float2",
    128: "b128 uint128 float4 double2 cf64",
    4: "int4 uint4 int4b uint4b i4 s4 u4 b4 float_e2m1 float4e2m1fn float4_e2m1fn f4e2m1fn e2m1",
    6: "float_e3m2 float_e2m3 float6e3m2fn float6e2m3fn float6_e3m2fn float6_e2m3fn f6e3m2fn "
       "f6e2m3fn b6 e3m2 e2m3",
}  # fmt: skip
_BITS = {row.name: 8 * row.bytes for row in DTYPES.values()}
_BITS |= {name: bits for bits, names in _NAMES.items() for name in names.split()}


def element(dtype: Any) -> tuple[str, int]:
    """Return the name and the bits of an element; raise DTypeError for an unknown type.

    A copy depends only on the size of its elements, so types that no GEMM here supports are valid.
    """
    name = dtype_name(dtype)
    bare = name.replace("cute::", "").replace("cutlass::", "").rpartition(".")[2].strip()
    key = bare.lower().removesuffix("_t")
    if key in _BITS:
        return (key if key in DTYPES else bare), _BITS[key]
    raise DTypeError(
        f"dtype {name!r} is not supported; expected one of {', '.join(DTYPES)}, uint8, int16, "
        f"int64, float8_e4m3fn, int4, ..., or a name of CuTe or PTX, such as half_t, e5m2, e3m2"
    )


def of_bits(bits: int) -> str | None:
    """Return the name of a type of ``bits``, preferably one that a GEMM here supports."""
    return next((name for name, size in _BITS.items() if size == bits), None)
