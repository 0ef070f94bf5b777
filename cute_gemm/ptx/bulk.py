"""Bulk tensor copies of TMA: PTX ISA, 9.7.9.27 (``cp.async.bulk.tensor``), 5.5 (tensors).

A tensor map and coordinates define a box. Elements outside the tensor are read as zeros and not
written; floats of type tf32 are rounded to it. Along the first mode a box begins at a multiple of
16 bytes. In shared memory its elements are contiguous, with the first mode fastest. A swizzle with
a span of 32, 64 or 128 bytes permutes the 16-byte parts of an address by its bits from 7 on
(5.5.5): bit 4, bits 4 and 5, or bits 4 to 6 are added without carry to as many from bit 7 on.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import proxy

import numpy as np

from cute_gemm.dtypes import DTYPES
from cute_gemm.errors import FaultError, PtxError
from cute_gemm.ptx.barriers import Barrier
from cute_gemm.ptx.clocks import ClusterMachine, machine_of
from cute_gemm.ptx.code import Code, Lanewise, group_step, opcode
from cute_gemm.ptx.floats import to_tf32
from cute_gemm.ptx.machine import Step
from cute_gemm.ptx.memory import PARAMETERS, UNITS, WARP, Array
from cute_gemm.ptx.parser import Address, Instruction
from cute_gemm.ptx.places import OTHERS
from cute_gemm.ptx.tensor import Tensor

#: Alignment in bytes of a box in shared memory, and of its start along the first mode: otherwise an
#: H200 raises an illegal instruction.
_ALIGNED, _ALONG = 128, 16
_WRONG = {
    "in flight": "a copy, a wgmma or a bulk store in progress reads or writes these bytes",
    "race": "another thread wrote or read these bytes without a barrier in between",
    "proxy": "a thread wrote these bytes without a fence.proxy.async in between",
    "uninitialised": "no thread has written these bytes",
}


def wrong(kind: str) -> str:
    """Describe a fault of an asynchronous access."""
    return f"{kind}: {_WRONG[kind]}"


def swizzled(addresses: Array, span: int) -> Array:
    """Apply the swizzle of a span of bytes to addresses in shared memory."""
    if not span:
        return addresses
    return np.asarray(addresses ^ (addresses >> 7 & span // 16 - 1) << 4)


@dataclass(frozen=True)
class Map:
    """A tensor map: its tensor, its buffer, and the offset of its first element in memory."""

    tensor: Tensor
    buffer: str
    begin: int

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.tensor.dtype].bytes


@lru_cache(maxsize=64)
def _grid(box: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the coordinates of the elements of a box by mode, with the first mode fastest."""
    return tuple(x.reshape(-1) for x in reversed(np.indices(box[::-1])))


def elements(tensor_map: Map, corner: tuple[int, ...]) -> tuple[Array, Array]:
    """Return offsets of a box's elements in global memory, and which lie inside the tensor.

    Addresses wrap around at 2^64 bytes.
    """
    tensor = tensor_map.tensor
    steps = (tensor_map.size, *tensor.steps)
    offsets: Any = tensor_map.begin
    inside: Any = True
    for each, first, extent, step in zip(
        _grid(tensor.box), corner, tensor.extents, steps, strict=True
    ):
        coordinate = each + first
        offsets = offsets + coordinate * step
        inside = inside & (coordinate >= 0) & (coordinate < extent)
    return np.asarray(offsets), np.asarray(inside)


@dataclass(eq=False)
class _Copy:
    """A box on its way to or from an address in the shared memory of a CTA."""

    inst: Instruction
    map: Map
    corner: tuple[int, ...]
    cta: int
    address: int
    #: The warp that issued it.
    row: int
    barrier: Barrier | None = None
    #: Whether it counts: only the first copy of a multicast does.
    first: bool = True
    #: For a store: its thread, and the thread's group to which it belongs.
    thread: int = 0
    group: int = 0
    serial: int = 0

    @property
    def size(self) -> int:
        """Bytes of the box."""
        return int(np.prod(self.map.tensor.box)) * self.map.size


