"""Random matrices of commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cute_gemm._text import named
from cute_gemm.commands.arguments import group_ends, planned
from cute_gemm.dtypes import DTYPES

if TYPE_CHECKING:
    from cute_gemm.plan.plan import Plan
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem


def planned_on_matrices(
    arguments: argparse.Namespace, **more: Any
) -> tuple[Plan, tuple[Any, Any, Any], dict[str, Any]]:
    """Return the plan of random matrices, A, B and C, and other arguments of a call, by name.

    Errors are raised before a large matrix is made.
    """
    from cute_gemm.api import plan
    from cute_gemm.problem.scalars import scalar

    sized = planned(arguments).problem
    for name in ("alpha", "beta"):
        scalar(getattr(arguments, name), name, sized.scalar.name, None)
    A, B, C = _stored(arguments, sized)
    operands = _stored_operands(arguments, sized)
    result = plan(
        arguments.op, A, B, C, **arguments.options, **operands,
        **{**named(arguments, "compute", "kernel", "arch"), **more},
    )  # fmt: skip
    return result, (A, B, C), operands


def _stored(arguments: argparse.Namespace, problem: GemmProblem) -> tuple[Any, Any, Any]:
    """Return random A, B and C as stored, each in a buffer with its leading dimension."""
    import numpy as np

    from cute_gemm.measure.matrices import generator
    from cute_gemm.problem.values import random_values

    rng = generator(arguments.seed)

    alone = {"M": "AC", "N": "BC", "K": "AB"}.get(problem.groups.mode, "")

    def matrix(
        shape: tuple[int, int], order: str, ld: int | None, which: Matrix, unread: bool = False
    ) -> Any:
        name = which.dtype
        inner, outer = shape if order == "F" else shape[::-1]
        single = which.name in alone or (problem.l == 1 and not problem.groups)
        batch = () if single else (problem.l,)
        buffer = np.empty((*batch, outer, max(ld or 0, inner)), DTYPES[name].numpy)
        if unread:  # a kernel must neither read them nor leave them in C
            buffer[...] = -(2**31) if name == "int32" else np.nan
        else:
            buffer[...] = random_values(rng, buffer.shape, name)
        view = buffer[..., :inner]
        return np.swapaxes(view, -1, -2) if order == "F" else view

    m, n, k, op = problem.m, problem.n, problem.k, problem.op
    storage = arguments.storage
    unread = arguments.beta == 0
    return (
        matrix((m, k) if op[0] == "N" else (k, m), storage, arguments.lda, problem.A),
        matrix((k, n) if op[1] == "N" else (n, k), storage, arguments.ldb, problem.B),
        matrix((m, n), arguments.order, arguments.ldc, problem.C, unread),
    )


def _stored_operands(arguments: argparse.Namespace, problem: GemmProblem) -> dict[str, Any]:
    """Return the arguments of a call other than A, B and C, by name.

    These are random scales of the requested recipes, and the ends of groups.
    """
    import numpy as np

    from cute_gemm.measure.matrices import generator
    from cute_gemm.problem.parts.groups import equal_ends
    from cute_gemm.problem.parts.scales import DTYPE, SCALES, named_shape

    rng = generator(arguments.seed)
    asked = {name: kind for name in SCALES if (kind := getattr(arguments, name))}
    operands: dict[str, Any] = {
        name: (rng.random(named_shape(name, kind, problem) or (1, 1)) + 0.5).astype(DTYPE)
        for name, kind in asked.items()
    }
    if problem.groups:
        operands["offsets"] = np.array(group_ends(arguments) or equal_ends(problem), np.int32)
    return operands
