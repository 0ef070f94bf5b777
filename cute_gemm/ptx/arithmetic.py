"""Instructions that compute one value per lane from others: PTX ISA, 9.7.1 to 9.7.8.

Sums and products of floats without ``.rn`` are rounded to nearest here. PTX leaves one freedom:
ptxas may fuse a sum and a product that the text does not fuse (9.7.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cute_gemm.ptx.code import DTYPES, Code, opcode
from cute_gemm.ptx.floats import fma_f32, fma_f32_down, fma_f64
from cute_gemm.ptx.follow import (
    Pair,
    Rule,
    added,
    bitwise,
    chosen,
    compared,
    extreme,
    in_parts,
    moved,
    multiplied,
    negated,
    steered,
    subtracted,
    unsigned,
)
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.memory import Array
from cute_gemm.ptx.parser import BYTES, Immediate, Instruction, Vector

_INTEGERS = ("s16", "u16", "s32", "u32", "s64", "u64")
_SIGNED = ("s16", "s32", "s64")
_FLOATS = ("f32", "f64")


def _kind(code: Code, inst: Instruction, *allowed: str) -> str:
    """Return the type of an opcode, its last part."""
    kind = inst.op[-1]
    code.require(inst, kind in allowed, f"not with .{kind}")
    return kind


def _unsigned(kind: str) -> str:
    """Return the unsigned type of the same width, whose arithmetic wraps."""
    return "u" + kind[1:] if kind[0] in "sb" else kind


_BITWISE: dict[str, np.ufunc] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert
}  # fmt: skip
#: The same as bits of a table (`cute_gemm.ptx.follow.bitwise`).
_TABLES = {"and": 0b1000, "or": 0b1110, "xor": 0b0110, "not": 0b01}


def _positive(x: Pair) -> Array:
    """Return the undefined bits of an absolute value: by sign, of the value or its negation."""
    value, lost = x
    bits = np.dtype(unsigned(value.dtype))
    other = np.negative(value).view(bits), negated((value.view(bits), lost.view(bits)))
    return chosen(other, (value.view(bits), lost.view(bits)), (value < 0, lost < 0))


#: Opcodes that correspond to a NumPy function, their types, and the rule for those of integers.
_PLAIN: dict[str, tuple[np.ufunc, tuple[str, ...], Rule]] = {
    "add": (np.add, _INTEGERS + _FLOATS, added),
    "sub": (np.subtract, _INTEGERS + _FLOATS, subtracted),
    "min": (np.minimum, _INTEGERS, extreme(True)), "max": (np.maximum, _INTEGERS, extreme(False)),
    "neg": (np.negative, _SIGNED + _FLOATS, negated),
    "abs": (np.absolute, _SIGNED + _FLOATS, _positive),
    **{
        name: (function, ("pred", "b16", "b32", "b64"), bitwise(_TABLES[name], function.nin))
        for name, function in _BITWISE.items()
    },
}  # fmt: skip
#: Functions of a float's sign, in which all other bits stay.
_SIGNS = {
    "neg": moved(lambda x: x), "abs": moved(lambda x: x & x.dtype.type(np.iinfo(x.dtype).max >> 1))
}  # fmt: skip


@opcode(*_PLAIN)
def _plain(code: Code, inst: Instruction) -> Step:
    name = inst.op[0]
    function, allowed, rule = _PLAIN[name]
    kind = _kind(code, inst, *allowed)
    rounded = name in ("add", "sub") and kind in _FLOATS
    code.only(inst, kind, *(("rn",) if rounded else ()))
    follow = _SIGNS.get(name) if kind in _FLOATS else rule
    if name in ("add", "sub", "neg"):
        kind = _unsigned(kind)
    return code.apply(inst, function, kind, (kind,) * function.nin, follow)


@opcode("mul", "mad")
def _mul(code: Code, inst: Instruction) -> Step:
    """Multiply; ``mad`` adds a third operand of the product's type."""
    adds = inst.op[0] == "mad"
    kind = _kind(code, inst, *_INTEGERS, *(() if adds else _FLOATS))
    if kind in _FLOATS:
        code.only(inst, kind, "rn")
        return code.apply(inst, np.multiply, kind, (kind, kind))
    mode = inst.op[1]
    code.only(inst, kind, "lo", "wide", *(() if adds else ("hi",)))
    if mode == "lo":
        kind = _unsigned(kind)
        if not adds:
            return code.apply(inst, np.multiply, kind, (kind, kind), multiplied)
        rule: Rule = lambda a, b, c: added((a[0] * b[0], multiplied(a, b)), c)  # noqa: E731
        return code.apply(inst, lambda a, b, c: a * b + c, kind, (kind,) * 3, rule)
    code.require(inst, BYTES[kind] < 8)
    wide = f"{kind[0]}{16 * BYTES[kind]}"
    dtype, shift = DTYPES[wide], DTYPES[wide](8 * BYTES[kind])

    def product(a: Array, b: Array) -> Array:
        return np.multiply(a, b, dtype=dtype)

    def high(a: Array, b: Array) -> Array:
        return (product(a, b) >> shift).astype(DTYPES[kind])

    def of_product(a: Pair, b: Pair) -> Pair:
        pairs = [(value.astype(dtype), lost.astype(dtype)) for value, lost in (a, b)]
        return product(a[0], b[0]), multiplied(*pairs).view(dtype)

    def of_high(a: Pair, b: Pair) -> Array:
        return (of_product(a, b)[1] >> shift).astype(DTYPES[kind])

    if adds:
        return code.apply(
            inst, lambda a, b, c: product(a, b) + c, wide, (kind, kind, wide),
            lambda a, b, c: added(of_product(a, b), c),
        )  # fmt: skip
    if mode == "wide":
        return code.apply(inst, product, wide, (kind, kind), lambda a, b: of_product(a, b)[1])
    return code.apply(inst, high, kind, (kind, kind), of_high)


