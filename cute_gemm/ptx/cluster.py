"""``ClusterMachine``: a batch of whole clusters, and their lanes.

The parts for waits and pending operations (`barriers`, `gates`, `bulk`, `wgmma`) refer to the
machine by this class; `waiting` combines them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.ptx.clocks import OrderedMemory
from cute_gemm.ptx.code import Code
from cute_gemm.ptx.machine import Machine
from cute_gemm.ptx.memory import WARP, Array


class ClusterMachine(Machine):
    """A batch of whole clusters, whose warps have clocks."""

    shared: OrderedMemory
    barriers: Any
    gates: Any
    bulk: Any
    products: Any

    def rows(self, lanes: Array) -> Array:
        """Return the rows (`cute_gemm.ptx.clocks`) of the warps that have these lanes."""
        return np.unique(self.shared.own[lanes] // WARP)


def machine_of(code: Code) -> ClusterMachine:
    """Return the machine of a kernel, whose threads must wait individually."""
    assert isinstance(code.machine, ClusterMachine)
    return code.machine
