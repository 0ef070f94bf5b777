"""``host``: the triple loop on the CPU, the reference for the results of all other kernels.

The loops over m and n are NumPy's, in blocks whose accumulators fit a core's cache; the loop over k
is Python's. It calls no BLAS: every product is rounded and added in the order of k.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.access.accesses import Shares
from cute_gemm.dtypes import OF_COMPONENTS, operand_types
from cute_gemm.errors import UnsupportedError
from cute_gemm.kernels.base import Kernel
from cute_gemm.kernels.config import Config, NothingToChoose
from cute_gemm.problem.reference import scale, used

if TYPE_CHECKING:
    from collections.abc import Callable

    from cute_gemm.cost_model.footprint import Footprint
    from cute_gemm.problem.problem import GemmProblem

#: Extent of the blocks of C.
_BLOCK = 256


def gemm(
    problem: GemmProblem,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    alpha: complex = 1,
    beta: complex = 0,
) -> None:
    """Compute the result of ``problem.reference.gemm`` as a sum of outer products."""
    accumulator = problem.accumulator.numpy
    # Infinities and NaN are valid results, as in BLAS: no warnings.
    with np.errstate(all="ignore"):
        operands = used(problem, A, B, C)
        batch = zip(*operands, strict=True) if C.ndim == 3 else [operands]
        for a, b, c in batch:  # (M, K), (K, N), (M, N)
            for i in range(0, problem.m, _BLOCK):
                for j in range(0, problem.n, _BLOCK):
                    block = c[i : i + _BLOCK, j : j + _BLOCK]
                    total = None
                    if alpha != 0 and problem.k > 0:
                        left = a[i : i + _BLOCK].astype(accumulator)
                        right = b[:, j : j + _BLOCK].astype(accumulator, order="C")
                        left = left.conj() if problem.A.conj else left
                        right = right.conj() if problem.B.conj else right
                        total, product = (
                            np.zeros(block.shape, accumulator),
                            np.empty(block.shape, accumulator),
                        )
                        for k in range(problem.k):
                            np.multiply(left[:, k, None], right[k], out=product)
                            total += product
                    scale(total, block, accumulator, alpha, beta)


class Host(Kernel):
    """The triple loop on the CPU for every dtype, op, order and size, on host arrays."""

    name = "host"
    summary = "the triple loop on the CPU, the reference for correctness"
    minimum_cc = 0
    dtypes = tuple(name for name in operand_types() if name not in OF_COMPONENTS)
    options = ()
    runs_on = "cpu"
    idea = (
        "None: the definition. Every element of C is a sum over k, in that order, on the CPU. The "
        "results of all other kernels are compared with it."
    )
    not_compiled = (
        "kernel 'host' is a loop in Python on the CPU: nothing is compiled or launched for a GPU, "
        "so there is nothing to disassemble or to report; plan.source is the loop"
    )

    def footprints(self, *asked: Any) -> list[tuple[Any, Footprint | None]]:
        """Return the only config, for any problem and arch."""
        return [(NothingToChoose(self.name), None)]

    def on_host(self, *arguments: Any) -> None:
        """Compute with the loop, which has no epilogue."""
        gemm(*arguments[:6])

    def bind(self, *arguments: Any, **given: Any) -> Callable[..., None]:
        """Raise UnsupportedError: nothing is launched on a GPU."""
        raise UnsupportedError(self.not_compiled)

    def source(self, config: Config) -> str:
        """Return the loop's Python source."""
        return inspect.getsource(gemm)

    def shares(self, config: Config) -> Shares:
        """Return that results share no data."""
        return Shares((1, 1), None)
