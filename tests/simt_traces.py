"""The templates of the tutorial kernels, read as a program: what every lane of every CTA does.

An interpreter of ``gemm.cuh``, ``tiles.cuh``, ``mainloop.cuh`` and of the kernels' own files, which
takes its config from the emitted C++ text and nothing from the Python that describes the accesses.
All CTAs go together, statement by statement; shared memory and registers hold numbers, so that C
comes out of it too: a program that was misread would not compute the product.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cute_gemm.problem.dtypes import DTYPES
from cute_gemm.problem.problem import GemmProblem, Matrix

WARP = 32

# -- the emitted config ---------------------------------------------------------------------------


class CppLayout(NamedTuple):
    """Extents and strides of each mode, flattened; and the swizzle's bits, base and shift."""

    modes: list[list[tuple[int, int]]]
    swizzle: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> CppLayout:
        text = re.sub(r"(?:_|C<|Int<)(\d+)>?", r"\1", re.sub(r"_(\d+)", r"C<\1>", text))
        found = re.search(r"Swizzle<(\d+),(\d+),(\d+)>", text)
        inner = re.search(r"\bLayout<Shape(<.*>),Stride(<.*>)>", text[:-1] if found else text)
        assert inner, text
        shape, stride = (
            ast.literal_eval(re.sub(r"Shape|Stride", "", part).replace("<", "(").replace(">", ",)"))
            for part in inner.groups()
        )
        modes = [
            list(zip(flat(s), flat(d), strict=True)) for s, d in zip(shape, stride, strict=True)
        ]
        bits = tuple(map(int, found.groups())) if found else (0, 0, 0)
        return cls(modes, bits)  # type: ignore[arg-type]

    @property
    def mask(self) -> int:
        """``swizzled_bits``."""
        return ((1 << self.swizzle[0]) - 1) << self.swizzle[1]

    def table(self) -> np.ndarray:
        """Offset of every coordinate."""
        offset = np.zeros((), int)
        for mode in self.modes:
            index = np.arange(int(np.prod([extent for extent, _ in mode])))
            along = np.zeros_like(index)
            for extent, stride in mode:
                along, index = along + index % extent * stride, index // extent
            offset = offset[..., None] + along
        bits, base, shift = self.swizzle
        return offset ^ (offset >> shift & ((1 << bits) - 1) << base)


def flat(nested: object) -> list[int]:
    if isinstance(nested, tuple):
        return [number for mode in nested for number in flat(mode)]
    assert isinstance(nested, int)
    return [nested]


@dataclass
class Operand:
    """``CopyA`` and what else is said of A, or of B."""

    text: str
    letter: str

    def __post_init__(self) -> None:
        def constant(name: str) -> str:
            return find(self.text, rf"\b{name}{self.letter} = (\w+)")

        using = find(self.text, rf"using Copy{self.letter} = cute_gemm::Copy<(.*)>;")
        layout, *numbers = re.split(r", (?=\d)", using)
        self.first = CppLayout.parse(layout).table()
        self.step_rows, self.step_columns, self.block_rows, self.block_columns = map(int, numbers)
        smem = CppLayout.parse(find(self.text, rf"using Smem{self.letter} = (.*);"))
        self.smem, self.mask = smem.table(), smem.mask
        self.elements = int(constant("kSmem"))
        self.asynchronous = constant("kAsync") == "true"
        self.major_k = constant("kMajorK") == "true"
        self.vectors = self.block_rows if self.major_k else 1
        self.vector = self.block_columns if self.major_k else self.block_rows


