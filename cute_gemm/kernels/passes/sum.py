"""The pass that adds up a stored matrix over M or over N, in two launches where it is long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess
from cute_gemm.arch import Arch
from cute_gemm.dtypes import DTYPES
from cute_gemm.kernels.base import Compiled
from cute_gemm.kernels.options import access_bytes
from cute_gemm.kernels.passes.seconds import seconds
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.passes import padded
from cute_gemm.problem.sums import Summation, sums_dtype
from cute_gemm.toolchain.signature import Launch, Numbers, Pointer, Signature, cpp_type
from cute_gemm.toolchain.unit import TranslationUnit, cpp_bool

if TYPE_CHECKING:
    from cute_gemm.cost_model.calibration import Constants
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.problem.sums import Sum

#: Bytes of the widest access and of a line of L2.
VECTOR, LINE = 16, 128
#: log2 of the lanes of a warp, and of the warps of a CTA.
LOG_LANES, LOG_WARPS = 5, 2
LANES, WARPS = 1 << LOG_LANES, 1 << LOG_WARPS
#: Warps that keep enough bytes on their way without chunks, and that chunks are made for.
ENOUGH, MOST = 1024, 8192


@dataclass(frozen=True)
class SumConfig:
    """The type, and how its elements are loaded and their sums stored."""

    dtype: str
    over_rows: bool  #: Whether rows, which have unit stride, are added to each other.
    vector: int  #: Elements of a load.
    stored: int = 1  #: Sums of a store.
    dependent: bool = False  #: Whether launches of the arch may start before the one ahead ends.

    @property
    def sums(self) -> str:
        """The type of the sums."""
        return sums_dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of a load."""
        return self.vector * DTYPES[self.dtype].bytes

    @property
    def ahead(self) -> int:
        """Loads of a lane that are on their way at a time."""
        return 8 if self.nbytes == VECTOR else 16

    @property
    def across(self) -> int:
        """log2 of the fewest lanes along a row that read whole lines."""
        return min(LOG_LANES, (LINE // self.nbytes).bit_length() - 1)

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        way = f"rows_s{self.stored}" if self.over_rows else "row"
        return f"sum_{way}_{DTYPES[self.dtype].tag}_v{self.vector}"


class SumTiling(NamedTuple):
    """How the tiles lie: what its `SumShape` has, beside strides."""

    extent: int  #: Elements of a row, which is what has unit stride.
    rows: int
    depth: int  #: What a chunk has of those that are added up.
    chunks: int
    along: int  #: Tiles along the sums.
    across: int  #: log2 of the lanes along a row.
    stacked: int  #: log2 of the warps of a CTA that have chunks of their own.
    matrices: int  #: Of a batch.


class _Warps(NamedTuple):
    """How warps divide a matrix."""

    across: int  #: log2 of the lanes along a row.
    step: int  #: What a warp adds up at a time.
    steps: int
    blocks: int  #: Warps beside each other, for all sums.


def _vector(source: Matrix) -> int:
    """Return how many elements are loaded at a time, so that none straddles the end of a row."""
    return access_bytes(source, True)[0] // source.element.bytes


def _config(
    source: Matrix, mode: int, target: Matrix | None = None, arch: str = "sm_80"
) -> SumConfig:
    vector, size = _vector(source), DTYPES[sums_dtype(source.dtype)].bytes
    over_rows, stored = mode != source.unit, 1
    if target is not None and over_rows:
        stored = min(access_bytes(target, True)[0] // size, vector)
    dependent = Arch(arch).has("griddepcontrol")
    return SumConfig(source.dtype, over_rows, vector, stored, dependent)


def _warps(config: SumConfig, source: Matrix) -> _Warps:
    """Return how warps divide a matrix.

    A warp that adds rows to each other has a line of as many as it can; one that adds up each row
    for itself has as much of it as leaves a lane several loads.
    """
    vectors = -(-source.shape[source.unit] // config.vector)
    rows, most = source.shape[1 - source.unit], max(vectors - 1, 0).bit_length()
    across = min(config.across, most)
    if not config.over_rows:
        long = (vectors // config.ahead).bit_length() - 1
        across = min(LOG_LANES, most, max(across, long))
    lanes, lane_rows = 1 << across, LANES >> across
    if config.over_rows:
        return _Warps(across, lane_rows, -(-rows // lane_rows), -(-vectors // lanes))
    return _Warps(across, config.vector * lanes, -(-vectors // lanes), -(-rows // lane_rows))


def _place(config: SumConfig, summation: Summation) -> SumTiling:
    source, mode = summation.source, summation.mode
    warps, chunks = _warps(config, source), summation.target.shape[mode]
    stacked = LOG_WARPS if config.over_rows and warps.blocks < WARPS <= chunks else 0
    along = -(-warps.blocks // (WARPS >> stacked))
    extents = source.shape[source.unit], source.shape[1 - source.unit]
    return SumTiling(*extents, summation.depth, chunks, along, warps.across, stacked, source.l)


def _numbers(summation: Summation) -> tuple[int, ...]:
    source, target, mode = summation.source, summation.target, summation.mode
    place = _place(_config(source, mode), summation)
    return source.ld, source.batch_stride, target.stride[mode], target.batch_stride, *place


class Summing(Compiled):
    """The kernel that adds up a matrix over a mode."""

    name = "sum"
    _signature = Signature(
        (
            Pointer("source", "{}Element const*"),
            Pointer("target", "{}Sum*"),
            Numbers("shape", "cute_gemm::SumShape", 64, "=4q8I", _numbers),
        )
    )

    def launches(self, source: Matrix, asked: Sum) -> tuple[Summation, ...]:
        """Return the launches for a result: one, or that of the chunks and that of their sums."""
        mode, target = asked.mode, asked.target
        warps = _warps(config := _config(source, mode), source)
        least = 2 * config.ahead
        per_chunk = max(least, isqrt(warps.steps) // 2, -(-warps.steps * warps.blocks // MOST))
        if warps.blocks >= ENOUGH or warps.steps <= 2 * least:
            return (_whole(source, asked),)
        depth = per_chunk * warps.step
        chunks, other = -(-source.shape[mode] // depth), source.shape[1 - mode]
        element = target.element
        ld = padded(other * element.bytes) // element.bytes
        shape, stride = ((chunks, other), (ld, 1)) if mode == 0 else ((other, chunks), (1, ld))
        scratch = replace(
            target, name="scratch", shape=shape, stride=stride, alignment=LINE,
            batch_stride=ld * chunks if source.l != 1 else 0,
        )  # fmt: skip
        parts = Summation(source, scratch, mode, depth, whole=False)
        return parts, _whole(scratch, asked)

    def configure(self, summation: Summation, arch: str = "sm_80") -> SumConfig:
        """Return the config, which follows from how the matrix and its sums lie, and the arch."""
        return _config(summation.source, summation.mode, summation.target, arch)

    def signature(self, config: SumConfig) -> Signature:
        return self._signature

    def unit(self, config: SumConfig) -> TranslationUnit:
        lane_rows = LANES >> config.across
        source = f"""\
// the sums of {config.dtype} matrices over {"their rows" if config.over_rows else "each row"}
#include "passes/sum.cuh"

struct Config {{
  using Element = {cpp_type(DTYPES[config.dtype])};
  using Sum = {cpp_type(DTYPES[config.sums])};
  enum : int {{ kVector = {config.vector}, kStored = {config.stored}, kAhead = {config.ahead} }};
  enum : int {{ kLogWarps = {LOG_WARPS}, kLaneRows = {lane_rows} }};
  enum : bool {{ kOverRows = {cpp_bool(config.over_rows)} }};
}};

extern "C" __global__ void __launch_bounds__({LANES * WARPS})
{config.name}(
    {self.signature(config).cpp("Config::")}) {{
  cute_gemm::follow_grids();
  cute_gemm::sum<Config>(source, target, shape);
}}
"""
        return TranslationUnit(source, config.name)

    def launch(self, config: SumConfig, summation: Summation) -> Launch:
        place = _place(config, summation)
        ctas = place.along * -(-place.chunks // (1 << place.stacked))
        return Launch(ctas, LANES * WARPS, 0, place.matrices, dependent=config.dependent)

    def accesses(
        self, config: SumConfig, summation: Summation, *, reads_c: bool = False
    ) -> tuple[Access, ...]:
        source, target, mode = summation.source, summation.target, summation.mode
        place, unit, step = _place(config, summation), source.unit, _warps(config, source).step
        lane, warp = np.arange(LANES), np.arange(WARPS)[:, None, None]
        x, y = lane & (1 << place.across) - 1, lane >> place.across
        beside = LOG_WARPS - place.stacked
        block, chunk = warp & (1 << beside) - 1, warp >> beside
        first = np.arange(0, summation.depth, step)[:, None]
        if config.over_rows:
            along = ((block << place.across) + x) * config.vector
            added = chunk * summation.depth + first + y
            sums = (config.vector << place.across) << beside
        else:
            along = (block << LOG_LANES - place.across) + y
            added = first + x * config.vector
            sums = LANES >> place.across << beside
        tile = summation.depth << place.stacked, sums
        limit = "" if config.nbytes == VECTOR else _limit(source)
        load = GlobalAccess(
            operand=source.name, direction="load", instruction="ld.global",
            bits=8 * config.nbytes, matrix=source, tile=tile if mode == 0 else tile[::-1],
            coords=_coords(mode, added, along), axis=unit, sweeps=1, tail="full", limit=limit,
            unit="CTA",
        )  # fmt: skip
        tile = 1 << place.stacked, sums
        parts = config.vector // config.stored
        if config.over_rows:  # each row of lanes stores a part
            rows = LANES >> config.across
            part = np.arange(0, parts, rows)[:, None] + y
            along = along + part * config.stored
            active = (y < rows) & (part < parts)
        else:
            active = (x == 0)[None, :]
        along, chunk = (np.where(active, each, -1) for each in (along, chunk))
        bits = 8 * DTYPES[config.sums].bytes * config.stored
        store = replace(
            load, operand=target.name, direction="store", instruction="st.global", bits=bits,
            matrix=target, tile=tile if mode == 0 else tile[::-1],
            coords=_coords(mode, chunk, along), axis=1 - mode, limit="",
        )  # fmt: skip
        return load, store

    def seconds(self, summation: Summation, gpu: Gpu, constants: Constants) -> float:
        """Return the predicted time of a launch."""
        source, target = summation.source, summation.target
        narrow = _config(source, summation.mode).nbytes < VECTOR
        launch = constants.launch(gpu.arch.has("griddepcontrol"))
        return float(seconds(source.nbytes + target.nbytes, gpu, constants, launch, narrow))

    def all_seconds(self, problem: GemmProblem, gpu: Gpu, constants: Constants) -> float:
        """Return the predicted time of all sums of a problem."""
        matrices = {matrix.name: matrix for matrix in problem.matrices}
        return sum(
            self.seconds(launch, gpu, constants)
            for asked in problem.sums
            for launch in self.launches(matrices[asked.source], asked)
        )


def _whole(source: Matrix, asked: Sum) -> Summation:
    """The launch that adds up all of a matrix."""
    config = _config(source, asked.mode)
    step = _warps(config, source).step
    depth = max(-(-source.shape[asked.mode] // step), 1) * step
    return Summation(source, asked.target, asked.mode, depth, whole=True)


def _limit(source: Matrix) -> str:
    """What keeps loads from being wider."""
    return f"{source.name}'s {access_bytes(source, True)[1]}"


def _coords(mode: int, added: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Coordinates of what is added up over a mode, [requests, 32, 2]; -1 in both stays so."""
    pair = np.broadcast_arrays(added, along)
    return np.stack(pair if mode == 0 else pair[::-1], axis=-1).reshape(-1, LANES, 2)
