"""Values that come of what nobody has set, followed bit by bit until they matter.

Registers that have not been set and shared memory that nobody has written may be read, as long as
nothing comes of it: kernels read ahead, and multiply rows that lie outside of a matrix and are not
stored. So beside each register there are the bits of it that are undefined, as Valgrind's memcheck
has them (J. Seward and N. Nethercote, Using Valgrind to detect undefined value errors with
bit-precision, USENIX 2005): unsigned integers of its width, None where all is defined. Integers are
followed bit by bit (`cute_gemm.ptx.follow`); of floats the whole result is undefined if a bit of an
operand is. It is a fault that an undefined value is stored to global memory, decides where a thread
goes, or is an address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.ptx.flow import results, sources
from cute_gemm.ptx.follow import Pair, Rule, every, unsigned
from cute_gemm.ptx.machine import Machine, Step
from cute_gemm.ptx.memory import Array
from cute_gemm.ptx.parser import Instruction, Kernel


def possible(kernel: Kernel, unset: frozenset[int]) -> frozenset[int]:
    """Registers that may be undefined: ``unset``, what is loaded, and what comes of these."""
    slots = set(unset)
    flows = []
    for inst in kernel.instructions:
        written = {each.slot for each in results(inst)}
        if inst.op[0] not in ("ld", "ldmatrix"):
            flows.append(({each.slot for each in sources(inst)}, written))
        elif not {"param", "global", "const"} & set(inst.op):
            slots |= written
    size = -1
    while size != len(slots):
        size = len(slots)
        for read, written in flows:
            if read & slots:
                slots |= written
    return frozenset(slots)


def demand(machine: Machine, inst: Instruction, slot: int, what: str) -> None:
    """A fault where a value that matters is undefined in a lane that executes."""
    bits = machine.undefined[slot]
    if bits is None:
        return
    bad = bits != 0 if machine.mask is None else (bits != 0) & machine.mask
    came = "comes of a register or of shared memory that nobody has set"
    machine.fault(inst, "uninitialised", f"{what} {came}", bad)


def whole(bad: Array | None, dtype: Any) -> Array | None:
    """Set all bits of each value that has an undefined bit."""
    return None if bad is None or not bad.any() else every(bad, dtype)


def some(machine: Machine, slots: tuple[int, ...]) -> Array | None:
    """Return where any of these is undefined, or None."""
    bad: Array | None = None
    for slot in slots:
        bits = machine.undefined[slot]
        if bits is not None:
            bad = bits != 0 if bad is None else bad | (bits != 0)
    return bad


def followed(
    machine: Machine, step: Step, read: tuple[int, ...], written: tuple[tuple[int, Any], ...]
) -> Step:
    """A step whose results, slots with dtypes, are undefined where an operand is."""
    undefined = machine.undefined
    if len(written) == 1 and 1 <= len(read) <= 3:
        ((to, dtype),) = written
        first, second, third = (*read, *(read[:1] * 3))[:3]

        def single() -> None:
            step()
            if undefined[first] is undefined[second] is undefined[third] is None:
                undefined[to] = None
            else:
                undefined[to] = whole(some(machine, read), dtype)

        return single

    def several() -> None:
        step()
        bad = some(machine, read)
        for to, dtype in written:
            undefined[to] = whole(bad, dtype)

    return several


def ruled(machine: Machine, step: Step, rules: list[tuple[int, Rule, list[Any]]]) -> Step:
    """A step of which the undefined bits of each result are what its rule says.

    Of each result there are its slot, the rule, and the sources with how they are viewed.
    """
    undefined, values = machine.undefined, machine.values

    def pair(slot: int, view: Any) -> Pair:
        value, bits = values[slot], undefined[slot]
        if view is None or np.dtype(view).kind == "f":
            view = unsigned(value.dtype)
        lost = np.zeros((1, 1), unsigned(value.dtype)) if bits is None else bits
        return value.view(view), lost if lost.dtype == view else lost.view(view)

    def follow() -> None:
        # Before the step: a register may be read and set.
        lost: list[Array | None] = []
        for _, rule, operands in rules:
            bits = None
            if any(undefined[slot] is not None for slot, _ in operands):
                bits = rule(*(pair(*each) for each in operands))
                bits = bits.view(unsigned(bits.dtype))
            lost.append(bits if bits is not None and bits.any() else None)
        step()
        for (to, _, _), bits in zip(rules, lost, strict=True):
            undefined[to] = bits

    return follow
