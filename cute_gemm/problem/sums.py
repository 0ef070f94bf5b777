"""Sums of a matrix over M or over N: what an epilogue asks for, and what a launch computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cute_gemm.problem.matrix import Matrix

#: Modes that are summed over, by their places in a matrix.
MODES = "MN"


class Sum(NamedTuple):
    """A result that is the sum of C, or of another result, over a mode.

    ``source`` is its name; ``mode`` is 0 for M, 1 for N; ``target`` has the extents of the source,
    but 1, with stride 0, in the mode that is summed over.
    """

    source: str
    mode: int
    target: Matrix


@dataclass(frozen=True, slots=True)
class Summation:
    """The sums over a mode of every matrix of a batch, ``depth`` elements each.

    ``target`` has the source's extents, but in that mode as many as there are sums.
    """

    source: Matrix
    target: Matrix
    mode: int
    depth: int
    whole: bool  #: Whether they are the result; else they go to scratch, and are summed again.

    @property
    def operands(self) -> tuple[Matrix, ...]:
        """Those of an epilogue, which sums have none of."""
        return ()

    @property
    def nbytes(self) -> int:
        """Bytes of scratch that are written."""
        if self.whole:
            return 0
        matrix = self.target
        each = matrix.ld * matrix.shape[self.mode] * matrix.element.bytes
        return each * matrix.l


def sums_dtype(dtype: str) -> str:
    """Return the type of the sums of a matrix of this type."""
    return "float64" if dtype == "float64" else "float32"


def result_name(place: int) -> str:
    """Return the name of the result that an epilogue returns at a place behind C."""
    return f"result_{place}"
