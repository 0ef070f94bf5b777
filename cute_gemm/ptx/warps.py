"""Instructions that a whole warp executes together: shuffles, ldmatrix, mma.sync.

Layouts of fragments follow the PTX ISA, section 9.7.14, and nothing else in this package: the
interpreter serves to check the package's layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.ptx.code import STORED, Code, Source, opcode
from cute_gemm.ptx.floats import fma_f64, from_bf16, from_f8
from cute_gemm.ptx.follow import every
from cute_gemm.ptx.machine import Machine, Step
from cute_gemm.ptx.memory import WARP, Array, Bytes
from cute_gemm.ptx.parser import Instruction, Register
from cute_gemm.ptx.places import AddressOperand


def _by_warp(machine: Machine, values: Array) -> Array:
    """Return values of all lanes, (warps, 32), whole and contiguous."""
    return np.ascontiguousarray(machine.full(values)).reshape(-1, WARP)


# Shuffles -----------------------------------------------------------------------------------------


@opcode("shfl", parts=r"sync\.(up|down|bfly|idx)\.b32")
def _shfl(code: Code, inst: Instruction) -> Step:
    """Return a value of another lane: the pseudo-code of PTX ISA 9.7.9.6."""
    mode = inst.op[2]
    targets = code.parts(inst.operands[0])
    to = code.register(inst, targets[0], "b32")
    target = targets[1] if len(targets) == 2 else None
    if target is not None and not (isinstance(target, Register) and target.type == "pred"):
        raise code.refuse(inst)
    value, by, clamp, members = inst.operands[1:]
    sources = [code.source(inst, each, "b32") for each in (value, by, clamp, members)]
    machine, values = code.machine, code.values

    def shuffle() -> None:
        for source in sources[1:]:
            machine.demand(inst, source.slot, "the shuffled value")
        value, by, clamp, members = (
            _by_warp(machine, values[source.slot].view(np.uint32)).astype(np.int64)
            for source in sources
        )
        lane = np.arange(WARP)
        segment = clamp >> 8 & 31
        least = lane & segment
        most = least | (clamp & 31 & ~segment)
        by = by & 31
        if mode == "up":
            other = lane - by
            inside = other >= most
        else:
            other = {"down": lane + by, "bfly": lane ^ by, "idx": least | (by & ~segment)}[mode]
            inside = other <= most
        other = np.where(inside, other, lane)
        _named_lanes(machine, inst, members)
        lost = machine.undefined[sources[0].slot]
        if lost is not None:
            lost = np.take_along_axis(_by_warp(machine, lost), other, axis=1).reshape(machine.shape)
        got = np.take_along_axis(value, other, axis=1).astype(np.uint32).reshape(machine.shape)
        machine.set(to.slot, got.view(STORED[to.type]), lost)
        if target is not None:
            machine.set(target.slot, np.broadcast_to(inside, other.shape).reshape(machine.shape))

    return shuffle


def _bits(lanes: Array) -> Array:
    """Return lanes as bits of a number, along the last axis, which stays."""
    return np.asarray((lanes.astype(np.int64) << np.arange(WARP)).sum(axis=-1, keepdims=True))


def _named_lanes(machine: Machine, inst: Instruction, members: Array) -> None:
    """Fault if executing lanes name members that do not execute."""
    lanes = machine.lanes().reshape(-1, WARP)
    absent = (members & ~_bits(lanes) != 0) & lanes
    what = "divergent: its mask names lanes that do not execute it with this one"
    machine.fault(inst, "divergent", what, absent.reshape(machine.shape))
    machine.together()


def _reduced(
    code: Code, inst: Instruction, kind: str, result: Callable[[Array, Array], Array],
    undefined: Callable[[Array, Array, Array], Array],
) -> Step:  # fmt: skip
    """Set the first operand to a function of the values of the lanes in each lane's mask.

    ``result`` gets the values, (warps, 1, 32), and these lanes, (warps, 32, 32); ``undefined`` also
    gets the undefined bits of the values. Both return (warps, 32).
    """
    first, operand, mask = inst.operands
    to = code.register(inst, first, inst.op[-1])
    value, members = code.source(inst, operand, kind), code.source(inst, mask, "b32")
    machine = code.machine

    def reduce() -> None:
        machine.demand(inst, members.slot, "its mask")
        named = _by_warp(machine, code.values[members.slot]).astype(np.int64)
        _named_lanes(machine, inst, named)
        # Lanes that execute with one mask have the same lanes in it.
        inside = (named[:, :, None] >> np.arange(WARP) & 1).astype(bool)
        each = _by_warp(machine, code.read(value))[:, None, :]
        lost = machine.undefined[value.slot]
        if lost is not None:
            lost = undefined(each, _by_warp(machine, lost)[:, None, :], inside)
            lost = lost.reshape(machine.shape)
        machine.set(to.slot, result(each, inside).reshape(machine.shape), lost)

    return reduce


@opcode("vote", parts=r"sync\.((all|any|uni)\.pred|ballot\.b32)")
def _vote(code: Code, inst: Instruction) -> Step:
    """Translate ``vote.sync`` (PTX ISA, 9.7.13.10), on the predicates of the lanes in its mask."""
    mode = inst.op[2]

    def result(each: Array, inside: Array) -> Array:
        if mode == "ballot":
            return _bits(each & inside)[..., 0].astype(np.uint32)
        all_lanes, some = (each | ~inside).all(axis=2), (each & inside).any(axis=2)
        return np.asarray({"all": all_lanes, "any": some, "uni": all_lanes | ~some}[mode])

    def undefined(each: Array, lost: Array, inside: Array) -> Array:
        """Return where other values of undefined bits give another result."""
        if mode == "ballot":
            return result(lost, inside)
        least, most = (result(x, inside) for x in (each & ~lost, each | lost))
        bits = least ^ most
        if mode == "uni":
            could = ~((each & ~lost & inside).any(axis=2) & (~each & ~lost & inside).any(axis=2))
            bits = could & (lost & inside).any(axis=2) & (inside.sum(axis=2) > 1)
        return bits

    return _reduced(code, inst, "pred", result, undefined)


@opcode("activemask", parts="b32")
def _activemask(code: Code, inst: Instruction) -> Step:
    """Return the lanes of a warp that execute it together, as bits (PTX ISA, 9.7.13.12)."""
    to = code.register(inst, inst.operands[0], "b32")
    machine = code.machine

    def mask() -> None:
        bits = _bits(_by_warp(machine, machine.lanes())).astype(np.uint32)
        machine.set(to.slot, np.repeat(bits, WARP, axis=1).reshape(machine.shape))

    return mask


@opcode("redux", parts=r"sync\.(max|min)\.u32")
def _redux(code: Code, inst: Instruction) -> Step:
    """Return the greatest or least value of the lanes in its mask (PTX ISA, 9.7.13.14)."""
    greatest = inst.op[2] == "max"

    def result(each: Array, inside: Array) -> Array:
        lanes = np.where(inside, each, np.uint32(0 if greatest else 2**32 - 1))
        return np.asarray(lanes.max(axis=2) if greatest else lanes.min(axis=2))

    def undefined(each: Array, lost: Array, inside: Array) -> Array:
        return every(result(each & ~lost, inside) != result(each | lost, inside), np.uint32)

    return _reduced(code, inst, "b32", result, undefined)


# Matrices from shared memory ----------------------------------------------------------------------


def _matrices(code: Code, inst: Instruction) -> tuple[int, bool]:
    """Return the number of matrices that an instruction moves, and whether it transposes them."""
    parts = set(inst.op[1:])
    number = next((int(part[1]) for part in parts if part in ("x1", "x2", "x4")), 0)
    known = {"sync", "aligned", "m8n8", "b16", "shared", "shared::cta", "trans", f"x{number}"}
    code.require(inst, number > 0 and {"sync", "aligned", "m8n8", "b16"} <= parts <= known)
    space = parts & {"shared", "shared::cta"}
    code.require(inst, bool(space), "its state space is not .shared")
    return number, "trans" in parts


def _rows(place: AddressOperand, number: int, store: bool) -> tuple[Array, Array]:
    """Return which warps execute, and the offsets of the rows that their lanes name."""
    machine = place.machine
    warps = machine.whole(place.inst, WARP, "warp").reshape(-1)
    before = machine.mask
    machine.mask = machine.lanes() & (np.arange(machine.threads) % WARP < 8 * number)
    offsets = place.accessed(True, store)
    machine.mask = before
    return warps, offsets


@opcode("ldmatrix")
def _ldmatrix(code: Code, inst: Instruction) -> Step:
    """Load 1, 2 or 4 matrices of 8 rows of 16 bytes at the addresses of 8, 16 or 32 lanes.

    Lane i gets elements 2 (i % 4) and the next of row i // 4 of each matrix; transposed, those of
    that column (PTX ISA, 9.7.14.5.15).
    """
    number, transposed = _matrices(code, inst)
    targets = code.parts(inst.operands[0])
    code.require(inst, len(targets) == number)
    slots = [code.register(inst, target, "b32").slot for target in targets]
    types = [target.type for target in targets if isinstance(target, Register)]
    code.require(inst, "f32" not in types)
    place = AddressOperand(code, inst, inst.operands[1], 16, "shared")
    machine = code.machine

    def load() -> None:
        warps, offsets = _rows(place, number, False)
        words = offsets[:, None] // 4 + np.arange(4)
        lost: Any = [None] * number
        if machine.shared.watched and machine.shared.holes(offsets, 16):
            lost = fragments(machine.shared.undefined, words, warps)
        for slot, *each in zip(slots, fragments(machine.shared, words, warps), lost, strict=True):
            machine.set(slot, *each)

    def fragments(memory: Bytes, words: Array, warps: Array) -> Array:
        """Convert words of rows, (executing warps * number * 8, 4), to (number, CTAs, threads)."""
        rows = memory.view(np.uint32).take(words).reshape(-1, number, 8, 4)
        if transposed:
            halves = rows.view(np.uint16).swapaxes(2, 3)
            rows = np.ascontiguousarray(halves).view(np.uint32)
        result = np.zeros((number, len(warps), WARP), np.uint32)
        result[:, warps] = rows.reshape(-1, number, WARP).swapaxes(0, 1)
        return result.reshape(number, *machine.shape)

    return load


@opcode("stmatrix")
def _stmatrix(code: Code, inst: Instruction) -> Step:
    """Store matrices, the inverse of ``ldmatrix`` (PTX ISA, 9.7.14.5.16)."""
    number, transposed = _matrices(code, inst)
    registers = code.parts(inst.operands[1])
    code.require(inst, len(registers) == number)
    sources = [code.source(inst, each, "b32") for each in registers]
    place = AddressOperand(code, inst, inst.operands[0], 16, "shared")
    machine, values = code.machine, code.values

    def rows(words: list[Array], warps: Array) -> Array:
        """Convert one word per lane and matrix to rows of 4 words, by warp."""
        whole = np.stack([_by_warp(machine, word) for word in words], axis=1)[warps]
        matrices = np.ascontiguousarray(whole).reshape(-1, 8, 4)
        if transposed:
            matrices = np.ascontiguousarray(matrices.view(np.uint16).swapaxes(1, 2)).view(np.uint32)
        return matrices.reshape(-1, 4)

    def store() -> None:
        warps, offsets = _rows(place, number, True)
        words = offsets[:, None] // 4 + np.arange(4)
        shared, nothing = machine.shared, np.zeros((1, 1), np.uint32)
        given = [values[source.slot].view(np.uint32) for source in sources]
        shared.view(np.uint32)[words] = rows(given, warps)
        if shared.watched:
            lost = [machine.undefined[source.slot] for source in sources]
            holes = rows([nothing if bits is None else bits for bits in lost], warps)
            shared.undefined.view(np.uint32)[words] = holes

    return store


# Matrix products ----------------------------------------------------------------------------------


class _Factors(NamedTuple):
    """A type of A and B: elements per register, registers per lane, accumulators, shapes.

    PTX ISA 9.7.14.5 has a section on the fragments of each shape.
    """

    per: int
    #: (..., lanes of a row) bits -> (..., elements of a row).
    elements: Callable[[Array], Array]
    accumulator: str
    shapes: tuple[str, ...]

    def numbers(self, bits: Array) -> Array:
        """Return the elements as float64."""
        return self.elements(bits).astype(np.float64, copy=False)


_K16, _K32 = ("m16n8k8", "m16n8k16"), ("m16n8k16", "m16n8k32")
#: The upper 19 bits of a float32, of which the others are ignored.
_TF32 = np.uint32(0xFFFFE000)
FACTORS = {
    "f16": _Factors(2, lambda bits: bits.view(np.float16), "f32", _K16),
    "bf16": _Factors(2, lambda bits: from_bf16(bits.view(np.uint16)), "f32", _K16),
    "tf32": _Factors(1, lambda x: (x & _TF32).view(np.float32), "f32", ("m16n8k4", "m16n8k8")),
    "s8": _Factors(4, lambda bits: bits.view(np.int8), "s32", _K32),
    "u8": _Factors(4, lambda bits: bits.view(np.uint8), "s32", _K32),
    "e4m3": _Factors(4, lambda x: from_f8(x.view(np.uint8), "float8_e4m3fn"), "f32", _K32[1:]),
    "e5m2": _Factors(4, lambda x: from_f8(x.view(np.uint8), "float8_e5m2"), "f32", _K32[1:]),
    "f64": _Factors(1, lambda x: x, "f64", ("m8n8k4", "m16n8k4", *_K16)),
}
#: Types that are multiplied with each other.
_FLOAT8 = {"e4m3", "e5m2"}


@opcode("mma", parts=r"sync\.aligned\.\w+\.row\.col(\.\w+){4,5}")
def _mma(code: Code, inst: Instruction) -> Step:
    """Translate ``mma.sync.aligned.SHAPE.row.col.D.A.B.C``, with ``.satfinite`` for integers.

    Integer sums are exact, wrapped or clamped at the end. Float64 sums are one ``fma.rn`` after the
    other from k = 0 on. For other types, products are exact in float64, are added to C in float64
    from k = 0 on, and rounded once to float32; order and precision of the hardware are undocumented
    (9.7.14.5.14).
    """
    shape, clamped = inst.op[3], "satfinite" in inst.op
    result, a, b, c = (part for part in inst.op[6:] if part != "satfinite")
    fits = a in FACTORS and (a == b or {a, b} == _FLOAT8)
    fits = fits and shape in FACTORS[a].shapes and result == c == FACTORS[a].accumulator
    code.require(inst, fits and (not clamped or result == "s32"))
    m, k = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    step = 4 * FACTORS[a].per
    counts = (m // 4, m // 8 * k // step, k // step, m // 4)
    groups = [code.parts(operand) for operand in inst.operands]
    code.require(inst, tuple(map(len, groups)) == counts, f"it takes {counts} registers")
    targets = [code.register(inst, each, result) for each in groups[0]]
    # Registers of bits may hold floats too, but not the other way round.
    code.require(inst, result[0] == "f" or all(each.type[0] != "f" for each in targets))
    bits = "f64" if a == "f64" else "b32"
    left, right = ([code.source(inst, x, bits) for x in group] for group in groups[1:3])
    added = [code.source(inst, x, result) for x in groups[3]]
    machine = code.machine

    def fragment(source: Source, kind: str) -> Array:
        """Return elements of a register: (warps, g, p t)."""
        return FACTORS[kind].numbers(_by_warp(machine, code.read(source)).reshape(-1, 8, 4))

    def multiply() -> None:
        machine.whole(inst, WARP, "warp")
        first, second = [fragment(x, a) for x in left], [fragment(x, b) for x in right]
        x, y = _matrices_of(first, second)
        total = np.empty((*x.shape[1:3], 8))
        for i, source in enumerate(added):
            total[_of_sum(i)] = _by_warp(machine, code.read(source)).reshape(-1, 8, 4)
        for column, row in zip(x, y, strict=True):
            total = fma_f64(column, row, total) if a == "f64" else total + column * row
        done = rounded(total, a, clamped)
        numbers = (x, y) if result == "s32" else None
        bad = _undefined(machine, (left, right, added), FACTORS[a].per, numbers)
        for i, target in enumerate(targets):
            stored, at = STORED[target.type], _of_sum(i)
            part = np.ascontiguousarray(done[at]).reshape(machine.shape).view(stored)
            lost = None if bad is None else every(bad[at].reshape(machine.shape), stored)
            machine.set(target.slot, part, lost)

    return multiply


def _matrices_of(left: list[Array], right: list[Array]) -> tuple[Array, Array]:
    """Return A, (k, warps, m, 1), and B, (k, warps, 1, 8), from registers, (warps, g, p t) each.

    With g = lane // 4, t = lane % 4 and p elements per register (PTX ISA, 9.7.14.5): register i of
    A has row g + 8 (i % 2) of 16 (g of 8) and columns p t to p t + p - 1 of block i // 2, of 4 p;
    for B column g and the same rows of block i; for C and D row g + 8 (i // 2), column 2 t + i % 2.
    """
    rows, (warps, _, block) = len(left) // len(right), left[0].shape
    k = len(right) * block
    a, b = (np.empty((k, warps, *part), left[0].dtype) for part in ((8 * rows, 1), (1, 8)))
    for i, elements in enumerate(left):
        begin, row = i // rows * block, i % rows * 8
        a[begin : begin + block, :, row : row + 8, 0] = np.moveaxis(elements, 2, 0)
    for i, elements in enumerate(right):
        b[i * block : (i + 1) * block, :, 0] = np.moveaxis(elements, 2, 0)
    return a, b


def _of_sum(i: int) -> tuple[slice, slice, slice]:
    """Return the place of register i of C and D in (warps, m, 8)."""
    return np.s_[:, i // 2 * 8 : i // 2 * 8 + 8, i % 2 :: 2]


def _undefined(
    machine: Machine, groups: Any, per: int, integers: tuple[Array, Array] | None
) -> Array | None:
    """Return where the result of an mma is undefined, (warps, m, 8): by its row, column and C.

    ``per``: elements per register. ``integers``: A, (k, warps, m, 1), and B, (k, warps, 1, 8), in
    which a zero makes a product defined; for floats it does not, since undefined may be NaN.
    """
    undefined = machine.undefined
    if all(undefined[source.slot] is None for group in groups for source in group):
        return None
    warps = machine.ctas * machine.threads // WARP

    def words(source: Source) -> Array:
        """Return which elements of a register are undefined: (warps, g, p t)."""
        bits = undefined[source.slot]
        if bits is None:
            return np.zeros((warps, 8, 4 * per), bool)
        lanes = _by_warp(machine, bits)
        size = lanes.dtype.itemsize // per
        return np.asarray(lanes.view(f"u{size}").reshape(warps, 8, 4 * per) != 0)

    a, b = _matrices_of(*([words(source) for source in group] for group in groups[:2]))
    if integers is None:
        lost = np.asarray(a.any(axis=0) | b.any(axis=0))
    else:
        x, y = integers
        lost = np.asarray((a & (b | (y != 0)) | b & (x != 0)).any(axis=0))
    for i, source in enumerate(groups[2]):
        if (bits := undefined[source.slot]) is not None:
            lost[_of_sum(i)] |= _by_warp(machine, bits).reshape(warps, 8, 4) != 0
    return lost


def rounded(total: Array, kind: str, clamped: bool = False) -> Array:
    """Return the accumulators in the type of D; integers are exact in float64."""
    if FACTORS[kind].accumulator == "f64":
        return total
    if FACTORS[kind].accumulator == "f32":
        return total.astype(np.float32)
    if clamped:
        total = np.clip(total, -(2.0**31), 2.0**31 - 1)
    return total.astype(np.int64).astype(np.uint32)
