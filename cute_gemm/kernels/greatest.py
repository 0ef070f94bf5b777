"""The atomics that write ``amax``, the greatest magnitude of the results, to memory.

A thread keeps the greatest of its results, and a warp writes its own to memory when it ends
(``EpilogueAmax`` in ``common/epilogue.cuh``), with one 32-bit atomic, or one 64-bit atomic of each
lane with results. Counts assume nonzero results: a warp of zeros has no atomic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.access.accesses import GlobalAccess
from cute_gemm.dtypes import DTYPES

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Compiled
    from cute_gemm.toolchain.signature import Launch

_LANES = 32


def atomics_of_results(
    kernel: Compiled, config: Any, problem: Any, launch: Launch
) -> list[GlobalAccess]:
    """Return the atomics of a launch: one access for each number of lanes and result."""
    epilogue = problem.epilogue
    tensors = zip((*epilogue.operands, *epilogue.results), problem.operands, strict=True)
    asked = [matrix for spec, matrix in tensors if spec.amax]
    if not asked or 0 in problem.C.shape:
        return []
    stores = [store for store, _ in kernel.epilogue_blocks(config, problem)]
    atomics = []
    for matrix in asked:
        bits = 8 * DTYPES[matrix.dtype].bytes
        requests: Counter[int] = Counter()
        for threads, count in _of_ctas(kernel, config, problem, stores, launch):
            lanes = threads.sum(axis=1)
            for number in lanes[lanes > 0].tolist():
                requests[number if bits == 64 else 1] += count
        for lanes, count in sorted(requests.items(), reverse=True):
            coords = np.where(np.arange(_LANES) < lanes, 0, -1)[None, :, None].repeat(2, axis=2)
            atomics.append(
                GlobalAccess(
                    matrix.name, "store", "atom.global", bits,
                    replace(matrix, shape=(1, 1), l=1, batch_stride=0), (1, 1), coords, 0, count,
                    limit="a number for the whole of C", unit="CTA",
                    part=f"{lanes} lanes" * (len(requests) > 1),
                )
            )  # fmt: skip
    return atomics


def _of_ctas(
    kernel: Compiled, config: Any, problem: Any, stores: list[GlobalAccess], launch: Launch
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the threads of a CTA with results, bool [warps, 32], and the number of such CTAs."""
    first = stores[0]
    if launch.places:
        yield from kernel.persistent_results(config, problem, launch)
        return
    (m, n), (bm, bn) = first.region, first.tile
    products = _split(first.matrix.l, first.group)
    for rows, along in _split(m, bm):
        for columns, across in _split(n, bn):
            for group, count in products:
                threads = np.zeros((launch.block // _LANES, _LANES), bool)
                for store in stores:
                    warp = kernel.warps_of(config, len(store.coords), len(threads))
                    threads |= with_results(store, (rows, columns), len(threads), warp, group)
                yield threads, along * across * count


def _split(extent: int, tile: int) -> list[tuple[int, int]]:
    """Return the extents of the tiles of a mode, and the number of tiles of each extent."""
    parts = [(tile, extent // tile), (extent % tile, 1)]
    return [(size, count) for size, count in parts if size and count]


def with_results(
    store: GlobalAccess, extents: tuple[int, int], warps: int, warp: np.ndarray,
    products: int = 1,
) -> np.ndarray:  # fmt: skip
    """Return which threads have results in a part of a tile inside C, bool [warps, 32].

    ``warp``: the warp of each request of ``store``.
    """
    inside = ((store.coords >= 0) & (store.coords < np.array(extents))).all(axis=-1)
    if store.products is not None:
        inside &= store.products < products
    threads = np.zeros((warps, _LANES), bool)
    np.logical_or.at(threads, warp, inside)
    return threads
