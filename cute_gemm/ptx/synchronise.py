"""Instructions by which threads wait for each other one by one: PTX ISA, 9.7.13."""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.ptx.barriers import REMOTE
from cute_gemm.ptx.cluster import machine_of
from cute_gemm.ptx.code import Code, opcode, translator_of
from cute_gemm.ptx.flow import results
from cute_gemm.ptx.lanewise import Lanewise
from cute_gemm.ptx.machine import Step, Wait
from cute_gemm.ptx.parser import Instruction, Name

Array = np.ndarray[Any, Any]

#: Parts of opcodes that say in which order others see it, or where it is: nothing here.
_SAID = frozenset(
    ("acquire", "release", "cta", "cluster", "shared", "shared::cta", "shared::cluster", "b64",
     "parity")
)  # fmt: skip


@opcode("mbarrier")
def _mbarrier(code: Code, inst: Instruction) -> Step:
    """All of them but the waits: ``init``, ``inval``, ``expect_tx``, ``arrive``."""
    machine, what = machine_of(code), inst.op[1]
    # Bytes are expected without an order to anything else.
    if not set(inst.op[2:]) <= _SAID | {"relaxed" if what == "expect_tx" else "expect_tx"}:
        raise code.refuse(inst)
    operands = list(inst.operands)
    if what == "arrive" and (not isinstance(operands[0], Name) or operands.pop(0) != Name("_")):
        raise code.refuse(inst, "the state that it returns is not kept")
    where = Lanewise(code, inst, operands[0])
    number = Lanewise(code, inst, operands[1]) if operands[1:] else None

    def targets() -> list[tuple[tuple[int, int, int], int]]:
        places = machine.barriers.places(inst, where())
        counts = number("its count").tolist() if number else [1] * len(places)
        return list(zip(places, counts, strict=True))

    def init() -> None:
        for place, count in targets():
            machine.barriers.make(inst, *place, count)

    def inval() -> None:
        for place, _ in targets():
            machine.barriers.drop(inst, *place)

    def arrive() -> None:
        for place, count in targets():
            machine.barriers.arrive(inst, place, count, 0)

    def arrive_expect() -> None:
        for place, count in targets():
            machine.barriers.arrive(inst, place, 1, count)

    def expect() -> None:
        for place, count in targets():
            machine.barriers.arrive(inst, place, 0, count)

    expects = "expect_tx" in inst.op[2:]
    steps = {"init": init, "inval": inval, "expect_tx": expect}
    steps["arrive"] = arrive_expect if expects else arrive
    if what not in steps or (number is None and (expects or what in ("init", "expect_tx"))):
        raise code.refuse(inst)
    return steps[what]


class _Phase:
    """``mbarrier.try_wait.parity`` and ``test_wait``: false at first, where it has to wait.

    So a wait that nobody repeats is none. The second time the lane stands still until it is true.
    """

    def __init__(self, code: Code, inst: Instruction) -> None:
        self.inst, self.machine, self.values = inst, machine_of(code), code.values
        if "parity" not in inst.op or not set(inst.op[2:]) <= _SAID:
            raise code.refuse(inst, "only with .parity")
        self.to = code.register(inst, inst.operands[0], "pred").slot
        self.where = Lanewise(code, inst, inst.operands[1])
        self.parity = Lanewise(code, inst, inst.operands[2])

    def poll(self) -> Array:
        machine, barriers = self.machine, self.machine.barriers
        lanes = machine.lanes()
        done = np.zeros(machine.shape, bool)
        done[lanes] = barriers.passed(self.inst, self.where(), self.parity("its parity"))
        go = done | (lanes & ~barriers.failed)
        barriers.failed = np.where(lanes, ~done, barriers.failed)

        def tell() -> None:
            self.values[self.to] = done
            machine.undefined[self.to] = None

        before, machine.mask = machine.mask, go & lanes
        if machine.mask.any():
            machine.keep((self.to,), tell)
        machine.mask = before
        return go

    def says(self) -> str:
        machine = self.machine
        place = machine.barriers.places(self.inst, self.where())[0]
        parity = int(self.parity()[0]) & 1
        return f"{machine.barriers.at(self.inst, *place)}; parity {parity} is waited for"


class _Named:
    """``bar.sync``: the arrival is a step of its own (`_come`)."""

    def __init__(self, code: Code, inst: Instruction) -> None:
        self.inst, self.machine = inst, machine_of(code)

    def poll(self) -> Array:
        return self.machine.gates.passed()

    def says(self) -> str:
        return self.machine.gates.missing()


class _Cluster(_Named):
    """``barrier.cluster.wait``."""

    def poll(self) -> Array:
        return self.machine.gates.passed_cluster()

    def says(self) -> str:
        return self.machine.gates.missing_cluster()


class _Warp:
    """``bar.warp.sync``."""

    def __init__(self, code: Code, inst: Instruction) -> None:
        code.only(inst, "warp", "sync")
        self.inst, self.machine = inst, code.machine
        self.mask = Lanewise(code, inst, inst.operands[0])

    def poll(self) -> Array:
        machine, masks = self.machine, self.mask("its mask")
        lanes = machine.lanes()
        named = np.zeros(machine.shape, bool)
        named[lanes] = masks >> np.nonzero(lanes)[1] % 32 & 1
        if (lanes & ~named).any():
            what = "divergent: its mask does not name the lane itself"
            machine.fault(self.inst, "divergent", what, lanes & ~named)
        return machine.warps.passed(masks, machine.alive())

    def says(self) -> str:
        return f"not all lanes of the mask {int(self.mask()[0]):#x} have come"


