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
    #: Blocks that may come next.
    next: list[int] = field(default_factory=list)


def is_barrier(one: Instruction) -> bool:
    """Whether threads wait here for others of their CTA."""
    return one.op[0] in ("bar", "barrier") and one.op[1:2] not in (("warp",), ("cluster",))


def at_warp(one: Instruction) -> bool:
    """Whether lanes wait here for others of their warp."""
    return one.op[:2] == ("bar", "warp")


def may_wait(one: Instruction) -> bool:
    """Whether threads may wait here."""
    on_mbarrier = one.op[0] == "mbarrier" and one.op[1] in ("try_wait", "test_wait")
    on_memory = one.op[0] == "ld" and "acquire" in one.op
    at_cluster = one.op[:3] == ("barrier", "cluster", "wait")
    return on_mbarrier or on_memory or is_barrier(one) or at_cluster or at_warp(one)


def accumulators(one: Instruction) -> tuple[Register, ...]:
    """The registers to which an instruction adds when it is waited for: those of a wgmma."""
    return registers(one.operands[:1]) if one.op[:2] == ("wgmma", "mma_async") else ()


def in_flight(one: Instruction) -> tuple[Register, ...]:
    """The registers that a wgmma has until it is waited for: its sums, and A if it is in some."""
    rows = [each for each in one.operands[1:2] if isinstance(each, Vector)]
    return (*accumulators(one), *registers(rows)) if accumulators(one) else ()


def results(one: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction sets."""
    if is_barrier(one):
        return registers(one.operands[:1]) if one.op[1] == "red" else ()
    if one.op[0] in _NO_RESULT or one.op[:2] == ("barrier", "cluster"):
        return ()
    if one.op[0] == "mbarrier" and one.op[1] not in _TELLS:
        return ()
    return registers(one.operands[:1])


def sources(one: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction reads, its predicate among them."""
    found = accumulators(one) + registers(one.operands[len(results(one)[:1]) :])
    return found if one.guard is None else (*found, one.guard[0])


def registers(operands: Iterable[Operand]) -> tuple[Register, ...]:
    """All registers in operands; ``_``, which takes what nobody reads, is none."""
    found: list[Register] = []
    for one in operands:
        if isinstance(one, Register):
            found.append(one)
        elif isinstance(one, Vector):
            found += registers(one.parts)
        elif isinstance(one, Address):
            found += registers((one.base, *one.coordinates))
    return tuple(found)


def blocks(kernel: Kernel) -> list[Block]:
    """Cut a kernel where branches go to, and behind what branches, ends or waits."""
    code = kernel.instructions
    if not code or code[-1].op[0] not in ("ret", "exit", "bra") or code[-1].guard:
        line = f"line {code[-1].line}: " if code else ""
        raise PtxError(f"{line}the entry {kernel.name} does not end with ret")
    cuts = {0, len(code), *kernel.labels.values()}
    for index, one in enumerate(code):
        if one.op[0] in ("bra", "ret", "exit") or may_wait(one):
            cuts.add(index + 1)
    places = sorted(cuts)
    made = [Block(begin, end) for begin, end in zip(places, places[1:], strict=False)]
    number = {block.begin: index for index, block in enumerate(made)}
    for index, block in enumerate(made):
        last = code[block.end - 1]
        if last.op[0] == "bra":
            block.next.append(number[kernel.labels[target(last)]])
        if last.op[0] not in ("bra", "ret", "exit") or last.guard:
            block.next.append(index + 1)
    return made


def target(one: Instruction) -> str:
    """The label that a branch goes to."""
    name = one.operands[0]
    assert isinstance(name, Name)
    return name.name


def unsure(kernel: Kernel, parts: list[Block]) -> frozenset[int]:
    """Slots of the registers that some way through the kernel reads before it sets them.

    Of all others no read needs to be looked at. Sets of registers are bits of an int.
    """
    code = kernel.instructions
    everything = (1 << len(kernel.registers)) - 1
    gives: list[int] = []
    for block in parts:
        bits = 0
        for one in code[block.begin : block.end]:
            if one.guard is None:
                for each in results(one):
                    bits |= 1 << each.slot
        gives.append(bits)
    before: list[list[int]] = [[] for _ in parts]
    for index, block in enumerate(parts):
        for after in block.next:
            before[after].append(index)
    at_start = [everything] * len(parts)
    at_start[0] = 0
    changed = True
    while changed:
        changed = False
        for index in range(1, len(parts)):
            known = everything if before[index] else 0
            for other in before[index]:
                known &= at_start[other] | gives[other]
            if known != at_start[index]:
                at_start[index], changed = known, True
    found: set[int] = set()
    for index, block in enumerate(parts):
        known = at_start[index]
        for one in code[block.begin : block.end]:
            found.update(each.slot for each in sources(one) if not known >> each.slot & 1)
            if one.guard is None:
                for each in results(one):
                    known |= 1 << each.slot
    return frozenset(found)