@opcode("fma")
def _fma(code: Code, inst: Instruction) -> Step:
    kind = _kind(code, inst, *_FLOATS)
    if inst.op[1:] == ("rm", "f32"):
        return code.apply(inst, fma_f32_down, kind, (kind,) * 3)
    code.require(inst, inst.op[1:] == ("rn", kind))
    return code.apply(inst, fma_f32 if kind == "f32" else fma_f64, kind, (kind,) * 3)


@opcode("div", "rem")
def _div(code: Code, inst: Instruction) -> Step:
    """Divide; integers truncate, and division by zero gives all ones (unspecified, 9.7.1.9)."""
    kind = _kind(code, inst, "s32", "u32", "s64", "u64")
    code.only(inst, kind)
    dtype, remainder = DTYPES[kind], inst.op[0] == "rem"
    nothing = np.array(-1).astype(dtype)

    def divide(a: Array, b: Array) -> Array:
        quotient = a // b
        if kind[0] == "s":  # NumPy rounds down
            quotient = quotient + ((a - quotient * b != 0) & ((a < 0) != (b < 0)))
        whole = a - quotient * b if remainder else quotient
        whole = whole.astype(dtype, copy=False)
        return np.where(b == 0, nothing, whole) if not b.all() else whole

    return code.apply(inst, divide, kind, (kind, kind))


@opcode("shl", "shr")
def _shift(code: Code, inst: Instruction) -> Step:
    """Shift by an unsigned 32-bit count, clamped to the width (PTX ISA, 9.7.8.7)."""
    left = inst.op[0] == "shl"
    kind = _kind(code, inst, "b16", "b32", "b64", *(() if left else _INTEGERS))
    code.only(inst, kind)
    dtype = DTYPES[kind]
    # Clamp counts in bits of the same signedness first, so that none becomes negative.
    most = np.uint32(8 * BYTES[kind])
    function = np.left_shift if left else np.right_shift
    count = inst.operands[2]
    if isinstance(count, Immediate):
        amount = dtype(min(int(count.value) & 0xFFFFFFFF, int(most)))

        def fixed(a: Array) -> Array:
            return np.asarray(function(a, amount))

        return code.apply(inst, fixed, kind, (kind,), moved(fixed), constants=1)

    def shift(a: Array, n: Array) -> Array:
        return np.asarray(function(a, np.minimum(n, most).astype(dtype)))

    return code.apply(inst, shift, kind, (kind, "u32"), steered(shift, 0xFFFFFFFF))


_COMPARED: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "ne": np.not_equal,
}  # fmt: skip
_ORDERED = _COMPARED | {
    "ne": lambda a, b: (a < b) | (a > b), "num": lambda a, b: (a == a) & (b == b)
}  # fmt: skip
#: Float comparisons that are also true if an operand is NaN: negations of the above.
_NEGATED = {
    "neu": "eq", "equ": "ne", "geu": "lt", "gtu": "le", "leu": "gt", "ltu": "ge", "nan": "num",
}  # fmt: skip
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


@opcode("setp")
def _setp(code: Code, inst: Instruction) -> Step:
    kind = _kind(code, inst, "b16", "b32", "b64", *_INTEGERS, *_FLOATS)
    test = _UNSIGNED_NAMES.get(inst.op[1], inst.op[1]) if kind[0] == "u" else inst.op[1]
    if kind in _FLOATS:
        ordered = _ORDERED.get(_NEGATED.get(test, test))
        function = (lambda a, b: ~ordered(a, b)) if ordered and test in _NEGATED else ordered
    else:
        function = _COMPARED.get(test) if kind[0] != "b" or test in ("eq", "ne") else None
    joined = _BITWISE.get(inst.op[2]) if len(inst.op) == 4 else None
    if function is None or len(inst.op) not in (3, 4) or (len(inst.op) == 4 and joined is None):
        raise code.refuse(inst)
    code.require(inst, not isinstance(inst.operands[0], Vector), "it sets two predicates")
    follow = None if kind in _FLOATS else compared(test)
    if joined is None:
        return code.apply(inst, function, "pred", (kind, kind), follow)
    table = bitwise(_TABLES[inst.op[2]], 2)

    def of_both(a: Pair, b: Pair, c: Pair) -> Array:
        dtype = DTYPES[kind]
        lost = (a[1] | b[1]) != 0 if follow is None else follow(a, b)
        return table((function(a[0].view(dtype), b[0].view(dtype)), lost), c)

    return code.apply(
        inst, lambda a, b, c: joined(function(a, b), c), "pred", (kind, kind, "pred"), of_both
    )


