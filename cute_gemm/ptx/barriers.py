"""Barriers at which lanes wait individually: what they lack, and who has seen what.

PTX ISA, 9.7.13.15 (mbarriers), 9.7.13.1 and 9.7.13.4 (named barriers, the barrier of a cluster).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import proxy

import numpy as np

from cute_gemm.errors import FaultError
from cute_gemm.ptx.clocks import ClusterMachine
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
    """The mbarriers of a batch, by CTA and address in shared memory, apart from the bytes there."""

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


@dataclass(eq=False)
class _Gate:
    """A named barrier of a CTA: the number of arrivals, and the clocks that they pass on.

    ``whole``: all threads of the CTA that have not ended must arrive.
    """

    given: Array
    count: int = 0
    whole: bool = False
    come: int = 0
    times: int = 0
    done: Any = None

    def open(self) -> None:
        """Complete the barrier and start its next use."""
        self.done, self.come, self.times = self.given.copy(), 0, self.times + 1


class Gates:
    """The named barriers of all CTAs, and the barrier of each cluster."""

    def __init__(self, machine: ClusterMachine) -> None:
        self.machine: ClusterMachine = proxy(machine)  # which owns this
        self._gates: dict[tuple[int, int | None], _Gate] = {}
        self._which = np.zeros(machine.shape, np.int64)
        #: Uses of a named barrier, and of the cluster's, at which a lane has arrived; before it
        #: waits there it may arrive at others.
        self._turn = np.zeros(machine.shape, np.int64)
        self._turn_of_cluster = np.zeros(machine.shape, np.int64)
        self._come = np.zeros(machine.shape, bool)

    def _gate(self, group: int, number: int | None) -> _Gate:
        """Return the barrier of a CTA by its number; None: that of a cluster."""
        key = group, number
        if key not in self._gates:
            self._gates[key] = _Gate(self.machine.shared.clocks.nothing())
        return self._gates[key]

    def _enter(self, gate: _Gate, lanes: Array, turns: Array) -> None:
        """Let lanes arrive at a barrier, with what they have seen."""
        turns[lanes] = gate.times
        self.machine.shared.clocks.give(self.machine.rows(lanes), gate.given)

    def _leave(self, gate: _Gate, lanes: Array, turns: Array) -> Array:
        """Return which lanes may continue: those that arrived before the last completion."""
        go = lanes & (turns < gate.times)
        if go.any():
            self.machine.shared.clocks.take(self.machine.rows(go), gate.done)
        return go

    def _groups(self, size: int) -> Iterator[tuple[int, Array]]:
        """Yield the first CTA of each ``size`` CTAs with executing lanes, and these lanes."""
        lanes, firsts = self.machine.lanes(), np.arange(self.machine.ctas)[:, None] // size * size
        for first in np.unique(firsts[lanes.any(axis=1)]).tolist():
            yield first, lanes & (firsts == first)

    def arrive(self, inst: Instruction, numbers: Array, wanted_counts: Array | None) -> None:
        """Let executing lanes arrive at the barriers of these numbers, which wait for such counts.

        None: for all threads of the CTA.
        """
        machine = self.machine
        lanes, counts = machine.lanes(), np.full(machine.shape, machine.threads)
        self._which[lanes] = numbers
        if wanted_counts is not None:
            counts[lanes] = wanted_counts
        for cta, number, here in self._named():
            gate = self._gate(cta, number)
            wanted = {*counts[here].tolist(), *([gate.count] if gate.come else [])}
            gate.whole = wanted_counts is None and (gate.whole or not gate.come)
            gate.count = max(wanted)
            gate.come += int(here.sum())
            if len(wanted) > 1 or gate.come > gate.count:
                what = f"barrier {number}: {gate.come} threads arrive, {gate.count} expected"
                raise machine.barriers.fault(inst, "barrier", what)
            self._enter(gate, here, self._turn)
            if gate.come == gate.count:
                gate.open()

    def _named(self) -> Iterator[tuple[int, int, Array]]:
        """Yield CTA, number and lanes of barriers at which executing lanes arrived last."""
        for cta, lanes in self._groups(1):
            for number in np.unique(self._which[lanes]).tolist():
                yield cta, number, lanes & (self._which == number)

    def passed(self) -> Array:
        """Return which executing lanes, of those that arrived at a named barrier, may continue."""
        free, alive = np.zeros(self.machine.shape, bool), self.machine.alive().sum(axis=1)
        for cta, number, here in self._named():
            gate = self._gate(cta, number)
            if gate.whole and 0 < gate.come == alive[cta]:
                gate.open()
            free |= self._leave(gate, here, self._turn)
        return free

    def missing(self) -> str:
        """Return what the first lane that waits at a named barrier waits for."""
        cta, thread = (int(x) for x in np.argwhere(self.machine.lanes())[0])
        gate = self._gate(cta, int(self._which[cta, thread]))
        return f"{gate.come} of {gate.count} threads have arrived"

    def arrive_cluster(self, inst: Instruction) -> None:
        """Let executing lanes arrive at the barrier of their cluster."""
        machine, lanes = self.machine, self.machine.lanes()
        if (self._come & lanes).any():
            what = "it arrives twice without a wait in between"
            raise machine.barriers.fault(inst, "barrier", what)
        self._come |= lanes
        for cluster, here in self._groups(machine.cluster):
            self._enter(self._gate(cluster, None), here, self._turn_of_cluster)

    def passed_cluster(self) -> Array:
        """Return which executing lanes may continue after the barrier of their cluster."""
        free, alive = np.zeros(self.machine.shape, bool), self.machine.alive()
        for cluster, here in self._groups(self.machine.cluster):
            gate = self._gate(cluster, None)
            part = slice(cluster, cluster + self.machine.cluster)
            waiting = here & (self._turn_of_cluster == gate.times)
            if waiting.any() and (self._come[part] | ~alive[part]).all():
                self._come[part] = False
                gate.open()
            free |= self._leave(gate, here, self._turn_of_cluster)
        return free

    def missing_cluster(self) -> str:
        """Return how many threads have arrived at the barrier of a cluster."""
        return f"{int(self._come.sum())} of {int(self.machine.alive().sum())} threads have arrived"
