"""Named barriers of CTAs, and the barrier of each cluster: PTX ISA, 9.7.13.1 and 9.7.13.4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import proxy

import numpy as np

from cute_gemm.ptx.parser import Instruction

if TYPE_CHECKING:
    from cute_gemm.ptx.cluster import ClusterMachine

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class _Gate:
    """A named barrier of a CTA: how many have come, and what they hand over.

    ``whole``: all threads of the CTA are to come that have not ended.
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
        self.machine: ClusterMachine = proxy(machine)  # which holds this
        self._gates: dict[tuple[int, int], _Gate] = {}
        self._which = np.zeros(machine.shape, np.int64)
        self._turn = np.zeros(machine.shape, np.int64)
        self._come = np.zeros(machine.shape, bool)
        self._clusters: dict[int, _Gate] = {}

    def _gate(self, cta: int, number: int) -> _Gate:
        key = cta, number
        if key not in self._gates:
            self._gates[key] = _Gate(self.machine.shared.clocks.nothing())
        return self._gates[key]

    def arrive(self, inst: Instruction, numbers: Array, wanted_counts: Array | None) -> None:
        """Lanes that execute come to the barriers of these numbers, which wait for so many.

        None: for all threads of the CTA.
        """
        machine, clocks = self.machine, self.machine.shared.clocks
        counts = np.full(len(numbers), machine.threads) if wanted_counts is None else wanted_counts
        lanes = machine.lanes()
        self._which[lanes] = numbers
        ctas = np.nonzero(lanes)[0]
        for cta, number in sorted(set(zip(ctas.tolist(), numbers.tolist(), strict=True))):
            gate = self._gate(cta, number)
            arriving = np.zeros(machine.shape, bool)
            arriving[lanes] = (ctas == cta) & (numbers == number)
            wanted = set(counts[(ctas == cta) & (numbers == number)].tolist())
            wanted |= {gate.count} if gate.come else set()
            gate.whole = wanted_counts is None and (gate.whole or not gate.come)
            gate.count = max(wanted)
            self._turn[arriving] = gate.times
            gate.come += int(arriving.sum())
            if len(wanted) > 1 or gate.come > gate.count:
                what = f"barrier {number}: {gate.come} threads come where {gate.count} were to"
                raise machine.barriers.fault(inst, "barrier", what)
            clocks.give(np.unique(machine.shared.own[arriving]), gate.given)
            if gate.come == gate.count:
                gate.open()

    def passed(self) -> Array:
        """Which lanes that execute, of those that came to a named barrier, may go on."""
        machine, lanes = self.machine, self.machine.lanes()
        free = np.zeros(machine.shape, bool)
        alive = machine.alive().sum(axis=1)
        for cta in np.flatnonzero(lanes.any(axis=1)).tolist():
            for number in np.unique(self._which[cta, lanes[cta]]).tolist():
                gate = self._gate(cta, number)
                if gate.whole and 0 < gate.come == alive[cta]:
                    gate.open()
                go = lanes[cta] & (self._which[cta] == number) & (self._turn[cta] < gate.times)
                if go.any():
                    free[cta] |= go
                    machine.shared.clocks.take(np.unique(machine.shared.own[cta, go]), gate.done)
        return free

    def missing(self) -> str:
        """What the first lane that waits at a named barrier waits for."""
        cta, thread = (int(x) for x in np.argwhere(self.machine.lanes())[0])
        gate = self._gate(cta, int(self._which[cta, thread]))
        return f"{gate.come} of {gate.count} threads have come"

    def arrive_cluster(self, inst: Instruction) -> None:
        """Lanes that execute come to the barrier of their cluster."""
        machine, lanes = self.machine, self.machine.lanes()
        if (self._come & lanes).any():
            raise machine.barriers.fault(inst, "barrier", "it arrives twice, and waits not between")
        self._come |= lanes
        clocks, size = machine.shared.clocks, machine.cluster
        for cluster in np.unique(np.nonzero(lanes)[0] // size).tolist():
            gate = self._clusters.setdefault(cluster, _Gate(clocks.nothing()))
            part = slice(cluster * size, (cluster + 1) * size)
            arriving = lanes[part]
            self._turn[part][arriving] = gate.times
            clocks.give(np.unique(machine.shared.own[part][arriving]), gate.given)

    def passed_cluster(self) -> Array:
        """Which lanes that execute may go on behind the barrier of their cluster."""
        machine, lanes = self.machine, self.machine.lanes()
        passed = np.zeros(machine.shape, bool)
        alive, size = machine.alive(), machine.cluster
        for cluster in np.unique(np.nonzero(lanes)[0] // size).tolist():
            gate = self._clusters.setdefault(cluster, _Gate(machine.shared.clocks.nothing()))
            part = slice(cluster * size, (cluster + 1) * size)
            waiting = lanes[part] & (self._turn[part] == gate.times)
            if waiting.any() and (self._come[part] | ~alive[part]).all():
                self._come[part] = False
                gate.done, gate.times = gate.given.copy(), gate.times + 1
            free = lanes[part] & (self._turn[part] < gate.times)
            if free.any():
                passed[part] = free
                machine.shared.clocks.take(np.unique(machine.shared.own[part][free]), gate.done)
        return passed

    def missing_cluster(self) -> str:
        """How many threads have come to the barrier of a cluster."""
        return f"{int(self._come.sum())} of {int(self.machine.alive().sum())} threads have come"
