"""Tiled copies and tiled MMAs: which thread touches which coordinate, and the same thing as C++.

One object here is both what the emitter writes and what the analysis evaluates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cute_gemm.cute.atoms import CopyAtom, MmaAtom
from cute_gemm.cute.layout import Layout, from_map


@dataclass(frozen=True)
class TiledMma:
    """An MMA atom tiled over threads and, by a permutation, over the values of each thread.

    Parameters
    ----------
    atom
        The instruction.
    threads
        Rank-3 layout ``(m, n, k) -> warp`` (thread, for FMA): CuTe's AtomLayoutMNK.
    tile
        A rank-1 layout per mode of M, N, K: CuTe's PermutationMNK. Its size is the extent that
        one tiled MMA covers; a stride other than 1 says which coordinate comes next.
    """

    atom: MmaAtom
    threads: Layout
    tile: tuple[Layout, Layout, Layout]

    @property
    def size(self) -> int:
        """Number of threads."""
        return self.atom.threads * self.threads.size

    def extent(self, mode: int) -> int:
        """Extent of the tile in mode 0 (M), 1 (N) or 2 (K)."""
        return self.tile[mode].size

    def partition(self, operand: str) -> np.ndarray:
        """Coordinates of every (thread, value) of ``"A"``, ``"B"`` or ``"C"``.

        Returns
        -------
        int array [threads, values, 2]
            (m, k), (n, k) or (m, n) within the tile, in CuTe's order of values.
        """
        modes, atom_tv = {
            "A": ((0, 2), self.atom.a),
            "B": ((1, 2), self.atom.b),
            "C": ((0, 1), self.atom.c),
        }[operand]
        thread = np.arange(self.size)
        inside = atom_tv.table()[thread % self.atom.threads]  # [thread, atom value]
        where = self._thread_coordinates()[thread // self.atom.threads]
        extents = [self.atom.shape_mnk[mode] for mode in modes]
        atom_coordinate = [inside % extents[0], inside // extents[0]]
        tiled = [self.threads.extents[mode] for mode in modes]
        repeats = [
            self.extent(mode) // (extent * count)
            for mode, extent, count in zip(modes, extents, tiled, strict=True)
        ]
        out = []
        for axis, mode in enumerate(modes):
            repeat = np.arange(repeats[axis])
            shape = [1, 1, 1, 1]
            shape[2 + axis] = repeats[axis]
            linear = atom_coordinate[axis][:, :, None, None] + extents[axis] * (
                where[:, mode][:, None, None, None] + tiled[axis] * repeat.reshape(shape)
            )
            out.append(self.tile[mode](linear))
        full = np.stack(np.broadcast_arrays(*out), axis=-1)  # [thread, value, rest, rest, 2]
        # CuTe counts values atom first, then the rests, each first mode fastest.
        return full.transpose(0, 3, 2, 1, 4).reshape(self.size, -1, 2)

    def _thread_coordinates(self) -> np.ndarray:
        """(m, n, k) of every warp (FMA: thread)."""
        table = self.threads.table()
        out = np.empty((table.size, 3), dtype=np.int64)
        out[table.ravel()] = np.stack(np.unravel_index(np.arange(table.size), table.shape), axis=-1)
        return out

    def cpp(self) -> str:
        """Return the C++ type."""
        tile = ",".join(
            mode.cpp() if mode.stride != 1 else f"Int<{mode.size}>" for mode in self.tile
        )
        return f"TiledMMA<MMA_Atom<{self.atom.name}>,{self.threads.cpp()},Tile<{tile}>>"


@dataclass(frozen=True, eq=False)
class TiledCopy:
    """A copy atom with the coordinates that it moves.

    Attributes
    ----------
    atom
        The instruction.
    element_bits
        Width of an element.
    tile
        Extents of the tile that one tiled copy covers.
    partition
        int array [threads, values, 2]: coordinates within the tile of every (thread, value), as the
        receiving threads hold them.
    """

    atom: CopyAtom
    element_bits: int
    tile: tuple[int, int]
    partition: np.ndarray

    @property
    def values(self) -> int:
        """Elements that one instruction gives to one thread."""
        return self.atom.bits // self.element_bits

    @cached_property
    def source(self) -> np.ndarray:
        """Coordinates [threads, values, 2] of the elements that every thread addresses."""
        threads, total, _ = self.partition.shape
        if self.atom.destination is None:
            return self.partition
        width, count = self.values, self.atom.threads
        # bit of the warp's data -> the (thread, value) that receives it, element by element
        received = self.atom.destination.table()[:, :: self.element_bits] // self.element_bits
        giver: np.ndarray = np.empty((received.size, 2), dtype=np.int64)
        lanes, slots = np.indices(received.shape)
        giver[received.ravel()] = np.stack([lanes.ravel(), slots.ravel()], axis=-1)
        giver = giver.reshape((count, width, 2))  # source thread, source value -> receiver
        warps = self.partition.reshape(threads // count, count, total // width, width, 2)
        out = warps[:, giver[..., 0], :, giver[..., 1]]  # [lane, width, warp, instruction, 2]
        return out.transpose(2, 0, 3, 1, 4).reshape(threads, total, 2)

    def requests(self, extents: tuple[int, int]) -> np.ndarray:
        """First coordinate of every lane of every request over a tile of ``extents``.

        Returns
        -------
        int array [requests, 32, 2]
            All warps, all instructions, all repetitions of the tiled copy.
        """
        first = self.source[:, :: self.values]  # [thread, instruction, 2]
        corners = np.stack(
            np.meshgrid(
                *(
                    np.arange(0, extent, step)
                    for extent, step in zip(extents, self.tile, strict=True)
                ),
                indexing="ij",
            ),
            axis=-1,
        ).reshape(-1, 2)
        lanes = first.reshape(-1, 32, first.shape[1], 2).transpose(0, 2, 1, 3).reshape(-1, 32, 2)
        return (lanes[None] + corners[:, None, None]).reshape(-1, 32, 2)

    def vector_offsets(self, layout: Layout, extents: tuple[int, int]) -> np.ndarray:
        """Byte offsets [requests, 32] of ``requests`` in ``layout``.

        Raises
        ------
        ValueError
            When the elements of a vector are not contiguous in ``layout``.
        """
        bytes_ = self.element_bits // 8
        coordinates = self.source[:, : self.values]
        elements = layout(coordinates[..., 0], coordinates[..., 1])
        if not (elements == elements[:, :1] + np.arange(self.values)).all():
            raise ValueError(
                f"{self.atom.name} of {self.atom.bits} bits does not fit {layout}: "
                "its elements are not contiguous there"
            )
        first = self.requests(extents)
        return layout(first[..., 0], first[..., 1]) * bytes_

    def source_tv(self) -> Layout:
        """``(thread, value) -> coordinate``, linear in the tile, of the addressed elements."""
        return from_map(self.source[..., 0] + self.tile[0] * self.source[..., 1])


def gmem_tiled_copy(
    atom: CopyAtom, element_bits: int, threads: Layout, values: Layout
) -> TiledCopy:
    """CuTe's ``make_tiled_copy``: a raked product of a thread layout and a value layout.

    Parameters
    ----------
    threads
        ``(m, n) -> thread``, a rank-2 bijection.
    values
        ``(m, n) -> value`` of each thread, its values side by side.
    """
    (tm, tn), (vm, vn) = threads.extents, values.extents
    thread, value = threads.table(), values.table()
    partition = np.empty((threads.size, values.size, 2), dtype=np.int64)
    i, j, p, q = np.indices((tm, tn, vm, vn)).reshape(4, -1)
    partition[thread[i, j], value[p, q]] = np.stack([i * vm + p, j * vn + q], axis=-1)
    return TiledCopy(atom, element_bits, (tm * vm, tn * vn), partition)


def mma_tiled_copy(atom: CopyAtom, element_bits: int, mma: TiledMma, operand: str) -> TiledCopy:
    """CuTe's ``make_tiled_copy_A``, ``_B`` or ``_C``: what each thread of ``mma`` holds."""
    first, second = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[operand]
    tile = (mma.extent(first), mma.extent(second))
    return TiledCopy(atom, element_bits, tile, mma.partition(operand))
