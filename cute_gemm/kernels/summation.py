"""``OrderOfSummation``: the instructions and the order by which elements of C are summed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm._text import counted
from cute_gemm.problem.parts.packing import Algorithm
from cute_gemm.problem.parts.slices import slice_extents

if TYPE_CHECKING:
    from cute_gemm.kernels.base import Kernel
    from cute_gemm.problem.problem import GemmProblem


class OrderOfSummation(NamedTuple):
    """The order in which an element of C is summed over K: equal orders give the same bits.

    On one GPU and with one version of this library, the same row of op(A) and the same B give the
    same row of C, for any values and number of other rows.
    """

    #: The kernel's name.
    kernel: str
    #: The kernel's instructions, and their order along K.
    instructions: str
    #: k of a slice, and the number of slices, added in order; without slices all of k, and 1.
    depth: int
    slices: int

    @classmethod
    def of(
        cls, kernel: Kernel, config: Any, problem: GemmProblem, algorithm: Algorithm
    ) -> OrderOfSummation:
        """Return the order of a kernel, a config and an algorithm."""
        return cls.by(
            kernel.name, kernel.summation(config), config.tile[2], problem, algorithm.split_k
        )

    @classmethod
    def by(
        cls, kernel: str, instructions: str, tile_k: int, problem: GemmProblem, slices: int
    ) -> OrderOfSummation:
        """Return the order of a k tile and a requested number of slices."""
        depth, slices = problem.k, min(slices, max(problem.k, 1))
        if problem.accumulator.name == "int32":
            instructions = "integers, whose sum does not depend on the order"
        if slices > 1:
            depth, slices = slice_extents(problem, slices, tile_k)
        return cls(kernel, instructions, depth, slices)

    def __str__(self) -> str:
        text = f"{self.kernel}: {self.instructions}"
        if self.slices > 1:
            text += f"; {counted(self.slices, 'slice')} of {self.depth:,} of k, added in order"
        return text
