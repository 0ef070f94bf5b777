"""Asynchronous copies to shared memory, which land only when they are waited for."""

from __future__ import annotations

from weakref import proxy

import numpy as np

from cute_gemm.ptx.lanes import Lanes
from cute_gemm.ptx.memory import Array
from cute_gemm.ptx.parser import Instruction


class Copies:
    """The copies of a batch that have not landed (PTX ISA, 9.7.9.25: ``cp.async``).

    Each thread counts its committed groups; a copy belongs to the group that its thread commits
    next.
    """

    def __init__(self, machine: Lanes) -> None:
        self.machine: Lanes = proxy(machine)  # which owns this
        self._committed = np.zeros((1, 1), np.int64)
        #: For each instruction: CTA, thread, flat offset in shared memory and group, (4, copies);
        #: and the copied data, in units of its width.
        self._flying: list[tuple[Array, Array]] = []

    def start(self, lanes: Array, offsets: Array, data: Array) -> None:
        """Start a copy in each lane of a mask, to flat offsets in shared memory."""
        group = np.broadcast_to(self._committed, lanes.shape)[lanes]
        self._flying.append((np.stack((*np.nonzero(lanes), offsets, group)), data))
        self.machine.shared.flying = len(self._flying)

    def commit(self, inst: Instruction) -> None:
        """Close the groups of the executing lanes."""
        mask = self.machine.mask
        more = self._committed + 1
        self._committed = more if mask is None else np.where(mask, more, self._committed)

    def wait(self, inst: Instruction, left: int | None) -> None:
        """Land the groups of executing lanes except the last ``left``; None: everything."""
        if not self._flying:
            return
        lanes = self.machine.lanes()
        shared = self.machine.shared
        done = np.broadcast_to(self._committed - (left or 0), lanes.shape)
        waiting = []
        for places, data in self._flying:
            ctas, threads, offsets, group = places
            lands = lanes[ctas, threads]
            if left is not None:
                lands = lands & (group < done[ctas, threads])
            if lands.any():
                width = data.itemsize
                shared.view(data.dtype)[offsets[lands] // width] = data[lands]
                if shared.watched:
                    shared.landing(offsets[lands], ctas[lands], threads[lands], width)
            if not lands.all():
                waiting.append((places[:, ~lands], data[~lands]))
        self._flying = waiting
        shared.flying = len(waiting)
