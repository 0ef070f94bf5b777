"""Instructions that compute one value per lane from others: PTX ISA, 9.7.1 to 9.7.8.

Sums and products of floats without ``.rn`` are rounded to nearest here; ptxas may fuse those of
them that the text does not, which is the one freedom that PTX leaves (9.7.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cute_gemm.ptx.code import DTYPES, Code, opcode
from cute_gemm.ptx.floats import fma_f32, fma_f64
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.parser import BYTES, Immediate, Instruction, Vector

Array = np.ndarray[Any, Any]
_INTEGERS = ("s16", "u16", "s32", "u32", "s64", "u64")
_FLOATS = ("f32", "f64")


def _kind(code: Code, one: Instruction, *allowed: str) -> str:
    """The last part of an opcode, which is its type."""
    kind = one.op[-1]
    if kind not in allowed:
        raise code.refuse(one, f"not with .{kind}")
    return kind


def _unsigned(kind: str) -> str:
    """The type of the same bits without a sign, which wraps and costs no conversion."""
    return "u" + kind[1:] if kind[0] in "sb" else kind


@opcode("add", "sub")
def _add(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, *_INTEGERS, *_FLOATS)
    code.only(one, kind, *(("rn",) if kind in _FLOATS else ()))
    kind = _unsigned(kind)
    function = np.add if one.op[0] == "add" else np.subtract
    return code.apply(one, function, kind, (kind, kind))


@opcode("mul")
def _mul(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, *_INTEGERS, *_FLOATS)
    if kind in _FLOATS:
        code.only(one, kind, "rn")
        return code.apply(one, np.multiply, kind, (kind, kind))
    mode = one.op[1]
    code.only(one, kind, "lo", "wide", "hi")
    if mode == "lo":
        kind = _unsigned(kind)
        return code.apply(one, np.multiply, kind, (kind, kind))
    if BYTES[kind] == 8:
        raise code.refuse(one)
    wide = f"{kind[0]}{16 * BYTES[kind]}"
    dtype, shift = DTYPES[wide], DTYPES[wide](8 * BYTES[kind])

    def product(a: Array, b: Array) -> Array:
        return np.multiply(a, b, dtype=dtype)

    def high(a: Array, b: Array) -> Array:
        return (product(a, b) >> shift).astype(DTYPES[kind])

    if mode == "wide":
        return code.apply(one, product, wide, (kind, kind))
    return code.apply(one, high, kind, (kind, kind))


@opcode("mad")
def _mad(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, *_INTEGERS)
    code.only(one, kind, "lo", "wide")
    if one.op[1] == "lo":
        kind = _unsigned(kind)
        return code.apply(one, lambda a, b, c: a * b + c, kind, (kind,) * 3)
    if BYTES[kind] == 8:
        raise code.refuse(one)
    wide = f"{kind[0]}{16 * BYTES[kind]}"
    dtype = DTYPES[wide]
    return code.apply(
        one, lambda a, b, c: np.multiply(a, b, dtype=dtype) + c, wide, (kind, kind, wide)
    )


@opcode("fma")
def _fma(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, *_FLOATS)
    if one.op[1:] != ("rn", kind):
        raise code.refuse(one)
    return code.apply(one, fma_f32 if kind == "f32" else fma_f64, kind, (kind,) * 3)


@opcode("div", "rem")
def _div(code: Code, one: Instruction) -> Step:
    """Of integers, towards zero; by zero gives all ones (unspecified in the ISA, 9.7.1.9)."""
    kind = _kind(code, one, "s32", "u32", "s64", "u64")
    code.only(one, kind)
    dtype, remainder = DTYPES[kind], one.op[0] == "rem"
    nothing = np.array(-1).astype(dtype)

    def divide(a: Array, b: Array) -> Array:
        quotient = a // b
        if kind[0] == "s":  # NumPy rounds down
            quotient = quotient + ((a - quotient * b != 0) & ((a < 0) != (b < 0)))
        found = a - quotient * b if remainder else quotient
        found = found.astype(dtype, copy=False)
        return np.where(b == 0, nothing, found) if not b.all() else found

    return code.apply(one, divide, kind, (kind, kind))


@opcode("min", "max")
def _least(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, *_INTEGERS)
    code.only(one, kind)
    function = np.minimum if one.op[0] == "min" else np.maximum
    return code.apply(one, function, kind, (kind, kind))


@opcode("neg")
def _neg(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, "s16", "s32", "s64", *_FLOATS)
    code.only(one, kind)
    kind = _unsigned(kind)
    return code.apply(one, np.negative, kind, (kind,))


@opcode("abs")
def _abs(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, "s16", "s32", "s64", *_FLOATS)
    code.only(one, kind)
    return code.apply(one, np.abs, kind, (kind,))


_BITWISE: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert
}  # fmt: skip


@opcode("and", "or", "xor", "not")
def _logic(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, "pred", "b16", "b32", "b64")
    code.only(one, kind)
    kinds = (kind,) if one.op[0] == "not" else (kind, kind)
    return code.apply(one, _BITWISE[one.op[0]], kind, kinds)


@opcode("shl", "shr")
def _shift(code: Code, one: Instruction) -> Step:
    """By an unsigned 32-bit count, clamped to the width (PTX ISA, 9.7.8.7), as NumPy does."""
    left = one.op[0] == "shl"
    kind = _kind(code, one, "b16", "b32", "b64", *(() if left else _INTEGERS))
    code.only(one, kind)
    dtype = DTYPES[kind]
    # A count in bits of the same signedness: clamped first, so that none turns negative.
    most = np.uint32(8 * BYTES[kind])
    function = np.left_shift if left else np.right_shift
    count = one.operands[2]
    if isinstance(count, Immediate):
        amount = dtype(min(int(count.value) & 0xFFFFFFFF, int(most)))
        register = code.register(one, one.operands[0], kind)
        found = [code.source(one, one.operands[1], kind)]
        return code.step(register, lambda a: function(a, amount), dtype, found, moves=True)
    return code.apply(
        one, lambda a, n: function(a, np.minimum(n, most).astype(dtype)), kind, (kind, "u32")
    )


_ORDERED: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "ne": lambda a, b: (a < b) | (a > b), "num": lambda a, b: (a == a) & (b == b),
}  # fmt: skip
#: True where an operand is NaN too: the negations of the ordered ones.
_UNORDERED: dict[str, Callable[..., Any]] = {
    "neu": np.not_equal, "equ": lambda a, b: ~((a < b) | (a > b)), "geu": lambda a, b: ~(a < b),
    "gtu": lambda a, b: ~(a <= b), "leu": lambda a, b: ~(a > b), "ltu": lambda a, b: ~(a >= b),
    "nan": lambda a, b: (a != a) | (b != b),
}  # fmt: skip
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


@opcode("setp")
def _setp(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, "b16", "b32", "b64", *_INTEGERS, *_FLOATS)
    test = _UNSIGNED_NAMES.get(one.op[1], one.op[1]) if kind[0] == "u" else one.op[1]
    function: Callable[..., Any] | None
    if kind in _FLOATS:
        function = {**_ORDERED, **_UNORDERED}.get(test)
    else:
        known = ("eq", "ne") if kind[0] == "b" else ("eq", "ne", "lt", "le", "gt", "ge")
        tests: dict[str, Callable[..., Any]] = {**_ORDERED, "ne": np.not_equal}
        function = tests[test] if test in known else None
    joined = _BITWISE.get(one.op[2]) if len(one.op) == 4 else None
    if function is None or len(one.op) not in (3, 4) or (len(one.op) == 4 and joined is None):
        raise code.refuse(one)
    if isinstance(one.operands[0], Vector):
        raise code.refuse(one, "it sets two predicates")
    if joined is None:
        return code.apply(one, function, "pred", (kind, kind))
    return code.apply(one, lambda a, b, c: joined(function(a, b), c), "pred", (kind, kind, "pred"))


@opcode("selp")
def _selp(code: Code, one: Instruction) -> Step:
    kind = _kind(code, one, "b16", "b32", "b64", *_INTEGERS, *_FLOATS)
    code.only(one, kind)

    def choose(a: Array, b: Array, p: Array) -> Array:
        if p.size == 1:
            return a if p[0, 0] else b
        return np.where(p, a, b)

    kind = _unsigned(kind)
    return code.apply(one, choose, kind, (kind, kind, "pred"))


@opcode("bfi")
def _bfi(code: Code, one: Instruction) -> Step:
    """Put the low bits of a into b from a bit on (PTX ISA, 9.7.1.20); here with constants."""
    position, length = one.operands[3:]
    if one.op != ("bfi", "b32") or not (
        isinstance(position, Immediate) and isinstance(length, Immediate)
    ):
        raise code.refuse(one)
    begin, bits = int(position.value) & 0xFF, int(length.value) & 0xFF
    field = np.uint32(((1 << bits) - 1 << begin) & 0xFFFFFFFF)
    shift, rest = np.uint32(begin), np.uint32(~int(field) & 0xFFFFFFFF)
    register = code.register(one, one.operands[0], "b32")
    found = [code.source(one, other, "b32") for other in one.operands[1:3]]
    return code.step(
        register, lambda a, b: (a << shift & field) | (b & rest), np.uint32, found, moves=True
    )


@opcode("prmt")
def _prmt(code: Code, one: Instruction) -> Step:
    """Four bytes of eight, each chosen by a nibble whose top bit asks for its sign (9.7.9.7)."""
    if one.op != ("prmt", "b32"):
        raise code.refuse(one)

    def permute(a: Array, b: Array, choice: Array) -> Array:
        both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
        found: Any = np.uint32(0)
        for place in range(4):
            nibble = (choice >> np.uint32(4 * place)).astype(np.uint64)
            byte = both >> ((nibble & np.uint64(7)) << np.uint64(3)) & np.uint64(255)
            sign = np.where(byte >> np.uint64(7), np.uint64(255), np.uint64(0))
            byte = np.where(nibble & np.uint64(8), sign, byte)
            found = found | byte.astype(np.uint32) << np.uint32(8 * place)
        return np.asarray(found)

    if not isinstance(one.operands[3], Immediate):
        return code.apply(one, permute, "b32", ("b32",) * 3)
    register = code.register(one, one.operands[0], "b32")
    low, high, choice = (code.source(one, x, "b32") for x in one.operands[1:])
    fixed = code.values[choice.slot]
    return code.step(
        register, lambda a, b: permute(a, b, fixed), np.uint32, [low, high], moves=True
    )


@opcode("dp4a")
def _dp4a(code: Code, one: Instruction) -> Step:
    """Add four products of bytes (PTX ISA, 9.7.1.23); the sum wraps."""
    left, right = one.op[1:] if len(one.op) == 3 else ("", "")
    kinds = {"s32": np.int8, "u32": np.uint8}
    if left not in kinds or right not in kinds:
        raise code.refuse(one)

    def dot(a: Array, b: Array, c: Array) -> Array:
        total = c
        for place in range(4):
            shift = np.uint32(8 * place)
            x = (a >> shift).astype(np.uint8).view(kinds[left]).astype(np.int32)
            y = (b >> shift).astype(np.uint8).view(kinds[right]).astype(np.int32)
            total = total + (x * y).view(np.uint32)
        return np.asarray(total)

    return code.apply(one, dot, "u32", ("u32", "u32", "u32"))
