"""Batches with any number of dimensions, as a few calls with one batch dimension each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

#: Extents are ints in the kernels.
_LARGEST_EXTENT = 2**31 - 1


class Submatrix(NamedTuple):
    """A matrix, or a batch of matrices, in a row-major array, in elements."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def parts(
    op: str, a: Sequence[int], b: Sequence[int], operands: Sequence[Sequence[int]], m: int, n: int
) -> list[tuple[Submatrix, ...]]:
    """Return the places of A, B, C and the operands of each call in row-major arrays.

    A leading dimension of an array is that of the batch, or 1 or missing if it is shared. If B, as
    stored, and the operands allow it, the rows of all products become rows of one product. Adjacent
    dimensions along which the same arrays are shared are merged. The last remaining dimension is
    the batch of a call, and each index along the other dimensions is a call.

    Parameters
    ----------
    op
        Op of the product, in upper case.
    a, b
        Shapes of A and B as stored.
    operands
        Shapes of the epilogue's operands, whose last two dimensions are those of C, or 1.
    m, n
        The last two dimensions of C; the other ones are the batch, and not 0.

    Examples
    --------
    >>> for call in parts("NT", (2, 8, 4, 5), (6, 5), [(6,)], 4, 6):
    ...     print(*(place.shape for place in call))
    (64, 5) (6, 5) (64, 6) (1, 6)
    """
    rank = max(2, *map(len, (a, b, *operands)))
    whole = [(*(1,) * (rank - len(shape)), *shape) for shape in (a, b, *operands)]
    dims = _merged([x[:-2] for x in whole])
    matrices = [(x[-2], x[-1]) for x in whole]
    while dims and _folds(op, dims[-1], matrices, m):
        extent, own = dims.pop()
        m *= extent
        matrices = [
            (rows * extent, columns) if varies else (rows, columns)
            for (rows, columns), varies in zip(matrices, own, strict=True)
        ]
    # A, B, C and the operands; C varies along all dimensions.
    matrices.insert(2, (m, n))
    dims = [(extent, (*own[:2], True, *own[2:])) for extent, own in dims]
    steps: list[tuple[int, ...]] = []
    sizes = [math.prod(matrix) for matrix in matrices]
    for extent, own in reversed(dims):
        steps.insert(0, tuple(size if x else 0 for size, x in zip(sizes, own, strict=True)))
        sizes = [size * extent if x else size for size, x in zip(sizes, own, strict=True)]
    if not dims:
        return [tuple(Submatrix(0, matrix, (matrix[1], 1)) for matrix in matrices)]
    extent, own = dims.pop()
    step = steps.pop()
    own = (own[0] or not own[1], *own[1:])  # an operand has the batch dimension, even if shared
    calls = []
    for index in itertools.product(*(range(outer) for outer, _ in dims)):
        offsets = [
            sum(i * each[x] for i, each in zip(index, steps, strict=True))
            for x in range(len(matrices))
        ]
        calls.append(
            tuple(
                Submatrix(offset, (extent, *matrix), (every, matrix[1], 1))
                if varies
                else Submatrix(offset, matrix, (matrix[1], 1))
                for offset, matrix, every, varies in zip(offsets, matrices, step, own, strict=True)
            )
        )
    return calls


def _merged(leads: Sequence[tuple[int, ...]]) -> list[tuple[int, tuple[bool, ...]]]:
    """Return the fewest batch dimensions, and whether each array varies along them.

    ``leads``: the arrays' leading extents, or 1.
    """
    dims: list[tuple[int, tuple[bool, ...]]] = []
    for extents in zip(*leads, strict=True):
        own = tuple(extent != 1 for extent in extents)
        if not any(own):
            continue
        extent = max(extents)
        if dims and dims[-1][1] == own:
            extent *= dims.pop()[0]
        dims.append((extent, own))
    return dims


def _folds(
    op: str, dim: tuple[int, tuple[bool, ...]], matrices: Sequence[tuple[int, int]], m: int
) -> bool:
    """Return whether the products along a dimension are rows of one product."""
    extent, (of_a, of_b, *of_operands) = dim
    return (
        op[0] == "N"
        and of_a
        and not of_b
        and m * extent <= _LARGEST_EXTENT
        and all(
            rows == (m if varies else 1)
            for varies, (rows, _) in zip(of_operands, matrices[2:], strict=True)
        )
    )
