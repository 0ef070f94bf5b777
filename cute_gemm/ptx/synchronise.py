"""Instructions by which threads wait for each other individually: PTX ISA, 9.7.13."""

from __future__ import annotations

import numpy as np

from cute_gemm.ptx.barriers import REMOTE, Barriers
from cute_gemm.ptx.clocks import machine_of
from cute_gemm.ptx.code import Code, Lanewise, opcode, translator_of
from cute_gemm.ptx.flow import results
from cute_gemm.ptx.machine import Step, Wait
from cute_gemm.ptx.memory import Array
from cute_gemm.ptx.parser import Instruction, Name

#: Parts of opcodes for memory order or space, which have no effect here.
_SAID = frozenset(
    ("acquire", "release", "cta", "cluster", "shared", "shared::cta", "shared::cluster", "b64",
     "parity")
)  # fmt: skip


@opcode("mbarrier")
def _mbarrier(code: Code, inst: Instruction) -> Step:
    """Translate all of them but the waits: ``init``, ``inval``, ``expect_tx``, ``arrive``."""
    machine, what = machine_of(code), inst.op[1]
    # Expected bytes have no order relative to anything else.
    said = _SAID | {"relaxed" if what == "expect_tx" else "expect_tx"}
    code.require(inst, set(inst.op[2:]) <= said)
    operands = list(inst.operands)
    if what == "arrive" and (not isinstance(operands[0], Name) or operands.pop(0) != Name("_")):
        raise code.refuse(inst, "the state that it returns is not kept")
    where = Lanewise(code, inst, operands[0])
    number = Lanewise(code, inst, operands[1]) if operands[1:] else None
    expects = what == "expect_tx" or "expect_tx" in inst.op[2:]
    code.require(inst, what in ("init", "inval", "expect_tx", "arrive"))
    code.require(inst, number is not None or not (expects or what == "init"))

    def act() -> None:
        barriers: Barriers = machine.barriers
        places = barriers.places(inst, where())
        counts = number("its count").tolist() if number else [1] * len(places)
        for place, count in zip(places, counts, strict=True):
            if what == "init":
                barriers.make(inst, place, count)
            elif what == "inval":
                barriers.drop(inst, place)
            elif expects:
                barriers.arrive(inst, place, int(what == "arrive"), count)
            else:
                barriers.arrive(inst, place, count)

    return act


@opcode("cp.async.mbarrier", parts=r"async\.mbarrier\.arrive\.noinc(\.shared(::cta)?)?\.b64")
def _arrive_copied(code: Code, inst: Instruction) -> Step:
    """Translate ``cp.async.mbarrier.arrive.noinc``: the lanes' copies land, then they arrive."""
    machine, where = machine_of(code), Lanewise(code, inst, inst.operands[0])

    def act() -> None:
        machine.copies.wait(inst, None)
        for place in machine.barriers.places(inst, where()):
            machine.barriers.arrive(inst, place, 1)

    return act


def _phase(code: Code, inst: Instruction) -> Wait:
    """Translate ``mbarrier.try_wait.parity`` and ``test_wait``, which first return false.

    A wait that is not repeated therefore does not wait. The second time, the lane waits until the
    result is true.
    """
    machine = machine_of(code)
    code.require(inst, {"parity"} <= set(inst.op[2:]) <= _SAID, "only with .parity")
    to = code.register(inst, inst.operands[0], "pred").slot
    where, parity = (Lanewise(code, inst, operand) for operand in inst.operands[1:3])

    def poll() -> Array:
        barriers, lanes = machine.barriers, machine.lanes()
        done = np.zeros(machine.shape, bool)
        done[lanes] = barriers.passed(inst, where(), parity("its parity"))
        go = done | (lanes & ~barriers.failed)
        barriers.failed = np.where(lanes, ~done, barriers.failed)
        before, machine.mask = machine.mask, go & lanes
        if machine.mask.any():
            machine.keep((to,), lambda: machine.set(to, done))
        machine.mask = before
        return go

    def says() -> str:
        barrier = machine.barriers.at(inst, machine.barriers.places(inst, where())[0])
        return f"{barrier}; parity {int(parity()[0]) & 1} is waited for"

    return Wait(inst, poll, says)


def _warp(code: Code, inst: Instruction) -> Wait:
    """Translate ``bar.warp.sync``."""
    code.only(inst, "warp", "sync")
    machine, mask = code.machine, Lanewise(code, inst, inst.operands[0])

    def poll() -> Array:
        masks, lanes = mask("its mask"), machine.lanes()
        named = np.zeros(machine.shape, bool)
        named[lanes] = masks >> np.nonzero(lanes)[1] % 32 & 1
        what = "divergent: its mask does not name the lane itself"
        machine.fault(inst, "divergent", what, lanes & ~named)
        return machine.warps.passed(masks, machine.alive())

    return Wait(inst, poll, lambda: f"not all lanes of the mask {int(mask()[0]):#x} have arrived")


