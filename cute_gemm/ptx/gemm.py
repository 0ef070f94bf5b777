"""A plan's kernel executed on NumPy matrices, by the plan's own PTX, launch and signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cute_gemm.problem.scalars import scalar
from cute_gemm.ptx.launch import Argument, Buffer, Execution, parsed, run

if TYPE_CHECKING:
    from cute_gemm.plan import Plan


def execute(
    plan: Plan, A: np.ndarray, B: np.ndarray, C: np.ndarray, alpha: Any = 1, beta: Any = 0,
    places: Mapping[str, np.ndarray] | None = None, **options: Any,
) -> Execution:  # fmt: skip
    """Compute ``C <- alpha * op(A) @ op(B) + beta * C`` in place, by the kernel's instructions.

    The arrays are such as the plan was made for; their addresses are multiples of what the plan's
    matrices are aligned to, and of no more. ``places``: arrays for other pointers of the kernel, by
    the parameter's name (``alpha_ptr``); ``options`` are those of `run`.
    """
    problem, kernel = plan.problem, plan._kernel.compiled()
    kind = problem.inputs.name
    factors = scalar(alpha, "alpha", kind, None), scalar(beta, "beta", kind, None)
    matrices = [
        Buffer(array, one.name, (one.first_alignment or one.alignment) % 256)
        for one, array in ((problem.A, A), (problem.B, B), (problem.C, C))
    ]
    block = kernel.signature.arguments(problem, *factors).block.raw
    text = parsed(plan.ptx, plan.symbol)
    sizes = [one.size or 0 for one in text.parameters.values()]
    # The driver is told where each argument lies: they are not packed as the text's are.
    values = [block[x : x + n] for x, n in zip(kernel.signature.offsets, sizes, strict=True)]
    given: list[Argument] = [*matrices, *values[len(matrices) :]]
    for at, parameter in enumerate(kernel.signature.parameters):
        if parameter.name in (places or {}):
            given[at] = Buffer((places or {})[parameter.name], parameter.name, 0)
    launch = plan.launch
    return run(
        plan.ptx, plan.symbol, launch.dimensions, (launch.block,), launch.smem,
        given, **options,
    )  # fmt: skip
