"""The control flow of a kernel: its blocks, and which registers may be read before they are set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cute_gemm.errors import PtxError
from cute_gemm.ptx.parser import Address, Instruction, Kernel, Name, Operand, Register, Vector

#: Instructions whose first operand is not a result.
_NO_RESULT = frozenset(
    ("st", "red", "bra", "ret", "exit", "bar", "barrier", "cp", "membar", "fence", "prefetch",
     "stmatrix", "nanosleep", "prefetchu", "griddepcontrol", "setmaxnreg")
)  # fmt: skip
#: Instructions on an mbarrier that have a result.
_TELLS = frozenset(("arrive", "arrive_drop", "try_wait", "test_wait", "pending_count"))


@dataclass
class Block:
    """Instructions from ``begin`` up to ``end``, of which only the last may branch or wait."""

    begin: int
    end: int
    #: Possible next blocks.
    next: list[int] = field(default_factory=list)


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


def blocks(kernel: Kernel) -> list[Block]:
    """Cut a kernel at targets of branches, and after branches, ends and waits."""
    code = kernel.instructions
    if not code or code[-1].op[0] not in ("ret", "exit", "bra") or code[-1].guard:
        line = f"line {code[-1].line}: " if code else ""
        raise PtxError(f"{line}the entry {kernel.name} does not end with ret")
    cuts = {0, len(code), *kernel.labels.values()}
    for index, inst in enumerate(code):
        if inst.op[0] in ("bra", "ret", "exit") or may_wait(inst):
            cuts.add(index + 1)
    places = sorted(cuts)
    pieces = [Block(begin, end) for begin, end in zip(places, places[1:], strict=False)]
    number = {block.begin: index for index, block in enumerate(pieces)}
    for index, block in enumerate(pieces):
        last = code[block.end - 1]
        if last.op[0] == "bra":
            block.next.append(number[kernel.labels[target(last)]])
        if last.op[0] not in ("bra", "ret", "exit") or last.guard:
            block.next.append(index + 1)
    return pieces


def target(inst: Instruction) -> str:
    """Return the label to which a branch goes."""
    name = inst.operands[0]
    assert isinstance(name, Name)
    return name.name


def unsure(kernel: Kernel, parts: list[Block]) -> frozenset[int]:
    """Return slots of the registers that some path through the kernel reads before it sets them.

    Reads of all other registers need no check. Sets of registers are bits of an int.
    """
    code = kernel.instructions

    def followed(block: Block, known: int) -> tuple[int, set[int]]:
        """Return what is set after a block and what it reads unset, given what is set before."""
        unset: set[int] = set()
        for inst in code[block.begin : block.end]:
            unset.update(each.slot for each in sources(inst) if not known >> each.slot & 1)
            if inst.guard is None:
                for each in results(inst):
                    known |= 1 << each.slot
        return known, unset

    everything = (1 << len(kernel.registers)) - 1
    gives = [followed(block, 0)[0] for block in parts]
    before: list[list[int]] = [[] for _ in parts]
    for index, block in enumerate(parts):
        for after in block.next:
            before[after].append(index)
    at_start = [0] + [everything] * (len(parts) - 1)
    changed = True
    while changed:
        changed = False
        for index in range(1, len(parts)):
            known = everything if before[index] else 0
            for other in before[index]:
                known &= at_start[other] | gives[other]
            if known != at_start[index]:
                at_start[index], changed = known, True
    unset = (followed(block, known)[1] for block, known in zip(parts, at_start, strict=True))
    return frozenset().union(*unset)
