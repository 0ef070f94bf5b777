"""The config of ``sm80_pipeline`` and its structure: MMA, tiled copies, layouts.

The kernel writes a column-major C; for a row-major one it computes the transposed problem, with A
and B swapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from cute_gemm.cute import choose
from cute_gemm.cute.atoms import MMA_ATOMS, CopyAtom, MmaAtom, universal
from cute_gemm.cute.copies import TiledCopy, TiledMma, gmem_tiled_copy, mma_tiled_copy
from cute_gemm.cute.layout import Layout, Swizzle, column_major, tile_to_shape
from cute_gemm.kernels.config import Config
from cute_gemm.problem.operation import Operation

#: Lanes of a warp along M and N, as the kernel sees them, where it multiplies with FMA.
FMA_LANES = (8, 4)


@dataclass(frozen=True, kw_only=True)
class Sm80Config(Config):
    """Everything that shapes the code of one sm80_pipeline kernel.

    The fields up to ``min_ctas``, and ``mma``, may be set as kernel options; the others follow from
    the problem.
    """

    tile: tuple[int, int, int]  #: (bM, bN, bK): extents of the CTA tile.
    warps: tuple[int, int]  #: (m, n): warps along M and N.
    stages: int  #: k tiles in shared memory at a time.
    #: ``"auto"``: thread layouts, swizzles and ldmatrix kinds follow each operand's major.
    #: ``"mn_major"``: the thread layout (16,T/16):(1,16) with vectors along M or N and MN-major
    #: shared memory, whatever the operand's major.
    copy: str
    raster: int  #: Rows of tiles that share an L2 group.
    min_ctas: int  #: CTAs per multiprocessor that the register count must leave room for.
    mma: str  #: Name of the MMA atom.
    operation: Operation
    #: Or ``"tensor_core"``: the same without a pipeline, of one stage.
    kernel: str = "sm80_pipeline"

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and tile, C's too."""
        atom = MMA_ATOMS[self.mma]
        parts = (
            self.kernel,
            self.operation.name,
            "x".join(map(str, self.tile)),
            f"w{self.warps[0]}x{self.warps[1]}",
            f"mma{'x'.join(map(str, atom.shape_mnk))}",
            f"s{self.stages}",
            self.operation.access_name,
            self.copy,
            f"r{self.raster}",
            f"o{self.min_ctas}",
        )
        return "_".join(parts)

    @property
    def swap_ab(self) -> bool:
        """Whether C is row-major: the kernel then computes C^T with A and B swapped."""
        return self.operation.row_major


@dataclass(frozen=True, eq=False)
class OperandPlan:
    """How A or B (as the kernel sees them) gets from global memory to the tensor cores."""

    source: str
    major: str
    gmem_copy: TiledCopy
    smem_atom: Layout
    smem_layout: Layout
    smem_copy: TiledCopy
    extents: tuple[int, int]
    stage: int  #: Elements from a tile in shared memory to the next.
    #: The copy of words to their place (``unaligned.cuh``), if rows may begin at any element.
    place: TiledCopy | None


@dataclass(frozen=True, eq=False)
class Sm80Structure:
    """Values derived from a config: tiled MMA, copies and layouts, as the kernel sees them."""

    tile: tuple[int, int, int]
    mma: TiledMma
    operands: tuple[OperandPlan, OperandPlan]
    epilogue_tile: tuple[int, int]
    epilogue_layout: Layout
    epilogue_stage: TiledCopy
    epilogue_copy: TiledCopy
    ring: int  #: k tiles in shared memory.
    smem: int


def kernel_tile(config: Sm80Config) -> tuple[int, int, int]:
    """Return the extents of the CTA tile as the kernel sees it."""
    bm, bn, bk = config.tile
    return (bn, bm, bk) if config.swap_ab else (bm, bn, bk)


def _smem_majors(config: Sm80Config) -> tuple[str, str]:
    """Return the majors in shared memory of the kernel's A and B."""
    if config.copy == "mn_major":
        return "MN", "MN"
    a, b, _ = config.operation.majors
    return (b, a) if config.swap_ab else (a, b)


def tiled_mma(config: Sm80Config) -> TiledMma:
    """Return the MMA atom over the config's warps."""
    atom = MMA_ATOMS[config.mma]
    wm, wn = config.warps[::-1] if config.swap_ab else config.warps
    if atom.threads == 32:
        m, n, k = atom.shape_mnk
        # Two atoms along N make one ldmatrix.x4 of B; DMMA operands are loaded one by one.
        n_atoms = 1 if config.operation.a.bytes > 4 else 2
        tile = (Layout(m * wm, 1), Layout(n * wn * n_atoms, 1), Layout(k, 1))
        return TiledMma(atom, Layout((wm, wn, 1), (1, wm, 0)), tile)
    # FMA: 8 x 4 lanes, so that a warp reads as few distinct words as it can. An MN-major operand is
    # read four rows at a time, a K-major one four columns.
    lanes_m, lanes_n = FMA_LANES
    threads = Layout(((lanes_m, wm), (lanes_n, wn), 1), ((1, 32), (lanes_m, 32 * wm), 0))
    rows, columns = (
        Layout((extent, 4), (4, 1)) if major == "MN" else Layout(extent, 1)
        for extent, major in zip((lanes_m * wm, lanes_n * wn), _smem_majors(config), strict=True)
    )
    return TiledMma(
        atom, threads, (rows, columns, Layout(4 if "K" in _smem_majors(config) else 1, 1))
    )


