"""Named barriers of CTAs, and the barrier of each cluster: PTX ISA, 9.7.13.1 and 9.7.13.4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import proxy

import numpy as np

from cute_gemm.ptx.cluster import ClusterMachine
from cute_gemm.ptx.memory import Array
from cute_gemm.ptx.parser import Instruction


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
