"""Instructions that move and convert values: PTX ISA, 9.7.9.3 (mov), 9.7.9.21 (cvt), cvta."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cute_gemm.ptx.code import DTYPES, STORED, Code, Source, opcode
from cute_gemm.ptx.floats import from_bf16, from_f8, from_f16, to_bf16, to_f8, to_f16, to_tf32
from cute_gemm.ptx.follow import in_parts, moved
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.memory import SHARED_WINDOW, UNITS, Array
from cute_gemm.ptx.parser import BYTES, Instruction, Name, Operand, Register, Vector

_INTEGERS = tuple(f"{kind}{bits}" for kind in "su" for bits in (8, 16, 32, 64))


def _same(x: Array) -> Array:
    return x


@opcode("mov")
def _mov(code: Code, inst: Instruction) -> Step:
    kind = inst.op[-1]
    code.require(inst, len(inst.op) == 2 and kind in DTYPES and BYTES[kind] != 1)
    to, what = inst.operands
    if isinstance(to, Vector):
        return _unpack(code, inst, kind, to)
    if isinstance(what, Vector):
        return _pack(code, inst, kind, what)
    return code.apply(inst, _same, kind, (kind,), moved(_same))


def _pack(code: Code, inst: Instruction, kind: str, what: Vector) -> Step:
    """Pack values into one, the first in the lowest bits."""
    parts = [
        code.source(inst, part, f"b{8 * BYTES[kind] // len(what.parts)}") for part in what.parts
    ]
    dtype = UNITS[BYTES[kind]]
    width = 8 * BYTES[kind] // len(parts)

    def together(*values: Array) -> Array:
        packed: Any = values[0].astype(dtype)
        for place, value in enumerate(values[1:], 1):
            packed = packed | value.astype(dtype) << dtype(width * place)
        return np.asarray(packed)

    return code.step(
        code.register(inst, inst.operands[0], kind), together, dtype, parts, moved(together)
    )


def _unpack(code: Code, inst: Instruction, kind: str, to: Vector) -> Step:
    """Unpack a value into registers, the lowest bits into the first."""
    whole = UNITS[BYTES[kind]]
    bits = 8 * BYTES[kind] // len(to.parts)
    source = code.source(inst, inst.operands[1], f"b{8 * BYTES[kind]}")
    part = UNITS[bits // 8]
    steps = []
    for place, register in enumerate(to.parts):
        if isinstance(register, Name):  # "_": not read
            continue
        cut = _part(whole(bits * place), part)
        target = code.register(inst, register, f"b{bits}")
        steps.append(code.step(target, cut, part, [source], moved(cut)))

    def all_parts() -> None:
        for step in steps:
            step()

    return all_parts


def _part(begin: Any, dtype: Any) -> Callable[[Array], Array]:
    return lambda x: (x >> begin).astype(dtype)


@opcode("cvta", parts=r"(to\.)?(global|shared|const|param)\.u64")
def _cvta(code: Code, inst: Instruction) -> Step:
    """Convert between generic addresses and those of a space; shared memory has a window."""
    space, kind = inst.op[-2:]
    if space != "shared":
        return code.apply(inst, _same, kind, (kind,), moved(_same))
    window = np.uint64(SHARED_WINDOW)
    if "to" in inst.op:
        return code.apply(inst, lambda x: x - window, kind, (kind,))
    return code.apply(inst, lambda x: x + window, kind, (kind,))


#: float -> float with a rounding (or none), by the parts after ``cvt``.
_FLOATS: dict[tuple[str, ...], Callable[..., Array]] = {
    ("f32", "f16"): from_f16,
    ("f32", "bf16"): from_bf16,
    ("f64", "f16"): lambda x: from_f16(x).astype(np.float64),
    ("f64", "f32"): lambda x: x.astype(np.float64),
    ("rn", "f32", "f64"): lambda x: x.astype(np.float32),
    ("rn", "f16", "f32"): to_f16,
    ("rn", "bf16", "f32"): to_bf16,
    ("rn", "tf32", "f32"): lambda x: to_tf32(x, True),
    ("rna", "tf32", "f32"): lambda x: to_tf32(x, False),
}
#: Clamp to [0, 1]; NaN gives 0.
_FLOATS["sat", "f32", "f32"] = lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(x.dtype)
#: Two packed floats; the first operand is the upper one (PTX ISA, 9.7.9.21).
_PAIRS = {("rn", "f16x2", "f32"): to_f16, ("rn", "bf16x2", "f32"): to_bf16}


#: Names of 8-bit floats, of which instructions convert two.
_FLOAT8 = {"e4m3x2": "float8_e4m3fn", "e5m2x2": "float8_e5m2"}


def _float8(code: Code, inst: Instruction) -> Step:
    """Convert two 8-bit floats from or to float32 or f16x2, saturated (PTX ISA, 9.7.9.21)."""
    how, to, kind = inst.op[1:-2], *inst.op[-2:]
    if to == "f16x2":
        code.require(inst, how == ("rn",))

        def unpacked(x: Array) -> Array:
            low, high = (from_f8(x >> shift & 0xFF, _FLOAT8[kind]) for shift in (0, 8))
            low, high = (to_f16(half).astype(np.uint32) for half in (low, high))
            return high << np.uint32(16) | low

        return code.apply(inst, unpacked, "b32", ("b16",), in_parts(2, 8, 16, np.uint32))
    code.require(inst, how == ("rn", "satfinite") and kind in ("f32", "f16x2"))

    def packed(high: Array, low: Array) -> Array:
        high, low = (to_f8(x, _FLOAT8[to]).astype(np.uint16) for x in (high, low))
        return high << np.uint16(8) | low

    def of_halves(x: Array) -> Array:
        halves = [from_f16((x >> np.uint32(shift)).astype(np.uint16)) for shift in (16, 0)]
        return packed(*halves)

    if kind == "f32":
        return code.apply(inst, packed, "b16", (kind, kind), in_parts(2, 32, 8, np.uint16))
    return code.apply(inst, of_halves, "b16", ("b32",), in_parts(2, 16, 8, np.uint16))


@opcode("cvt")
def _cvt(code: Code, inst: Instruction) -> Step:
    how = inst.op[1:]
    to, kind = how[-2:]
    if to in _FLOAT8 or kind in _FLOAT8:
        return _float8(code, inst)
    if how in _FLOATS:
        return code.apply(inst, _FLOATS[how], to, (kind,))
    if how in _PAIRS:
        rounded = _PAIRS[how]

        def pair(a: Array, b: Array) -> Array:
            return rounded(a).astype(np.uint32) << np.uint32(16) | rounded(b)

        return code.apply(inst, pair, "b32", (kind, kind), in_parts(2, 32, 16, np.uint32))
    if to in _INTEGERS and kind in _INTEGERS and len(how) == 2:
        return _between_integers(code, inst, to, kind)
    if kind in _INTEGERS and how[:-2] == ("rn",) and to in ("f16", "f32", "f64"):
        code.require(inst, to != "f16" or BYTES[kind] <= 4)
        source, cut = _narrowed(code, inst, kind)

        def half(x: Array) -> Array:  # through float64, which holds every such integer
            return cut(x).astype(np.float64).astype(np.float16).view(np.uint16)

        function = half if to == "f16" else lambda x: cut(x).astype(DTYPES[to])
        register = code.register(inst, inst.operands[0], to)
        return code.step(register, function, DTYPES[to], [source])
    raise code.refuse(inst)


def _narrowed(code: Code, inst: Instruction, kind: str) -> tuple[Source, Callable[[Array], Array]]:
    """Return a truncated source whose register may be wider than the type (PTX ISA, 9.4.1)."""
    operand, dtype, unsigned = inst.operands[1], DTYPES[kind], UNITS[BYTES[kind]]
    if not isinstance(operand, Register):
        return code.source(inst, operand, kind), _same
    register, _ = _holder(code, inst, operand, kind)
    return Source(register.slot, None), lambda x: x.astype(unsigned, copy=False).view(dtype)


def _holder(code: Code, inst: Instruction, operand: Operand, kind: str) -> tuple[Register, Any]:
    """Return a register that holds an integer and may be wider than its type, and its storage."""
    if not isinstance(operand, Register):
        raise code.refuse(inst)
    stored = STORED[operand.type]
    fits = operand.type not in ("pred", "f32", "f64")
    fits = fits and np.dtype(stored).itemsize >= BYTES[kind]
    code.require(inst, fits, f"{operand.name} is of type {operand.type}")
    return operand, stored


def _between_integers(code: Code, inst: Instruction, to: str, kind: str) -> Step:
    """Truncate or extend by the sign of the source; a wider register gets the extended result."""
    source, cut = _narrowed(code, inst, kind)
    (register, stored), dtype = _holder(code, inst, inst.operands[0], to), DTYPES[to]

    def convert(x: Array) -> Array:
        return cut(x).astype(dtype, copy=False).astype(stored, copy=False)

    return code.step(register, convert, stored, [source], moved(convert))