def _reader(config: Sm80Config, atom: MmaAtom, axis: int) -> CopyAtom:
    """Return the instruction that loads an operand from shared memory to the MMA's registers."""
    if atom.threads == 1:
        return universal("ld.shared", 128)
    return choose.reader(config.operation.a.bytes, axis)


def _smem_atom(config: Sm80Config, reader: CopyAtom, axis: int, extents: tuple[int, int]) -> Layout:
    element = config.operation.a.bytes
    if config.copy == "mn_major" and element == 2:
        return Layout((32, 8), (1, 32), Swizzle(3, 3, 4))  # the field reference's
    return choose.swizzled_atom(element, extents, axis, reader)


def _gmem_copy(
    config: Sm80Config, major: str, width: int, extents: tuple[int, int], threads: int
) -> TiledCopy:
    """Return the tiled copy from global to shared memory, in vectors of ``width`` bytes."""
    element = config.operation.a.bytes
    vector = width // element
    if config.copy != "mn_major":
        if realigned(config, width):
            vector = choose.VECTOR // element
        axis = int(major == "K")
        return choose.vector_copy("cp.async", element, extents, axis, vector, threads)
    rows = min(16 // element, extents[0] // 16)
    bits = 8 * element * (min(vector, rows) if major == "MN" else 1)
    atom = choose.copy_atom("cp.async", bits)
    return gmem_tiled_copy(
        atom, 8 * element, column_major(16, threads // 16), column_major(rows, 1)
    )


def realigned(config: Sm80Config, width: int) -> bool:
    """Whether the rows of an operand of accesses of ``width`` bytes are copied by aligned words.

    cp.async copies 4 bytes or more; rows that begin elsewhere are put in place afterwards.
    """
    return width < 4 and config.copy != "mn_major"


@lru_cache(maxsize=4096)
def structure(config: Sm80Config) -> Sm80Structure:
    """Derive the structure of a config."""
    tile = kernel_tile(config)
    mma = tiled_mma(config)
    element = config.operation.a.bytes
    sources = "BA" if config.swap_ab else "AB"
    plans = []
    # A tile that is put in place is neither in flight nor multiplied, so there is one more. The
    # three tiles that are loaded with care come before the loop.
    ring = config.stages
    if ring > 1 and any(realigned(config, width) for width in config.operation.bytes[:2]):
        ring = max(ring + 1, 4)
    for operand, source, smem_major in zip("AB", sources, _smem_majors(config), strict=True):
        major = config.operation.majors["AB".index(source)]
        extents = (tile["AB".index(operand)], tile[2])
        width = config.operation.bytes["AB".index(source)]
        copy = _gmem_copy(config, major, width, extents, mma.size)
        axis = int(smem_major == "K")
        reader = _reader(config, mma.atom, axis)
        place = None
        if realigned(config, width):
            place = choose.place_copy(element, extents, axis, mma.size)
            atom, layout, stage = choose.spaced_rows(element, extents, axis, ring)
        else:
            atom = _smem_atom(config, reader, axis, extents)
            layout, stage = tile_to_shape(atom, (*extents, ring)), extents[0] * extents[1]
        plans.append(
            OperandPlan(
                source=source,
                major=major,
                gmem_copy=copy,
                smem_atom=atom,
                smem_layout=layout,
                smem_copy=mma_tiled_copy(reader, 8 * element, mma, operand),
                extents=extents,
                stage=stage,
                place=place,
            )
        )
    mainloop = sum(plan.stage for plan in plans) * ring * element

    # The epilogue stages as many columns of the accumulators as fit where the k tiles were.
    sums = config.operation.accumulator.bytes
    stage_bits = 128 if mma.atom.threads == 1 and mma.tile[0].stride != 1 else 8 * sums
    columns = tile[1]
    while columns > mma.extent(1) and _staged(mma, tile[0], columns, sums)[1] > mainloop:
        columns //= 2
    staged, staged_bytes = _staged(mma, tile[0], columns, sums)
    vector = min(16 // sums, config.operation.bytes[2] // config.operation.c.bytes)
    return Sm80Structure(
        tile=tile,
        mma=mma,
        operands=(plans[0], plans[1]),
        epilogue_tile=(tile[0], columns),
        epilogue_layout=staged,
        epilogue_stage=mma_tiled_copy(universal("st.shared", stage_bits), 8 * sums, mma, "C"),
        epilogue_copy=choose.vector_copy(
            "ld.shared", sums, (tile[0], columns), 0, vector, mma.size
        ),
        ring=ring,
        smem=max(mainloop, staged_bytes),
    )


def _staged(mma: TiledMma, rows: int, columns: int, size: int) -> tuple[Layout, int]:
    """Return where ``columns`` of the sums are staged, and the bytes that they take.

    Columns are padded by a vector. FMA lanes that store single rows, 8 side by side in each of 4
    columns, need columns that begin 8 banks, or 24, after each other: the next ones or, where a
    thread has four together, every fourth.
    """
    if mma.atom.threads > 1 or mma.tile[0].stride != 1:
        pitch = rows + choose.VECTOR // size
        return Layout((rows, columns), (1, pitch)), columns * pitch * size
    together = mma.tile[1].extents[-1] if mma.tile[1].rank > 1 else 1
    banks = choose.ROW // size
    apart = rows * together
    apart += (FMA_LANES[0] - apart) % (banks // 2)
    shape, stride = (together, columns // together), (rows, apart)
    if together == 1:
        return Layout((rows, columns), (1, apart)), columns * apart * size
    return Layout((rows, shape), (1, stride)), columns // together * apart * size
