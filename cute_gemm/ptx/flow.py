"""The control flow of a kernel: its blocks, and which registers may be read before they are set."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from cute_gemm.errors import PtxError, shown
from cute_gemm.ptx.machine import Piece
from cute_gemm.ptx.parser import Address, Instruction, Kernel, Name, Operand, Register, Vector

#: Instructions that branch or end a thread.
ENDS = ("bra", "ret", "exit")
#: Instructions whose first operand is not a result.
_NO_RESULT = frozenset(
    ("st", "red", "bra", "ret", "exit", "bar", "barrier", "cp", "membar", "fence", "prefetch",
     "stmatrix", "nanosleep", "prefetchu", "griddepcontrol", "setmaxnreg")
)  # fmt: skip
#: Instructions on an mbarrier that have a result.
_TELLS = frozenset(("arrive", "arrive_drop", "try_wait", "test_wait", "pending_count"))


def is_barrier(inst: Instruction) -> bool:
    """Return whether threads wait here for other threads of their CTA."""
    return inst.op[0] in ("bar", "barrier") and inst.op[1:2] not in (("warp",), ("cluster",))


def at_warp(inst: Instruction) -> bool:
    """Return whether lanes wait here for other lanes of their warp."""
    return inst.op[:2] == ("bar", "warp")


def may_wait(inst: Instruction) -> bool:
    """Return whether threads may wait here."""
    on_mbarrier = inst.op[0] == "mbarrier" and inst.op[1] in ("try_wait", "test_wait")
    on_memory = inst.op[0] == "ld" and "acquire" in inst.op
    at_cluster = inst.op[:3] == ("barrier", "cluster", "wait")
    return on_mbarrier or on_memory or is_barrier(inst) or at_cluster or at_warp(inst)


def accumulators(inst: Instruction) -> tuple[Register, ...]:
    """Return the registers that a wgmma changes when it is waited for: its accumulators."""
    return registers(inst.operands[:1]) if inst.op[:2] == ("wgmma", "mma_async") else ()


def in_flight(inst: Instruction) -> tuple[Register, ...]:
    """Return the registers that a pending wgmma uses: its accumulators, and A if in registers."""
    rows = [each for each in inst.operands[1:2] if isinstance(each, Vector)]
    return (*accumulators(inst), *registers(rows)) if accumulators(inst) else ()


def results(inst: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction sets."""
    if is_barrier(inst):
        return registers(inst.operands[:1]) if inst.op[1] == "red" else ()
    if inst.op[0] in _NO_RESULT or inst.op[:2] == ("barrier", "cluster"):
        return ()
    if inst.op[0] == "mbarrier" and inst.op[1] not in _TELLS:
        return ()
    return registers(inst.operands[:1])


def sources(inst: Instruction) -> tuple[Register, ...]:
    """Return the registers that an instruction reads, including its predicate."""
    read = accumulators(inst) + registers(inst.operands[len(results(inst)[:1]) :])
    return read if inst.guard is None else (*read, inst.guard[0])


def registers(operands: Iterable[Operand]) -> tuple[Register, ...]:
    """Return all registers in operands; ``_`` is not one."""
    names: list[Register] = []
    for operand in operands:
        if isinstance(operand, Register):
            names.append(operand)
        elif isinstance(operand, Vector):
            names += registers(operand.parts)
        elif isinstance(operand, Address):
            names += registers((operand.base, *operand.coordinates))
    return tuple(names)


def blocks(kernel: Kernel) -> list[Piece]:
    """Cut a kernel at targets of branches, and after branches, ends and waits."""
    code = kernel.instructions
    if not code or code[-1].op[0] not in ENDS or code[-1].guard:
        line = f"line {code[-1].line}: " if code else ""
        raise PtxError(f"{line}the entry {kernel.name} does not end with ret")
    cuts = {0, len(code), *kernel.labels.values()}
    cuts.update(i + 1 for i, inst in enumerate(code) if inst.op[0] in ENDS or may_wait(inst))
    number = {begin: index for index, begin in enumerate(sorted(cuts))}
    pieces = [Piece(begin=begin, count=end - begin) for begin, end in pairwise(number)]
    for index, piece in enumerate(pieces):
        last = code[piece.begin + piece.count - 1]
        if last.op[0] == "bra":
            (label,) = last.operands
            assert isinstance(label, Name)
            piece.target = number[kernel.labels[label.name]]
            if piece.target == len(pieces):
                what = f"{shown(last.text)} goes to a label without an instruction after it"
                raise PtxError(f"line {last.line}: {what}")
        piece.next = index + 1 if last.op[0] not in ENDS or last.guard else piece.target
    return pieces


def unsure(kernel: Kernel, pieces: list[Piece]) -> frozenset[int]:
    """Return slots of the registers that some path through the kernel reads before it sets them.

    Reads of all other registers need no check. Sets of registers are bits of an int.
    """

    def followed(piece: Piece, known: int) -> tuple[int, set[int]]:
        """Return what is set after a piece and what it reads unset, given what is set before."""
        unset: set[int] = set()
        for inst in kernel.instructions[piece.begin : piece.begin + piece.count]:
            unset.update(each.slot for each in sources(inst) if not known >> each.slot & 1)
            if inst.guard is None:
                for each in results(inst):
                    known |= 1 << each.slot
        return known, unset

    sets = [followed(piece, 0)[0] for piece in pieces]
    after = [{x for x in (piece.next, piece.target) if x is not None} for piece in pieces]
    # Pieces that no other one precedes begin with no register set.
    everything, targets = (1 << len(kernel.registers)) - 1, set().union(*after) - {0}
    before = [everything if index in targets else 0 for index in range(len(pieces))]
    todo = list(range(len(pieces)))
    while todo:
        index = todo.pop()
        for other in after[index]:
            known = before[other] & (before[index] | sets[index])
            if known != before[other]:
                before[other] = known
                todo.append(other)
    return frozenset().union(*(followed(*each)[1] for each in zip(pieces, before, strict=True)))
