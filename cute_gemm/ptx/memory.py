"""The memory that a kernel sees: one space of global buffers, and shared memory of each CTA.

Both are flat arrays of bytes; an access is an array of offsets into them. What is not to be
accessed is known byte by byte (global), and who wrote it when, granule by granule (shared).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Where global memory begins, and the window of shared memory among generic addresses.
GLOBAL, SHARED_WINDOW = 0x7F00_0000_0000, 0x7E00_0000_0000
#: Where the parameters begin: nothing reads them there but TMA, which finds its tensor maps.
PARAMETERS = 0x7D00_0000_0000
#: Bytes before, between and behind buffers, at least.
GUARD = 4096
#: Units of 1, 2, 4, 8 and 16 bytes, of which NumPy moves bits as they are.
UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Bytes:
    """Bytes that are read and written as units of any type."""

    def __init__(self, size: int) -> None:
        # 16 bytes are the widest unit: the views need a length and an address that are multiples.
        self.size = -(-size // 16) * 16
        self.raw = np.zeros(self.size // 16, np.complex128).view(np.uint8)
        self._views: dict[Any, Array] = {}

    def view(self, kind: Any) -> Array:
        """All bytes as units of a dtype."""
        found = self._views.get(kind)
        if found is None:
            found = self._views[kind] = self.raw.view(kind)
        return found


@dataclass(frozen=True, slots=True)
class Region:
    """A buffer in global memory: first byte and the one behind the last, as offsets."""

    name: str
    begin: int
    end: int
    #: Whether every byte may be written.
    whole: bool


class GlobalMemory(Bytes):
    """Buffers with guard zones around them, at addresses from `GLOBAL`.

    What lies between the elements of a buffer may be read, as kernels do that read a column's end
    in vectors; it may not be written. Pages of it are only there once they are touched: buffers may
    have rows that are gigabytes apart.
    """

    def __init__(self, buffers: dict[str, tuple[int, int, bool]]) -> None:
        """``buffers``: name -> bytes, address modulo 256, whether all of them may be written.

        What they hold goes to `content`, and where others may be written to `writable`.
        """
        self.regions: list[Region] = []
        end = GUARD
        for name, (size, residue, whole) in buffers.items():
            begin = -(-end // 256) * 256 + residue
            self.regions.append(Region(name, begin, begin + size, whole))
            end = begin + size + GUARD
        super().__init__(end)
        self._writable = Bytes(end)

    def region(self, name: str) -> Region:
        """The buffer of that name."""
        return next(region for region in self.regions if region.name == name)

    def content(self, name: str) -> Array:
        """The bytes of a buffer, in place."""
        region = self.region(name)
        return self.raw[region.begin : region.end]

    def writable(self, name: str) -> Array:
        """Of each byte of a buffer of which not all may be written: 255 if it may, or 0."""
        region = self.region(name)
        return self._writable.raw[region.begin : region.end]

    def address(self, name: str) -> int:
        """The address of a buffer."""
        return GLOBAL + self.region(name).begin

    def inside(self, low: int, high: int, write: bool) -> bool:
        """Whether one buffer has all bytes from ``low`` up to ``high``, for this access."""
        return any(
            one.begin <= low and high <= one.end and (one.whole or not write)
            for one in self.regions
        )

    def forbidden(self, offsets: Array, width: int, write: bool) -> Array:
        """Which accesses of ``width`` bytes, aligned, touch a byte that they must not."""
        bad = np.ones(np.shape(offsets), bool)
        for one in self.regions:
            here = (offsets >= one.begin) & (offsets <= one.end - width)
            if write and not one.whole and here.any():
                unit = min(width, 8)
                flags = self._writable.view(UNITS[unit])
                all_bits: Array = np.array(-1).astype(UNITS[unit])
                at = np.where(here, offsets, one.begin) // unit
                for step in range(width // unit):
                    here &= flags.take(at + step) == all_bits
            bad &= ~here
        return bad

    def near(self, offset: int) -> str:
        """Where an address lies, in words."""
        for one in self.regions:
            if one.begin <= offset < one.end:
                return f"byte {offset - one.begin} of {one.name}, between its elements"
        known = [(max(one.begin - offset, offset - one.end + 1), one) for one in self.regions]
        if not known or min(way for way, _ in known) > GUARD:
            return "far from every buffer"
        way, one = min(known, key=lambda pair: pair[0])
        side = "before" if offset < one.begin else "behind"
        return f"{way} bytes {side} {'the end of ' if side == 'behind' else ''}{one.name}"


#: A copy that has not been waited for; greater than every stamp of an epoch.
_IN_FLIGHT = 1 << 30
_THREADS = 1024


class SharedMemory(Bytes):
    """Shared memory of a batch of CTAs, and who wrote and read it since the last barrier.

    A granule's stamp is epoch * 1024 + thread of the last write; 0: none. ``undefined`` has a byte
    of ones where nothing was written, or what is undefined itself. Of the readers since the
    last barrier the last is remembered, so that a write is told from another thread's read unless
    the writer read the granule itself after that. Reads are noted when a write follows in the same
    epoch: most epochs only read or only write.
    """

    def __init__(self, ctas: int, threads: int, size: int, granule: int, watched: bool) -> None:
        self.bytes = size
        self.pitch = -(-size // 16) * 16
        super().__init__(max(16, ctas * self.pitch))
        self.granule = granule
        self.watched = watched
        self.rows = np.arange(ctas, dtype=np.int64)[:, None] * self.pitch
        self.threads = np.arange(threads, dtype=np.int32)[None, :]
        self.epoch = 0
        if watched:
            self.wrote = np.zeros(self.size // granule, np.int32)
            self.read = np.zeros(self.size // granule, np.int32)
            self.undefined = Bytes(self.size)
            self.undefined.raw[:] = 255
        #: Copies that have not been waited for.
        self.flying = 0
        self._later: list[tuple[Array, Array, int]] = []
        self.next_epoch()

    def next_epoch(self) -> None:
        """A barrier: what was written before is there for all threads."""
        self.epoch += 1
        self.base = np.int32(self.epoch * _THREADS)
        self.own = self.base + self.threads
        self._later.clear()
        self._dirty = False

    def reading(self, at: Array, own: Array, width: int) -> tuple[Array, str] | None:
        """Note a read at flat offsets by threads with stamps ``own``; what is wrong with it."""
        at = at // self.granule
        count = width // self.granule
        self._later.append((at, own, count))
        if not self._dirty and not self.flying:
            return None
        for step in range(count):
            stamps = self.wrote.take(at + step)
            if stamps.max() >= self.base:
                bad = (stamps >= self.base) & (stamps != own)
                if bad.any():
                    flying = stamps >= _IN_FLIGHT
                    return (flying, "in flight") if flying.any() else (bad, "race")
        return None

    def holes(self, at: Array, width: int) -> bool:
        """Whether a read of ``width`` bytes at flat offsets meets an undefined bit."""
        unit = min(width, 8)
        flags = self.undefined.view(UNITS[unit])
        found = flags.take(at // unit)
        if width == 16:
            found = found | flags.take(at // unit + 1)
        return bool(found.any())

    def define(self, at: Array, width: int) -> None:
        """Note that bytes have been written."""
        unit = min(width, 8)
        flags = self.undefined.view(UNITS[unit])
        flags[at // unit] = 0
        if width == 16:
            flags[at // unit + 1] = 0

    def _note_reads(self) -> None:
        for at, own, count in self._later:
            shape = np.broadcast_shapes(at.shape, own.shape)
            for step in range(count):
                self.read[np.broadcast_to(at + step, shape)] = own
        self._later.clear()

    def writing(
        self, at: Array, own: Array, width: int, flying: bool = False
    ) -> tuple[Array, str] | None:
        """Note a write; ``flying``: of a copy that may land from now on. What is wrong with it."""
        self._dirty = True
        self._note_reads()
        at = at // self.granule
        stamp = own + np.int32(_IN_FLIGHT) if flying else own
        shape = np.broadcast_shapes(at.shape, own.shape)
        at, stamp = np.broadcast_to(at, shape), np.broadcast_to(stamp, shape)
        for step in range(width // self.granule):
            wrote, read = self.wrote.take(at + step), self.read.take(at + step)
            self.wrote[at + step] = stamp
            bad = ((wrote >= self.base) & (wrote != own)) | ((read >= self.base) & (read != own))
            bad |= self.wrote.take(at + step) != stamp
            if bad.any():
                return bad, "in flight" if (wrote[bad] >= _IN_FLIGHT).any() else "race"
        return None

    def landing(self, at: Array, own: Array, width: int) -> None:
        """Note that asynchronous copies have landed: as if their threads had written now."""
        self._dirty = True
        self.define(at, width)
        at = at // self.granule
        for step in range(width // self.granule):
            self.wrote[at + step] = own
