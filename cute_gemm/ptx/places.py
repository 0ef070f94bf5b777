"""Places of memory instructions: addresses of lanes -> checked offsets into memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.errors import PtxError
from cute_gemm.ptx.code import Code
from cute_gemm.ptx.memory import GLOBAL, SHARED_WINDOW, Array, Bytes
from cute_gemm.ptx.parser import BYTES, Address, Instruction, Name, Operand, Register

#: Faults of a read or a write of shared memory, as text.
_WRONG = {
    "in flight": "an asynchronous copy, not waited for, writes these bytes",
    "race": "another thread wrote or read these bytes without a barrier in between",
    "being read": "a wgmma or a bulk store, not waited for, reads these bytes",
}
#: The fault of an access to bytes that another CTA stores.
OTHERS = "race: another CTA stores these bytes, and neither waits for the other"


class AddressOperand:
    """The address operand of one instruction, with ``width`` bytes per lane.

    `offsets` returns, for the executing lanes, flat offsets into the bytes of a space: an array
    that broadcasts to all lanes if all execute, otherwise a one-dimensional array. Results about a
    base register serve all instructions that add a constant to it.
    """

    def __init__(self, code: Code, inst: Instruction, operand: Operand, width: int, space: str):
        if not isinstance(operand, Address):
            raise code.refuse(inst)
        base, self.offset = operand.base, operand.offset
        self.narrow = isinstance(base, Register) and BYTES[base.type] == 4
        self.slot = code.source(inst, base, "u32" if self.narrow else "u64").slot
        if space == "" and isinstance(base, Name) and base.name in code.kernel.shared:
            self.slot = code.constant(code.address_of(base.name) + SHARED_WINDOW, np.uint64)
        self.inst, self.width, self.space = inst, width, space
        self.machine, self.index = code.machine, code.index
        self.known: dict[Any, tuple[Any, ...]] = code.known

    # ---- addresses -----------------------------------------------------------------------------

    def shared(self) -> bool:
        """Return whether the executing lanes access shared memory, by their generic addresses."""
        if self.space:
            return self.space == "shared"
        values = self._executing(self.machine.values[self.slot]).astype(np.int64) + self.offset
        inside = (values >= SHARED_WINDOW) & (values < GLOBAL)
        if inside.any() and not inside.all():
            what = "lanes access global and shared memory by one generic instruction, which the "
            raise PtxError(self.inst.says(f"{what}interpreter does not support"))
        return bool(inside.all())

    def _executing(self, values: Array) -> Array:
        """Return values of executing lanes."""
        return values if self.machine.mask is None else self.machine.each(values)

    def addresses(self) -> Array:
        """Return the addresses of all lanes as in the text."""
        addresses = self.machine.values[self.slot].astype(np.int64) + self.offset
        if self.narrow:
            addresses = addresses & 0xFFFFFFFF
        return addresses - SHARED_WINDOW if not self.space and self.shared() else addresses

    def offsets(self, shared: bool, write: bool) -> Array:
        """Return checked flat offsets into shared or global memory."""
        machine = self.machine
        if not shared:
            machine.check_dependency(self.inst)
        machine.demand(self.inst, self.slot, "its address")
        values = machine.values[self.slot]
        known = self.known.get((self.slot, shared))
        if known is None or known[0] is not values or known[1] is not machine.mask:
            known = self._look(values, shared)
            self.known[self.slot, shared] = known
        _, _, flat, low, high, bits = known
        low, high = low + self.offset, high + self.offset + self.width
        inside = self.memory(shared).inside(low, high, write)
        if inside and not (bits | self.offset) & (self.width - 1):
            return flat + self.offset if self.offset else flat
        return self._carefully(shared, write)

    def _look(self, values: Array, shared: bool) -> tuple[Any, ...]:
        """Return the offsets of a base register, the least and greatest of them and all bits."""
        machine = self.machine
        machine.moved = machine.steps
        relative = self._relative(values, shared)
        flat = relative + machine.shared.rows if shared else relative
        relative, flat = self._executing(relative), self._executing(flat)
        bits = int(np.bitwise_or.reduce(relative, axis=None))
        return values, machine.mask, flat, int(relative.min()), int(relative.max()), bits

    def _relative(self, values: Array, shared: bool) -> Array:
        """Return signed 64-bit offsets in their space."""
        window = 0 if self.space else SHARED_WINDOW
        return values.astype(np.int64) - (window if shared else GLOBAL)

    def _carefully(self, shared: bool, write: bool) -> Array:
        """Check the offsets by lane; a fault names the first illegal one."""
        machine = self.machine
        relative = self._relative(machine.values[self.slot], shared) + self.offset
        if self.narrow:
            relative = relative & 0xFFFFFFFF
        chosen = self._executing(relative)
        self._aligned(chosen)
        bad = self.memory(shared).forbidden(chosen, self.width, write)
        if bad.any():
            near = machine.shared.near(int(chosen[bad][0])) if shared else "{near}"
            self._fault(bad, "out of bounds", f"out of bounds: {near}")
        return self._executing(relative + machine.shared.rows) if shared else chosen

    def _aligned(self, offsets: Array) -> None:
        apart = (offsets & (self.width - 1)).astype(bool)
        what = f"misaligned: {self.width} bytes need a multiple of {self.width}"
        self._fault(apart, "misaligned", what)

    def _fault(self, bad: Array | None, kind: str, what: str) -> None:
        if bad is not None and bad.any():
            self.machine.fault(self.inst, kind, what, self.spread(bad), self.addresses())

    def spread(self, some: Array) -> Array:
        """Return values of executing lanes at their places among all lanes; others have 0."""
        mask = self.machine.mask
        if mask is None:
            return some
        whole = np.zeros(self.machine.shape, some.dtype)
        whole[np.broadcast_to(mask, whole.shape)] = some
        return whole

    def put(self, view: Array, places: Array, value: Array) -> None:
        """Write values of the executing lanes to their places; the last write wins."""
        if self.machine.mask is None:
            shape = np.broadcast_shapes(places.shape, value.shape)
            view[np.broadcast_to(places, shape)] = value
        else:
            view[places] = self._executing(value)

    def note(self, shared: bool, store: bool) -> None:
        """Note an access by the executing lanes in the recorder, if any."""
        recorder = self.machine.recorder
        if recorder is not None:
            what = (self.index, shared, store, self.width)
            recorder.access(what, self.machine, self.addresses())

    # ---- accesses ------------------------------------------------------------------------------

    def memory(self, shared: bool) -> Bytes:
        """Return the memory that the offsets index."""
        return self.machine.shared if shared else self.machine.memory

    def accessed(
        self, shared: bool, store: bool = False, *, noted: bool = True, flying: bool = False,
        atomic: bool = False,
    ) -> Array:  # fmt: skip
        """Return `offsets` of an access; fault if it is a race.

        ``noted``: whether the recorder notes it; ``flying``: whether it is an asynchronous copy.
        """
        machine = self.machine
        if store:
            machine.moved = machine.steps
        offsets = self.offsets(shared, store)
        if not shared and not atomic:
            others = machine.memory.stored if store else machine.memory.loaded
            numbers = machine.number(np.arange(machine.ctas, dtype=np.int32)[:, None])
            bad = others(offsets, self._executing(numbers), self.width)
            self._fault(bad, "race", OTHERS)
        elif shared and machine.shared.watched:
            own = self._executing(machine.shared.own)
            if store:
                wrong = machine.shared.writing(offsets, own, self.width, flying)
            else:
                wrong = machine.shared.reading(offsets, own, self.width)
            if wrong is not None:
                bad, what = wrong
                kind = "in flight" if what == "being read" else what
                self._fault(bad, kind, f"{what}: {_WRONG[what]}")
        if noted:
            self.note(shared, store)
        return offsets

    def bytes(self, count: int) -> Array:
        """Return the first bytes of global memory at each lane's address, (lanes, count)."""
        machine = self.machine
        machine.check_dependency(self.inst)
        first = self._executing(self._relative(machine.values[self.slot], False) + self.offset)
        self._aligned(first)
        addresses = first[:, None] + np.arange(count)
        bad = np.asarray(machine.memory.forbidden(addresses, 1, False).any(axis=1))
        self._fault(bad, "out of bounds", "out of bounds: {near}")
        return machine.memory.raw.take(addresses)
