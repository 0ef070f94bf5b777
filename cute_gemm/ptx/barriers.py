"""mbarriers (PTX ISA, 9.7.13.15): what their phases lack, and who has seen what.

A barrier is identified by its address in shared memory; its state is kept apart from the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import proxy

import numpy as np

from cute_gemm.errors import FaultError
from cute_gemm.ptx.cluster import ClusterMachine
from cute_gemm.ptx.memory import WARP, Array
from cute_gemm.ptx.parser import Instruction

#: From this bit on, an address in shared memory of another CTA of the cluster has its rank, plus 1.
REMOTE = 24
_BYTES = 8
#: A barrier's CTA, its address there, and the thread (`OrderedMemory.own`) that names it.
Place = tuple[int, int, int]


@dataclass(eq=False)
class Barrier:
    """An mbarrier: what its phase still lacks, and the clocks that its waiters receive."""

    cta: int
    address: int
    column: int
    expected: int
    pending: int
    given: Array
    #: Column and clock of the warp that made it.
    init: tuple[int, int]
    #: Complete phases; bytes that the next phase still expects.
    phase: int = 0
    bytes: int = 0
    done: Array = field(init=False)

    def __post_init__(self) -> None:
        self.done = self.given.copy()

    def settle(self) -> None:
        """Complete the phase if nothing is missing."""
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.expected
            self.given[:, self.column] = self.phase
            self.done = self.given.copy()

    def __str__(self) -> str:
        return (
            f"the barrier at {self.address:#x}, phase {self.phase} (parity {self.phase % 2}), "
            f"lacks {self.pending} of {self.expected} arrivals and {self.bytes} bytes"
        )


class Barriers:
    """The mbarriers of a batch, by CTA and address."""

    def __init__(self, machine: ClusterMachine) -> None:
        self.machine: ClusterMachine = proxy(machine)  # which owns this
        self._barriers: dict[tuple[int, int], Barrier] = {}
        self._numbers: dict[int, int] = {}
        #: Barriers for which threads wait.
        self.wanted: set[tuple[int, int]] = set()
        #: For CTAs to which other CTAs wrote: column of the writer -> its clock then.
        self._visits: dict[tuple[int, int], tuple[int, Instruction]] = {}
        self.failed = np.zeros(machine.shape, bool)

    # ---- places --------------------------------------------------------------------------------

    def places(self, inst: Instruction, addresses: Array) -> list[Place]:
        """Return the barrier that each executing lane names."""
        machine = self.machine
        ctas = np.nonzero(machine.lanes())[0]
        rank, size = addresses >> REMOTE, machine.cluster
        bad = (rank < 0) | (rank > size)
        ctas = np.where(rank > 0, ctas // size * size + rank - 1, ctas)
        inside = addresses & (1 << REMOTE) - 1
        bad |= inside > machine.shared.bytes - _BYTES
        apart = inside % _BYTES != 0
        for wrong, kind in ((bad, "out of bounds"), (apart, "misaligned")):
            if wrong.any():
                raise self.fault(inst, kind, f"{kind}: no barrier is there", addresses[wrong][0])
        own = machine.shared.own[machine.lanes()]
        return list(zip(ctas.tolist(), inside.tolist(), own.tolist(), strict=True))

    def fault(self, inst: Instruction, kind: str, what: str, address: Any = None) -> FaultError:
        """Return the fault of the executing lanes."""
        where = "" if address is None else f" at address {int(address):#x}"
        who = self.machine.who(self.machine.lanes())
        return inst.fault(kind, f"{who}{where}: {what}")

    def make(self, inst: Instruction, place: Place, count: int) -> None:
        """Execute ``mbarrier.init``."""
        cta, address, thread = place
        if count < 1:
            raise self.fault(inst, "barrier", f"its count is {count}", address)
        clocks = self.machine.shared.clocks
        if (cta, address) in self._barriers:
            column = self._barriers[cta, address].column
        else:
            number = self._numbers[cta] = self._numbers.get(cta, -1) + 1
            column = clocks.of_barrier(cta, number)
        row, lane = divmod(thread, WARP)
        init = int(clocks.of_lane(row, lane)), int(clocks.now(row))
        self._barriers[cta, address] = Barrier(
            cta, address, column, count, count, clocks.nothing(), init
        )

    def drop(self, inst: Instruction, place: Place) -> None:
        """Execute ``mbarrier.inval``."""
        self.at(inst, place)
        del self._barriers[place[:2]]

    def at(self, inst: Instruction, place: Place, proxy: bool = False) -> Barrier:
        """Return the barrier at a place, seen by the warp; ``proxy``: for a bulk copy."""
        cta, address, thread = place
        row = thread // WARP
        barrier = self._barriers.get((cta, address))
        if barrier is None:
            raise self.fault(inst, "uninitialised", "no barrier has been made there", address)
        column, clock = barrier.init
        known = self.machine.shared.clocks.known
        if self.machine.shared.watched and known[int(proxy), row, column] < clock:
            what = "another thread made the barrier without a barrier in between"
            if known[0, row, column] >= clock:
                what = "no fence.mbarrier_init or fence.proxy.async since the barrier was made"
            raise self.fault(inst, "race", what, address)
        return barrier

    # ---- operations ----------------------------------------------------------------------------

    def arrive(self, inst: Instruction, place: Place, count: int, bytes_: int = 0) -> None:
        """Count arrivals, and expect bytes."""
        cta, address, thread = place
        barrier = self.at(inst, place)
        clocks = self.machine.shared.clocks
        row, lane = divmod(thread, WARP)
        if cta != row // clocks.warps:
            self.visit(inst, cta, row)
        barrier.bytes += bytes_
        if count:
            clocks.give_lane(row, lane, barrier.given)
            barrier.pending -= count
            if barrier.pending < 0:
                what = f"more arrivals than the {barrier.expected} of a phase"
                raise self.fault(inst, "barrier", what, address)
            barrier.settle()

    def visit(self, inst: Instruction, cta: int, row: int) -> None:
        """Note that a warp of another CTA accesses the shared memory of this CTA."""
        clocks = self.machine.shared.clocks
        self._visits[cta, int(clocks.column[row])] = int(clocks.now(row)), inst

    def passed(self, inst: Instruction, addresses: Array, parities: Array) -> Array:
        """Return which executing lanes may continue, since the phase of that parity is complete."""
        machine = self.machine
        rows = machine.shared.own[machine.lanes()] // WARP
        # Most warps wait for one barrier, which is examined once.
        waits = np.stack((rows, addresses, parities & 1), axis=1)
        same = np.ones(len(waits), bool)
        same[1:] = (waits[1:] != waits[:-1]).any(axis=1)
        group = np.cumsum(same) - 1
        places = self.places(inst, addresses)
        go = []
        for first in np.flatnonzero(same).tolist():
            place = places[first]
            barrier = self.at(inst, place)
            free = barrier.phase % 2 != int(waits[first, 2])
            if free:
                machine.shared.clocks.take(np.array([place[2] // WARP]), barrier.done)
            else:
                self.wanted.add(place[:2])
            go.append(free)
        return np.array(go, bool)[group]

    def finish(self) -> None:
        """Fault if bytes are missing, or if a warp accessed a CTA that may have ended."""
        clocks = self.machine.shared.clocks
        for barrier in self._barriers.values():
            if barrier.bytes:
                raise FaultError(
                    f"the kernel has ended, and {barrier}: arrivals differ from what was expected",
                    "transaction",
                )
        for (cta, column), (clock, inst) in self._visits.items():
            rows = slice(cta * clocks.warps, (cta + 1) * clocks.warps)
            if self.machine.shared.watched and clocks.known[0, rows, column].max() < clock:
                what = f"CTA {cta} of the batch may have ended before: it does not wait for "
                raise inst.fault("race", f"{what}other CTAs of its cluster")
