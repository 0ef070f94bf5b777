"""More instructions of single lanes, which compilers emit for other kernels: PTX ISA, 9.7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cute_gemm.ptx.code import DTYPES, Code, opcode
from cute_gemm.ptx.follow import bitwise, counted, moved, steered
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.memory import UNITS, Array
from cute_gemm.ptx.parser import BYTES, Immediate, Instruction

_U32 = np.uint32


#: Functions that NumPy rounds to nearest as IEEE 754; with NaN and a number they return NaN.
_PLAIN: dict[str, np.ufunc] = {
    "div.rn": np.divide, "sqrt.rn": np.sqrt, "rcp.rn": np.reciprocal, "min.NaN.f32": np.minimum,
    "max.NaN.f32": np.maximum,
}  # fmt: skip


@opcode(*_PLAIN, parts=r"rn\.f(32|64)|NaN.f32")
def _plain(code: Code, inst: Instruction) -> Step:
    kind, name = inst.op[-1], ".".join(inst.op)
    function = _PLAIN.get(name) or _PLAIN[name.removesuffix(f".{kind}")]
    return code.apply(inst, function, kind, (kind,) * function.nin)


@opcode("min.f32", "max.f32", "min.f64", "max.f64", parts="f(32|64)")
def _least(code: Code, inst: Instruction) -> Step:
    """Return the lesser operand: the number next to NaN, and -0 before +0 (9.7.3.12)."""
    kind, least = inst.op[-1], inst.op[0] == "min"

    def choose(a: Array, b: Array) -> Array:
        chosen = np.fmin(a, b) if least else np.fmax(a, b)
        zeros = (a == 0) & (b == 0)
        a, b = np.signbit(a), np.signbit(b)
        signed = np.where(a | b if least else a & b, -0.0, 0.0).astype(chosen.dtype)
        return np.where(zeros, signed, chosen)

    return code.apply(inst, choose, kind, (kind, kind))


@opcode("bfe", parts="[us]32")
def _bfe(code: Code, inst: Instruction) -> Step:
    """Extract bits of a from a position on, signed for s32 (9.7.1.19); here 32 bits."""
    kind = inst.op[-1]

    def extract(a: Array, position: Array, length: Array) -> Array:
        position, length = position & _U32(255), length & _U32(255)
        wide = a.astype(np.int64)
        bits = wide >> np.minimum(position, 63).astype(np.int64)
        mask = (np.int64(1) << np.minimum(length, 33).astype(np.int64)) - 1
        if kind == "u32":
            return (bits & mask).astype(np.uint32)
        # The sign is the field's last bit, or a's if the field extends beyond it.
        last = np.minimum(position.astype(np.int64) + length - 1, 31)
        sign = (wide >> np.maximum(last, 0) & 1).astype(bool) & (length != 0)
        bits = np.where(sign, bits | ~mask, bits & mask)
        return bits.astype(np.int32)

    return code.apply(inst, extract, kind, (kind, "u32", "u32"), steered(extract, 255, 255))


@opcode("lop3", parts="b32")
def _lop3(code: Code, inst: Instruction) -> Step:
    """Compute any function of three bits: bit 4 a + 2 b + c of a table is its value (9.7.8.6)."""
    table = inst.operands[4] if len(inst.operands) == 5 else None
    if not isinstance(table, Immediate):
        raise code.refuse(inst)
    terms = [index for index in range(8) if int(table.value) >> index & 1]

    def look(a: Array, b: Array, c: Array) -> Array:
        result: Any = np.zeros((1, 1), _U32)
        for index in terms:
            x, y, z = a if index & 4 else ~a, b if index & 2 else ~b, c if index & 1 else ~c
            result = result | (x & y & z)
        return np.asarray(result)

    return code.apply(inst, look, "b32", ("b32",) * 3, bitwise(int(table.value), 3), constants=1)


@opcode("shf", parts=r"[lr]\.(wrap|clamp)\.b32")
def _shf(code: Code, inst: Instruction) -> Step:
    """Shift 64 bits, with a below b, and return one word (9.7.8.8)."""
    left, wrap = inst.op[1] == "l", inst.op[2] == "wrap"

    def shift(a: Array, b: Array, count: Array) -> Array:
        count = (count & _U32(31) if wrap else np.minimum(count, _U32(32))).astype(np.uint64)
        both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
        word = (both << count) >> np.uint64(32) if left else both >> count
        return word.astype(_U32)

    bits = 31 if wrap else 0xFFFFFFFF
    return code.apply(inst, shift, "b32", ("b32",) * 3, steered(shift, bits))


@opcode("popc", "clz", parts="b(32|64)")
def _count(code: Code, inst: Instruction) -> Step:
    """Count ones, or leading zeros; the result has 32 bits."""
    kind = inst.op[-1]
    bits, ones = 8 * BYTES[kind], inst.op[0] == "popc"
    powers = np.arange(bits, dtype=DTYPES[kind])

    def count(x: Array) -> Array:
        each = (x[..., None] >> powers & DTYPES[kind](1)).astype(bool)
        if ones:
            return each.sum(axis=-1).astype(_U32)
        length = np.where(each, powers.astype(np.int64) + 1, 0).max(axis=-1)
        return (bits - length).astype(_U32)

    return code.apply(inst, count, "u32", (kind,), counted(count))


_ROUNDINGS: dict[str, Any] = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


@opcode(
    *(f"cvt.{how}" for how in _ROUNDINGS),
    parts=r"\w+\.([us](32|64)\.f(32|64)|f32\.f32|f64\.f64)",
)
def _to_integer(code: Code, inst: Instruction) -> Step:
    """Round to an integer; integer types clamp, and turn NaN into 0 (9.7.9.21)."""
    _, how, to, kind = inst.op
    if to == kind:
        return code.apply(inst, _ROUNDINGS[how], to, (kind,))
    dtype = DTYPES[to]
    least, most = dtype(np.iinfo(dtype).min), dtype(np.iinfo(dtype).max)

    def convert(x: Array) -> Array:
        whole = _ROUNDINGS[how](x.astype(np.float64))
        low, high = whole <= float(least), whole >= float(most)
        clipped = np.where(low | high | np.isnan(whole), 0.0, whole).astype(dtype)
        return np.where(high, most, np.where(low, least, clipped))

    return code.apply(inst, convert, to, (kind,))


@opcode("copysign", parts="f(32|64)")
def _copysign(code: Code, inst: Instruction) -> Step:
    """Combine the sign of a with the rest of b (9.7.3.8)."""
    kind = inst.op[-1]
    word = UNITS[BYTES[kind]]
    sign = word(1 << 8 * BYTES[kind] - 1)
    follow = moved(lambda a, b: a & sign | b & ~sign)
    return code.apply(inst, lambda a, b: np.copysign(b, a), kind, (kind, kind), follow)


# Approximate functions of floats ------------------------------------------------------------------

#: The result here is the function's value rounded once, which is within PTX's bounds (9.7.3).
_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
}


def flushed(x: Array) -> Array:
    """Replace subnormal numbers by zeros with their sign."""
    small = abs(x) < np.finfo(x.dtype).tiny
    return np.where(small, np.copysign(x.dtype.type(0), x), x)


@opcode("div.approx", parts=r"approx\.ftz\.f32")
def _quotient(code: Code, inst: Instruction) -> Step:
    """Divide; if the divisor exceeds 2^126, the quotient of a finite number is 0 (9.7.3.8)."""

    def divide(x: Array, y: Array) -> Array:
        x, y = flushed(x), flushed(y)
        result = flushed((x.astype(np.float64) / y).astype(np.float32))
        large = (abs(y) > 2.0**126) & np.isfinite(y)
        lost = np.where(np.isfinite(x), np.copysign(np.float32(0), result), np.float32(np.nan))
        return np.where(large, lost, result).astype(np.float32)

    return code.apply(inst, divide, "f32", ("f32", "f32"))


@opcode(*(f"{name}.approx" for name in _FUNCTIONS), parts=r"approx\.(ftz\.)?f(32|64)")
def _approximate(code: Code, inst: Instruction) -> Step:
    """Compute in float64 and round."""
    name, kind = inst.op[0], inst.op[-1]
    code.require(inst, kind == "f32" or name in ("rcp", "rsqrt"))
    function, flushes = _FUNCTIONS[name], "ftz" in inst.op

    def compute(x: Array) -> Array:
        x = flushed(x) if flushes else x
        result = function(x.astype(np.float64)).astype(x.dtype)
        return flushed(result) if flushes else result

    return code.apply(inst, compute, kind, (kind,))
