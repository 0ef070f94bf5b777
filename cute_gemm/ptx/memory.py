"""The memory of a kernel: one space of global buffers, and the shared memory of each CTA.

Both are flat arrays of bytes; an access is an array of offsets into them. Illegal places are known
by byte (global), and the last writers by granule (shared).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Start of global memory, and of the window of shared memory among generic addresses.
GLOBAL, SHARED_WINDOW = 0x7F00_0000_0000, 0x7E00_0000_0000
#: Start of the parameters: only TMA reads there, for its tensor maps.
PARAMETERS = 0x7D00_0000_0000
#: Least number of bytes before, between and after buffers, and between arrays in shared memory,
#: where they preserve banks and swizzles.
GUARD, SHARED_GUARD = 4096, 1024
#: Lanes of a warp.
WARP = 32
#: Units of 1, 2, 4, 8 and 16 bytes, whose bits NumPy moves unchanged.
UNITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def units(offsets: Array, unit: int, width: int, like: Array | None = None) -> list[Array]:
    """Return the units of bytes that accesses of ``width`` bytes touch, one array per unit.

    The arrays have the shape to which offsets and ``like`` broadcast.
    """
    first = offsets // unit
    if like is not None and like.shape != first.shape:
        first = np.broadcast_to(first, np.broadcast_shapes(first.shape, like.shape))
    return [first + step if step else first for step in range(max(1, width // unit))]


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

    #: The accessible parts.
    regions: Sequence[Region]

    def __init__(self, size: int) -> None:
        # 16 bytes are the widest unit: views need a length and an address that are multiples.
        self.size = -(-size // 16) * 16
        self.raw = np.zeros(self.size // 16, np.complex128).view(np.uint8)
        self._views: dict[Any, Array] = {}

    def view(self, kind: Any) -> Array:
        """Return all bytes as units of a dtype."""
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = self.raw.view(kind)
        return view

    def inside(self, low: int, high: int, write: bool) -> bool:
        """Return whether one region has all bytes from ``low`` up to ``high``, for this access."""
        return any(
            region.begin <= low and high <= region.end and (region.whole or not write)
            for region in self.regions
        )

    def forbidden(self, offsets: Array, width: int, write: bool) -> Array:
        """Return which aligned accesses of ``width`` bytes touch an illegal byte."""
        bad = np.ones(np.shape(offsets), bool)
        for region in self.regions:
            here = (offsets >= region.begin) & (offsets <= region.end - width)
            if write and not region.whole and here.any():
                here &= self.may_write(np.where(here, offsets, region.begin), width)
            bad &= ~here
        return bad

    def may_write(self, offsets: Array, width: int) -> Array:
        """Return which stores go to writable bytes, in regions that are partly writable."""
        raise NotImplementedError


class GlobalMemory(Bytes):
    """Buffers with guard zones around them, at addresses from `GLOBAL`.

    Bytes between the elements of a buffer may be read, since kernels read a column's end in
    vectors, but not written. Pages exist only once they are touched: rows of a buffer may be
    gigabytes apart.
    """

    def __init__(self, buffers: dict[str, tuple[int, int, bool]]) -> None:
        """``buffers``: name -> bytes, address modulo 256, whether all bytes may be written.

        `content` has their bytes, and `writable` marks those that may be written.
        """
        self.regions = regions = list[Region]()
        end = GUARD
        for name, (size, residue, whole) in buffers.items():
            begin = -(-end // 256) * 256 + residue
            regions.append(Region(name, begin, begin + size, whole))
            end = begin + size + GUARD
        super().__init__(end)
        self._writable = Bytes(end)
        #: The last CTA that stored to each granule, 0: none, and the possible granules.
        self._stored_by: Any = None
        self._granule, self._first, self._last = 1, end, -1

    def region(self, name: str) -> Region:
        """Return the buffer of that name."""
        return next(region for region in self.regions if region.name == name)

    def content(self, name: str) -> Array:
        """Return the bytes of a buffer, in place."""
        region = self.region(name)
        return self.raw[region.begin : region.end]

    def writable(self, name: str) -> Array:
        """Return 255 for each writable byte of a partly writable buffer, 0 for other bytes."""
        region = self.region(name)
        return self._writable.raw[region.begin : region.end]

    def address(self, name: str) -> int:
        """Return the address of a buffer."""
        return GLOBAL + self.region(name).begin

    def may_write(self, offsets: Array, width: int) -> Array:
        unit = min(width, 8)
        flags, every_bit = self._writable.view(UNITS[unit]), ~UNITS[unit](0)
        parts = units(offsets, unit, width)
        return np.logical_and.reduce([flags.take(part) == every_bit for part in parts])

    def watch(self, granule: int) -> None:
        """Begin to record stores, in granules of the narrowest store."""
        self._granule = granule
        self._stored_by = np.zeros(self.size // granule, np.int32)

    def stored(self, offsets: Array, who: Array, width: int) -> Array | None:
        """Record stores by CTAs numbered from 1; return which overwrite another CTA's, or None."""
        if self._stored_by is None:
            return None
        parts = units(offsets, self._granule, width, who)
        bad = np.zeros(parts[0].shape, bool)
        for part in parts:
            before = self._stored_by.take(part)
            self._stored_by[part] = who
            bad |= (before != 0) & (before != who) | (self._stored_by.take(part) != who)
        self._first = min(self._first, int(parts[0].min(initial=self.size)))
        self._last = max(self._last, int(parts[-1].max(initial=-1)) + 1)
        return bad if bad.any() else None

    def loaded(self, offsets: Array, who: Array, width: int) -> Array | None:
        """Return which loads read what another CTA has stored, or None."""
        if self._last < 0 or not offsets.size:
            return None
        parts = units(offsets, self._granule, width)
        if parts[-1].max() < self._first or parts[0].min() >= self._last:
            return None
        bad = np.zeros(np.broadcast_shapes(offsets.shape, who.shape), bool)
        for part in parts:
            by = self._stored_by.take(part)
            bad |= (by != 0) & (by != who)
        return bad if bad.any() else None

    def near(self, offset: int) -> str:
        """Describe the place of an address."""
        for region in self.regions:
            if region.begin <= offset < region.end:
                return f"byte {offset - region.begin} of {region.name}, between its elements"
        return nearest(offset, self.regions) or "far from every buffer"


