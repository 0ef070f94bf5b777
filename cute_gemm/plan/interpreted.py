"""Execution of a plan's launches on NumPy matrices, from their PTX, grids and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from cute_gemm.dtypes import COMPONENT_PRODUCTS
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.parts.packing import whole
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scalars import scalar
from cute_gemm.ptx.launch import Argument, Buffer, Execution, TensorMap, parsed, run


class Emitted(Protocol):
    """The parts of a plan (`cute_gemm.plan.plan.Plan`) that are used."""

    problem: GemmProblem

    @property
    def steps(self) -> Any:
        """Its launches (`cute_gemm.steps.Steps`)."""


def execute(
    plan: Emitted, A: np.ndarray, B: np.ndarray, C: np.ndarray, alpha: Any = 1, beta: Any = 0,
    places: Mapping[str, np.ndarray] | None = None,
    operands: Mapping[str, np.ndarray] | None = None, **options: Any,
) -> tuple[Execution, ...]:  # fmt: skip
    """Compute ``C <- alpha * op(A) @ op(B) + beta * C`` in place by the kernels' instructions.

    The arrays must fit the plan. Their addresses are aligned exactly as the plan's matrices are,
    and no more. ``operands``: arrays of the epilogue's operands, by
    name; ``places``: arrays for other pointers of the kernel, by
    the parameter's name (``alpha_ptr``); ``options`` are those of `run`.
    """
    problem, steps = plan.problem, plan.steps
    kind = problem.scalar.name
    factors = scalar(alpha, "alpha", kind, None), scalar(beta, "beta", kind, None)
    arrays = {"A": A, "B": B, "C": C} | apart(operands or {}, C)
    buffers = {
        x.name: Buffer(arrays[x.name], x.name, (x.first_alignment or x.alignment) % 256)
        for x in problem.matrices
    }
    # Scratch that was not written holds NaN.
    scratch = np.full(steps.scratch, 255, np.uint8)
    return tuple(
        _step(step, buffers, scratch, step.arguments(*factors), places or {}, options)
        for step in steps
    )


def apart(operands: Mapping[str, np.ndarray], C: np.ndarray) -> dict[str, np.ndarray]:
    """Return the operands with a copy of the same layout in place of one that is C.

    An operand may be C itself, each element of which is read before it is written.
    """
    arrays = dict(operands)
    for name, array in operands.items():
        if np.shares_memory(array, C):
            buffer = Buffer(array, name)
            arrays[name] = buffer.elements(np.empty(buffer.place[0], np.uint8))
            arrays[name][...] = array
    return arrays


def _step(
    step: Any, buffers: Mapping[str, Buffer], scratch: np.ndarray, arguments: Any,
    places: Mapping[str, np.ndarray], options: Mapping[str, Any],
) -> Execution:  # fmt: skip
    """Execute one launch."""
    symbol, launch, signature = step.unit.symbol, step.launch, step.kernel.signature(step.config)
    block = arguments.block.raw
    sizes = [each.size or 0 for each in parsed(step.ptx, symbol).parameters.values()]
    # The driver gets a pointer to each argument: they are not packed as in the text.
    packed: list[Argument] = [
        block[x : x + n] for x, n in zip(signature.offsets, sizes, strict=True)
    ]
    scales = {x.name: x for x in step.problem.scales}
    for position, (place, parameter) in enumerate(
        zip(step.places, signature.parameters, strict=False)
    ):
        name = parameter.name if parameter.name in buffers else "scratch"
        matrix = None if name == "scratch" else getattr(step.problem, name, scales.get(name))
        if matrix and name in "AB" and step.problem.compute in COMPONENT_PRODUCTS:
            matrix = whole(matrix, step.problem)
        packed[position] = buffers.get(place.name) or _part(scratch, place.offset, name, matrix)
    for position, parameter in enumerate(signature.parameters):
        if parameter.name in places:
            packed[position] = Buffer(places[parameter.name], parameter.name, 0)
    maps = step.kernel.maps(step.config, step.problem)
    for position, tensor_map in enumerate(maps, len(packed) - len(maps)):
        buffer = packed[position - len(packed) + len(maps)]
        assert isinstance(buffer, Buffer)
        packed[position] = TensorMap(buffer.name, tensor_map and tensor_map.tensor)
    return run(
        step.ptx, symbol, launch.dimensions, (launch.block,), launch.smem, packed,
        cluster=launch.cluster, dependent=launch.dependent, **options,
    )  # fmt: skip


def _part(scratch: np.ndarray, offset: int, name: str, matrix: Matrix | None) -> Buffer:
    """Return the scratch from an offset on, up to the end of a matrix if one lies there."""
    end = scratch.size if matrix is None else offset + matrix.span
    return Buffer(scratch[offset:end], name, offset % 256)
