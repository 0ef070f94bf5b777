"""Uninitialised values, followed bit by bit until they matter.

Kernels may read unset registers and unwritten shared memory if the result has no effect: they read
ahead, and multiply rows outside a matrix that they do not store. So each register also has its
undefined bits, as in Valgrind's memcheck (J. Seward and N. Nethercote, Using Valgrind to detect
undefined value errors with bit-precision, USENIX 2005): unsigned integers of its width, None if all
bits are defined. Integers are followed bit by bit (`cute_gemm.ptx.follow`); a float result is
undefined as a whole if a bit of an operand is. It is a fault if an undefined value is stored to
global memory, decides a branch, or is an address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.ptx.flow import results, sources
from cute_gemm.ptx.follow import Pair, Rule, unsigned
from cute_gemm.ptx.machine import Machine, Step
from cute_gemm.ptx.parser import Kernel


def possible(kernel: Kernel, unset: frozenset[int]) -> frozenset[int]:
    """Return registers that may be undefined: ``unset``, loaded ones, and what depends on them."""
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


def followed(machine: Machine, step: Step, rules: list[tuple[int, Rule, list[Any]]]) -> Step:
    """Return a step whose results have undefined bits by rules.

    Each result has its slot, the rule, and the sources with their views.
    """
    undefined, values = machine.undefined, machine.values
    targets = [to for to, _, _ in rules]
    slots = tuple({slot for _, _, operands in rules for slot, _ in operands})
    # Almost all operands are defined: the test of three of them takes no loop.
    (first, second, third), others = (slots * 3)[:3], slots[3:]

    def pair(slot: int, view: Any) -> Pair:
        value, bits = values[slot], undefined[slot]
        if view is None or np.dtype(view).kind == "f":
            view = unsigned(value.dtype)
        lost = np.zeros((1, 1), unsigned(value.dtype)) if bits is None else bits
        return value.view(view), lost if lost.dtype == view else lost.view(view)

    def follow() -> None:
        defined = undefined[first] is undefined[second] is undefined[third] is None
        if defined and not (others and any(undefined[slot] is not None for slot in others)):
            step()
            for to in targets:
                undefined[to] = None
            return
        # Before the step: it may set a register that it reads.
        lost = [rule(*(pair(*each) for each in operands)) for _, rule, operands in rules]
        step()
        for to, bits in zip(targets, lost, strict=True):
            undefined[to] = bits.view(unsigned(bits.dtype)) if bits.any() else None

    return follow
