"""Atomic operations on global memory: PTX ISA, 9.7.13.5 (atom) and 9.7.13.6 (red).

Lanes execute in turn, CTA by CTA and thread by thread. A device may use any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cute_gemm.ptx.code import DTYPES, STORED, Code, opcode
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.parser import BYTES, Instruction, Name
from cute_gemm.ptx.places import AddressOperand
from cute_gemm.ptx.scalars import flushed

#: Functions of the old value and the operand.
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, x: old + x, "min": min, "max": max, "exch": lambda old, x: x,
    "and": lambda old, x: old & x, "or": lambda old, x: old | x, "xor": lambda old, x: old ^ x,
}  # fmt: skip
_BITS = ("and", "or", "xor", "exch", "cas")
_ORDERS = frozenset(("relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "global"))


@opcode("atom", "red")
def _atom(code: Code, inst: Instruction) -> Step:
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
