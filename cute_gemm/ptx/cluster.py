"""``ClusterMachine``: a batch of whole clusters, and where their lanes are.

What they wait for, and what is under way for them (`barriers`, `gates`, `bulk`, `wgmma`), knows the
machine as this; `waiting` puts both together.
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

    def rows(self) -> Array:
        """The rows (`cute_gemm.ptx.clocks`) of the warps with lanes that execute."""
        return np.unique(self.shared.own[self.lanes()] // WARP)


def machine_of(code: Code) -> ClusterMachine:
    """Return the machine of a kernel, which must be one whose threads wait individually."""
    assert isinstance(code.machine, ClusterMachine)
    return code.machine