class Bulk:
    """The pending bulk copies of a batch, and its tensor maps."""

    def __init__(self, machine: ClusterMachine) -> None:
        self.machine: ClusterMachine = proxy(machine)  # which owns this
        self._loads: list[_Copy] = []
        self._stores: list[_Copy] = []
        self._committed = np.zeros(machine.shape, np.int64)
        self._serial = 0

    # ---- loads and stores ----------------------------------------------------------------------

    def fault(self, copy: _Copy, kind: str, what: str) -> FaultError:
        """Return the fault of a copy."""
        inst, machine = copy.inst, self.machine
        warp = copy.row % machine.shared.clocks.warps
        box = f"the box at {copy.corner} of {copy.map.buffer}"
        who = f"CTA {machine.name(copy.cta)}, warp {warp}"
        return inst.fault(kind, f"{who}, {box}, at address {copy.address:#x}: {what}")

    def _granules(self, copy: _Copy) -> Array:
        """Return the granules of shared memory of a box; fault if its place is illegal."""
        shared = self.machine.shared
        if copy.address % _ALIGNED:
            raise self.fault(copy, "misaligned", f"misaligned: not a multiple of {_ALIGNED} bytes")
        if (first := copy.corner[0] * copy.map.size) % _ALONG:
            what = f"misaligned: it begins at byte {first} along the mode whose stride is 1"
            raise self.fault(copy, "misaligned", f"{what}, which is not a multiple of {_ALONG}")
        if not 0 <= copy.address <= shared.bytes - copy.size:
            what = f"out of bounds: the CTA has {shared.bytes} bytes of shared memory"
            raise self.fault(copy, "out of bounds", what)
        first = copy.cta * shared.pitch + copy.address
        return np.arange(first // shared.granule, -(-(first + copy.size) // shared.granule))

    def _places(self, copy: _Copy) -> Array:
        """Return the places of the box's elements in the bytes of all CTAs."""
        addresses = copy.address + np.arange(0, copy.size, copy.map.size)
        swizzle = copy.map.tensor.swizzle
        return swizzled(addresses, swizzle) + copy.cta * self.machine.shared.pitch

    def _elements(self, copy: _Copy, write: bool) -> tuple[Array, Array]:
        """Return offsets of the elements inside the tensor, and which of the box these are."""
        offsets, inside = elements(copy.map, copy.corner)
        offsets, size = offsets[inside], copy.map.size
        if self.machine.memory.forbidden(offsets, size, write).any():
            what = f"out of bounds: the tensor map exceeds {copy.map.buffer}"
            raise self.fault(copy, "out of bounds", what)
        recorder = self.machine.recorder
        if recorder is not None and copy.first:
            rows = np.flatnonzero(inside) // copy.map.tensor.box[0]
            recorder.box(copy.map.buffer, write, offsets, rows, size)
        return offsets, inside

    # ---- loads ---------------------------------------------------------------------------------

    def load(self, copy: _Copy) -> None:
        """Begin the load of a box into the shared memory of a CTA."""
        shared = self.machine.shared
        granules = self._granules(copy)
        assert copy.barrier is not None
        if shared.watched and (kind := shared.begin_copy(granules, copy.row)):
            raise self.fault(copy, kind, wrong(kind))
        self._loads.append(copy)

    def land(self, wanted: Set[tuple[int, int]]) -> bool:
        """Complete the oldest copy of each barrier waited for; return whether there was one."""
        oldest: dict[tuple[int, int], _Copy] = {}
        for copy in self._loads:
            assert copy.barrier is not None
            oldest.setdefault((copy.barrier.cta, copy.barrier.address), copy)
        landing = [copy for place, copy in oldest.items() if place in wanted]
        self._loads = [copy for copy in self._loads if copy not in landing]
        for copy in landing:
            self._arrive(copy)
        return bool(landing)

    def _arrive(self, copy: _Copy) -> None:
        machine, barrier = self.machine, copy.barrier
        assert barrier is not None
        size = copy.map.size
        offsets, inside = self._elements(copy, False)
        unit = UNITS[size]
        data: Array = np.zeros(len(inside), unit)
        data[inside] = machine.memory.view(unit).take(offsets // size)
        if copy.map.tensor.dtype == "tf32":
            data = to_tf32(data.view(np.float32), True)
        places = self._places(copy)
        machine.shared.view(unit)[places // size] = data
        if machine.shared.watched:
            machine.shared.define(places, size)
            granules = self._granules(copy)
            machine.shared.end_copy(granules, barrier.column, barrier.phase + 1)
        barrier.bytes -= copy.size
        barrier.settle()

    # ---- stores --------------------------------------------------------------------------------

    def store(self, copy: _Copy) -> None:
        """Begin the store of a box from the shared memory of a CTA."""
        shared = self.machine.shared
        granules = self._granules(copy)
        self._serial += 1
        copy.serial = self._serial
        copy.group = int(self._committed[copy.cta, copy.thread])
        row = np.array([copy.row])
        if shared.watched and (kind := shared.begin_read(granules, row, copy.serial)):
            raise self.fault(copy, kind, wrong(kind))
        self._stores.append(copy)

    def commit(self, inst: Instruction) -> None:
        """Close the groups of the executing lanes."""
        self._committed = self._committed + self.machine.lanes()

    def wait(self, inst: Instruction, left: int) -> None:
        """Complete the stores of executing lanes except those of the last ``left`` groups."""
        ends = np.where(self.machine.lanes(), self._committed - left, 0)
        done = [copy for copy in self._stores if copy.group < ends[copy.cta, copy.thread]]
        self._stores = [copy for copy in self._stores if copy not in done]
        for copy in done:
            self._leave(copy)

    def _leave(self, copy: _Copy) -> None:
        machine, shared = self.machine, self.machine.shared
        size = copy.map.size
        offsets, inside = self._elements(copy, True)
        unit = UNITS[size]
        places = self._places(copy)[inside]
        who = np.array(machine.number(copy.cta), np.int32)
        if machine.memory.stored(offsets, who, size) is not None:
            raise self.fault(copy, "race", OTHERS)
        machine.memory.view(unit)[offsets // size] = shared.view(unit).take(places // size)
        if shared.watched:
            if len(places) and shared.undefined.view(unit).take(places // size).any():
                raise self.fault(copy, "uninitialised", wrong("uninitialised"))
            lane = copy.thread % WARP
            shared.end_read(self._granules(copy), np.array([copy.row]), copy.serial, lane)

    def finish(self) -> None:
        """Fault if a copy is in flight: shared memory ends with its CTA."""
        for copy in (*self._loads, *self._stores):
            what = "in flight: the kernel has ended, and no thread has waited for it"
            raise self.fault(copy, "in flight", what)


# ---- instructions --------------------------------------------------------------------------------


class _Operands:
    """A tensor map and coordinates: ``[map, {c0, c1, ..}]``."""

    def __init__(self, code: Code, inst: Instruction, operand: Any) -> None:
        count = next((int(x[0]) for x in inst.op if x in ("1d", "2d", "3d", "4d", "5d")), 0)
        if not isinstance(operand, Address) or len(operand.coordinates) != count or not count:
            raise code.refuse(inst)
        self.inst, self.count = inst, count
        self.map = Lanewise(code, inst, Address(operand.base, operand.offset), "u64")
        self.at = [Lanewise(code, inst, each, "s32") for each in operand.coordinates]

    def __call__(self, maps: dict[int, Map]) -> list[tuple[Map, tuple[int, ...]]]:
        places = (self.map() - PARAMETERS).tolist()
        corners = zip(*(each("a coordinate").tolist() for each in self.at), strict=True)
        boxes = []
        for place, corner in zip(places, corners, strict=True):
            if place not in maps or len(maps[place].tensor.box) != self.count:
                what = "its tensor map is not a parameter for which the launch got a Tensor"
                raise PtxError(self.inst.says(what))
            boxes.append((maps[place], corner))
        return boxes


#: Hints, and parts of every copy's opcode.
_SAID = frozenset(
    ("async", "bulk", "tensor", "tile", "L2::cache_hint", "global", "shared::cta",
     "shared::cluster", "mbarrier::complete_tx::bytes", "multicast::cluster", "bulk_group",
     "1d", "2d", "3d", "4d", "5d")
)  # fmt: skip


@opcode("cp.async.bulk.tensor")
def _tensor(code: Code, inst: Instruction) -> Step:
    """Translate both directions; only whole boxes (``.tile``)."""
    machine = machine_of(code)
    loads = "mbarrier::complete_tx::bytes" in inst.op
    order = inst.operands if loads else (inst.operands[1], inst.operands[0], *inst.operands[2:])
    code.require(inst, set(inst.op[1:]) <= _SAID and (loads or "bulk_group" in inst.op))
    where = Lanewise(code, inst, order[0])
    source = _Operands(code, inst, order[1])
    barrier = Lanewise(code, inst, order[2]) if loads else None
    spread = "multicast::cluster" in inst.op
    members = Lanewise(code, inst, order[3], "u16") if spread else None

    def load() -> None:
        assert barrier is not None
        machine.check_dependency(inst)
        addresses, maps = where().tolist(), source(machine.maps)
        places = machine.barriers.places(inst, barrier())
        masks = members("its mask").tolist() if members else [0] * len(addresses)
        size = machine.cluster
        for address, (mapped, corner), (cta, its, asking), mask in zip(
            addresses, maps, places, masks, strict=True
        ):
            first, row = cta // size * size, asking // WARP
            targets = [first + rank for rank in range(16) if mask >> rank & 1] if mask else [cta]
            if spread and (not mask or mask >> size):
                what = f"its mask {mask:#x} names no CTA of the cluster's {size}"
                raise machine.barriers.fault(inst, "out of bounds", what)
            for target in targets:
                known = machine.barriers.at(inst, (target, its, asking), proxy=True)
                if target != row // machine.shared.clocks.warps:
                    machine.barriers.visit(inst, target, row)
                counts = target == targets[0]
                machine.bulk.load(_Copy(inst, mapped, corner, target, address, row, known, counts))

    def store() -> None:
        machine.check_dependency(inst)
        addresses, maps = where().tolist(), source(machine.maps)
        lanes = machine.lanes()
        ctas, threads = (x.tolist() for x in np.nonzero(lanes))
        rows = (machine.shared.own[lanes] // WARP).tolist()
        for address, (mapped, corner), cta, thread, row in zip(
            addresses, maps, ctas, threads, rows, strict=True
        ):
            machine.bulk.store(_Copy(inst, mapped, corner, cta, address, row, thread=thread))

    return load if loads else store


@opcode("cp.async.bulk")
def _group(code: Code, inst: Instruction) -> Step:
    """Translate ``commit_group`` and ``wait_group``, which completes stores even with ``.read``."""
    known = (("commit_group",), ("wait_group",), ("wait_group", "read"))
    code.require(inst, inst.op[3:] in known, "only bulk copies of tensors")
    return group_step(code, inst, inst.op[3], "bulk")
