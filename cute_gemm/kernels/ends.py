"""Loads of the ends of groups, by which warps find their tiles; zeros after the last group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cute_gemm.access.accesses import GlobalAccess
from cute_gemm.cute.copies import LANES
from cute_gemm.kernels.options import tiles_of
from cute_gemm.kernels.staging import store_of_c
from cute_gemm.problem.parts.groups import equal_ends, sizes_of, tail_of
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.toolchain.signature import Launch


def loads_of_ends(
    problem: GemmProblem, config: Any, launch: Launch, ends: Sequence[int] | None
) -> list[GlobalAccess]:
    """Return the loads of the ends of groups: ``ends``, or those of groups of equal size.

    In a persistent grid (``templates/tma/tile_scheduler.cuh``) they are loaded by one producer
    thread, by the lanes that copy block scales and by each consumer thread; in other grids
    (``templates/common/groups.cuh``) by all threads.
    """
    warps, groups = launch.block // LANES, problem.l
    every = np.zeros((warps, LANES), np.int64)
    if launch.places:  # in the first four warps only one thread and lanes that copy scales load
        copiers = config.scale_copiers if any(config.operation.scales) else 0
        every = every[2 if copiers else 3 :]
        every[0, 1:] = -1
        every[1, copiers or LANES :] = -1
    if problem.groups.mode == "K":
        # A tile's group begins where the previous one ends, the first at 0.
        rows = [row for group in range(groups) for row in (group - 1, group) if row >= 0]
        tiles = launch.tiles if launch.places else launch.ctas
        return [_loads(problem, _of(rows, every), 0, groups, tiles // groups)]
    if launch.places:  # a CTA visits all groups
        return [_loads(problem, _of(range(groups), every), 0, groups, launch.ctas)]
    # Each lane has one of 32 groups at a time, up to the CTA's own group or the last.
    index = "MN".index(problem.groups.mode)
    tile, across = config.tile[index], tiles_of(problem, config.tile)[1 - index]
    sizes = sizes_of(problem, equal_ends(problem) if ends is None else ends)
    coords = np.broadcast_to(np.arange(LANES), (warps, LANES))
    loads = []
    for first in range(0, groups, LANES):
        before = sum(-(-size // tile) for size in sizes[:first]) * across
        part = f"groups from {first} on" if first else ""
        loads.append(_loads(problem, coords, first, LANES, launch.ctas - before, part))
    return loads


def stores_of_zeros(problem: GemmProblem, config: Any, ends: Sequence[int]) -> GlobalAccess:
    """Return the stores of zeros to C after the last group (``templates/common/groups.cuh``)."""
    C, tile = tail_of(problem, ends), config.tile[:2]
    vector = _zeros_at_a_time(problem, config)
    along, across = tile[C.unit] // vector, tile[1 - C.unit]
    place = divmod(np.arange(along * across), along)
    place = place[0], place[1] * vector
    coords = np.stack(place if C.unit else place[::-1], -1).reshape(-1, LANES, 2)
    return store_of_c(
        C, 8 * C.element.bytes * vector, tile, coords, "zeros are stored element by element",
        part="after the last group",
    )  # fmt: skip


def _zeros_at_a_time(problem: GemmProblem, config: Any) -> int:
    """Return the zeros that a thread stores at a time (``templates/sm90/epilogue.cuh``).

    They are 16 bytes if TMA stores C and the contiguous mode is not that of the groups.
    """
    C, vector = problem.C, 16 // problem.C.element.bytes
    wide = getattr(config, "tma_c", False) and "MN"[C.unit] != problem.groups.mode
    return vector if wide and config.tile[C.unit] % vector == 0 else 1


def _of(rows: Sequence[int], lanes: np.ndarray) -> np.ndarray:
    """Return these rows for lanes that are 0, and none for lanes that are -1."""
    each = np.asarray(rows)[:, None, None]
    return np.where(lanes < 0, -1, each).reshape(-1, LANES)


def _loads(
    problem: GemmProblem, rows: np.ndarray, first: int, count: int, visits: int, part: str = ""
) -> GlobalAccess:
    assert problem.groups.ends is not None
    extent = min(count, problem.l - first)
    coords = np.stack([rows, np.minimum(rows, 0)], -1)
    return GlobalAccess(
        "offsets", "load", "ld.global", 32, problem.groups.ends, (extent, 1), coords, 0, visits,
        origin=(first, 0), extents=(extent, 1), unit="CTA", part=part,
    )  # fmt: skip
