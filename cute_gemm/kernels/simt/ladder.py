"""The ladder of tutorial kernels: each differs from the previous one by one idea."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cute_gemm.cute.choose import VECTOR
from cute_gemm.dtypes import FLOAT8
from cute_gemm.kernels.options import access_bytes, parsed
from cute_gemm.kernels.simt.kernel import SimtKernel
from cute_gemm.kernels.simt.structure import WARP, WARP_LANES, SimtConfig

if TYPE_CHECKING:
    from cute_gemm.cost_model.calibration import Calibration, Pace
    from cute_gemm.problem.problem import GemmProblem


class _Tile(NamedTuple):
    """A way to cut C: tile, thread tile, CTAs per multiprocessor."""

    tile: tuple[int, int, int]
    thread_tile: tuple[int, int]
    min_ctas: int


_HALVES, _NARROW_HALVES = (_Tile((128, 128, 16), (8, 16), 2),), (_Tile((128, 64, 16), (8, 8), 2),)
_BYTES = (_Tile((128, 64, 32), (8, 8), 2), _Tile((64, 64, 32), (4, 8), 2))
_FLOATS = (
    _Tile((128, 128, 8), (8, 16), 2),
    _Tile((128, 64, 16), (8, 8), 2),
    _Tile((64, 64, 16), (4, 8), 4),
    _Tile((128, 32, 16), (8, 4), 4),
    _Tile((64, 32, 16), (4, 4), 4),
    _Tile((32, 16, 32), (2, 2), 4),
)
_NARROW_FLOATS = (_Tile((128, 64, 16), (8, 8), 3), *_FLOATS[2:])
_COMPLEX = (
    _Tile((64, 64, 16), (4, 4), 2),
    _Tile((64, 64, 8), (4, 8), 2),
    _Tile((128, 32, 8), (4, 8), 3),
    _Tile((64, 32, 16), (4, 4), 4),
    _Tile((32, 32, 16), (2, 4), 4),
    _Tile((32, 16, 32), (2, 2), 4),
)
_NARROW_COMPLEX = tuple(row for row in _COMPLEX if row.thread_tile != (4, 8))
#: Tiles of ``double_buffered``, tuned on an H200, largest first, by the number of A and B that are
#: not read in the widest vectors (single elements in flight take more registers).
_BUFFERED = {
    "float16": (_HALVES, _NARROW_HALVES, _NARROW_HALVES),
    "bfloat16": (_HALVES, _NARROW_HALVES, _NARROW_HALVES),
    "float8": (_BYTES, _BYTES, _BYTES),
    "float32": (_FLOATS, _FLOATS[1:], _NARROW_FLOATS),
    "float64": ((_Tile((128, 64, 8), (8, 8), 2),),) * 3,
    "complex64": (_COMPLEX, _NARROW_COMPLEX, _NARROW_COMPLEX),
    "complex128": ((_Tile((64, 64, 8), (4, 4), 1),),) * 3,
}


def _bytes(problem: GemmProblem) -> int:
    return problem.A.element.bytes


def _flat(problem: GemmProblem) -> int:
    """Return bK of a flat tile: 8, or a sector of 16-bit elements."""
    return max(8, 32 // _bytes(problem))


def _narrow(problem: GemmProblem) -> int:
    """Return the number of A and B that cannot be read in the widest vectors."""
    return sum(access_bytes(matrix, False)[0] < VECTOR for matrix in (problem.A, problem.B))


class Naive(SimtKernel):
    """One thread per element of C, for any layout."""

    name = "naive"
    dtypes = (*SimtKernel.dtypes, *FLOAT8)
    summary = "one thread per element of C, a warp along n, for every layout"
    options = ("warp_along", "tile", "min_ctas")
    choices: ClassVar = {"warp_along": ("m", "n")}
    fields: ClassVar = {"tile": (32, 32, 1), "warp_along": "n"}


class Coalesced(SimtKernel):
    """``naive`` with the warp along a mode that is contiguous in memory."""

    name = "coalesced"
    dtypes = (*SimtKernel.dtypes, *FLOAT8)
    summary = "one thread per element of C, a warp along a contiguous mode (k: by a reduction)"
    options = ("warp_along", "tile", "min_ctas")
    choices: ClassVar = {"warp_along": ("m", "n", "k")}

    def rows(self, problem: GemmProblem, options: dict[str, Any]) -> Sequence[dict[str, Any]]:
        along = "m" if problem.A.unit == 0 else "n" if problem.B.unit == 0 else "k"
        along = options.get("warp_along", along)  # along k, the lanes of a warp share a result
        tile = (8, 4, WARP) if along == "k" else (32, 32, 1)
        return [{"tile": tile, "warp_along": along, "min_ctas": 1}]


class SmemTiled(SimtKernel):
    """Square tiles of A and B in shared memory, K in steps."""

    name = "smem_tiled"
    summary = "square tiles in shared memory, K in steps"
    options = ("tile", "raster", "min_ctas")
    fields: ClassVar = {"tile": (32, 32, 32)}


class SmemFullK(SmemTiled):
    """Whole K panels of A and B in shared memory."""

    name = "smem_full_k"
    summary = "whole K panels of A and B in shared memory; refuses a k that does not fit"
    whole_k = True

    def rows(self, problem: GemmProblem, options: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return [self.fields, {"tile": (16, 16, 32)}]  # more of K fits with smaller tiles


class RegisterRows(SimtKernel):
    """Shared-memory tiles, two rows of C per thread."""

    name = "register_rows"
    summary = "shared-memory tiles, two (thread_tile) rows of C per thread"
    fields: ClassVar = {"tile": (64, 32, 32), "thread_tile": (2, 1), "warp_along": "n"}


class ThreadTile1d(SimtKernel):
    """A column of eight results per thread."""

    name = "thread_tile_1d"
    summary = "a column of results per thread, the element of B in a register"

    def rows(self, problem: GemmProblem, options: dict[str, Any]) -> Sequence[dict[str, Any]]:
        tile = (64, 64, _flat(problem))
        return [{"tile": tile, "thread_tile": (8, 1), "warp_along": "n"}]


class ThreadTile2d(SimtKernel):
    """TM x TN results per thread, by outer products."""

    name = "thread_tile_2d"
    summary = "TM x TN results per thread, outer products from registers"
    fields: ClassVar = {"results": "apart"}
    #: bK of float32.
    columns: ClassVar[int] = 16

    def rows(self, problem: GemmProblem, options: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """Return a CTA of 256 threads with 8 x 8 results each; fewer for wider elements."""
        if _bytes(problem) > 4:
            row = {"tile": (64, 64, self.columns // 2), "thread_tile": (4, 4)}
        else:
            row = {"tile": (128, 128, max(self.columns, _flat(problem))), "thread_tile": (8, 8)}
        return [{**row, **self.fields}]


class Vectorized(ThreadTile2d):
    """128-bit accesses of global and shared memory."""

    name = "vectorized"
    summary = "128-bit accesses, K-major operands transposed during the copy to shared memory"
    fields: ClassVar = {"skew": "none"}
    wide = True


class BankFree(Vectorized):
    """``vectorized`` without bank conflicts."""

    name = "bank_free"
    summary = "no bank conflicts: tiles in shared memory swizzled by XOR, or padded (skew)"
    options = ("tile", "thread_tile", "skew", "raster", "min_ctas")
    choices: ClassVar = {"skew": ("xor", "padding")}

    def rows(self, problem: GemmProblem, options: dict[str, Any]) -> Sequence[dict[str, Any]]:
        (row,) = super().rows(problem, options)
        # The row cannot be XORed if a chunk is one element.
        return [{**row, "skew": "padding" if _bytes(problem) == 16 else "xor"}]


class WarpTiled(ThreadTile2d):
    """CTA, warp and thread tiles."""

    name = "warp_tiled"
    summary = "CTA, warp and thread tiles; paired lanes share vectors"
    options: tuple[str, ...] = BankFree.options
    choices: ClassVar = BankFree.choices
    fields: ClassVar = {"skew": "padding", "results": "quads"}
    columns = 32
    wide = True

    def rows(self, problem: GemmProblem, options: dict[str, Any]) -> Sequence[dict[str, Any]]:
        (row,) = super().rows(problem, options)
        if _narrow(problem) and _bytes(problem) <= 4:  # single elements take more registers
            row |= {"tile": (128, 64, 16), "min_ctas": 3}
        return [row]

    def settle(self, config: SimtConfig) -> SimtConfig:
        """Return the config with as many warps of 8 x 4 threads as fill the tile."""
        (bm, bn, _), (tm, tn), lanes = config.tile, config.thread_tile, WARP_LANES
        warps = (bm // max(1, lanes[0] * tm), bn // max(1, lanes[1] * tn))
        return replace(config, warps=(max(1, warps[0]), max(1, warps[1])))


class DoubleBuffered(WarpTiled):
    """The next tile is loaded while the current one is computed."""

    name = "double_buffered"
    dtypes = (*SimtKernel.dtypes, *FLOAT8)
    takes: ClassVar = frozenset(("epilogue", "groups", "scales"))
    batch_invariant: ClassVar = True
    summary = "the next tile is loaded (registers or cp.async) while the current one is computed"
    options = (*WarpTiled.options, "staging")
    label_options: ClassVar = {"thread_tile": "t{}"}
    choices: ClassVar = {**WarpTiled.choices, "staging": ("cp.async", "registers")}
    fields: ClassVar = {**WarpTiled.fields, "staging": "cp.async"}

    def pace(self, config: SimtConfig, calibration: Calibration) -> Pace:
        """Return the pace; ``partial`` is a calibration's factor for partial sectors of C."""
        partial = calibration.factors[self.name]["partial"]
        return super().pace(config, calibration)._replace(ahead=1, partial=partial)

    def summation(self, config: SimtConfig) -> str:
        parts = f"FMA along K, the last k tile of {config.tile[2]} first"
        parts += ", whose products are scaled and added" * bool(config.operation.block_scales)
        if config.operation.a.is_complex and config.thread_tile[1] == 1:
            parts += ", of imaginary parts the products with B's first"
        return parts

    def rows(self, problem: GemmProblem, options: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """Return the rows with the given tile or thread tile.

        If there is no such row, take the other field from the row for large problems, and do not
        limit registers.
        """
        kind = "float8" if problem.A.dtype in FLOAT8 else problem.A.dtype
        tiles = _BUFFERED[kind][_narrow(problem)]
        turn = problem.A.major == "K" and problem.B.major == "MN"
        rows = [
            {**self.fields, **row._asdict(), "tile": tile}
            for row in tiles
            # The longer side comes first for the operand not transposed and held in registers.
            for tile in dict.fromkeys(
                (_transposed(row.tile, turn), _transposed(row.tile, not turn))
            )
        ]
        fixed = parsed(tiles[0], {o: options[o] for o in ("tile", "thread_tile") if o in options})
        matching = [row for row in rows if fixed.items() <= row.items()]
        return matching or [{**rows[0], "min_ctas": 1}]


def _transposed(tile: tuple[int, int, int], turn: bool) -> tuple[int, int, int]:
    return (tile[1], tile[0], tile[2]) if turn else tile
