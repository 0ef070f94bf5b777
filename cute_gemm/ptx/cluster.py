"""``ClusterMachine``: a batch of whole clusters, and where their lanes are.

What they wait for, and what is under way for them (`barriers`, `gates`, `bulk`, `wgmma`), knows the
machine as this; `waiting` puts both together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.ptx.clocks import OrderedMemory
from cute_gemm.ptx.code import Code
from cute_gemm.ptx.machine import Array, Machine
from cute_gemm.ptx.memory import SharedMemory


class ClusterMachine(Machine):
    """Lanes that are ready to go on at a piece, and those that stand still at one."""

    shared: OrderedMemory
    #: Tensor maps by where their parameters lie.
    maps: dict[int, Any]
    barriers: Any
    gates: Any
    bulk: Any
    products: Any

    def begin(self, first: int, ctas: int, shared: SharedMemory, specials: dict[str, int]) -> None:
        """See :meth:`Machine.begin`."""
        super().begin(first, ctas, shared, specials)
        self.ready: dict[int, Array | None] = {0: None}
        self.parked: dict[int, Array | None] = {}

    def rows(self) -> Array:
        """The rows (`cute_gemm.ptx.clocks`) of the warps with lanes that execute."""
        return np.unique(self.shared.own[self.lanes()])

    def alive(self) -> Array:
        """The lanes that have not ended."""
        found = self.lanes().copy()
        for mask in (*self.ready.values(), *self.parked.values()):
            found |= np.broadcast_to(True if mask is None else mask, self.shape)
        return found

    def who(self, lanes: Array) -> str:
        """Lanes in words: the warps of the first CTA among them."""
        cta = int(np.argwhere(lanes)[0][0])
        warps = np.unique(np.flatnonzero(lanes[cta]) // 32).tolist()
        return f"CTA {self.name(cta)}, warp{'s' * (len(warps) > 1)} {', '.join(map(str, warps))}"


def machine_of(code: Code) -> ClusterMachine:
    """The machine of a kernel whose threads wait one by one."""
    assert isinstance(code.machine, ClusterMachine)
    return code.machine
