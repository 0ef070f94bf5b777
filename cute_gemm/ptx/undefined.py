"""Values that come of what nobody has set, followed bit by bit until they matter.

Registers that have not been set and shared memory that nobody has written may be read, as long as
nothing comes of it: kernels read ahead, and multiply rows that lie outside of a matrix and are not
stored. So beside each register there are the bits of it that are undefined, as Valgrind's memcheck
has them (J. Seward and N. Nethercote, Using Valgrind to detect undefined value errors with
bit-precision, USENIX 2005): unsigned integers of its width, None where all is defined. What moves
bits moves these; of all other instructions the whole result is undefined if a bit of an operand is.
It is a fault that an undefined value is stored to global memory, decides where a thread goes, or is
an address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cute_gemm.ptx.flow import results, sources
from cute_gemm.ptx.machine import Machine, Step
from cute_gemm.ptx.memory import Array
from cute_gemm.ptx.parser import Instruction, Kernel


def unsigned(dtype: Any) -> Any:
    """The dtype of the undefined bits of a value of a dtype."""
    dtype = np.dtype(dtype)
    return np.bool_ if dtype == np.bool_ else np.dtype(f"uint{8 * dtype.itemsize}").type


def possible(kernel: Kernel, unset: frozenset[int]) -> frozenset[int]:
    """Registers that may be undefined: ``unset``, what is loaded, and what comes of these."""
    slots = set(unset)
    flows = []
    for inst in kernel.instructions:
        made = {each.slot for each in results(inst)}
        if inst.op[0] not in ("ld", "ldmatrix"):
            flows.append(({each.slot for each in sources(inst)}, made))
        elif not {"param", "global", "const"} & set(inst.op):
            slots |= made
    size = -1
    while size != len(slots):
        size = len(slots)
        for read, made in flows:
            if read & slots:
                slots |= made
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
    if bad is None or not bad.any():
        return None
    ones = np.array(-1).astype(unsigned(dtype))
    return np.where(bad, ones, ones ^ ones)


def some(machine: Machine, slots: tuple[int, ...]) -> Array | None:
    """Return where any of these is undefined, or None."""
    bad: Array | None = None
    for slot in slots:
        bits = machine.undefined[slot]
        if bits is not None:
            bad = bits != 0 if bad is None else bad | (bits != 0)
    return bad


def followed(
    machine: Machine, step: Step, read: tuple[int, ...], made: tuple[tuple[int, Any], ...]
) -> Step:
    """A step whose results, slots with dtypes, are undefined where an operand is."""
    undefined = machine.undefined
    if len(made) == 1 and 1 <= len(read) <= 3:
        ((to, dtype),) = made
        first, second, third = (*read, *(read[:1] * 3))[:3]

        def one() -> None:
            step()
            if undefined[first] is undefined[second] is undefined[third] is None:
                undefined[to] = None
            else:
                undefined[to] = whole(some(machine, read), dtype)

        return one

    def several() -> None:
        step()
        bad = some(machine, read)
        for to, dtype in made:
            undefined[to] = whole(bad, dtype)

    return several


def moved(
    machine: Machine, step: Step, moves: list[tuple[int, Callable[..., Any], list[Any]]]
) -> Step:
    """A step that moves bits: the undefined ones go the same way.

    Of each result there are its slot, the function, and the sources with how they are viewed.
    """
    undefined, values = machine.undefined, machine.values

    def bits_of(slot: int, view: Any) -> Array:
        bits = undefined[slot]
        if bits is None:
            bits = np.zeros((1, 1), unsigned(values[slot].dtype))
        return bits if view is None or bits.dtype == view else bits.view(view)

    def move() -> None:
        # Where a register is moved into itself, its bits from before count.
        found: list[Array | None] = []
        for _, function, pairs in moves:
            if all(undefined[slot] is None for slot, _ in pairs):
                found.append(None)
                continue
            bits = function(*(bits_of(slot, view) for slot, view in pairs))
            found.append(bits.view(unsigned(bits.dtype)) if bits.any() else None)
        step()
        for (to, _, _), bits in zip(moves, found, strict=True):
            undefined[to] = bits

    return move


def joined(machine: Machine, step: Step, kind: str, read: tuple[int, int], to: int) -> Step:
    """Propagate undefined bits through ``and`` and ``or``, where one operand may decide a bit."""
    undefined, values = machine.undefined, machine.values

    def join() -> Array | None:
        left, right = (undefined[slot] for slot in read)
        if left is None and right is None:
            return None
        a, b = (values[slot].view(unsigned(values[slot].dtype)) for slot in read)
        if kind == "or":
            a, b = ~a, ~b
        left = np.zeros_like(a) if left is None else left
        right = np.zeros_like(b) if right is None else right
        return (left | right) & (a | left) & (b | right)

    return _before(machine, step, to, join)


def chosen(machine: Machine, step: Step, read: tuple[int, int, int], to: int) -> Step:
    """Propagate undefined bits through ``selp``, of the chosen value alone."""
    undefined, values = machine.undefined, machine.values

    def choose() -> Array | None:
        left, right, choice = (undefined[slot] for slot in read)
        if left is right is choice is None:
            return None
        a, b = (
            np.zeros((1, 1), unsigned(values[slot].dtype)) if lost is None else lost
            for slot, lost in zip(read, (left, right), strict=False)
        )
        bits = np.where(values[read[2]], a, b)
        return bits if choice is None else np.where(choice, np.array(-1).astype(bits.dtype), bits)

    return _before(machine, step, to, choose)


def _before(machine: Machine, step: Step, to: int, bits_of: Callable[[], Array | None]) -> Step:
    """A step of whose result the undefined bits are computed from what was there before."""

    def follow() -> None:
        bits = bits_of()
        step()
        machine.undefined[to] = bits if bits is not None and bits.any() else None

    return follow
