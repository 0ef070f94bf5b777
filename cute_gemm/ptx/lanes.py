"""Threads that are executed together."""

from __future__ import annotations

import numpy as np

from cute_gemm.ptx.memory import Array, SharedMemory


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
