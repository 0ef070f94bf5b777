"""Batches with any number of dimensions, as a few calls with one batch dimension each."""

from __future__ import annotations

import itertools
import math
import operator
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
    varying = [(*own[:2], True, *own[2:]) for _, own in dims]
    extents = [extent for extent, _ in dims]
    steps = [
        _steps(math.prod(matrix), extents, [own[x] for own in varying])
        for x, matrix in enumerate(matrices)
    ]
    batched = [False] * len(matrices)
    if dims:
        *_, (of_a, of_b, *others) = varying
        # An operand has the batch dimension, even if it is shared.
        batched = [of_a or not of_b, of_b, *others]

    def place(x: int, index: tuple[int, ...]) -> Submatrix:
        offset = sum(map(operator.mul, index, steps[x]))
        shape, strides = matrices[x], (matrices[x][1], 1)
        if not batched[x]:
            return Submatrix(offset, shape, strides)
        return Submatrix(offset, (extents[-1], *shape), (steps[x][-1], *strides))

    calls = itertools.product(*map(range, extents[:-1]))
    return [tuple(place(x, index) for x in range(len(matrices))) for index in calls]


def _steps(size: int, extents: Sequence[int], varies: Sequence[bool]) -> list[int]:
    """Return the elements from one index to the next along each batch dimension, 0 if shared."""
    steps: list[int] = []
    for extent, own in zip(reversed(extents), reversed(varies), strict=True):
        steps.insert(0, size * own)
        size *= extent if own else 1
    return steps


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
