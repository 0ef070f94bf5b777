"""Detection of races in shared memory, if warps wait for each other individually.

Between barriers of a whole CTA an epoch is enough (`cute_gemm.ptx.memory`). With mbarriers, named
barriers and clusters each warp has a clock, and a vector of the clocks of other warps that it has
seen (L. Lamport; C. Flanagan and S. Freund, FastTrack, PLDI 2009). An arrival passes the vector on,
a wait receives it. An access is a race unless the warp has seen the previous one.

Accesses of a warp's lanes are ordered where the lanes meet (``bar.warp.sync``, a shuffle or another
instruction of the whole warp). A lane that arrives at an mbarrier passes on its own accesses, and
those of other lanes before they met. A wait of one lane counts for all lanes of its warp.

A second vector has what is also seen through the asynchronous proxy (PTX ISA, 8.6.1, 9.7.13.4): TMA
and wgmma see writes of a thread after a ``fence.proxy.async``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cute_gemm.errors import PtxError
from cute_gemm.ptx.code import Code
from cute_gemm.ptx.machine import Machine
from cute_gemm.ptx.memory import WARP, Array, SharedMemory, Wrong, units

#: Barriers of a CTA that have separate columns.
BARRIERS = 64
#: A clock that no warp has seen: of a copy that has not landed, or a read that has not ended.
OPEN = 1 << 30


class Clocks:
    """The vectors of the warps of a batch: ``known[0]`` for accesses, ``known[1]`` for the proxy.

    A row is a warp: CTA times warps of a CTA, plus the warp in it. Columns are the warps of its
    cluster, with all their lanes; then the mbarriers of its cluster, whose clocks are their phases;
    then the single lanes of the warps, of which more may be seen.
    """

    def __init__(self, ctas: int, warps: int, cluster: int) -> None:
        self.warps, self.cluster = warps, cluster
        rows = np.arange(ctas * warps)
        self.column = rows % (warps * cluster)
        #: The column of the first lane.
        self.lanes = -(-cluster * (warps + BARRIERS) // WARP) * WARP
        columns = self.lanes + cluster * warps * WARP
        self.known = np.zeros((2, len(rows), columns), np.int32)
        #: The times up to which lanes of a warp have seen each other, and pass this on.
        self.met = np.zeros(len(rows), np.int32)
        self._own = np.concatenate(
            (self.column[:, None], self.of_lane(rows[:, None], np.arange(WARP))), axis=1
        )
        self.known[0, rows[:, None], self._own] = 1

    def of_lane(self, rows: Array | int, lanes: Array | int) -> Array:
        """Return the columns of lanes of warps."""
        return np.asarray(self.lanes + self.column[rows] * WARP + lanes)

    def _advance(self, rows: Array) -> None:
        """Advance the clocks of warps."""
        self.known[0, rows[:, None], self._own[rows]] += 1

    def meet(self, rows: Array) -> None:
        """Let lanes of warps see each other from now on."""
        self.met[rows] = self.now(rows)
        self._advance(rows)

    def of_barrier(self, cta: int, number: int) -> int:
        """Return the column of a barrier of a CTA."""
        if number >= BARRIERS:
            raise PtxError(f"the interpreter supports at most {BARRIERS} barriers of a CTA")
        return self.cluster * self.warps + cta % self.cluster * BARRIERS + number

    def nothing(self) -> Array:
        """Return the clocks of a new barrier, which has received none."""
        return np.zeros((2, self.known.shape[2]), np.int32)

    def now(self, rows: Array | int) -> Array:
        """Return the clocks of warps."""
        return np.asarray(self.known[0, rows, self.column[rows]])

    def give(self, rows: Array, to: Array) -> None:
        """Merge what warps have seen into ``to``, and advance the clocks of these warps.

        Their lanes arrive together.
        """
        np.maximum(to, self.known[:, rows].max(axis=1), out=to)
        self.meet(rows)

    def give_lane(self, row: int, lane: int, to: Array) -> None:
        """Merge what a single lane may pass on into ``to``."""
        seen, own = self.known[:, row].copy(), self._own[row]
        others = np.arange(-1, WARP) != lane
        seen[:, own[others]] = np.minimum(seen[:, own[others]], self.met[row])
        np.maximum(to, seen, out=to)
        self._advance(np.array([row]))

    def take(self, rows: Array, clocks: Array) -> None:
        """Merge clocks into what warps have seen."""
        self.known[:, rows] = np.maximum(self.known[:, rows], clocks[:, None])

    def fence(self, rows: Array) -> None:
        """Let the asynchronous proxy see what warps have seen, and advance their clocks."""
        self.known[1, rows] = self.known[0, rows]
        self._advance(rows)


class OrderedMemory(SharedMemory):
    """Shared memory with the clocks of each granule's last write and of each warp's read of it.

    ``own`` has the rows of lanes times 32, plus the lane in the warp. In addition to a read there
    are the lanes that read since their warp met, as bits; none if the whole warp read.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        warps = -(-self.threads // WARP)
        self.clocks = Clocks(self.ctas, warps, self.cluster)
        self.own = np.arange(self.ctas)[:, None] * warps * WARP + np.arange(self.threads)[None, :]
        if self.watched:
            granules = self.size // self.granule
            self.wrote_by = np.zeros(granules, np.int32)
            self.reads = np.zeros((granules, warps), np.int32)
            self.readers = np.zeros((granules, warps), np.uint32)

    def meet(self, ctas: Array, warps: Array, lanes: Array) -> None:
        self.clocks.meet(np.unique(ctas * self.clocks.warps + warps))

    # ---- accesses of threads -------------------------------------------------------------------

    def _unseen(self, granules: Array, rows: Array) -> Array:
        """Return which granules have a write that these warps have not seen."""
        return np.asarray(
            self.wrote[granules] > self.clocks.known[0][rows, self.wrote_by[granules]]
        )

    def _unread(self, granules: Array, rows: Array) -> Array:
        """Return which granules have a read that these warps have not seen."""
        clocks, warps = self.clocks, self.clocks.warps
        first = clocks.column[rows] // warps * warps
        # Only a CTA's own warps read its memory.
        seen = clocks.known[0][rows[..., None], first[..., None] + np.arange(warps)]
        unread = np.asarray(self.reads[granules] > seen)
        if not unread.any():
            return np.asarray(unread.any(axis=-1))
        # The accesses of all lanes are not seen; check those of the lanes that read.
        at = np.nonzero(unread)
        where, warp = at[:-1], at[-1]
        granule, row = granules[where], rows[where]
        bits = self.readers[granule, warp][:, None] >> np.arange(WARP, dtype=np.uint32) & 1
        column = clocks.lanes + (first[where] + warp)[:, None] * WARP + np.arange(WARP)
        late = self.reads[granule, warp][:, None] > clocks.known[0][row[:, None], column]
        unread[at] = (late & (bits != 0)).any(axis=1) | (bits == 0).all(axis=1)
        return np.asarray(unread.any(axis=-1))

    def _steps(self, offsets: Array, own: Array, width: int) -> tuple[list[Array], Array]:
        parts = units(offsets, self.granule, width, own)
        return parts, np.broadcast_to(own, parts[0].shape)

    def reading(self, offsets: Array, own: Array, width: int) -> Wrong | None:
        parts, own = self._steps(offsets, own, width)
        rows, lanes = own // WARP, own % WARP
        clocks, met = self.clocks.now(rows), self.clocks.met[rows]
        for part in parts:
            bad = self._unseen(part, rows)
            if bad.any():
                return bad, "in flight" if (self.wrote[part][bad] >= OPEN).any() else "race"
            place = part, rows % self.clocks.warps
            before = self.reads[place]
            self.readers[place] = np.where(before > met, self.readers[place], 0)
            np.bitwise_or.at(self.readers, place, np.uint32(1) << lanes.astype(np.uint32))
            self.reads[place] = np.maximum(before, clocks)
        return None

    def writing(self, offsets: Array, own: Array, width: int, flying: bool = False) -> Wrong | None:
        parts, own = self._steps(offsets, own, width)
        rows = own // WARP
        clocks, columns = self.clocks.now(rows), self.clocks.of_lane(rows, own % WARP)
        clocks = np.full_like(clocks, OPEN) if flying else clocks
        for part in parts:
            unseen, unread = self._unseen(part, rows), self._unread(part, rows)
            bad = unseen | unread
            if not bad.any():
                self.wrote[part], self.wrote_by[part] = clocks, columns
                # If two lanes of a warp store to one place, one is the last.
                bad = (self.wrote_by[part] ^ columns) // WARP != 0
                if not bad.any():
                    continue
                return bad, "race"
            if (self.wrote[part][bad] >= OPEN).any():
                return bad, "in flight"
            return bad, "being read" if (self.reads[part][bad] >= OPEN).any() else "race"
        return None

    def landing(self, offsets: Array, ctas: Array, threads: Array, width: int) -> None:
        self.define(offsets, width)
        parts, own = self._steps(offsets, self.own[ctas, threads], width)
        rows = own // WARP
        for part in parts:
            self.wrote[part] = self.clocks.now(rows)
            self.wrote_by[part] = self.clocks.of_lane(rows, own % WARP)

    # ---- accesses of TMA and wgmma -------------------------------------------------------------

    def begin_read(self, granules: Array, rows: Array, serial: int) -> str:
        """Begin a read of granules for warps of a CTA; return the kind of fault, or "".

        The warps must have seen writes of threads through the proxy.
        """
        by, wrote = self.wrote_by[granules], self.wrote[granules]
        rows = rows[:, None]
        if (wrote > self.clocks.known[0][rows, by]).any():
            return "in flight" if (wrote >= OPEN).any() else "race"
        of_threads = by >= self.clocks.lanes
        if (of_threads & (wrote > self.clocks.known[1][rows, by])).any():
            return "proxy"
        self.reads[granules, rows % self.clocks.warps] = OPEN + serial
        return ""

    def end_read(self, granules: Array, rows: Array, serial: int, lane: int = -1) -> None:
        """End this read, but none that began later, for these warps.

        ``lane``: the lane that waited for it; -1: all lanes of the warps.
        """
        own, clocks = rows % self.clocks.warps, self.clocks.now(rows)
        before = self.reads[granules[:, None], own]
        ended = (before >= OPEN) & (before <= OPEN + serial)
        self.reads[granules[:, None], own] = np.where(ended, clocks, before)
        readers = 0 if lane < 0 else 1 << lane
        self.readers[granules[:, None], own] = np.where(
            ended, np.uint32(readers), self.readers[granules[:, None], own]
        )

    def begin_copy(self, granules: Array, row: int) -> str:
        """Begin a write of granules; return the kind of fault, or ""."""
        own = np.full(len(granules), row)
        bad = self._unseen(granules, own) | self._unread(granules, own)
        if bad.any():
            last = np.maximum(self.wrote[granules], self.reads[granules].max(axis=1))
            return "in flight" if (last[bad] >= OPEN).any() else "race"
        self.wrote[granules] = OPEN
        return ""

    def end_copy(self, granules: Array, column: int, phase: int) -> None:
        """End a write of granules in a phase of a barrier."""
        self.wrote[granules], self.wrote_by[granules] = phase, column


class ClusterMachine(Machine):
    """A batch of whole clusters, whose warps have clocks.

    The parts for waits and pending operations (`barriers`, `bulk`, `wgmma`) refer to the machine by
    this class; `waiting` combines them.
    """

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
