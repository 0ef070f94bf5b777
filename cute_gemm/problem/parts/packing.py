"""Algorithms with auxiliary kernels: packed operands, and K cut into slices.

*Packing* copies an operand into aligned scratch with a padded leading dimension and possibly
another major; with ``compute="bf16x9"`` it copies three components of each element. Block scales
of rows are packed so that those of neighbouring rows are contiguous. *Split-k*
makes a batch of slices along K, whose results go to scratch, and adds them.
The kernel that multiplies and the auxiliary kernel each get their own problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from cute_gemm.dtypes import COMPONENT, COMPONENT_PRODUCTS, COMPONENTS
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import NO_GROUPS, GemmProblem

#: Leading dimensions and offsets in scratch are multiples of this many bytes: a
#: line of L2. Allocations are aligned to twice that.
LINE = 128


class Algorithm(NamedTuple):
    """Operands that are packed before the kernel, and slices of K that are added after it."""

    pack: str = ""  # "A", "B", "AB" or "scales"
    split_k: int = 1


DIRECT = Algorithm()


def packed_names(pack: str) -> tuple[str, ...]:
    """Return the operands or block scales that ``pack`` of an algorithm names."""
    return (pack,) if pack == "scales" else tuple(pack)


class Auxiliary:
    """The problem of an auxiliary kernel, without these parts of a product."""

    __slots__ = ()
    groups = NO_GROUPS
    k_last = 0
    scales: tuple[Matrix, ...] = ()
    operands: tuple[Matrix, ...] = ()


@dataclass(frozen=True, slots=True)
class Packing(Auxiliary):
    """Matrices copied to scratch: ``sources[i]`` to ``targets[i]``, one after the other.

    A target has its source's extents, type and batch (one matrix if all share one); its leading
    dimension and batch stride are multiples of 128 bytes, and its major may differ. Its padding
    is not set. A target of components has three slices, the largest first.
    """

    sources: tuple[Matrix, ...]
    targets: tuple[Matrix, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of scratch."""
        return sum(map(span_of, self.targets))

    @property
    def copies(self) -> tuple[tuple[Matrix, Matrix, int], ...]:
        """Source and target of each operand, and the offset of the target in scratch in bytes."""
        offsets = accumulate(map(span_of, self.targets[:-1]), initial=0)
        return tuple(zip(self.sources, self.targets, offsets, strict=True))

    @property
    def by_place(self) -> dict[str, tuple[Matrix, Matrix, int]]:
        """Copies by A and B, or by their block scales."""
        return {copy[0].name[-1].upper(): copy for copy in self.copies}

    @property
    def splits(self) -> bool:
        """Whether it copies components."""
        return self.targets[0].slices > 1


def wants_k_major(problem: GemmProblem) -> bool:
    """Return whether tensor cores read these types along K: transposing loads move 2 bytes."""
    return problem.A.element.bytes == 1 or problem.compute == "tf32"


def packed(
    problem: GemmProblem, which: str, k_major: bool | None = None
) -> tuple[GemmProblem, Packing]:
    """Return the problem with the operands of ``which`` packed (see `Algorithm`), and the packing.

    ``k_major``: K becomes their unit-stride mode, by default if tensor cores need it; otherwise
    the major stays. The unit-stride mode is not the mode of the groups, unless K becomes
    it.
    """
    if which == "scales":
        return _packed_scales(problem)
    k_major = wants_k_major(problem) if k_major is None else k_major
    splits = problem.compute in COMPONENT_PRODUCTS
    sources = tuple(
        of_all_groups(matrix, problem.groups.mode)
        for matrix in (problem.A, problem.B) if matrix.name in which
    )  # fmt: skip
    new = {matrix.name: matrix for matrix in (problem.A, problem.B)}
    targets = []
    for matrix in sources:
        unit = 1 if k_major else matrix.unit
        if problem.groups.mode in matrix.modes and not (k_major and problem.groups.mode == "K"):
            unit = 1 - matrix.modes.index(problem.groups.mode)
        target = aligned(replace(matrix, dtype=COMPONENT) if splits else matrix, unit)
        if splits:
            target = replace(target, batch_stride=COMPONENTS * target.batch_stride)
        # Groups along the unit-stride mode also begin anywhere in scratch.
        along_unit = problem.groups.mode == target.modes[unit]
        new[matrix.name] = target.of_groups(problem.groups.mode) if along_unit else target
        targets.append(components(target) if splits else target)
    return replace(problem, A=new["A"], B=new["B"]), Packing(sources, tuple(targets))


def row_scales(problem: GemmProblem) -> tuple[Matrix, ...]:
    """Return the block scales whose rows are contiguous along K."""
    return tuple(
        x
        for x in problem.scales
        if x.shape[0] == problem.rows_of(x.name) and x.stride[1] == 1 and x.stride[0] >= x.shape[1]
    )


def _packed_scales(problem: GemmProblem) -> tuple[GemmProblem, Packing]:
    sources = row_scales(problem)
    targets = tuple(aligned(x, 0) for x in sources)
    new = {x.name: x for x in targets}
    scales = tuple(new.get(x.name, x) for x in problem.scales)
    return replace(problem, scales=scales), Packing(sources, targets)


def components(matrix: Matrix) -> Matrix:
    """Return all components of a packed operand, which follow each other like slices."""
    step = matrix.ld * matrix.shape[1 - matrix.unit]
    return replace(matrix, l=COMPONENTS * matrix.l, slices=COMPONENTS, slice_stride=step)


def whole(matrix: Matrix, problem: GemmProblem) -> Matrix:
    """Return A or B of a kernel's problem as a tensor map describes it.

    This is the matrix that slices of K are cut from; components are matrices of a batch.
    """
    deep = (problem.slices - 1) * problem.k + (problem.k_last or problem.k)
    products = matrix.l // matrix.slices
    uncut = replace(matrix, shape=(matrix.shape[0], deep), l=products, slices=1, slice_stride=0)
    if problem.compute not in COMPONENT_PRODUCTS:
        return uncut
    every = components(uncut)
    count = every.l if uncut.batch_stride else COMPONENTS
    return replace(every, l=count, batch_stride=every.slice_stride, slices=1, slice_stride=0)


def of_all_groups(matrix: Matrix, mode: str) -> Matrix:
    """Return a matrix of groups along a mode with the alignment of its first element."""
    if mode not in matrix.modes or not matrix.first_alignment:
        return matrix
    return replace(matrix, alignment=matrix.first_alignment, first_alignment=0)


def padded(row: int) -> int:
    """Return the bytes from a row in scratch to the next."""
    return max(-(-row // LINE), 1) * LINE


@lru_cache(maxsize=1024)
def aligned(matrix: Matrix, unit: int) -> Matrix:
    """Return a matrix like this one in scratch, with stride 1 in this mode."""
    size = matrix.element.bytes
    ld = padded(matrix.shape[unit] * size) // size
    stride = (1, ld) if unit == 0 else (ld, 1)
    target = replace(matrix, stride=stride, alignment=256, first_alignment=0, batch_stride=0)
    shared = matrix.batch_stride == 0
    step = 0 if shared else span_of(target) // size
    every = 256 if (step * size) % 256 == 0 else LINE
    return replace(target, batch_stride=step, alignment=every, first_alignment=256 * (every < 256))


def span_of(matrix: Matrix) -> int:
    """Return the bytes of all matrices of a batch, which begin at lines."""
    each = matrix.ld * matrix.shape[1 - matrix.unit] * matrix.element.bytes
    return each * (matrix.slices if matrix.batch_stride == 0 else matrix.l)
