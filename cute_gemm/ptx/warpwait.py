"""``bar.warp.sync``: lanes wait for other lanes of their warp (PTX ISA, 9.7.13.2)."""

from __future__ import annotations

from weakref import proxy

import numpy as np

from cute_gemm.ptx.lanes import Lanes
from cute_gemm.ptx.memory import WARP, Array


class WarpBarriers:
    """The lanes of a batch that wait for lanes of their warp, with their masks.

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
