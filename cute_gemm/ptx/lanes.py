"""Threads that are executed together, their copies in flight, and waits for lanes of a warp."""

from __future__ import annotations

from weakref import proxy

import numpy as np

from cute_gemm.ptx.memory import WARP, Array, SharedMemory
from cute_gemm.ptx.parser import Instruction


class Lanes:
    """All threads of a batch of CTAs of a launch, and which of them execute.

    ``first``: number of the first CTA; ``mask``: the executing lanes, None for all; ``shared``: the
    CTAs' shared memory.
    """

    shared: SharedMemory

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.first = self.ctas = 0
        self.mask: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of CTAs and threads of the batch."""
        return self.ctas, self.threads

    def lanes(self) -> Array:
        """Return the mask of executing lanes at full size."""
        return self.full(self.mask)

    def full(self, values: Array | None) -> Array:
        """Return values, or a mask, at full size; None stands for all lanes."""
        return np.broadcast_to(True if values is None else values, self.shape)

    def each(self, values: Array) -> Array:
        """Return values of the executing lanes, CTA by CTA."""
        return self.full(values)[self.lanes()]


class Copies:
    """The copies of a batch that have not landed: ``cp.async`` (PTX ISA, 9.7.9.25).

    They land only when they are waited for. Each thread counts its committed groups; a copy belongs
    to the group that its thread commits next.
    """

    def __init__(self, machine: Lanes) -> None:
        self.machine: Lanes = proxy(machine)  # which owns this
        self._committed = np.zeros((1, 1), np.int64)
        #: For each instruction: CTA, thread, flat offset in shared memory and group, (4, copies);
        #: and the copied data, in units of its width.
        self._flying: list[tuple[Array, Array]] = []

    def start(self, offsets: Array, data: Array) -> None:
        """Start a copy in each executing lane, to flat offsets in shared memory."""
        places = *np.nonzero(self.machine.lanes()), offsets, self.machine.each(self._committed)
        self._flying.append((np.stack(places), data))
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
        lanes, shared = self.machine.lanes(), self.machine.shared
        done = self.machine.full(self._committed - (left or 0))
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


class WarpBarriers:
    """The lanes of a batch that wait at ``bar.warp.sync``, with their masks (PTX ISA, 9.7.13.2).

    Lanes in a mask may arrive by different instructions; ended lanes are not waited for.
    """

    def __init__(self, machine: Lanes) -> None:
        self.machine: Lanes = proxy(machine)  # which owns this
        shape = machine.ctas, -(-machine.threads // WARP), WARP
        #: Masks of the waiting lanes, 0 for others; and lanes that need not wait any more.
        self._masks = np.zeros(shape, np.int64)
        self._free = np.zeros(shape, bool)

    def _of_threads(self, lanes: Array) -> Array:
        """Return the part of lanes of whole warps that the CTAs have, as all threads."""
        return lanes.reshape(self.machine.ctas, -1)[:, : self.machine.threads]

    def passed(self, masks: Array, alive: Array) -> Array:
        """Return which executing lanes may continue, of those that arrived with these masks.

        ``alive``: all lanes that have not ended.
        """
        lanes = self.machine.lanes()
        own, free = self._of_threads(self._masks), self._of_threads(self._free)
        own[lanes] = np.where(free[lanes], 0, masks)
        waiting, bits = self._masks, np.arange(WARP)
        there = np.zeros(waiting.shape, bool)
        self._of_threads(there)[...] = alive
        named = (waiting[..., None] >> bits & there[:, :, None]).astype(bool)
        come = waiting[..., None] == waiting[:, :, None]
        met = (waiting != 0) & (come | ~named).all(axis=-1)
        if met.any():
            groups = waiting & (there.astype(np.int64) << bits).sum(axis=-1, keepdims=True)
            for group in np.unique(groups[met]).tolist():
                ctas, warps = np.nonzero((met & (groups == group)).any(axis=-1))
                self.machine.shared.meet(ctas, warps, np.flatnonzero(group >> bits & 1))
            self._free |= met
            self._masks[met] = 0
        go = free & lanes
        free[go] = False
        return go