@opcode("selp")
def _selp(code: Code, inst: Instruction) -> Step:
    kind = _kind(code, inst, "b16", "b32", "b64", *_INTEGERS, *_FLOATS)
    code.only(inst, kind)

    def choose(a: Array, b: Array, p: Array) -> Array:
        if p.size == 1:
            return a if p[0, 0] else b
        return np.where(p, a, b)

    kind = _unsigned(kind)
    return code.apply(inst, choose, kind, (kind, kind, "pred"), chosen)


@opcode("bfi")
def _bfi(code: Code, inst: Instruction) -> Step:
    """Insert the low bits of a into b from a bit on (PTX ISA, 9.7.1.20); here with constants."""
    kind = inst.op[1]
    position, length = inst.operands[3:]
    if kind not in ("b32", "b64") or not (
        isinstance(position, Immediate) and isinstance(length, Immediate)
    ):
        raise code.refuse(inst)
    word = DTYPES[kind]
    begin, bits = int(position.value) & 0xFF, int(length.value) & 0xFF
    ones = int(np.iinfo(word).max)
    field, shift = word(((1 << bits) - 1 << begin) & ones), word(begin)

    def insert(a: Array, b: Array) -> Array:
        return (a << shift & field) | (b & ~field)

    return code.apply(inst, insert, kind, (kind, kind), moved(insert), constants=2)


@opcode("prmt", parts="b32")
def _prmt(code: Code, inst: Instruction) -> Step:
    """Select four of eight bytes by nibbles; a nibble's top bit replicates the sign (9.7.9.7)."""

    def permute(a: Array, b: Array, choice: Array) -> Array:
        both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
        result: Any = np.uint32(0)
        for place in range(4):
            nibble = (choice >> np.uint32(4 * place)).astype(np.uint64)
            byte = both >> ((nibble & np.uint64(7)) << np.uint64(3)) & np.uint64(255)
            sign = np.where(byte >> np.uint64(7), np.uint64(255), np.uint64(0))
            byte = np.where(nibble & np.uint64(8), sign, byte)
            result = result | byte.astype(np.uint32) << np.uint32(8 * place)
        return np.asarray(result)

    nibbles = in_parts(4, 4, 8, np.uint32)

    def follow(a: Pair, b: Pair, choice: Pair) -> Array:
        return permute(a[1], b[1], choice[0]) | nibbles(choice)

    return code.apply(inst, permute, "b32", ("b32",) * 3, follow)


@opcode("dp4a", parts=r"[su]32\.[su]32")
@opcode("dp2a", parts=r"(lo|hi)\.[su]32\.[su]32")
def _dot(code: Code, inst: Instruction) -> Step:
    """Add four products of bytes, or two of 16 bits and a byte, of the lower or upper two.

    PTX ISA, 9.7.1.23 and 9.7.1.24; the sum wraps.
    """
    count = 4 if inst.op[0] == "dp4a" else 2
    left, right = inst.op[-2:]
    kind = {"s32": np.int8, "u32": np.uint8}[right]
    x_bits = 32 // count
    x_kind = np.dtype(f"{'int' if left == 's32' else 'uint'}{x_bits}").type
    first = 16 * (inst.op[1] == "hi")

    def parts(a: Array, b: Array, place: int) -> tuple[Array, Array]:
        a = (a >> np.uint32(x_bits * place)).astype(unsigned(x_kind)).view(x_kind)
        b = (b >> np.uint32(8 * place + first)).astype(np.uint8).view(kind)
        return a.astype(np.int32), b.astype(np.int32)

    def dot(a: Array, b: Array, c: Array) -> Array:
        total = c
        for place in range(count):
            x, y = parts(a, b, place)
            total = total + (x * y).view(np.uint32)
        return np.asarray(total)

    def follow(a: Pair, b: Pair, c: Pair) -> Array:
        total = c
        for place in range(count):
            (x, y), (x_lost, y_lost) = parts(a[0], b[0], place), parts(a[1], b[1], place)
            product = (x * y).view(np.uint32), multiplied((x, x_lost), (y, y_lost))
            total = total[0] + product[0], added(total, product)
        return total[1]

    return code.apply(inst, dot, "u32", ("u32", "u32", "u32"), follow)
