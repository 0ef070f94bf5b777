"""A kernel as pieces that the machine executes: each instruction is translated once."""

from __future__ import annotations

import numpy as np

from cute_gemm.errors import PtxError

# The translators register themselves.
from cute_gemm.ptx import (  # noqa: F401
    access,
    arithmetic,
    bulk,
    convert,
    scalars,
    warps,
)
from cute_gemm.ptx.code import STORED, Code, translator_of
from cute_gemm.ptx.flow import (
    ENDS,
    accumulators,
    at_warp,
    blocks,
    in_flight,
    is_barrier,
    may_wait,
    results,
    sources,
    unsure,
)
from cute_gemm.ptx.follow import every
from cute_gemm.ptx.machine import Piece, Step, Wait
from cute_gemm.ptx.parser import Immediate, Instruction
from cute_gemm.ptx.synchronise import waited
from cute_gemm.ptx.undefined import followed, possible
from cute_gemm.ptx.waiting import WaitingMachine

#: Instructions that order memory accesses, which are in order here, or give hints about time, or
#: let other launches begin, which do not exist here.
_FENCES = ("membar", "fence", "prefetch", "prefetchu", "griddepcontrol", "nanosleep")
#: Fences between threads and asynchronous operations, which matter if threads wait individually.
_PROXIES = ("proxy", "mbarrier_init")
#: Errors of translators on text that no compiler wrote: missing or other operands.
_UNFIT = (
    LookupError, ArithmeticError, ValueError, TypeError, AttributeError, AssertionError,
)  # fmt: skip
#: Instructions that check undefined values themselves.
_LOOKING = (
    "ld", "st", "cp", "ldmatrix", "stmatrix", "mma", "shfl", "vote", "redux", "atom", "red",
    "mbarrier", "elect", "wgmma",
)  # fmt: skip


