"""``scale_a=`` and ``scale_b=``: the rows and the k of A and B that each number scales.

A recipe is read from the shape of a scale, against A (M, K) and B (N, K):

========================  ===========  ========================================================
shape                     recipe       what a number scales
========================  ===========  ========================================================
(), (1,), (1, 1)          tensor       the whole operand
(M,), (M, 1)              row          a row of A, or of B (N, 1): a column of op(B)
(M, K / 128)              1x128        128 of k of a row
(M / 128, K / 128)        128x128      128 of k of 128 rows
========================  ===========  ========================================================

Quotients are rounded up. Tensor scales and row scales multiply the accumulators: they are operands
of the epilogue. Block scales multiply the products of each 128 of k before they are added.

In a grouped GEMM of G groups the first matching shape applies. *Shared*: only for the operand that
has a matrix for each group, here B, or for both if K is ragged. Blocks of 128 ragged rows, or of
128 of a ragged k, would straddle groups.

==============================  =========  =====================================================
shape                           recipe     what a number scales
==============================  =========  =====================================================
(), (1,), (1, 1), (1, 1, 1)     tensor     the whole operand
(M,), (M, 1)                    row        a row of A, or of B (N,): a row of every group
(G, N), (G, N, 1), (1, N, 1)    row        shared: a row of each group
(G,), (G, 1, 1)                 tensor     a group
(M, K / 128)                    1x128      128 of k of a row
(G or 1, N, K / 128)            1x128      shared: 128 of k of a row of each group
(N / 128, K / 128)              128x128    shared: 128 of k of 128 rows
(G or 1, N / 128, K / 128)      128x128    shared: 128 of k of 128 rows of each group
==============================  =========  =====================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cute_gemm.arrays import ADAPTERS
from cute_gemm.dtypes import FAST_ACCUM, FLOAT8
from cute_gemm.errors import DTypeError, OptionError, ShapeError, StrideError

if TYPE_CHECKING:
    from cute_gemm.arrays.base import Operand
    from cute_gemm.problem.problem import GemmProblem

#: Keyword arguments of a call.
SCALES = ("scale_a", "scale_b")
#: k, and rows, of a block; the type of scales.
BLOCK, DTYPE = 128, "float32"
#: Recipes of block scales, with the rows that share a number.
BLOCKS = {"1x128": 1, "128x128": BLOCK}
#: All recipes.
RECIPES = ("tensor", "row", *BLOCKS)


def recipe(name: str, shape: tuple[int, ...], problem: GemmProblem) -> str:
    """Return the recipe of a scale of this shape: ``"tensor"``, ``"row"`` or one of `BLOCKS`.

    Raises ShapeError if no recipe fits.
    """
    if problem.groups:
        return _recipe_of_groups(name, shape, problem)
    rows, k = problem.rows_of(name), problem.k
    shapes = shapes_of(name, problem)
    core = () if shape[-2:] in ((1,), (1, 1)) else shape[-2:]
    core = (rows, 1) if core == (rows,) else core
    if len(shape) < 3 or (len(shape) == 3 and shape[0] in (1, problem.l)):
        for kind, fitting in shapes.items():
            if core == fitting:
                return kind
    (down, across), mode = shapes["128x128"], rows_mode(name)
    lead = f"({problem.l}, ...), " * (problem.l != 1)
    raise ShapeError(
        f"{name} has shape {shape}; expected {lead}() for the tensor, ({mode}, 1) = ({rows}, 1) "
        f"for rows, ({rows}, {across}) for 128 of k of each or ({down}, {across}) for blocks of "
        f"128 x 128, because {name[-1].upper()} has {rows} rows and k = {k}"
    )


def rows_mode(name: str) -> str:
    """Return the mode of the rows of a scale: M for ``"scale_a"``, otherwise N."""
    return "M" if name == "scale_a" else "N"


def _recipe_of_groups(name: str, shape: tuple[int, ...], problem: GemmProblem) -> str:
    """Return the recipe of a scale of a grouped GEMM, as `recipe` does."""
    rows, groups, mode = problem.rows_of(name), problem.l, rows_mode(name)
    across, down = -(-problem.k // BLOCK), -(-rows // BLOCK)
    shared = mode != problem.groups.mode
    fitting: list[tuple[str, list[tuple[int, ...]]]] = [
        ("tensor", [(), (1,), (1, 1), (1, 1, 1)]),
        ("row", [(rows,), (rows, 1)]),
        ("row", [(groups, rows), (groups, rows, 1), (1, rows, 1)] * shared),
        ("tensor", [(groups,), (groups, 1, 1)]),
    ]
    blocks: list[tuple[str, list[tuple[int, ...]]]] = [
        ("1x128", [(rows, across), *[(groups, rows, across), (1, rows, across)] * shared]),
        ("128x128", [(down, across), (groups, down, across), (1, down, across)]),
    ]
    said = f"() for the tensor, ({groups},) for groups, ({mode},) = ({rows},) for rows"
    if shared:
        said += f", (G, {mode}) = ({groups}, {rows}) for rows of each group"
    if problem.groups.mode != "K":
        fitting += blocks if shared else blocks[:1]
        said += f", ({rows}, {across}) for 128 of k of each row"
        said += f", ({groups}, {rows}, {across}) for those of each group" * shared
        said += f", ({groups}, {down}, {across}) or ({down}, {across}) for 128 x 128" * shared
    for kind, shapes in fitting:
        if shape in shapes:
            return kind
    straddling = [kind for kind, shapes in blocks if shape in shapes]
    along = f"{problem.groups.mode} is ragged"
    why = f"{name[-1].upper()} has {rows} rows, k = {problem.k} and {along}"
    if straddling:
        why = f"blocks of {straddling[0]} would straddle groups, since {along}"
    raise ShapeError(f"{name} has shape {shape}; expected {said}, because {why}")


def shapes_of(name: str, problem: GemmProblem) -> dict[str, tuple[int, ...]]:
    """Return the shape of a scale for each recipe, by name."""
    rows, across = problem.rows_of(name), -(-problem.k // BLOCK)
    blocks = ((-(-rows // shared), across) for shared in BLOCKS.values())
    return dict(zip(RECIPES, ((), (rows, 1), *blocks), strict=True))


def named_shape(name: str, kind: str, problem: GemmProblem) -> tuple[int, ...]:
    """Return the shape of a scale for a recipe; raise OptionError for an unknown one."""
    shapes = shapes_of(name, problem)
    if kind not in shapes:
        raise OptionError(f"{name}={kind!r} is unknown; expected one of {', '.join(shapes)}")
    return shapes[kind]


def read_scale(name: str, operand: Operand, problem: GemmProblem) -> tuple[Operand, str]:
    """Return a scale and its recipe; a tensor scale or row scales as they broadcast to C.

    Raises ShapeError, DTypeError, StrideError or OptionError.
    """
    kind = recipe(name, operand.shape, problem)
    if operand.dtype != DTYPE:
        cast = ADAPTERS[operand.library].cast(name, DTYPE)
        raise DTypeError(f"{name} has dtype {operand.dtype}; expected {DTYPE}: {cast}")
    check_strides(name, operand.strides)
    if kind in BLOCKS:
        if problem.A.dtype not in FLOAT8:
            raise DTypeError(
                f"{name} has a number for each {kind} block, and A has dtype "
                f"{problem.A.dtype}; expected A and B of 8-bit floats, or row scales"
            )
        if problem.compute == FAST_ACCUM:
            raise OptionError(
                f"compute={FAST_ACCUM!r} came with {name} of {kind} blocks, which multiply "
                "accumulators of 128 of k before they are added in float32: leave one of the two "
                "out"
            )
        return operand, kind
    shape, strides = operand.shape, operand.strides
    if problem.groups:
        # A number for each group, or for the rows of each group: broadcasts to (G, M, N).
        if kind == "row" and shape == (problem.l, problem.rows_of(name)):
            shape, strides = (*shape, 1), (*strides, 0)
        elif kind == "tensor" and len(shape) == 1 and shape != (1,):
            shape, strides = (*shape, 1, 1), (*strides, 0, 0)
    lead, core, steps = (shape[:-2], strides[:-2]), shape[-2:], strides[-2:]
    if kind == "row":
        core, steps = (core[0], 1), (steps[0], 0)
        if name == "scale_b":
            core, steps = core[::-1], steps[::-1]
    elif not lead[0]:
        core, steps = (), ()
    return replace(operand, shape=(*lead[0], *core), strides=(*lead[1], *steps)), kind


def check_strides(name: str, strides: tuple[int, ...]) -> None:
    """Refuse an operand with a negative stride."""
    if min(strides, default=0) < 0:
        raise StrideError(
            f"{name} has strides {strides} in elements; expected none to be negative: pass a copy"
        )


def expanded(name: str, scale: np.ndarray, problem: GemmProblem) -> np.ndarray:
    """Return block scales for every element: (..., rows, K)."""
    rows = dict(zip(SCALES, problem.scale_rows, strict=True))[name]
    whole = np.repeat(scale, rows, axis=-2)[..., : problem.rows_of(name), :]
    return np.repeat(whole, BLOCK, axis=-1)[..., : problem.k]


def scaled(
    problem: GemmProblem, left: np.ndarray, right: np.ndarray, operands: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return op(A) and op(B) times their block scales, in the scales' type.

    ``operands``: arrays of a call by name, with the block scales.
    """
    for matrix in problem.scales:
        whole = expanded(matrix.name, np.asarray(operands[matrix.name]), problem)
        if matrix.name == "scale_a":
            left = left.astype(whole.dtype) * whole
        else:
            right = right.astype(whole.dtype) * whole.swapaxes(-1, -2)
    return left, right


def describe_scales(problem: GemmProblem) -> str:
    """Return the recipes of a problem's scales, as a sentence without a period, or ""."""
    blocks = dict(zip(SCALES, problem.scale_rows, strict=True))
    modes = {x.name: x.modes for x in problem.epilogue.operands}
    grouped = [x.name for x in problem.matrices if problem.groups and x.batch_stride]
    parts = []
    for name in SCALES:
        if blocks[name]:
            rows = f"{blocks[name]} rows" if blocks[name] > 1 else "each row"
            number = f"{blocks[name]}x128, a number for 128 of k of {rows}"
        elif name in problem.epilogue.scales:
            number = "a number for each row" if modes.get(name) else "one number"
        else:
            continue
        of_each = " of each group" if blocks[name] or modes.get(name) else " for each group"
        parts.append(f"{name} is read as {number}{of_each * (name in grouped)}")
    return " and ".join(parts)