def find(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    assert found, pattern
    return found[1]


class Config:
    """``struct Config`` of an emitted unit."""

    def __init__(self, source: str) -> None:
        self.kernel = find(source, r"cute_gemm::(\w+)\(cute_gemm::Gemm<Config>")
        self.tile = tuple(map(int, re.findall(r"\d+", find(source, r"using Tile = Shape<(.*)>;"))))
        self.block = int(find(source, r"__launch_bounds__\((\d+),"))
        self.major_nc = find(source, r"kMajorNC = (\w+)") == "true"
        self.raster = int(find(source, r"kRaster = (\d+)"))
        self.vector_c = int(find(source, r"kVectorC = (\d+)"))
        self.lanes_k = int(find(source, r"kLanesK = (\d+)"))
        self.chunk = int(find(source, r"kChunk = (\d+)"))
        self.threads = CppLayout.parse(find(source, r"using Threads = (.*);")).table()
        self.values = []
        for mode in "MN":
            table = CppLayout.parse(find(source, rf"using Values{mode} = (.*);")).table()
            self.values.append((table.shape[0], table.ravel(order="F")))
        self.operands = [Operand(source, letter) for letter in "AB"] if "CopyA" in source else []


# -- memory ---------------------------------------------------------------------------------------


class Key(NamedTuple):
    operand: str
    space: str
    direction: str
    instruction: str
    bits: int


@dataclass
class Trace:
    """Byte addresses [requests, 32] of the lanes that take part, -1 for the others, by key.

    ``targets``: of ``cp.async`` in global memory, the addresses in shared memory.
    """

    requests: dict[Key, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    times: dict[Key, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    targets: dict[Key, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))

    def add(
        self, key: Key, address: np.ndarray, active: np.ndarray | bool,
        target: np.ndarray | None = None, times: int = 1,
    ) -> None:  # fmt: skip
        address, active = np.broadcast_arrays(address, active)
        lanes = np.where(active, address, -1).reshape(-1, WARP)
        some = (lanes >= 0).any(axis=1)
        self.requests[key].append(lanes[some])
        self.times[key].append(np.full(some.sum(), times))
        if target is not None:
            place = np.broadcast_to(target, address.shape).reshape(-1, WARP)
            self.targets[key].append(place[some])


class Memory:
    """A matrix (rows, columns) in global memory; what is outside reads as NaN."""

    def __init__(self, matrix: Matrix, values: np.ndarray, trace: Trace) -> None:
        self.matrix, self.values, self.trace = matrix, values, trace
        self.size = DTYPES[matrix.dtype].bytes
        self.base = 1 << 20 | matrix.alignment % 128
        self.reads, self.writes = np.zeros(values.shape, int), np.zeros(values.shape, int)

    def _elements(
        self, row: np.ndarray, column: np.ndarray, width: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        step = np.arange(width)
        along = self.matrix.stride.index(1) if width > 1 else 0
        rows = row[..., None] + (step if along == 0 else 0 * step)
        columns = column[..., None] + (step if along == 1 else 0 * step)
        inside = (rows < self.values.shape[0]) & (columns < self.values.shape[1])
        return rows, columns, inside

    def _record(
        self, row: np.ndarray, column: np.ndarray, active: np.ndarray, width: int, way: str,
        instruction: str, target: np.ndarray | None,
    ) -> None:  # fmt: skip
        strides = self.matrix.stride
        key = Key(self.matrix.name, "global", way, instruction, 8 * self.size * width)
        address = self.base + (row * strides[0] + column * strides[1]) * self.size
        assert not (address[active] % (self.size * width)).any(), key
        self.trace.add(key, address, active, target)

    def load(
        self, row: np.ndarray, column: np.ndarray, active: np.ndarray, width: int = 1,
        instruction: str = "ld.global", target: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        row, column, active = np.broadcast_arrays(row, column, active)
        self._record(row, column, active, width, "load", instruction, target)
        rows, columns, inside = self._elements(row, column, width)
        inside &= active[..., None]
        np.add.at(self.reads, (rows[inside], columns[inside]), 1)
        out = np.full(rows.shape, np.nan)
        out[inside] = self.values[rows[inside], columns[inside]]
        return out

    def store(
        self, row: np.ndarray, column: np.ndarray, active: np.ndarray, data: np.ndarray
    ) -> None:
        row, column, active = np.broadcast_arrays(row, column, active)
        width = data.shape[-1]
        self._record(row, column, active, width, "store", "st.global", None)
        rows, columns, inside = self._elements(row, column, width)
        assert inside[active].all(), "a store outside C"
        np.add.at(self.writes, (rows[active], columns[active]), 1)
        self.values[rows[active], columns[active]] = data[active]


class Shared:
    """Shared memory of every CTA, by the element."""

    def __init__(self, ctas: int, bytes_: int, size: int, trace: Trace) -> None:
        self.size, self.trace = size, trace
        self.cells = np.full((ctas, bytes_ // size), np.nan)

    def _at(self, address: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        address = np.broadcast_to(address, (len(self.cells), address.shape[-1]))
        assert not (address % (self.size * width)).any()
        cells = (address // self.size)[..., None] + np.arange(width)
        return np.arange(len(self.cells))[:, None, None] + 0 * cells, cells

    def load(self, name: str, address: np.ndarray, width: int) -> np.ndarray:
        cta, cell = self._at(address, width)
        key = Key(name, "shared", "load", "ld.shared", 8 * self.size * width)
        self.trace.add(key, address, True, times=len(self.cells))  # alike in all CTAs
        return self.cells[cta, cell]

    def store(
        self, name: str, address: np.ndarray, data: np.ndarray, active: np.ndarray | None = None,
        instruction: str = "st.shared",
    ) -> None:  # fmt: skip
        width = data.shape[-1]
        cta, cell = self._at(address, width)
        active = np.ones(cell.shape[:2], bool) if active is None else active
        key = Key(name, "shared", "store", instruction, 8 * self.size * width)
        self.trace.add(key, address, active)
        self.cells[cta[active], cell[active]] = data[active]


# -- tiles.cuh ------------------------------------------------------------------------------------


class TileCopy:
    """``TileCopy`` and ``BufferedCopy``."""

    def __init__(self, config: Operand, memory: Memory, shared: Shared, corner: np.ndarray, k: int):
        self.config, self.memory, self.shared = config, memory, shared
        row, column = config.first % config.step_rows, config.first // config.step_rows
        self.row, self.column = corner + row, k + column + 0 * corner
        self.first = config.smem[row, column]
        self.held: dict[tuple[int, int], np.ndarray] = {}
        self.words: dict[tuple[int, int, int], np.ndarray] = {}

    def each_vector(self) -> Iterator[tuple[int, int, int, np.ndarray, np.ndarray, np.ndarray]]:
        """Steps, number of the vector, its row and column in the matrix, and ``valid``."""
        c, (rows, columns) = self.config, self.memory.values.shape
        for j in range(c.smem.shape[1] // c.step_columns):
            for i in range(c.smem.shape[0] // c.step_rows):
                for v in range(c.vectors):
                    row = self.row + i * c.step_rows + v
                    column = self.column + j * c.step_columns
                    if c.major_k:
                        valid = np.where(row < rows, columns - column, 0)
                    else:
                        valid = np.where(column < columns, rows - row, 0)
                    yield j, i, v, row, column, valid

    def target(self, i: int, j: int, row: int = 0, column: int = 0) -> np.ndarray:
        """``join``, in bytes."""
        c = self.config
        at = int(c.smem[i * c.step_rows + row, j * c.step_columns + column])
        return ((self.first ^ at & c.mask) + (at & ~c.mask)) * self.shared.size

    def advance(self) -> None:
        self.column = self.column + self.config.smem.shape[1]

    def elements(
        self, row: np.ndarray, column: np.ndarray, valid: np.ndarray, active: np.ndarray
    ) -> np.ndarray:
        """One load for each element of a vector, zeros for those outside."""
        out = []
        for e in range(self.config.vector):
            inside = active & (e < valid)
            across = (row, column + e) if self.config.major_k else (row + e, column)
            out.append(np.where(inside, self.memory.load(*across, inside)[..., 0], 0))
        return np.stack(out, axis=-1)

    def keep(self, j: int, i: int, v: int, vector: np.ndarray) -> None:
        c = self.config
        shape = (*vector.shape[:2], c.block_columns, c.block_rows)
        held = self.held.setdefault((j, i), np.full(shape, np.nan))
        if c.major_k:
            held[..., v] = vector
        else:
            held[..., 0, :] = vector

    def fetch(self) -> None:
        width = self.config.vector
        for j, i, v, row, column, valid in self.each_vector():
            whole = valid >= width if width > 1 else np.zeros(valid.shape, bool)
            vector = self.elements(row, column, valid, ~whole)
            if width > 1:
                wide = self.memory.load(row, column, whole, width)
                vector = np.where(whole[..., None], wide, vector)
            self.keep(j, i, v, vector)
        self.advance()

    def store(self, smem: int) -> None:
        for (j, i), held in self.held.items():
            for column in range(self.config.block_columns):
                address = smem + self.target(i, j, column=column)
                self.shared.store(self.memory.matrix.name, address, held[..., column, :])

    # double_buffered.cuh

    def copy_cut(self, smem: int) -> None:
        if not self.config.asynchronous:
            self.fetch()
            self.store(smem)
            return
        name, width, size = self.memory.matrix.name, self.config.vector, self.shared.size
        for j, i, v, row, column, valid in self.each_vector():
            address = smem + self.target(i, j, row=v)
            cut = (valid > 0) & (valid < width)
            some = self.elements(row, column, valid, cut)
            for e in range(width):
                self.shared.store(name, address + e * size, some[..., e : e + 1], cut)
            self.cp_async(address, row, column, valid >= width, ~cut)
        self.advance()

    def cp_async(
        self, address: np.ndarray, row: np.ndarray, column: np.ndarray, read: np.ndarray,
        written: np.ndarray,
    ) -> None:  # fmt: skip
        width = self.config.vector
        vector = self.memory.load(row, column, read, width, "cp.async", address)
        vector = np.where(read[..., None], vector, 0)
        self.shared.store(self.memory.matrix.name, address, vector, written, "cp.async")

    def begin(self, smem: int, active: bool) -> None:
        rows = self.memory.values.shape[0] if active else 0
        for j, i, v, row, column, _ in self.each_vector():
            if self.config.asynchronous:
                self.cp_async(smem + self.target(i, j, row=v), row, column, row < rows, row < rows)
            else:
                words = self.memory.load(row, column, row < rows, self.config.vector)
                old = self.words.get((j, i, v), np.nan)
                self.words[j, i, v] = np.where((row < rows)[..., None], words, old)
        self.advance()

    def end(self, smem: int) -> None:
        if not self.config.asynchronous:
            for at, words in self.words.items():
                self.keep(*at, words)
            self.store(smem)

    def after_barrier(self, smem: int, active: bool) -> None:
        if self.config.asynchronous:
            self.begin(smem, active)

    def before_barrier(self, smem: int, active: bool) -> None:
        self.end(smem)
        if not self.config.asynchronous:
            self.begin(smem, active)


class Fragments:
    def __init__(self, machine: Machine, index: int, smem: int):
        self.machine, self.name = machine, "AB"[index]
        self.config, self.values = machine.config.operands[index], machine.config.values[index]
        self.size = machine.shared.size
        self.first = smem + self.config.smem[machine.mine[index], 0] * self.size

    def read(self, k: int) -> np.ndarray:
        run, values = self.values
        mask, out = self.config.mask, []
        for i in range(0, len(values), run):
            at = int(self.config.smem[values[i], k])
            address = (self.first ^ (at & mask) * self.size) + (at & ~mask) * self.size
            out.append(self.machine.shared.load(self.name, address, run))
        return np.concatenate(out, axis=-1)


class Machine:
    """One launch; after :meth:`run` the trace has all of it."""

    def __init__(
        self, source: str, problem: GemmProblem, ctas: int, smem: int, reads_c: bool = False
    ) -> None:
        config = self.config = Config(source)
        self.problem, self.reads_c, self.trace = problem, reads_c, Trace()
        random = np.random.default_rng(3)
        m, n, k = problem.m, problem.n, problem.k
        self.a, self.b = (
            Memory(matrix, random.integers(-8, 9, (extent, k)).astype(float), self.trace)
            for matrix, extent in ((problem.A, m), (problem.B, n))
        )
        self.c = Memory(problem.C, np.full((m, n), np.nan), self.trace)
        self.shared = Shared(ctas, smem, self.a.size, self.trace)
        # cta_corner of raster.cuh
        tiles_m, tiles_n = -(-m // config.tile[0]), -(-n // config.tile[1])
        cta = np.arange(ctas)
        first = cta // (config.raster * tiles_n) * config.raster
        rows = np.minimum(tiles_m - first, config.raster)
        inside = cta % (config.raster * tiles_n)
        self.corner = (
            (first + inside % rows)[:, None] * config.tile[0],
            (inside // rows)[:, None] * config.tile[1],
        )
        thread = np.arange(config.block) // (config.lanes_k if config.kernel == "coalesced" else 1)
        self.mine = (
            config.threads[thread] % config.tile[0],
            config.threads[thread] // config.tile[0],
        )
        kernels = {"naive": self.direct, "coalesced": self.direct, "smem_full_k": self.full_k,
                   "double_buffered": self.buffered}  # fmt: skip
        kernels.get(config.kernel, self.tiled)()

    def write(self, sums: np.ndarray, active: np.ndarray | bool = True) -> None:
        """``sums`` [CTA, thread, m, n], to C."""
        c, (m, n) = self.config, (self.problem.m, self.problem.n)
        row, column = self.corner[0] + self.mine[0], self.corner[1] + self.mine[1]
        if c.major_nc:
            sums, (outers, inners) = sums.swapaxes(2, 3), (c.values[0][1], c.values[1][1])
        else:
            outers, inners = c.values[1][1], c.values[0][1]
        for o, outer in enumerate(outers):
            for i in range(0, len(inners), c.vector_c):
                run = sums[:, :, i : i + c.vector_c, o]
                if c.major_nc:
                    at, left = (row + outer, column + inners[i]), n - column - inners[i]
                    left = np.where(row + outer < m, left, 0)
                else:
                    at, left = (row + inners[i], column + outer), m - row - inners[i]
                    left = np.where(column + outer < n, left, 0)
                left = np.where(active, left, 0)
                self.update(*at, run, (left >= c.vector_c) & (left > 0))
                for e in range(c.vector_c if c.vector_c > 1 else 0):
                    one = (at[0], at[1] + e) if c.major_nc else (at[0] + e, at[1])
                    self.update(*one, run[..., e : e + 1], (left < c.vector_c) & (left > e))

    def update(
        self, row: np.ndarray, column: np.ndarray, run: np.ndarray, active: np.ndarray
    ) -> None:
        if self.reads_c:
            self.c.load(row, column, active, run.shape[-1])
        self.c.store(row, column, active, run)

    # the kernels

    def direct(self) -> None:
        """naive.cuh and coalesced.cuh."""
        k, lanes = self.problem.k, self.config.lanes_k
        row, column = self.corner[0] + self.mine[0], self.corner[1] + self.mine[1]
        active = (row < self.problem.m) & (column < self.problem.n)
        lane = np.arange(self.config.block) % lanes
        total = np.zeros(row.shape)
        for first in range(0, k, lanes):
            taking = active & (first + lane < k)
            a = self.a.load(row, first + lane, taking)[..., 0]
            b = self.b.load(column, first + lane, taking)[..., 0]
            total += np.where(taking, a * b, 0)
        if lanes > 1:
            total = np.repeat(total.reshape(len(row), -1, lanes).sum(axis=-1), lanes, axis=1)
        self.write(total[..., None, None], active & (lane == 0))

    def copies(self, k: int) -> list[TileCopy]:
        memories = (self.a, self.b)
        return [
            TileCopy(config, memory, self.shared, corner, k)
            for config, memory, corner in zip(
                self.config.operands, memories, self.corner, strict=True
            )
        ]

    def no_sums(self) -> np.ndarray:
        extents = [len(values) for _, values in self.config.values]
        return np.zeros((len(self.shared.cells), self.config.block, *extents))

    def full_k(self) -> None:
        """smem_full_k.cuh."""
        bk, size = self.config.tile[2], self.shared.size
        each = [operand.elements * size for operand in self.config.operands]
        steps = -(-self.problem.k // bk)
        panels = (0, steps * each[0])
        copies, sums = self.copies(0), self.no_sums()
        for step in range(steps):
            for copy in copies:
                copy.fetch()
            for index, copy in enumerate(copies):
                copy.store(panels[index] + step * each[index])
        for step in range(steps):
            a, b = (Fragments(self, i, panels[i] + step * each[i]) for i in (0, 1))
            for k in range(bk):
                sums += a.read(k)[..., :, None] * b.read(k)[..., None, :]
        self.write(sums)

    def tiled(self) -> None:
        """mainloop.cuh, of smem_tiled and all between it and double_buffered."""
        bk, second = self.config.tile[2], self.config.operands[0].elements * self.shared.size
        copies, sums = self.copies(0), self.no_sums()
        a, b = Fragments(self, 0, 0), Fragments(self, 1, second)
        for _ in range(0, self.problem.k, bk):
            for copy in copies:
                copy.fetch()
            for copy, smem in zip(copies, (0, second), strict=True):
                copy.store(smem)
            for k in range(bk):
                sums += a.read(k)[..., :, None] * b.read(k)[..., None, :]
        self.write(sums)

    def buffered(self) -> None:
        """double_buffered.cuh."""
        c, size, bk = self.config, self.shared.size, self.config.tile[2]
        second = c.operands[0].elements * size
        buffer = second + c.operands[1].elements * size
        sums, k_tiles = self.no_sums(), -(-self.problem.k // bk)
        if k_tiles:
            copies = self.copies((k_tiles - 1) * bk)
            starts = (0, second)
            for copy, start in zip(copies, starts, strict=True):
                copy.copy_cut(start)
                copy.column = copy.column - k_tiles * bk
            for copy, start in zip(copies, starts, strict=True):
                if not copy.config.asynchronous:
                    copy.begin(start, k_tiles > 1)
            fragments = [Fragments(self, i, starts[i]) for i in (0, 1)]
            parts = [each.read(0) for each in fragments]
            chunks = bk // c.chunk
            steps = [int(each.config.smem[0, c.chunk % bk]) * size for each in fragments]
            step, following = buffer, 0
            for tile in range(1, k_tiles + 1):
                following += step
                for copy, start in zip(copies, starts, strict=True):
                    copy.after_barrier(following + start, tile < k_tiles)
                for chunk in range(1, chunks + 1):
                    for k in range(c.chunk):
                        if k == c.chunk // 2 and chunk == chunks:
                            for copy, start in zip(copies, starts, strict=True):
                                copy.before_barrier(following + start, tile + 1 < k_tiles)
                        if k == c.chunk - 1:
                            for each, distance in zip(fragments, steps, strict=True):
                                each.first = each.first + distance
                                if chunk == chunks:
                                    each.first = each.first + step - chunks * distance
                            if chunk == chunks:
                                step = -step
                        ahead = [each.read((k + 1) % c.chunk) for each in fragments]
                        sums += parts[0][..., :, None] * parts[1][..., None, :]
                        parts = ahead
        self.write(sums)
