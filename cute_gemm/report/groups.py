"""Cost of a distribution of groups: tiles that extend beyond their group, and waves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cute_gemm._text import counted, percent, short
from cute_gemm.kernels.options import tiles_of
from cute_gemm.problem.parts.groups import equal_ends, sizes_of, tail_of

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem


def describe_groups(
    problem: GemmProblem, tile: tuple[int, ...], places: int, ends: Sequence[int] | None
) -> str:
    """Return a sentence on the groups of a problem in tiles (bM, bN, bK), ``places`` at a time.

    ``ends``: the ends of the groups; by default groups are of equal size.
    """
    mode, equal = problem.groups.mode, ends is None
    ends = equal_ends(problem) if ends is None else ends
    sizes = sizes_of(problem, ends)
    deep = tile["MNK".index(mode)]
    blocks = [-(-size // deep) for size in sizes]
    covered = sum(blocks) * deep
    down, across = tiles_of(problem, tile)
    if mode == "K":
        tiles = down * across * problem.l
        kind = f"{max(blocks, default=0)} tiles along K at most, {short(sum(blocks) / len(sizes))} "
        kind += "on average"
    else:
        tiles = sum(blocks) * (across if mode == "M" else down)
        kind = f"{sum(size % deep > 0 for size in sizes)} of the groups end within one"
    spread = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{sizes[0]}"
    beyond = percent(1 - sum(sizes) / covered) if covered else percent(0.0)
    zeros, of_tail = 0, ""
    if problem.groups.zero_tail:
        rows, columns = tail_of(problem, ends).shape
        zeros = -(-rows // tile[0]) * -(-columns // tile[1])
        of_tail = f"; {counted(zeros, 'tile')} of zeros after the last group"
    return (
        f"{counted(problem.l, 'group')} of {spread} along {mode}"
        + ", taken to be equal" * equal
        + f": {counted(tiles, 'tile')} of {tile[0]} x {tile[1]}, {kind}; {beyond} of their "
        f"products lie beyond the groups{of_tail}; {short((tiles + zeros) / places)} waves of "
        f"{places} CTAs"
    )