def _acquire(code: Code, inst: Instruction) -> Wait:
    """Translate ``ld.acquire``: a lane that reads the same value again waits until it changes.

    Lanes that only wait read again when no other lane continues (`WaitingMachine`): they may do
    something else if nothing changes.
    """
    machine = machine_of(code)
    (to,) = results(inst)
    translator = translator_of(inst)
    assert translator is not None
    load, where = translator(code, inst), Lanewise(code, inst, inst.operands[1])
    last: dict[tuple[int, int], tuple[int, int]] = {}

    def values_read() -> list[int]:
        return machine.each(machine.values[to.slot]).tolist()

    def poll() -> Array:
        machine.keep((to.slot,), load)
        lanes = machine.lanes()
        read = list(zip(where().tolist(), values_read(), strict=True))
        lanes_at = [(machine.first + int(cta), int(thread)) for cta, thread in np.argwhere(lanes)]
        go = np.zeros(machine.shape, bool)
        go[lanes] = [last.get(who) != what for who, what in zip(lanes_at, read, strict=True)]
        last.update(zip(lanes_at, read, strict=True))
        return go

    return Wait(inst, poll, lambda: f"it reads {values_read()[0]:#x} again and again")


def _come(code: Code, inst: Instruction) -> Step:
    """Translate the arrival of ``bar.sync`` and ``bar.arrive`` at a numbered barrier."""
    machine = machine_of(code)
    kinds = [part for part in inst.op[1:] if part != "aligned"]
    fits = kinds in (["sync"], ["arrive"]) and inst.guard is None
    code.require(inst, fits, "a barrier that reduces, or one under a predicate")
    number = Lanewise(code, inst, inst.operands[0])
    count = Lanewise(code, inst, inst.operands[1]) if inst.operands[1:] else None

    def come() -> None:
        numbers = number("its number")
        machine.gates.arrive(inst, numbers, None if count is None else count("its count"))

    return come


def waited(code: Code, inst: Instruction) -> tuple[Step | None, Wait | None]:
    """Return the immediate step of an instruction that may wait, and its wait."""
    if inst.op[:2] == ("bar", "warp"):
        return None, _warp(code, inst)
    machine = machine_of(code)
    if inst.op[0] == "mbarrier":
        return None, _phase(code, inst)
    if inst.op[0] == "ld":
        return None, _acquire(code, inst)
    if inst.op[:2] == ("barrier", "cluster"):
        gates = (lambda: machine.gates.passed_cluster()), (lambda: machine.gates.missing_cluster())
        return None, Wait(inst, *gates)
    come = _come(code, inst)
    if "arrive" in inst.op:
        return come, None
    return come, Wait(inst, lambda: machine.gates.passed(), lambda: machine.gates.missing())


@opcode("barrier.cluster")
def _arrive_cluster(code: Code, inst: Instruction) -> Step:
    machine = machine_of(code)
    code.only(inst, "cluster", "arrive", "aligned", "release")
    return lambda: machine.gates.arrive_cluster(inst)


@opcode("fence.proxy", "fence.mbarrier_init", parts=r"(proxy\.async|mbarrier_init).*")
def _fence(code: Code, inst: Instruction) -> Step:
    machine = machine_of(code)
    return lambda: machine.shared.clocks.fence(machine.rows(machine.lanes()))


@opcode("griddepcontrol")
def _griddepcontrol(code: Code, inst: Instruction) -> Step:
    """Translate ``wait`` for the previous launch (PTX ISA, 9.7.13.13)."""
    machine = code.machine
    return lambda: machine.follow()


@opcode("setmaxnreg")
def _setmaxnreg(code: Code, inst: Instruction) -> Step:
    """Translate a change of the number of registers, which has no effect here."""
    return lambda: None


@opcode("elect")
def _elect(code: Code, inst: Instruction) -> Step:
    """Elect the lowest executing lane in the mask (PTX ISA, 9.7.13.14)."""
    code.only(inst, "sync")
    lane, predicate = code.parts(inst.operands[0])
    members = Lanewise(code, inst, inst.operands[1])
    machine, to = machine_of(code), code.register(inst, predicate, "pred").slot
    number = None if isinstance(lane, Name) else code.register(inst, lane, "b32").slot

    def elect() -> None:
        lanes = machine.lanes()
        bits = np.zeros(machine.shape, np.int64)
        bits[lanes] = members("its mask")
        index = np.arange(machine.threads) % 32
        named = (lanes & (bits >> index & 1 == 1)).reshape(machine.ctas, -1, 32)
        first = np.repeat(named.argmax(axis=2), 32, axis=1)
        machine.set(to, lanes & (index == first))
        if number is not None:
            machine.set(number, first.astype(np.uint32))

    return elect


@opcode("mapa", parts=r"shared::cluster\.u32")
def _mapa(code: Code, inst: Instruction) -> Step:
    """Return the address of the same place in the shared memory of another CTA of the cluster."""
    shift, inside = np.uint32(REMOTE), np.uint32((1 << REMOTE) - 1)

    def move(address: Array, rank: Array) -> Array:
        return np.asarray(address & inside | rank + np.uint32(1) << shift)

    return code.apply(inst, move, "u32", ("u32", "u32"))