class Program:
    """The pieces of a kernel; ``PtxError`` for an unsupported instruction.

    ``watched``: whether undefined values are followed.
    """

    def __init__(self, code: Code, watched: bool) -> None:
        kernel = code.kernel
        self.code, self.machine = code, code.machine
        self.pieces = blocks(kernel)
        self._unset = unsure(kernel, self.pieces)
        self._followed = possible(kernel, self._unset) if watched else frozenset()
        self._in_flight = {x.slot for inst in kernel.instructions for x in in_flight(inst)}
        for piece in self.pieces:
            for index in range(piece.begin, piece.begin + piece.count):
                code.index, inst = index, kernel.instructions[index]
                try:
                    self._translate(piece, inst)
                except PtxError:
                    raise
                except _UNFIT as error:
                    raise code.refuse(inst, "its opcode takes other operands") from error

    def _translate(self, piece: Piece, inst: Instruction) -> None:
        """Append an instruction to its piece."""
        waits = isinstance(self.machine, WaitingMachine)
        if inst.op[0] in ENDS:
            self._end(piece, inst)
        elif at_warp(inst) or (waits and may_wait(inst)):
            self._wait(piece, inst)
        elif is_barrier(inst):
            self._barrier(piece, inst)
        elif (
            inst.op[0] not in _FENCES
            or (waits and inst.op[1] in _PROXIES)
            or inst.op == ("griddepcontrol", "wait")
        ):
            self._put(piece, inst)

    def reset(self) -> None:
        """Forget all registers; those that may be read before they are set become unset."""
        known = self.code.kernel.registers
        count = len(known)
        self.machine.values[:count] = [None] * count
        self.machine.undefined[:count] = [None] * count
        for slot in self._unset:
            kind = STORED[known[slot].type]
            self.machine.values[slot] = np.zeros((1, 1), kind)
            if slot in self._followed:
                self.machine.undefined[slot] = every(np.ones((1, 1)), kind)

    def _put(self, piece: Piece, inst: Instruction) -> None:
        """Append an instruction that does not branch."""
        code, machine = self.code, self.machine
        translator = translator_of(inst)
        if translator is None:
            raise code.refuse(inst, f"the opcode {inst.op[0]} is not known")
        code.rules = []
        step = translator(code, inst)
        slots: tuple[int, ...] = ()
        if not accumulators(inst):  # a wait sets these
            slots = tuple(register.slot for register in results(inst))
            step = self._apart(inst, step)
        if code.rules and set(slots) & self._followed:
            step = followed(machine, step, code.rules)
        if inst.guard is not None:
            piece.append(self._guarded(inst, step, slots))
        else:
            piece.append(step, (lambda: machine.keep(slots, step)) if slots else step)

    def _apart(self, inst: Instruction, step: Step) -> Step:
        """Return a step that faults if its registers are in use by a pending wgmma."""
        flying = frozenset(x.slot for x in (*results(inst), *sources(inst))) & self._in_flight
        if not flying:
            return step
        machine = self.machine
        assert isinstance(machine, WaitingMachine)

        def look() -> None:
            machine.products.touch(inst, flying)
            step()

        return look

    def _wait(self, piece: Piece, inst: Instruction) -> None:
        """Append an instruction at which threads wait individually."""
        self.code.require(inst, inst.guard is None, "a wait under a predicate")
        step, piece.wait = waited(self.code, inst)
        if step is not None:
            piece.append(step)

    def _guarded(self, inst: Instruction, step: Step, slots: tuple[int, ...]) -> Step:
        """Execute an instruction in lanes whose predicate is true."""
        assert inst.guard is not None
        machine, values = self.machine, self.code.values
        slot, negated = inst.guard[0].slot, inst.guard[1]
        # Registers that may be unset have undefined values; all other registers are preserved.
        registers_alone = inst.op[0] not in _LOOKING and set(slots) <= self._followed

        def some() -> None:
            lost = machine.undefined[slot]
            if lost is None:
                execute()
                return
            if not registers_alone:
                machine.demand(inst, slot, "its predicate")
            execute()
            for to in slots if registers_alone else ():
                bits, old = every(lost & machine.lanes(), values[to].dtype), machine.undefined[to]
                machine.undefined[to] = bits if old is None else bits | old

        def execute() -> None:
            predicate = ~values[slot] if negated else values[slot]
            before = machine.mask
            if predicate.size == 1:
                if predicate[0, 0]:
                    machine.keep(slots, step)
                return
            if before is not None:
                predicate = predicate & before
            elif predicate.all():
                step()
                return
            if predicate.any():
                machine.mask = predicate
                machine.keep(slots, step)
                machine.mask = before

        return some if slot in self._followed else execute

    def _end(self, piece: Piece, inst: Instruction) -> None:
        """Append a branch or the end of a thread."""
        if inst.guard is None:
            return
        predicate, piece.negated = inst.guard
        piece.choice = slot = predicate.slot
        machine = self.machine
        if slot in self._followed:

            def look() -> None:
                machine.demand(inst, slot, "the branch")

            piece.append(look)

    def _barrier(self, piece: Piece, inst: Instruction) -> None:
        """Append ``bar.sync`` of all threads of the CTA, or ``bar.red`` (PTX ISA, 9.7.13.1)."""
        code, machine = self.code, self.machine
        what = inst.op[1:]
        operands = list(inst.operands)
        piece.wait = wait = Wait(inst)
        code.require(inst, inst.guard is None, "a barrier under a predicate")
        if what[0] == "red":
            code.require(inst, what in (("red", "and", "pred"), ("red", "or", "pred")))
            to = code.register(inst, operands.pop(0), "pred")
            source = code.source(inst, operands.pop(), "pred").slot
            together = np.all if what[1] == "and" else np.any
            values = code.values

            def reduce() -> None:
                machine.demand(inst, source, "the reduced value")
                # Ended threads take no part.
                whole = np.where(machine.lanes(), values[source], what[1] == "and")
                machine.set(to.slot, together(whole, axis=1, keepdims=True))

            wait.met = lambda: machine.keep((to.slot,), reduce)
        else:
            code.require(inst, [part for part in what if part != "aligned"] == ["sync"])
        whole = len(operands) == 1 and isinstance(operands[0], Immediate)
        code.require(inst, whole, "a barrier of some threads, or one that a register names")
