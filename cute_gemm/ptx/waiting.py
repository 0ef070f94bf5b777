"""Threads that wait for each other individually: mbarriers, named barriers, clusters, wgmma, TMA.

Lanes that wait for a barrier object stop there, and all others continue. Asynchronous operations
complete as late as possible: a bulk copy when no thread can continue otherwise, the oldest copy of
each barrier waited for first; a wgmma, including the reads of its operands, when its group is
waited for; a bulk store likewise. Until then it is a fault to access the bytes that they read or
write. If nothing completes and no thread can continue, the wait never ends.
"""

from __future__ import annotations

from cute_gemm.ptx.barriers import Barriers, Gates
from cute_gemm.ptx.bulk import Bulk
from cute_gemm.ptx.clocks import ClusterMachine
from cute_gemm.ptx.flow import is_barrier
from cute_gemm.ptx.machine import Piece, join
from cute_gemm.ptx.memory import SharedMemory
from cute_gemm.ptx.parser import Immediate, Instruction, Kernel
from cute_gemm.ptx.wgmma import Products

#: How often lanes may repeat a read while no other lane continues.
_PATIENCE = 100
_OPCODES = frozenset(("mbarrier", "wgmma", "elect", "mapa", "setmaxnreg"))


def needed(kernel: Kernel) -> bool:
    """Return whether threads of a kernel wait for more than barriers of whole CTAs."""
    return any(map(_of_some, kernel.instructions))


def _of_some(inst: Instruction) -> bool:
    if is_barrier(inst) and inst.op[1] != "red":
        whole = len(inst.operands) == 1 and isinstance(inst.operands[0], Immediate)
        return not whole or inst.op[1] == "arrive"
    at_cluster, bulk = inst.op[:2] == ("barrier", "cluster"), inst.op[:3] == ("cp", "async", "bulk")
    return inst.op[0] in _OPCODES or at_cluster or bulk


class WaitingMachine(ClusterMachine):
    """A batch of whole clusters whose lanes wait individually."""

    def begin(self, first: int, ctas: int, shared: SharedMemory, specials: dict[str, int]) -> None:
        super().begin(first, ctas, shared, specials)
        self.barriers = Barriers(self)
        self.gates = Gates(self)
        self.bulk = Bulk(self)
        self.products = Products(self)
        #: How often only lanes that repeat a read have continued.
        self._idle = 0

    def execute(self, pieces: list[Piece]) -> None:
        super().execute(pieces)
        self.mask = None
        self.bulk.finish()
        self.barriers.finish()

    def wake(self, pieces: list[Piece]) -> None:
        if self.poll(pieces) or self.bulk.land(self.barriers.wanted):
            self._idle = 0
        elif self._idle < _PATIENCE and self._read_on(pieces):
            self._idle += 1
        else:
            self.stuck(pieces)

    def together(self) -> None:
        self.shared.clocks.meet(self.rows(self.lanes()))

    def poll(self, pieces: list[Piece]) -> bool:
        self.barriers.wanted.clear()
        return super().poll(pieces)

    def _read_on(self, pieces: list[Piece]) -> bool:
        """Let lanes pass whose polls of memory did not succeed; return whether there are any."""
        for place, mask in list(self.parked.items()):
            wait = pieces[place].wait
            if wait is not None and wait.inst.op[0] == "ld":
                join(self.ready, pieces[place].next or 0, mask)
                del self.parked[place]
        return bool(self.ready)
