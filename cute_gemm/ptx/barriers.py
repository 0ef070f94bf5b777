"""mbarriers (PTX ISA, 9.7.13.15): what is missing of their phases, and who has seen what.

A barrier has a place in shared memory by its address only: its state is kept beside the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.errors import FaultError
from cute_gemm.ptx.parser import Instruction

if TYPE_CHECKING:
    from cute_gemm.ptx.cluster import ClusterMachine

Array = np.ndarray[Any, Any]

#: An address of shared memory of another CTA of the cluster: its rank, plus 1, from this bit on.
REMOTE = 24
_BYTES = 8


@dataclass(eq=False)
class Barrier:
    """An mbarrier: what is missing of its phase, and what who waits for it will have seen."""

    cta: int
    address: int
    column: int
    expected: int
    pending: int
    given: Array
    #: Of the warp that made it: column and clock.
    made: tuple[int, int]
    #: Phases that are complete; bytes that the next still expects.
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
        self.machine = machine
        self._made: dict[tuple[int, int], Barrier] = {}
        self._numbers: dict[int, int] = {}
        #: Those that somebody waits for.
        self.wanted: set[tuple[int, int]] = set()
        #: Of CTAs that others wrote to: column of the writer -> its clock then.
        self._visits: dict[tuple[int, int], tuple[int, Instruction]] = {}
        self.failed = np.zeros(machine.shape, bool)

    # ---- places --------------------------------------------------------------------------------

    def places(self, one: Instruction, addresses: Array) -> list[tuple[int, int, int]]:
        """CTA, address there, and row of the warp, of each lane that executes."""
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
                raise self.fault(one, kind, f"{kind}: no barrier is there", addresses[wrong][0])
        rows = machine.shared.own[machine.lanes()]
        return list(zip(ctas.tolist(), inside.tolist(), rows.tolist(), strict=True))

    def fault(self, one: Instruction, kind: str, what: str, address: Any = None) -> FaultError:
        """What lanes that execute must not do."""
        where = "" if address is None else f" at address {int(address):#x}"
        who = self.machine.who(self.machine.lanes())
        return FaultError(f"line {one.line}: {one.text}: {who}{where}: {what}", kind, one.line)

    def make(self, one: Instruction, cta: int, address: int, row: int, count: int) -> None:
        """``mbarrier.init``."""
        if count < 1:
            raise self.fault(one, "barrier", f"its count is {count}", address)
        clocks = self.machine.shared.clocks
        known = self._made.get((cta, address))
        if known is None:
            number = self._numbers[cta] = self._numbers.get(cta, -1) + 1
            column = clocks.of_barrier(cta, number)
        else:
            column = known.column
        made = int(clocks.column[row]), int(clocks.now(row))
        self._made[cta, address] = Barrier(
            cta, address, column, count, count, clocks.nothing(), made
        )

    def drop(self, one: Instruction, cta: int, address: int, row: int) -> None:
        """``mbarrier.inval``."""
        self.at(one, cta, address, row)
        del self._made[cta, address]

    def at(
        self, one: Instruction, cta: int, address: int, row: int, proxy: bool = False
    ) -> Barrier:
        """The barrier that is there, which a warp must know to be; ``proxy``: for a bulk copy."""
        found = self._made.get((cta, address))
        if found is None:
            raise self.fault(one, "uninitialised", "no barrier has been made there", address)
        column, clock = found.made
        known = self.machine.shared.clocks.known
        if self.machine.shared.watched and known[int(proxy), row, column] < clock:
            what = "the barrier was made by another thread, and no barrier is between"
            if known[0, row, column] >= clock:
                what = "no fence.mbarrier_init or fence.proxy.async since the barrier was made"
            raise self.fault(one, "race", what, address)
        return found

    # ---- what happens to them ------------------------------------------------------------------

    def arrive(
        self, one: Instruction, place: tuple[int, int, int], count: int, bytes_: int
    ) -> None:
        """Some arrivals, and bytes that are to come."""
        cta, address, row = place
        barrier = self.at(one, cta, address, row)
        clocks = self.machine.shared.clocks
        if cta != row // clocks.warps:
            self.visit(one, cta, row)
        barrier.bytes += bytes_
        if count:
            clocks.give(np.array([row]), barrier.given)
            barrier.pending -= count
            if barrier.pending < 0:
                what = f"more arrivals than the {barrier.expected} of a phase"
                raise self.fault(one, "barrier", what, address)
            barrier.settle()

    def visit(self, one: Instruction, cta: int, row: int) -> None:
        """Note that a warp of another CTA does something in the shared memory of this one."""
        clocks = self.machine.shared.clocks
        self._visits[cta, int(clocks.column[row])] = int(clocks.now(row)), one

    def come(self, barrier: Barrier, bytes_: int) -> None:
        """Bytes of a bulk copy have come."""
        barrier.bytes -= bytes_
        barrier.settle()

    def passed(self, one: Instruction, addresses: Array, parities: Array) -> Array:
        """Which lanes that execute may go on: the phase of that parity is complete."""
        machine = self.machine
        found = np.zeros(len(addresses), bool)
        rows = machine.shared.own[machine.lanes()]
        # Warps mostly wait for one thing: what they ask is looked at once.
        asked = np.stack((rows, addresses, parities & 1), axis=1)
        same = np.ones(len(asked), bool)
        same[1:] = (asked[1:] != asked[:-1]).any(axis=1)
        group = np.cumsum(same) - 1
        places = self.places(one, addresses)
        go = []
        for first in np.flatnonzero(same).tolist():
            cta, address, row = places[first]
            barrier = self.at(one, cta, address, row)
            free = barrier.phase % 2 != int(asked[first, 2])
            if free:
                machine.shared.clocks.take(np.array([row]), barrier.done)
            else:
                self.wanted.add((cta, address))
            go.append(free)
        found[:] = np.array(go, bool)[group]
        return found

    def finish(self) -> None:
        """See that no bytes are missing, and that nobody came to a CTA that may have ended."""
        clocks = self.machine.shared.clocks
        for barrier in self._made.values():
            if barrier.bytes:
                raise FaultError(
                    f"the kernel has ended, and {barrier}: what came and what was expected do not "
                    "add up",
                    "transaction",
                )
        for (cta, column), (clock, one) in self._visits.items():
            rows = slice(cta * clocks.warps, (cta + 1) * clocks.warps)
            if self.machine.shared.watched and clocks.known[0, rows, column].max() < clock:
                raise FaultError(
                    f"line {one.line}: {one.text}: CTA {cta} of the batch may have ended before: "
                    "it does not wait for the others of its cluster",
                    "race",
                    one.line,
                )
