"""The search for fixes of a global access: rounds of more and more changes.

Kernels (`gmem`) and copies of the user (`copies`) share the search; these modules construct the
access after a change and rank it. A change is another placement of the tile in global memory,
another copy of the tile, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from cute_gemm._text import named, number, percent
from cute_gemm.access import gmem
from cute_gemm.access.accesses import GlobalAccess
from cute_gemm.access.fix import Fix
from cute_gemm.cute.choose import VECTOR
from cute_gemm.cute.layout import Layout
from cute_gemm.fixes.tiles import plain_strides

if TYPE_CHECKING:
    from cute_gemm.rendering.rows import AccessRow

Tried = TypeVar("Tried")


def fix_to(
    what: str, row: AccessRow, sharers: Iterable[AccessRow] = (),
    change: dict[str, Any] | None = None,
) -> Fix:  # fmt: skip
    """Return the fix that leads to ``row``; ``sharers`` access the same shared memory."""
    others: dict[str, AccessRow] = {}
    if row.space == "global":
        figures = named(row, "bits", "requests", "sectors", "ideal_sectors", "efficiency")
        cost, unit, ideal = row.sectors, "sector", f"{number(row.ideal_sectors)}, "
        ideal += percent(row.efficiency)
        if row.l2_sectors != row.sectors:
            figures["l2_sectors"] = row.l2_sectors
    else:
        figures = named(row, "wavefronts", "ideal_wavefronts", "conflicts")
        cost, unit, ideal = row.wavefronts, "wavefront", number(row.ideal_wavefronts)
        others = {
            f"; {x.instruction} {number(x.wavefronts)}, ideal {number(x.ideal_wavefronts)}": x
            for x in sharers
            if x.instruction != row.instruction
        }
    of_l2 = f" ({number(row.l2_sectors)} of L2)" * ("l2_sectors" in figures)
    reading = f"{number(cost)} {unit}{'s' * (cost != 1)} per request{of_l2}, ideal {ideal}"
    access = row.access if isinstance(row.access, GlobalAccess) else None
    return Fix(what, "".join((reading, *others)), figures, change or {}, access)


def quality(row: AccessRow) -> tuple[bool, float, int]:
    """Return the quality of an access: legal, ideal over cost (1.0 at best), bits."""
    counts: Any = row.counts
    if row.space == "global":
        ideal, cost = counts.ideal_sectors, max(counts.sectors, counts.l2_sectors)
    else:
        ideal, cost = counts.ideal_wavefronts, counts.wavefronts
    return row.analysis.aligned, ideal / max(1, cost), row.bits


def contents(*values: Any) -> list[Any]:
    """Return the values that a search depends on in comparable form: arrays as digests."""
    return [
        (value.shape, blake2b(value.astype(np.int64).tobytes(), digest_size=16).digest())
        if isinstance(value, np.ndarray)
        else value
        for value in values
    ]


# -- places of a tile in global memory ------------------------------------------------------------


class TilePlacement(NamedTuple):
    """A tile's place; ``alignment``: of element (0, 0) in bytes; ``words``: what has changed."""

    layout: Layout
    alignment: int
    words: tuple[str, ...] = ()


