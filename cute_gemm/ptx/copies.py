"""Asynchronous copies to shared memory, which land when they are waited for and not before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import proxy

import numpy as np

from cute_gemm.ptx.lanes import Lanes

Array = np.ndarray[Any, Any]


@dataclass
class _Copy:
    """What one instruction copies: for each of its lanes a place, the data and the group."""

    #: CTA and thread.
    ctas: Array
    threads: Array
    #: Flat offsets in shared memory, and the data in units of ``width`` bytes.
    at: Array
    data: Array
    width: int
    group: Array

    def of(self, lanes: Array) -> _Copy:
        """Return the copies of some of its lanes."""
        return _Copy(
            self.ctas[lanes], self.threads[lanes], self.at[lanes], self.data[lanes], self.width,
            self.group[lanes],
        )  # fmt: skip


class Copies:
    """The copies of a batch that have not landed (PTX ISA, 9.7.9.25: ``cp.async``).

    Each thread counts the groups that it has committed; a copy belongs to the group that its thread
    commits next.
    """

    def __init__(self, machine: Lanes) -> None:
        self.machine: Lanes = proxy(machine)  # which holds this
        self._committed = np.zeros((1, 1), np.int64)
        self._flying: list[_Copy] = []

    def start(self, lanes: Array, offsets: Array, data: Array, width: int) -> None:
        """Start a copy in each lane of a mask, to flat offsets in shared memory."""
        ctas, threads = np.nonzero(lanes)
        group = np.broadcast_to(self._committed, lanes.shape)[lanes]
        self._flying.append(_Copy(ctas, threads, offsets, data, width, group))
        self.machine.shared.flying = len(self._flying)

    def commit(self) -> None:
        """Close the groups of the lanes that execute."""
        mask = self.machine.mask
        more = self._committed + 1
        self._committed = more if mask is None else np.where(mask, more, self._committed)

    def wait(self, left: int | None) -> None:
        """Land the groups of lanes that execute but for the last ``left``; None: everything."""
        if not self._flying:
            return
        lanes = self.machine.lanes()
        shared = self.machine.shared
        done = np.broadcast_to(self._committed - (left or 0), lanes.shape)
        waiting = []
        for copy in self._flying:
            lands = lanes[copy.ctas, copy.threads]
            if left is not None:
                lands = lands & (copy.group < done[copy.ctas, copy.threads])
            if lands.any():
                offsets = copy.at[lands]
                shared.view(copy.data.dtype)[offsets // copy.width] = copy.data[lands]
                if shared.watched:
                    shared.landing(offsets, copy.ctas[lands], copy.threads[lands], copy.width)
            if not lands.all():
                stay = ~lands
                waiting.append(copy.of(stay))
        self._flying = waiting
        shared.flying = len(waiting)