def nearest(offset: int, regions: Sequence[Region]) -> str:
    """Return how far before or after the nearest region an offset lies; "" if it is far."""
    known = [(max(region.begin - offset, offset - region.end + 1), region) for region in regions]
    if not known or min(way for way, _ in known) > GUARD:
        return ""
    way, region = min(known, key=lambda pair: pair[0])
    side = "before" if offset < region.begin else "after"
    return f"{way} bytes {side} {'the end of ' if side == 'after' else ''}{region.name}"


#: The fault of an access: its lanes, and its kind.
Wrong = tuple[Array, str]


@dataclass(eq=False)
class SharedMemory(Bytes):
    """Shared memory of a batch of CTAs; ``regions``: the arrays of one, with their places in it.

    ``undefined`` has a byte of ones where nothing was written, or the undefined bits. Derived
    classes know the accesses since the last barrier by granule: `cute_gemm.ptx.epochs` if threads
    wait only at barriers of their CTA, `cute_gemm.ptx.clocks` otherwise. ``own`` identifies the
    thread of a lane in their terms.
    """

    ctas: int
    threads: int
    regions: Sequence[Region]
    granule: int
    watched: bool
    cluster: int = 1
    own: Array = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = size = max((array.end for array in self.regions), default=0)
        self.pitch = -(-size // 16) * 16
        super().__init__(max(16, self.ctas * self.pitch))
        self.rows = np.arange(self.ctas, dtype=np.int64)[:, None] * self.pitch
        if self.watched:
            self.wrote = np.zeros(self.size // self.granule, np.int32)
            self.undefined = Bytes(self.size)
            self.undefined.raw[:] = 255
        #: Copies that have not been waited for.
        self.flying = 0

    def next_epoch(self) -> None:
        """Note that all threads of the CTAs have met at a barrier."""
        raise NotImplementedError

    def landing(self, offsets: Array, ctas: Array, threads: Array, width: int) -> None:
        """Note the bytes that copies write, by the threads that started them."""
        raise NotImplementedError

    def near(self, offset: int) -> str:
        """Describe the place of an address that is in no array of a CTA."""
        whole = sum(array.end - array.begin for array in self.regions)
        where = nearest(offset, self.regions) if len(self.regions) > 1 else ""
        return where or f"the CTA has {whole} bytes of shared memory"

    def holes(self, offsets: Array, width: int) -> bool:
        """Return whether a read of ``width`` bytes at flat offsets meets an undefined bit."""
        unit = min(width, 8)
        flags = self.undefined.view(UNITS[unit])
        return any(flags.take(place).any() for place in units(offsets, unit, width))

    def define(self, offsets: Array, width: int) -> None:
        """Note that bytes have been written."""
        unit = min(width, 8)
        flags = self.undefined.view(UNITS[unit])
        for place in units(offsets, unit, width):
            flags[place] = 0

    def reading(self, offsets: Array, own: Array, width: int) -> Wrong | None:
        """Note a read at flat offsets by the threads ``own``; return its fault, or None."""
        raise NotImplementedError

    def writing(self, offsets: Array, own: Array, width: int, flying: bool = False) -> Wrong | None:
        """Note a write, ``flying`` of a pending copy; return its fault, or None."""
        raise NotImplementedError

    def meet(self, ctas: Array, warps: Array, lanes: Array) -> None:
        """Execute ``bar.warp.sync``: these lanes see each other's accesses from now on."""