def rounds(
    tile: TilePlacement, size: int, extents: tuple[int, ...], least_pitch: int,
    stored: Callable[[int, int], tuple[str, ...]],
) -> list[list[TilePlacement]]:  # fmt: skip
    """Return placements of a tile, in rounds of more and more changes.

    They are: the present one; a leading dimension padded to a multiple of 16, 32 or 128 bytes, or
    an address aligned to that; both; a longer tile; storage with the other major.

    Parameters
    ----------
    tile, size
        The present placement, and the bytes of an element.
    extents
        Extents of the matrix, or of the tile if the matrix is not known.
    least_pitch
        Lower bound of the leading dimension of the other major, which is a multiple of a sector.
    stored
        Returns the words for the other major, from its unit-stride mode and leading dimension.
    """
    pitched = pitch_of(tile.layout)
    if pitched is None:
        return [[tile], [*_aligned(tile)], []]
    pitch, mode = pitched
    padded = [*_padded(tile, size, pitch, mode, extents[1 - mode])]
    sector = max(1, gmem.SECTOR // size)
    transposed = max(least_pitch, -(-extents[mode] // sector) * sector)
    layout = _with_pitch(tile.layout.extents, transposed, 1 - mode)
    return [
        [tile],
        [*padded, *_aligned(tile)],
        [both for place in padded for both in _aligned(place)],
        [*_longer(tile, size, pitch, mode)],
        [TilePlacement(layout, tile.alignment, stored(mode, transposed))],
    ]


def pitch_of(layout: Layout) -> tuple[int, int] | None:
    """Return the leading dimension and its mode; None without a unit-stride mode."""
    strides = plain_strides(layout)
    mode = int(bool(strides) and strides[0] == 1)
    return (strides[mode], mode) if strides else None


def _with_pitch(extents: tuple[int, ...], pitch: int, mode: int) -> Layout:
    """Return the layout whose ``mode`` has this stride, and the other mode stride 1."""
    return Layout(extents, (1, pitch) if mode else (pitch, 1))


def _padded(
    tile: TilePlacement, size: int, pitch: int, mode: int, row: int
) -> Iterator[TilePlacement]:
    """Yield padded leading dimensions that are not shorter than a row of the matrix."""
    # Rows of a few bytes need less padding than a vector.
    for granule in (VECTOR, gmem.SECTOR, gmem.LINE, VECTOR // 2, VECTOR // 4):
        step = granule // gcd(granule, size)
        wider = -(-max(pitch, row) // step) * step
        if wider != pitch:
            layout = _with_pitch(tile.layout.extents, wider, mode)
            words = f"leading dimension {wider}, a multiple of {granule} bytes"
            yield TilePlacement(layout, tile.alignment, (words,))


def _aligned(tile: TilePlacement) -> Iterator[TilePlacement]:
    """Yield better alignments of the base address."""
    for alignment in (VECTOR, gmem.SECTOR, gmem.LINE):
        if alignment > tile.alignment:
            words = f"base address aligned to {alignment} bytes"
            yield TilePlacement(tile.layout, alignment, (*tile.words, words))


def _longer(tile: TilePlacement, size: int, pitch: int, mode: int) -> Iterator[TilePlacement]:
    """Yield a tile of whole sectors along the unit-stride mode, if rows are long enough."""
    shape = [*tile.layout.extents]
    length = -(-shape[1 - mode] * size // gmem.SECTOR) * gmem.SECTOR // size
    if shape[1 - mode] * size % gmem.SECTOR and length <= pitch:
        shape[1 - mode] = length
        layout = _with_pitch(tuple(shape), pitch, mode)
        yield TilePlacement(layout, tile.alignment, (f"a tile of ({shape[0]},{shape[1]})",))


# -- the search -----------------------------------------------------------------------------------


def cheapest(
    tried: Iterable[Tried | None], rank: Callable[[Tried], Any], ideal: Callable[[Tried], bool]
) -> Tried | None:
    """Return the first change of least rank; try none after an ideal one."""
    best: Tried | None = None
    for new in tried:
        if new is not None and (best is None or rank(new) < rank(best)):
            best = new
            if ideal(best):
                break
    return best


def search(
    places: Sequence[list[TilePlacement]], best_of: Callable[[list[TilePlacement]], Tried | None],
    rank: Callable[[Tried], Any], ideal: Callable[[Tried], bool], strided: bool,
) -> list[Tried]:  # fmt: skip
    """Return the best change of each round that improves on the rounds before, in order.

    ``best_of`` evaluates a round. The search ends with an ideal change. For a ``strided`` access
    the last round, storage with the other major, is tried too, and suggested if it is ideal.
    """
    offered: list[Tried] = []
    for index, round_ in enumerate(places):
        other = strided and index == len(places) - 1
        if offered and ideal(offered[-1]) and not other:
            continue
        best = best_of(round_)
        if best is not None and (
            not offered or rank(best) < rank(offered[-1]) or (other and ideal(best))
        ):
            offered.append(best)
    return offered
