"""Detection of races in shared memory, if threads wait at barriers of their CTA.

Between two such barriers, an epoch, no thread has seen the accesses of another one. For each
granule it is enough to keep the last write and the readers since the barrier: no thread, one
thread, or several (C. Flanagan and S. Freund, FastTrack, PLDI 2009). If two accesses of different
threads in an epoch include a write, they are found in every order of execution.

`WarpMemory` is for kernels with ``bar.warp.sync`` too, after which the lanes in its mask have seen
each other's accesses. Readers of a granule are then kept by lane, if they belong to one warp.
"""

from __future__ import annotations

import numpy as np

from cute_gemm.errors import PtxError
from cute_gemm.ptx.memory import WARP, Array, SharedMemory, Wrong, units

#: A stamp is a time and a thread, or instead of it several threads, of any warp or of one.
_STAMPS, _SEVERAL, _OF_WARP = 2048, 1024, 1025
#: A copy that has not been waited for; greater than every other stamp.
_IN_FLIGHT = 1 << 30
_TIMES = _IN_FLIGHT // _STAMPS


class EpochMemory(SharedMemory):
    """Shared memory with stamps of the last write and the readers of each granule.

    Reads are noted when a write follows in the same epoch: most epochs only read or only write.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.watched:
            self.read = np.zeros(self.size // self.granule, np.int32)
        self._later: list[tuple[Array, Array, int]] = []
        self.time = 0
        self.next_epoch()

    def next_epoch(self) -> None:
        self.time += 1
        if self.time == _TIMES:
            self._start_over()
        self.base = np.int32(self.time * _STAMPS)
        self.own = self.base + np.arange(self.threads, dtype=np.int32)[None, :]
        self._later.clear()
        self._dirty = False

    def _start_over(self) -> None:
        """Restart the time once everything earlier has been seen by all."""
        self.time = 1
        if self.watched:
            self.wrote[self.wrote < _IN_FLIGHT] = 0
            self.read[:] = 0

    def _unknown(self, stamps: Array, granules: Array, own: Array) -> Array:
        """Return which stamps of granules these threads have not seen."""
        return np.asarray((stamps >= self.base) & (stamps != own))

    def _joined(self, stamps: Array, own: Array) -> Array:
        """Return stamps of readers, merged with these."""
        several = np.where(stamps == own, own, self.base + np.int32(_SEVERAL))
        return np.where(stamps < self.base, own, several)

    def _note(self, granules: Array, own: Array) -> None:
        """Note readers of granules, possibly several per granule."""
        while True:
            stamps = self.read.take(granules)
            joined = self._joined(stamps, own)
            more = joined != stamps
            if not more.any():
                return
            self.read[granules[more]] = joined[more]

    def reading(self, offsets: Array, own: Array, width: int) -> Wrong | None:
        self._later.append((offsets, own, width))
        if not self._dirty and not self.flying:
            return None
        for part in units(offsets, self.granule, width):
            stamps = self.wrote.take(part)
            if stamps.max() >= self.base:
                bad = self._unknown(stamps, part, own)
                if bad.any():
                    flying = stamps >= _IN_FLIGHT
                    return (flying, "in flight") if flying.any() else (bad, "race")
        return None

    def writing(self, offsets: Array, own: Array, width: int, flying: bool = False) -> Wrong | None:
        self._dirty = True
        for read, reader, read_width in self._later:
            reader = np.broadcast_to(reader, np.broadcast_shapes(read.shape, reader.shape))
            for part in units(read, self.granule, read_width, reader):
                self._note(part, reader)
        self._later.clear()
        stamp = own + np.int32(_IN_FLIGHT) if flying else own
        for part in units(offsets, self.granule, width, own):
            wrote = self.wrote.take(part)
            bad = self._unknown(wrote, part, own) | self._unknown(self.read.take(part), part, own)
            self.wrote[part] = stamp
            bad |= self.wrote.take(part) != stamp
            if bad.any():
                return bad, "in flight" if (wrote[bad] >= _IN_FLIGHT).any() else "race"
        return None

    def landing(self, offsets: Array, ctas: Array, threads: Array, width: int) -> None:
        self._dirty = True
        self.define(offsets, width)
        own = self.own[ctas if len(self.own) > 1 else 0, threads]
        for part in units(offsets, self.granule, width):
            self.wrote[part] = own


class WarpMemory(EpochMemory):
    """Shared memory of kernels whose warps also wait for their own lanes.

    Each lane has a vector of times up to which it has seen other lanes of its warp.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known = np.zeros((self.ctas, self.threads, WARP), np.int32)
        self._know_oneself()
        if self.watched:
            self.reads = np.zeros((self.size // self.granule, WARP), np.int32)

    def _know_oneself(self) -> None:
        lanes = np.arange(self.known.shape[1])
        self.known[:, lanes, lanes % WARP] = _TIMES - 1

    def _start_over(self) -> None:
        super()._start_over()
        self.known[:] = 0
        self._know_oneself()
        if self.watched:
            self.reads[:] = 0

    def next_epoch(self) -> None:
        super().next_epoch()
        self.own = np.repeat(self.own, len(self.rows), axis=0)

    def meet(self, ctas: Array, warps: Array, lanes: Array) -> None:
        ctas, threads = ctas[:, None], warps[:, None] * WARP + lanes
        known = self.known[ctas, threads]
        known[:, np.arange(len(lanes)), lanes] = self.own[ctas, threads] // _STAMPS
        self.known[ctas, threads] = known.max(axis=1, keepdims=True)
        self.known[ctas, threads, lanes] = _TIMES - 1
        self.time += 1
        if self.time == _TIMES:
            raise PtxError(f"the interpreter supports at most {_TIMES:,} barriers")
        self.own = self.own.copy()  # reads noted later refer to the previous one
        self.own[ctas, threads] = self.time * _STAMPS + threads

    def _unknown(self, stamps: Array, granules: Array, own: Array) -> Array:
        unknown = super()._unknown(stamps, granules, own)
        if unknown.any():
            (some,) = np.nonzero(unknown.reshape(-1))
            stamp, part, me = (
                np.broadcast_to(x, unknown.shape).reshape(-1)[some] for x in (stamps, granules, own)
            )
            by, me = stamp % _STAMPS, me % _STAMPS
            known = self.known[part * self.granule // self.pitch, me]
            read = np.maximum(known, self.base // _STAMPS - 1) >= self.reads[part]
            single = known[np.arange(len(by)), by % WARP] >= stamp // _STAMPS
            seen = np.where(by < _SEVERAL, single, read.all(axis=1))
            unknown.reshape(-1)[some] = ~(seen & (_warp(by) == me // WARP))
        return unknown

    def _joined(self, stamps: Array, own: Array) -> Array:
        warp = own % _STAMPS // WARP
        same = _warp(stamps % _STAMPS) == warp
        several = self.base + np.where(same, _OF_WARP + warp, _SEVERAL).astype(np.int32)
        several = np.where(stamps % _STAMPS == own % _STAMPS, own, several)
        return np.where(stamps < self.base, own, several)

    def _note(self, granules: Array, own: Array) -> None:
        super()._note(granules, own)
        self.reads[granules, own % _STAMPS % WARP] = own // _STAMPS


def _warp(who: Array) -> Array:
    """Return the warp of one or several threads; -1 if they belong to several warps."""
    return np.where(who < _SEVERAL, who // WARP, who - _OF_WARP)