class _Acquire:
    """``ld.acquire``: a lane that reads what it has read there before waits until it changes.

    Lanes that only wait go on reading when nobody else goes on (`WaitingMachine`): they may do
    something else if nothing changes.
    """

    def __init__(self, code: Code, inst: Instruction) -> None:
        self.inst, self.machine, self.values = inst, machine_of(code), code.values
        (to,) = results(inst)
        self.to, translator = to.slot, translator_of(inst)
        assert translator is not None
        self.load = translator(code, inst)
        self.where = Lanewise(code, inst, inst.operands[1])
        self.last: dict[tuple[int, int], tuple[int, int]] = {}

    def poll(self) -> Array:
        machine = self.machine
        machine.keep((self.to,), self.load)
        lanes = machine.lanes()
        read_values = np.broadcast_to(self.values[self.to], machine.shape)[lanes].tolist()
        read = list(zip(self.where().tolist(), read_values, strict=True))
        lanes_at = [(machine.first + int(cta), int(thread)) for cta, thread in np.argwhere(lanes)]
        go = np.zeros(machine.shape, bool)
        go[lanes] = [self.last.get(who) != what for who, what in zip(lanes_at, read, strict=True)]
        self.last.update(zip(lanes_at, read, strict=True))
        return go

    def says(self) -> str:
        values = np.broadcast_to(self.values[self.to], self.machine.shape)[self.machine.lanes()]
        return f"it reads {int(values[0]):#x} again and again"


def _come(code: Code, inst: Instruction) -> Step:
    """The arrival of ``bar.sync`` and ``bar.arrive``, at a barrier by its number."""
    machine = machine_of(code)
    kinds = [part for part in inst.op[1:] if part != "aligned"]
    if kinds not in (["sync"], ["arrive"]) or inst.guard is not None:
        raise code.refuse(inst, "a barrier that reduces, or one under a predicate")
    number = Lanewise(code, inst, inst.operands[0])
    count = Lanewise(code, inst, inst.operands[1]) if inst.operands[1:] else None

    def come() -> None:
        numbers = number("its number")
        machine.gates.arrive(inst, numbers, None if count is None else count("its count"))

    return come


def waited(code: Code, inst: Instruction) -> tuple[Step | None, Wait | None]:
    """What an instruction that may wait does at once, and what it waits for."""
    if inst.op[:2] == ("bar", "warp"):
        return None, _Warp(code, inst)
    if inst.op[0] == "mbarrier":
        return None, _Phase(code, inst)
    if inst.op[0] == "ld":
        return None, _Acquire(code, inst)
    if inst.op[:2] == ("barrier", "cluster"):
        return None, _Cluster(code, inst)
    return _come(code, inst), None if "arrive" in inst.op else _Named(code, inst)


@opcode("barrier.cluster")
def _arrive_cluster(code: Code, inst: Instruction) -> Step:
    machine = machine_of(code)
    code.only(inst, "cluster", "arrive", "aligned", "release")
    return lambda: machine.gates.arrive_cluster(inst)


@opcode("fence.proxy", "fence.mbarrier_init")
def _fence(code: Code, inst: Instruction) -> Step:
    machine = machine_of(code)
    if inst.op[1] == "proxy" and not inst.op[2].startswith("async"):
        raise code.refuse(inst)
    return lambda: machine.shared.clocks.fence(machine.rows())


@opcode("griddepcontrol")
def _griddepcontrol(code: Code, inst: Instruction) -> Step:
    """``wait``: for the launch ahead (PTX ISA, 9.7.13.13)."""
    machine = code.machine
    return lambda: machine.follow()


@opcode("setmaxnreg")
def _setmaxnreg(code: Code, inst: Instruction) -> Step:
    """Registers are not counted here."""
    return lambda: None


@opcode("elect")
def _elect(code: Code, inst: Instruction) -> Step:
    """The lowest lane that its mask names and that executes (PTX ISA, 9.7.13.14)."""
    code.only(inst, "sync")
    lane, predicate = code.parts(inst.operands[0])
    members = Lanewise(code, inst, inst.operands[1])
    machine, values = machine_of(code), code.values
    to = code.register(inst, predicate, "pred").slot
    number = None if isinstance(lane, Name) else code.register(inst, lane, "b32").slot

    def elect() -> None:
        lanes = machine.lanes()
        bits = np.zeros(machine.shape, np.int64)
        bits[lanes] = members("its mask")
        index = np.arange(machine.threads) % 32
        named = (lanes & (bits >> index & 1 == 1)).reshape(machine.ctas, -1, 32)
        first = np.repeat(named.argmax(axis=2), 32, axis=1)
        values[to] = lanes & (index == first)
        if number is not None:
            values[number] = first.astype(np.uint32)

    return elect


@opcode("mapa")
def _mapa(code: Code, inst: Instruction) -> Step:
    """The address of the same place in the shared memory of another CTA of the cluster."""
    if inst.op != ("mapa", "shared::cluster", "u32"):
        raise code.refuse(inst)
    shift, inside = np.uint32(REMOTE), np.uint32((1 << REMOTE) - 1)

    def move(address: Array, rank: Array) -> Array:
        return np.asarray(address & inside | rank + np.uint32(1) << shift)

    return code.apply(inst, move, "u32", ("u32", "u32"))
