"""Loads, stores, copies and atomics: PTX ISA, 9.7.9.8 (ld), 9.7.9.11 (st), 9.7.9.25 (cp.async)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cute_gemm.ptx.code import DTYPES, STORED, Code, group_step, opcode
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.memory import UNITS, Array
from cute_gemm.ptx.parser import (
    BYTES,
    Address,
    Immediate,
    Instruction,
    Name,
    Operand,
    Register,
)
from cute_gemm.ptx.places import AddressOperand
from cute_gemm.ptx.scalars import flushed

#: Parts of opcodes for cache policy, memory order and scope, which have no effect here.
_HINTS = frozenset(
    ("ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "weak", "volatile", "relaxed", "acquire",
     "release", "cta", "gpu", "sys", "L2::64B", "L2::128B", "L2::256B", "L1::no_allocate",
     "L1::evict_first", "L1::evict_last", "L1::evict_normal", "L1::evict_unchanged")
)  # fmt: skip
SPACES = {"global": "global", "shared": "shared", "shared::cta": "shared", "const": "global"}


def shape_of(inst: Instruction) -> tuple[str, int, str] | None:
    """Return space ("" for a generic address), elements of a lane and type of ``ld`` or ``st``."""
    space, count, kind = "", 1, inst.op[-1]
    for part in inst.op[1:-1]:
        if part in SPACES:
            space = SPACES[part]
        elif part in ("v2", "v4"):
            count = int(part[1:])
        elif part == "param":
            space = "param"
        elif part not in _HINTS:
            return None
    return (space, count, kind) if BYTES.get(kind) else None


def described(inst: Instruction) -> tuple[str, str, int]:
    """Return name (``{}`` for its space), direction and bits per lane of a memory instruction."""
    if inst.op[0] in ("ldmatrix", "stmatrix"):
        count = next(part for part in inst.op if part in ("x1", "x2", "x4"))
        direction = "load" if inst.op[0] == "ldmatrix" else "store"
        return ".".join((inst.op[0], count, *["trans"] * ("trans" in inst.op))), direction, 128
    if inst.op[0] == "wgmma":
        return "wgmma", "load", 128
    if inst.op[0] == "cp":
        width = inst.operands[2]
        assert isinstance(width, Immediate)
        return "cp.async", "load", 8 * int(width.value)
    if inst.op[0] in ("red", "atom"):
        return f"{inst.op[0]}.{{}}", "store", 8 * BYTES[inst.op[-1]]
    shape = shape_of(inst)
    assert shape is not None
    bits = 8 * BYTES[shape[2]] * shape[1]
    return ("ld.{}", "load", bits) if inst.op[0] == "ld" else ("st.{}", "store", bits)


def _shape(code: Code, inst: Instruction) -> tuple[str, int, str]:
    shape = shape_of(inst)
    if shape is None:
        raise code.refuse(inst)
    return shape


@opcode("ld")
def _ld(code: Code, inst: Instruction) -> Step:
    space, count, kind = _shape(code, inst)
    targets = code.parts(inst.operands[0])
    code.require(inst, len(targets) == count)
    if space == "param":
        return _parameter(code, inst, kind, targets)
    place = AddressOperand(code, inst, inst.operands[1], BYTES[kind] * count, space)
    loads = [
        (step, *_loaded(code, inst, target, kind))
        for step, target in enumerate(targets)
        if not isinstance(target, Name)
    ]
    values, machine, unit = code.values, code.machine, BYTES[kind]
    undefined, bits = machine.undefined, UNITS[unit]

    def load() -> None:
        shared = place.shared()
        places = place.accessed(shared)
        memory = place.memory(shared)
        watched = shared and machine.shared.watched
        holes = watched and machine.shared.holes(places, place.width)
        places = places // unit if unit > 1 else places
        for step, slot, dtype, extended in loads:
            data = memory.view(dtype).take(places + step if step else places)
            if machine.mask is not None:
                data = place.spread(data)
            values[slot] = data if extended is None else data.astype(extended)
            undefined[slot] = None
            if holes:
                lost = machine.shared.undefined.view(bits).take(places + step)
                if lost.any():
                    lost = place.spread(lost)
                    # A wider register is defined, apart from the sign of the value.
                    wide = lost if extended is None else lost.view(dtype).astype(extended)
                    undefined[slot] = wide

    return load


def _held(code: Code, inst: Instruction, operand: Operand, kind: str) -> tuple[int, Any, bool]:
    """Return slot and dtype of a register that holds a type in memory, and whether it is wider."""
    if not isinstance(operand, Register):
        raise code.refuse(inst)
    stored = STORED[operand.type]
    wider = np.dtype(stored).itemsize - BYTES[kind]
    if operand.type == "pred" or wider < 0 or (wider and "f" in (operand.type[0], kind[0])):
        raise code.refuse(inst, f"{operand.name} is of type {operand.type}")
    return operand.slot, stored, wider > 0


def _loaded(code: Code, inst: Instruction, target: Operand, kind: str) -> tuple[int, Any, Any]:
    """Return slot, dtype to read, and dtype to extend to if the register is wider, or None."""
    slot, stored, wider = _held(code, inst, target, kind)
    return (slot, DTYPES[kind], stored) if wider else (slot, stored, None)


def _parameter(code: Code, inst: Instruction, kind: str, targets: tuple[Operand, ...]) -> Step:
    """Read parameters, which are constants of the launch."""
    match inst.operands[1]:
        case Address(Name(name), offset) if name in code.kernel.parameters:
            variable = code.kernel.parameters[name]
        case _:
            raise code.refuse(inst)
    inside = 0 <= offset <= (variable.size or 0) - BYTES[kind] * len(targets)
    code.require(inst, inside, "it is outside of the parameter")
    begin = variable.offset + offset
    pairs = []
    for step, target in enumerate(targets):
        slot, dtype, extended = _loaded(code, inst, target, kind)
        raw = code.parameters[begin + step * BYTES[kind] :][: BYTES[kind]]
        value = np.frombuffer(raw, dtype).reshape(1, 1)
        pairs.append((slot, value if extended is None else value.astype(extended)))

    def load() -> None:
        for slot, value in pairs:
            code.machine.set(slot, value)

    return load


@opcode("st")
def _st(code: Code, inst: Instruction) -> Step:
    space, count, kind = _shape(code, inst)
    given = code.parts(inst.operands[1])
    code.require(inst, len(given) == count and space != "param")
    place = AddressOperand(code, inst, inst.operands[0], BYTES[kind] * count, space)
    stores = [(step, *_stored(code, inst, each, kind)) for step, each in enumerate(given)]
    values, machine, unit = code.values, code.machine, BYTES[kind]
    undefined, bits = machine.undefined, UNITS[unit]

    def store() -> None:
        shared = place.shared()
        places = place.accessed(shared, True)
        memory = place.memory(shared)
        watched = shared and machine.shared.watched
        if watched:
            machine.shared.define(places, place.width)
        places = places // unit
        for step, slot, dtype, cut in stores:
            value = values[slot]
            place.put(
                memory.view(dtype), places + step, value if cut is None else value.astype(cut)
            )
            lost = undefined[slot]
            if lost is None:
                continue
            if watched:
                place.put(machine.shared.undefined.view(bits), places + step, lost.astype(bits))
            else:
                machine.demand(inst, slot, "the stored value")

    return store


def _stored(code: Code, inst: Instruction, operand: Operand, kind: str) -> tuple[int, Any, Any]:
    """Return slot, dtype to write, and dtype to truncate to if the register is wider, or None."""
    if not isinstance(operand, Register):
        return code.source(inst, operand, kind).slot, DTYPES[kind], None
    slot, stored, wider = _held(code, inst, operand, kind)
    unsigned = UNITS[BYTES[kind]]
    return (slot, unsigned, unsigned) if wider else (slot, stored, None)


# Asynchronous copies ------------------------------------------------------------------------------


@opcode("cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all", parts=r"async\.\w+")
def _group(code: Code, inst: Instruction) -> Step:
    machine = code.machine
    if inst.op[2] == "wait_all":
        return lambda: machine.copies.wait(inst, None)
    return group_step(code, inst, inst.op[2], "copies")


@opcode("cp", parts=r"async\.(ca|cg)\.shared(::cta)?\.global(\.L2::\w+)*")
def _copy(code: Code, inst: Instruction) -> Step:
    """Translate ``cp.async``: bytes after the source's size are zeros and are not read."""
    width = inst.operands[2]
    if not isinstance(width, Immediate) or width.value not in (4, 8, 16):
        raise code.refuse(inst)
    count = int(width.value)
    to = AddressOperand(code, inst, inst.operands[0], count, "shared")
    source = AddressOperand(code, inst, inst.operands[1], count, "global")
    size = code.source(inst, inst.operands[3], "u32").slot if inst.operands[3:] else None
    values, machine = code.values, code.machine
    unit = UNITS[count]

    def copy() -> None:
        # Always a mask, since pending copies are stored by lane.
        before, machine.mask = machine.mask, machine.lanes()
        if size is not None:
            machine.demand(inst, size, "the size")
        sizes = None if size is None else machine.full(values[size])
        offsets = to.accessed(True, True, flying=True)
        if sizes is None or (sizes[machine.mask] == count).all():
            data = machine.memory.view(unit).take(source.accessed(False) // count)
        else:
            data = _some(source, sizes, count, unit)
        machine.copies.start(offsets, data)
        machine.mask = before

    return copy


def _some(source: AddressOperand, sizes: Array, count: int, unit: Any) -> Array:
    """Read copies in which some lanes copy fewer bytes than ``count``."""
    machine, mask = source.machine, source.machine.mask
    assert mask is not None
    machine.mask = mask & (sizes != 0)
    source.note(False, False)
    data = np.zeros(machine.shape, unit)
    raw = data.view(np.uint8).reshape(*machine.shape, count)
    for size in np.unique(sizes[mask]):
        lanes = mask & (sizes == size)
        if size > count:
            machine.fault(source.inst, "out of bounds", f"{size} of {count} bytes", lanes)
        machine.mask = lanes
        # Check whole units, or single bytes.
        if size == count:
            read = source.accessed(False, noted=False)
            data[lanes] = machine.memory.view(unit).take(read // count)
        elif size:
            raw[lanes, :size] = source.bytes(int(size))
    machine.mask = mask
    return np.asarray(data[mask])


# Atomic operations --------------------------------------------------------------------------------

#: Functions of the old value and the operand.
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, x: old + x, "min": min, "max": max, "exch": lambda old, x: x,
    "and": lambda old, x: old & x, "or": lambda old, x: old | x, "xor": lambda old, x: old ^ x,
}  # fmt: skip
_BITS = ("and", "or", "xor", "exch", "cas")
_ORDERS = frozenset(("relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "global"))


@opcode("atom", "red")
def _atom(code: Code, inst: Instruction) -> Step:
    """Translate ``atom`` and ``red``, for global memory (PTX ISA, 9.7.13.5 and 9.7.13.6).

    Lanes execute in turn, CTA by CTA and thread by thread. A device may use any order.
    """
    kind, how = inst.op[-1], inst.op[-2]
    allowed = {"b32", "b64"} if how in _BITS else {"u32", "s32", "u64", "s64"}
    if how == "add":
        allowed |= {"f32", "f64"}
    known = how in _OPERATIONS or (how == "cas" and inst.op[0] == "atom")
    code.require(inst, known and kind in allowed and set(inst.op[1:-2]) <= _ORDERS)
    code.require(inst, "global" in inst.op, "its state space is not .global")
    operands = inst.operands if inst.op[0] == "red" else inst.operands[1:]
    to = None
    if inst.op[0] == "atom" and not isinstance(inst.operands[0], Name):
        to = code.register(inst, inst.operands[0], kind)
    code.require(inst, len(operands) == (3 if how == "cas" else 2))
    place = AddressOperand(code, inst, operands[0], BYTES[kind], "global")
    sources = [code.source(inst, operand, kind) for operand in operands[1:]]
    machine, dtype = code.machine, DTYPES[kind]
    operation = _OPERATIONS.get(how)

    def operate(old: Any, arguments: list[Any]) -> Any:
        if operation is None:
            return arguments[1] if old == arguments[0] else old
        if kind == "f32":  # global memory flushes subnormal numbers to zero (9.7.13.5)
            return flushed(operation(flushed(old), flushed(arguments[0])))
        return operation(old, arguments[0])

    def take_turns() -> None:
        for source in sources:
            machine.demand(inst, source.slot, "its operand")
        before, machine.mask = machine.mask, machine.lanes()
        places = place.accessed(False, True, atomic=True) // BYTES[kind]
        view = machine.memory.view(dtype)
        columns = [machine.each(code.read(source)) for source in sources]
        old = np.empty(len(places), dtype)
        for turn, index in enumerate(places):
            old[turn] = view[index]
            view[index] = operate(view[index], [column[turn] for column in columns])
        if to is not None:
            machine.set(to.slot, place.spread(old).view(STORED[to.type]))
        machine.mask = before

    return take_turns
