"""The memory that a kernel sees: one space of global buffers, and shared memory of each CTA.

Both are flat arrays of bytes; an access is an array of offsets into them. What is not to be
accessed is known byte by byte (global), and who wrote it when, granule by granule (shared).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Where global memory begins, and the window of shared memory among generic addresses.
GLOBAL, SHARED_WINDOW = 0x7F00_0000_0000, 0x7E00_0000_0000
#: Where the parameters begin: nothing reads them there but TMA, which finds its tensor maps.
PARAMETERS = 0x7D00_0000_0000
#: Bytes before, between and behind buffers, at least; and between arrays in shared memory, where
#: they keep banks and swizzles as they are.
GUARD, SHARED_GUARD = 4096, 1024
#: Lanes of a warp.
WARP = 32
#: Units of 1, 2, 4, 8 and 16 bytes, of which NumPy moves bits as they are.
UNITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


@dataclass(frozen=True, slots=True)
class Region:
    """A buffer in global memory, or an array in shared memory: its first byte, and its end."""

    name: str
    begin: int
    end: int
    #: Whether every byte may be written.
    whole: bool


class Bytes:
    """Bytes that are read and written as units of any type."""

    #: The parts that may be accessed.
    regions: Sequence[Region] = ()

    def __init__(self, size: int) -> None:
        # 16 bytes are the widest unit: the views need a length and an address that are multiples.
        self.size = -(-size // 16) * 16
        self.raw = np.zeros(self.size // 16, np.complex128).view(np.uint8)
        self._views: dict[Any, Array] = {}

    def view(self, kind: Any) -> Array:
        """All bytes as units of a dtype."""
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = self.raw.view(kind)
        return view

    def inside(self, low: int, high: int, write: bool) -> bool:
        """Whether one region has all bytes from ``low`` up to ``high``, for this access."""
        return any(
            region.begin <= low and high <= region.end and (region.whole or not write)
            for region in self.regions
        )

    def forbidden(self, offsets: Array, width: int, write: bool) -> Array:
        """Which accesses of ``width`` bytes, aligned, touch a byte that they must not."""
        bad = np.ones(np.shape(offsets), bool)
        for region in self.regions:
            here = (offsets >= region.begin) & (offsets <= region.end - width)
            if write and not region.whole and here.any():
                here &= self.may_write(np.where(here, offsets, region.begin), width)
            bad &= ~here
        return bad

    def may_write(self, offsets: Array, width: int) -> Array:
        """Which stores go to bytes that may be written, in regions of which not all may be."""
        raise NotImplementedError


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
        self.regions = regions = list[Region]()
        end = GUARD
        for name, (size, residue, whole) in buffers.items():
            begin = -(-end // 256) * 256 + residue
            regions.append(Region(name, begin, begin + size, whole))
            end = begin + size + GUARD
        super().__init__(end)
        self._writable = Bytes(end)
        #: By granule who stored there last, 0: nobody, and which granules that can be.
        self._stored_by: Any = None
        self._granule, self._first, self._last = 1, end, -1

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

    def may_write(self, offsets: Array, width: int) -> Array:
        unit = min(width, 8)
        flags, every_bit = self._writable.view(UNITS[unit]), ~UNITS[unit](0)
        writable = np.ones(offsets.shape, bool)
        for step in range(width // unit):
            writable &= flags.take(offsets // unit + step) == every_bit
        return writable

    def watch(self, granule: int) -> None:
        """Begin to record who stores, in granules of the narrowest store."""
        self._granule = granule
        self._stored_by = np.zeros(self.size // granule, np.int32)

    def stored(self, offsets: Array, who: Array, width: int) -> Array | None:
        """Record stores by CTAs numbered from 1; return which overwrite another CTA's, or None."""
        if self._stored_by is None:
            return None
        granules, who = np.broadcast_arrays(offsets // self._granule, who)
        bad = np.zeros(granules.shape, bool)
        for part in (granules + step for step in range(width // self._granule)):
            before = self._stored_by.take(part)
            self._stored_by[part] = who
            bad |= (before != 0) & (before != who) | (self._stored_by.take(part) != who)
        self._first = min(self._first, int(granules.min(initial=self.size)))
        self._last = max(self._last, int(granules.max(initial=-1)) + width // self._granule)
        return bad if bad.any() else None

    def loaded(self, offsets: Array, who: Array, width: int) -> Array | None:
        """Return which loads read what another CTA has stored, or None."""
        if self._last < 0 or not offsets.size:
            return None
        granules, count = offsets // self._granule, max(1, width // self._granule)
        if int(granules.max()) + count <= self._first or granules.min() >= self._last:
            return None
        bad = np.zeros(np.broadcast_shapes(granules.shape, who.shape), bool)
        for step in range(count):
            by = self._stored_by.take(granules + step)
            bad |= (by != 0) & (by != who)
        return bad if bad.any() else None

    def near(self, offset: int) -> str:
        """Describe where an address lies."""
        for region in self.regions:
            if region.begin <= offset < region.end:
                return f"byte {offset - region.begin} of {region.name}, between its elements"
        return nearest(offset, self.regions) or "far from every buffer"


def nearest(offset: int, regions: Sequence[Region]) -> str:
    """How far before or behind the nearest region an offset lies; "" of one that is far."""
    known = [(max(region.begin - offset, offset - region.end + 1), region) for region in regions]
    if not known or min(way for way, _ in known) > GUARD:
        return ""
    way, region = min(known, key=lambda pair: pair[0])
    side = "before" if offset < region.begin else "behind"
    return f"{way} bytes {side} {'the end of ' if side == 'behind' else ''}{region.name}"


#: What is wrong with an access: of which lanes, and what it is called.
Wrong = tuple[Array, str]


class SharedMemory(Bytes):
    """Shared memory of a batch of CTAs.

    ``undefined`` has a byte of ones where nothing was written, or what is undefined itself. Who
    wrote and read what since the last barrier is known by the classes that derive from this one,
    granule by granule: `cute_gemm.ptx.epochs` where threads wait at barriers of their CTA alone,
    `cute_gemm.ptx.clocks` elsewhere. ``own`` says which thread a lane is, in their terms.
    """

    own: Array

    def __init__(
        self, ctas: int, threads: int, arrays: Sequence[Region], granule: int, watched: bool
    ) -> None:
        """``arrays``: those of a CTA, with their places there."""
        self.regions = arrays
        self.bytes = size = max((array.end for array in arrays), default=0)
        self.pitch = -(-size // 16) * 16
        super().__init__(max(16, ctas * self.pitch))
        self.granule = granule
        self.watched = watched
        self.rows = np.arange(ctas, dtype=np.int64)[:, None] * self.pitch
        if watched:
            self.wrote = np.zeros(self.size // granule, np.int32)
            self.undefined = Bytes(self.size)
            self.undefined.raw[:] = 255
        #: Copies that have not been waited for.
        self.flying = 0

    def next_epoch(self) -> None:
        """All threads of the CTAs have met at a barrier."""
        raise NotImplementedError

    def landing(self, offsets: Array, ctas: Array, threads: Array, width: int) -> None:
        """Note the bytes that copies write, by the threads that started them."""
        raise NotImplementedError

    def near(self, offset: int) -> str:
        """Describe where an address lies that is in no array of a CTA."""
        whole = sum(array.end - array.begin for array in self.regions)
        where = nearest(offset, self.regions) if len(self.regions) > 1 else ""
        return where or f"the CTA has {whole} bytes of shared memory"

    def holes(self, offsets: Array, width: int) -> bool:
        """Whether a read of ``width`` bytes at flat offsets meets an undefined bit."""
        flags, places = self._flags(offsets, width)
        return any(flags.take(place).any() for place in places)

    def define(self, offsets: Array, width: int) -> None:
        """Note that bytes have been written."""
        flags, places = self._flags(offsets, width)
        for place in places:
            flags[place] = 0

    def _flags(self, offsets: Array, width: int) -> tuple[Array, list[Array]]:
        """The undefined bits in words, and the words of accesses."""
        unit = min(width, 8)
        places = [offsets // unit + step for step in range(width // unit)]
        return self.undefined.view(UNITS[unit]), places

    def reading(self, offsets: Array, own: Array, width: int) -> Wrong | None:
        """Note a read at flat offsets by the threads ``own``; what is wrong with it."""
        raise NotImplementedError

    def writing(self, offsets: Array, own: Array, width: int, flying: bool = False) -> Wrong | None:
        """Note a write; ``flying``: of a copy that may land from now on. What is wrong with it."""
        raise NotImplementedError

    def meet(self, ctas: Array, warps: Array, lanes: Array) -> None:
        """``bar.warp.sync``: from now on these lanes of warps know what each of them has done."""
