"""Tiled copies and tiled MMAs: the coordinates of each thread, and the same object as C++.

The emitter writes and the analysis evaluates the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from cute_gemm.cute.atoms import CopyAtom, MmaAtom
from cute_gemm.cute.layout import Layout, from_map

#: Lanes of a warp.
LANES = 32
#: Modes of a problem (M, N, K) for each operand.
_MODES = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}


@dataclass(frozen=True)
class TiledMma:
    """An MMA atom tiled over threads and, by a permutation, over the values of each thread.

    ``threads`` is ``(m, n, k) -> warp`` (thread, for FMA): CuTe's AtomLayoutMNK. ``tile`` has a
    rank-1 layout per mode of M, N, K: CuTe's PermutationMNK. Its size is the extent that one tiled
    MMA covers; a stride other than 1 gives the order of coordinates.
    """

    atom: MmaAtom
    threads: Layout
    tile: tuple[Layout, Layout, Layout]

    @property
    def size(self) -> int:
        """Number of threads."""
        return self.atom.threads * self.threads.size

    def extent(self, mode: int) -> int:
        """Return the extent of the tile in mode 0 (M), 1 (N) or 2 (K)."""
        return self.tile[mode].size

    def partition(self, operand: str) -> np.ndarray:
        """Return the coordinates in the tile of every (thread, value) of A, B or C.

        int [threads, values, 2]: (m, k), (n, k) or (m, n), in CuTe's order of values.
        """
        modes, thread = _MODES[operand], np.arange(self.size)
        atom_tv = getattr(self.atom, operand.lower())
        inside = atom_tv.table()[thread % self.atom.threads, :, None, None]  # [thread, value, ..]
        table = self.threads.table()  # and (m, n, k) of every warp:
        where = np.stack(np.unravel_index(np.argsort(table, axis=None), table.shape), axis=-1)
        where = where[thread // self.atom.threads]
        rows = self.atom.shape_mnk[modes[0]]
        rests = np.ix_(*map(np.arange, self._repeats(operand)))
        out = []
        for mode, at, rest in zip(modes, (inside % rows, inside // rows), rests, strict=True):
            atom = where[:, mode, None, None, None] + self.threads.extents[mode] * rest
            out.append(self.tile[mode](at + self.atom.shape_mnk[mode] * atom))
        full = np.stack(np.broadcast_arrays(*out), axis=-1)  # [thread, value, rest, rest, 2]
        # CuTe counts values atom first, then the rests, each first mode fastest.
        return full.transpose(0, 3, 2, 1, 4).reshape(self.size, -1, 2)

    def _repeats(self, operand: str) -> list[int]:
        """Return how often a tile repeats the atoms of all threads along the operand's modes."""
        return [
            self.extent(mode) // (self.atom.shape_mnk[mode] * self.threads.extents[mode])
            for mode in _MODES[operand]
        ]

    def fragment(self, operand: str, extents: tuple[int, ...]) -> Layout:
        """Return the layout of a thread's values of an operand's tile of ``extents`` in registers.

        ``((value, repeat, repeat), tile, tile)``: values of an MMA and its repeats in both modes
        within and beyond one tile. It is CuTe's ``retile`` of a fragment, whose registers are
        compact as ``(value, MMAs, MMAs)``.
        """
        values = getattr(self.atom, operand.lower()).extents[1]
        first, second = self._repeats(operand)
        steps = map(self.extent, _MODES[operand])
        tiles = [extent // step for extent, step in zip(extents, steps, strict=True)]
        column = values * first * tiles[0]
        return Layout(
            ((values, first, second), *tiles),
            ((1, values, column), values * first, column * second),
        )

    def cpp(self) -> str:
        """Return the C++ type."""
        tile = ",".join(
            mode.cpp() if mode.stride != 1 else f"Int<{mode.size}>" for mode in self.tile
        )
        return f"TiledMMA<MMA_Atom<{self.atom.name}>,{self.threads.cpp()},Tile<{tile}>>"


@dataclass(frozen=True, eq=False)
class TiledCopy:
    """A copy atom with the coordinates that it moves, one ``tile`` at a time.

    ``partition``, int [threads, values, 2], has the coordinates in the tile of the data that every
    thread holds: receives from a load, gives to a store. ``layouts`` are the thread and the value
    layout whose raked product it is, if it was made from them.
    """

    atom: CopyAtom
    element_bits: int
    tile: tuple[int, int]
    partition: np.ndarray
    layouts: tuple[Layout, ...] = ()

    @property
    def values(self) -> int:
        """Elements that a thread's address stands for."""
        return self.atom.bits // self.element_bits

    @property
    def bits(self) -> int:
        """Bits that one instruction gives to or takes from one thread."""
        return self.atom.destination.extents[1] if self.atom.destination else self.atom.bits

    @cached_property
    def source(self) -> np.ndarray:
        """Coordinates [threads, values, 2] of the elements that every thread addresses.

        -1 for lanes whose address the instruction ignores: ldmatrix and stmatrix of fewer than
        four matrices.
        """
        if self.atom.destination is None:
            return self.partition
        # (lane, slot) -> the element's number in the warp's data, row by row; and its inverse
        number = self.atom.destination.table()[:, :: self.element_bits] // self.element_bits
        holder = np.argsort(number, axis=None)
        threads, held, _ = self.partition.shape
        count = threads // LANES, held // number.shape[1]  # warps, instructions
        data = self.partition.reshape(count[0], LANES, count[1], -1, 2).swapaxes(1, 2)
        data = data.reshape(*count, number.size, 2)[:, :, holder]
        rows = data.reshape(*count, -1, self.values, 2)
        if self.atom.order is not None:
            rows = rows[:, :, self.atom.order(np.arange(rows.shape[2]))]
        out = np.full((*count, LANES, self.values, 2), -1)
        out[:, :, : rows.shape[2]] = rows
        return out.swapaxes(1, 2).reshape(threads, -1, 2)

    def covers(self, extents: tuple[int, ...]) -> bool:
        """Return whether repeated copies form a tile of ``extents``, with a part per thread."""
        return all(extent % step == 0 for extent, step in zip(extents, self.tile, strict=True))

    def elements(self, extents: tuple[int, ...], first: int | None = None) -> np.ndarray:
        """Return the coordinates that each lane of each request addresses in a tile of ``extents``.

        int [requests, 32, values, 2]: all repetitions of the tiled copy, all warps, all
        instructions; the ``first`` elements of each vector. -1 for inactive lanes: those of
        ``source``, and the missing lanes of a partial last warp.
        """
        threads = len(self.source)
        source = self.source.reshape(threads, -1, self.values, 2)[:, :, :first]
        if threads % LANES:
            missing = np.full((-threads % LANES, *source.shape[1:]), -1)
            source = np.concatenate([source, missing])
        lanes = source.reshape(-1, LANES, *source.shape[1:]).swapaxes(1, 2)
        lanes = lanes.reshape(-1, LANES, *source.shape[2:])
        steps = [-(-extent // step) for extent, step in zip(extents, self.tile, strict=True)]
        corners = np.indices(steps).reshape(2, -1).T * self.tile
        moved = lanes + corners[:, None, None, None]
        return np.where(lanes < 0, -1, moved).reshape(-1, *lanes.shape[1:])

    def requests(self, extents: tuple[int, ...]) -> np.ndarray:
        """Return the first coordinate of every lane of every request: int [requests, 32, 2]."""
        return self.elements(extents, 1)[:, :, 0]

    def offsets(self, layout: Layout, extents: tuple[int, ...] | None = None) -> np.ndarray:
        """Return offsets of `elements` in ``layout`` (by default all of it); -1 if inactive."""
        at = self.elements(extents or layout.extents)
        return np.where(at[..., 0] < 0, -1, layout(at[..., 0], at[..., 1]))

    def vector_offsets(self, layout: Layout, extents: tuple[int, ...] | None = None) -> np.ndarray:
        """Return byte offsets [requests, 32] of `requests` in ``layout``; -1 for inactive lanes.

        ValueError if the elements of a vector are not contiguous in ``layout``.
        """
        offsets = self.offsets(layout, extents)
        if not contiguous(offsets):
            raise ValueError(
                f"{self.atom.name} of {self.atom.bits} bits does not fit {layout}: "
                "its elements are not contiguous there"
            )
        first = offsets[..., 0]
        return np.where(first < 0, -1, first * (self.element_bits // 8))

    def source_tv(self) -> Layout:
        """Return ``(thread, value) -> coordinate`` of addressed elements, linear in the tile."""
        return from_map(self.source[..., 0] + self.tile[0] * self.source[..., 1])


def contiguous(offsets: np.ndarray) -> bool:
    """Return whether offsets on the last axis are consecutive; negative ones belong to no lane."""
    step = np.arange(offsets.shape[-1])
    return bool(((offsets == offsets[..., :1] + step) | (offsets < 0)).all())


@lru_cache(maxsize=1024)
def gmem_tiled_copy(
    atom: CopyAtom, element_bits: int, threads: Layout, values: Layout
) -> TiledCopy:
    """Return CuTe's ``make_tiled_copy``: a raked product of a thread layout and a value layout.

    ``threads`` is ``(m, n) -> thread``, ``values`` is ``(m, n) -> value`` of each thread, whose
    values are adjacent; both are bijections.
    """
    (tm, tn), (vm, vn) = threads.extents, values.extents
    thread, value = threads.table(), values.table()
    partition = np.empty((threads.size, values.size, 2), dtype=np.int64)
    i, j, p, q = np.indices((tm, tn, vm, vn)).reshape(4, -1)
    partition[thread[i, j], value[p, q]] = np.stack([i * vm + p, j * vn + q], axis=-1)
    partition.flags.writeable = False  # many configs share it
    return TiledCopy(atom, element_bits, (tm * vm, tn * vn), partition, (threads, values))


@lru_cache(maxsize=1024)
def mma_tiled_copy(atom: CopyAtom, element_bits: int, mma: TiledMma, operand: str) -> TiledCopy:
    """Return CuTe's ``make_tiled_copy_A``, ``_B`` or ``_C``: the data of each thread of ``mma``."""
    first, second = map(mma.extent, _MODES[operand])
    partition = mma.partition(operand)
    partition.flags.writeable = False
    return TiledCopy(atom, element_bits, (first, second), partition)
