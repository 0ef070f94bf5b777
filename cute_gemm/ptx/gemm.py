"""A plan's kernel executed on NumPy matrices, by the plan's own PTX, launch and signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scalars import scalar
from cute_gemm.ptx.launch import Argument, Buffer, Execution, parsed, run


class Emitted(Protocol):
    """What is asked of a plan (`cute_gemm.plan.Plan`)."""

    problem: GemmProblem

    @property
    def ptx(self) -> str:
        """The kernel's text."""

    @property
    def symbol(self) -> str:
        """Its name there."""

    @property
    def launch(self) -> Any:
        """How it is started (`cute_gemm.toolchain.signature.Launch`)."""

    @property
    def signature(self) -> Any:
        """What it is called with (`cute_gemm.toolchain.signature.Signature`)."""


def execute(
    plan: Emitted, A: np.ndarray, B: np.ndarray, C: np.ndarray, alpha: Any = 1, beta: Any = 0,
    places: Mapping[str, np.ndarray] | None = None, **options: Any,
) -> Execution:  # fmt: skip
    """Compute ``C <- alpha * op(A) @ op(B) + beta * C`` in place, by the kernel's instructions.

    The arrays are such as the plan was made for; their addresses are multiples of what the plan's
    matrices are aligned to, and of no more. ``places``: arrays for other pointers of the kernel, by
    the parameter's name (``alpha_ptr``); ``options`` are those of `run`.
    """
    problem, signature = plan.problem, plan.signature
    kind = problem.inputs.name
    factors = scalar(alpha, "alpha", kind, None), scalar(beta, "beta", kind, None)
    matrices = [
        Buffer(array, one.name, (one.first_alignment or one.alignment) % 256)
        for one, array in ((problem.A, A), (problem.B, B), (problem.C, C))
    ]
    block = signature.arguments(problem, *factors).block.raw
    text = parsed(plan.ptx, plan.symbol)
    sizes = [one.size or 0 for one in text.parameters.values()]
    # The driver is told where each argument lies: they are not packed as the text's are.
    values = [block[x : x + n] for x, n in zip(signature.offsets, sizes, strict=True)]
    given: list[Argument] = [*matrices, *values[len(matrices) :]]
    for at, parameter in enumerate(signature.parameters):
        if parameter.name in (places or {}):
            given[at] = Buffer((places or {})[parameter.name], parameter.name, 0)
    launch = plan.launch
    return run(
        plan.ptx, plan.symbol, launch.dimensions, (launch.block,), launch.smem,
        given, **options,
    )  # fmt: skip
