"""What a GEMM becomes with passes before or behind it: operands packed, or K cut into slices.

*Packing* copies an operand into aligned scratch, whose leading dimension is padded and whose major
may be another; with ``compute="bf16x9"`` it copies three components of each element. *Split-k*
makes a batch of slices along K, whose sums go to scratch, and adds them.
Each is a `GemmProblem` again for the kernel that multiplies, and a problem of its own for the pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from cute_gemm._text import named
from cute_gemm.dtypes import COMPONENT, COMPONENT_PRODUCTS, COMPONENTS, DType
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, Epilogue
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.problem.scaling import BLOCK, SCALES

#: Bytes of which the leading dimensions and the places of what lies in scratch are multiples: a
#: line of L2. Allocations have twice that.
LINE = 128


class Route(NamedTuple):
    """What goes before and behind the kernel: operands that are packed, and slices of K."""

    pack: str = ""  # "A", "B" or "AB"
    split_k: int = 1


DIRECT = Route()


class Auxiliary:
    """What a kernel beside the GEMM is asked, which has none of these parts of a product."""

    __slots__ = ()
    ragged = ""
    k_last = 0
    scales: tuple[Matrix, ...] = ()
    operands: tuple[Matrix, ...] = ()


@dataclass(frozen=True, slots=True)
class Packing(Auxiliary):
    """Operands copied to scratch: ``sources[i]`` to ``targets[i]``, ``offsets[i]`` bytes into it.

    A target has its source's extents, type and batch (one matrix where all share one); its leading
    dimension and batch stride are multiples of 128 bytes, and its major may be the other. What lies
    in its padding is not set. One of components has three slices, the largest first.
    """

    sources: tuple[Matrix, ...]
    targets: tuple[Matrix, ...]
    offsets: tuple[int, ...]
    nbytes: int  # of scratch

    @property
    def splits(self) -> bool:
        """Whether it copies components."""
        return self.targets[0].slices > 1


@dataclass(frozen=True, slots=True)
class Reduction(Auxiliary):
    """The end of a split-k GEMM: its epilogue of the sum of ``sums`` over their batch.

    ``sums`` is (M, N) of the accumulator's type, in scratch, one matrix for each slice of K (of a
    batch those of a product one after the other), with the major of C; a slice's sums are complete,
    without alpha and beta. There may be a single slice, where the epilogue takes pairs of columns
    and the kernel that multiplies takes none.
    """

    sums: Matrix
    C: Matrix
    epilogue: Epilogue
    operands: tuple[Matrix, ...] = ()
    numbers: tuple[float, ...] = ()

    @property
    def accumulator(self) -> DType:
        """The type of the sums, and of alpha and beta, as of a `GemmProblem`."""
        return self.sums.element

    @property
    def slices(self) -> int:
        """Slices of a product."""
        return self.sums.l // self.C.l

    @property
    def nbytes(self) -> int:
        """Bytes of scratch."""
        return _span(self.sums)


def wants_k_major(problem: GemmProblem) -> bool:
    """Return whether tensor cores read these types along K: transposing loads move 2 bytes."""
    return problem.A.element.bytes == 1 or problem.compute == "tf32"


def packed(
    problem: GemmProblem, which: str, k_major: bool | None = None
) -> tuple[GemmProblem, Packing]:
    """Return the problem with the operands named in ``which`` packed, and how they get there.

    ``k_major``: K becomes their unit-stride mode, by default where tensor cores want it so; else
    the major stays. The unit-stride mode of groups is another than the one along which they lie,
    but where K becomes it.
    """
    k_major = wants_k_major(problem) if k_major is None else k_major
    splits = problem.compute in COMPONENT_PRODUCTS
    sources = tuple(
        of_all_groups(matrix, problem.ragged)
        for matrix in (problem.A, problem.B) if matrix.name in which
    )  # fmt: skip
    new = {matrix.name: matrix for matrix in (problem.A, problem.B)}
    targets, offsets, end = [], [], 0
    for matrix in sources:
        unit = 1 if k_major else matrix.unit
        if problem.ragged in matrix.modes and not (k_major and problem.ragged == "K"):
            unit = 1 - matrix.modes.index(problem.ragged)
        target = _aligned(replace(matrix, dtype=COMPONENT) if splits else matrix, unit)
        if splits:
            target = replace(target, batch_stride=COMPONENTS * target.batch_stride)
        # Groups along the unit-stride mode begin anywhere in scratch too.
        along_unit = problem.ragged == target.modes[unit]
        new[matrix.name] = target.of_groups(problem.ragged) if along_unit else target
        targets.append(components(target) if splits else target)
        offsets.append(end)
        end += _span(targets[-1])
    parts = replace(problem, A=new["A"], B=new["B"])
    return parts, Packing(sources, tuple(targets), tuple(offsets), end)


def components(matrix: Matrix) -> Matrix:
    """Return all components of a packed operand, which follow each other as slices do."""
    step = matrix.ld * matrix.shape[1 - matrix.unit]
    return replace(matrix, l=COMPONENTS * matrix.l, slices=COMPONENTS, slice_stride=step)


def whole(matrix: Matrix, problem: GemmProblem) -> Matrix:
    """Return A or B of a kernel's problem as one tensor map describes it.

    The matrix that slices of K are cut from; components are matrices of a batch.
    """
    deep = (problem.slices - 1) * problem.k + (problem.k_last or problem.k)
    products = matrix.l // matrix.slices
    one = replace(matrix, shape=(matrix.shape[0], deep), l=products, slices=1, slice_stride=0)
    if problem.compute not in COMPONENT_PRODUCTS:
        return one
    every = components(one)
    count = every.l if one.batch_stride else COMPONENTS
    return replace(every, l=count, batch_stride=every.slice_stride, slices=1, slice_stride=0)


def of_pairs(matrix: Matrix, pairs: str) -> Matrix:
    """Return B, or a batch, as two matrices (N / 2, K) each: the columns that make one of C.

    ``pairs``: which those are, as `Epilogue.pairs` says it.
    """
    (n, k), (step, along_k) = matrix.shape, matrix.stride
    apart = step if pairs == "pairs" else n // 2 * step
    first = max(matrix.alignment, matrix.first_alignment)
    every = matrix.alignment | apart * matrix.element.bytes
    every &= -every
    return replace(
        matrix, shape=(n // 2, k), stride=(2 * step if pairs == "pairs" else step, along_k),
        l=2 * matrix.l, slices=2, slice_stride=apart, alignment=every,
        first_alignment=first if first > every else 0,
    )  # fmt: skip


def of_all_groups(matrix: Matrix, ragged: str) -> Matrix:
    """Return a matrix of groups along a mode with the alignment of its first element."""
    if ragged not in matrix.modes or not matrix.first_alignment:
        return matrix
    return replace(matrix, alignment=matrix.first_alignment, first_alignment=0)


def sliced(problem: GemmProblem, slices: int, tile_k: int) -> tuple[GemmProblem, Reduction]:
    """Return the problem as a batch of slices of K, each of whole tiles, and their reduction.

    Slices of a product are next to each other in it. The last is shorter where K asks for it, and
    there may be fewer than ``slices``; A and B have its extents, since what a kernel may do depends
    on where rows end. For k > 0, or a single slice: the product as it is, with the epilogue behind.
    """
    depth, count = slice_extents(problem, slices, tile_k)
    last = problem.k - (count - 1) * depth
    ends = last if last > 1 or count == 1 else depth + last  # a single one has no leading dimension
    shape, kind = (problem.m, problem.n), problem.accumulator.name
    sums = _aligned(replace(problem.C, dtype=kind, shape=shape), problem.C.unit)
    each = _span(replace(sums, l=1)) // sums.element.bytes
    total = problem.l * count
    sums = replace(sums, l=total, batch_stride=each if total > 1 else 0)

    def cut(matrix: Matrix) -> Matrix:
        jump = depth * matrix.stride[1] if count > 1 else 0
        every = matrix.alignment | jump * matrix.element.bytes
        every &= -every
        first = max(matrix.alignment, matrix.first_alignment)
        return replace(
            matrix, shape=(matrix.shape[0], ends), alignment=every, l=total, slices=count,
            slice_stride=jump, first_alignment=first if first > every else 0,
        )  # fmt: skip

    parts = replace(
        problem, k=depth, k_last=last % max(depth, 1), l=total, A=cut(problem.A),
        B=cut(problem.B), C=sums,
        epilogue=LINEAR_COMBINATION, operands=(), numbers=(),
    )  # fmt: skip
    end = Reduction(sums, problem.C, problem.epilogue, problem.operands, problem.numbers)
    return parts, end


def sliced_class(problem: GemmProblem, slices: int) -> GemmProblem:
    """Return the batched problem of the slices of K, with the alignments of the whole problem.

    Access widths stay the same, so the counts of A's and B's accesses serve for both.
    """
    cut = sliced(problem, slices, 1)[0]
    A, B = (
        replace(matrix, **named(original, "alignment", "first_alignment"))
        for matrix, original in ((cut.A, problem.A), (cut.B, problem.B))
    )
    return replace(cut, A=A, B=B)


def slice_extents(problem: GemmProblem, slices: int, tile_k: int) -> tuple[int, int]:
    """Return k of each slice but the last, and how many there are of a product."""
    if slices == 1:
        return problem.k, 1
    # A slice begins at a line where K is the unit-stride mode, so that vectors stay what they are.
    narrowest = min(matrix.element.bytes for matrix in (problem.A, problem.B))
    step = math.lcm(tile_k, LINE // narrowest)
    depth = -(-problem.k // (step * slices)) * step
    return depth, -(-problem.k // depth)


def alike(problem: Any) -> tuple[Any, ...]:
    """Return the parts that have one k: all, or all slices but the last ones, and the last ones."""
    last = problem.k_last
    if not last:
        # Block scales are described for whole products.
        cut = problem.scales and problem.slices > 1
        return (_some_slices(problem, 0, problem.slices, problem.k) if cut else problem,)
    before = problem.slices - 1
    end = _some_slices(problem, before, 1, last)
    return (_some_slices(problem, 0, before, problem.k), end) if before else (end,)


def _some_slices(problem: GemmProblem, first: int, count: int, k: int) -> GemmProblem:
    """``count`` slices of every product from number ``first`` on, with this k."""
    products = problem.l // problem.slices

    def part(matrix: Matrix) -> Matrix:
        near, far, extent = matrix.slice_stride, matrix.batch_stride, k
        if matrix.name == "C":  # one matrix of sums behind the other
            near, far, extent = far, far * problem.slices, matrix.shape[1]
        elif matrix.name in SCALES:
            near, extent = problem.k // BLOCK * matrix.stride[1], -(-k // BLOCK)
        size = matrix.element.bytes
        residue = (max(matrix.alignment, matrix.first_alignment) + first * near * size) % 256 or 256
        near, far = near if count > 1 else 0, far if products > 1 else 0
        alignment = residue | near * size | far * size
        alignment &= -alignment
        return replace(
            matrix,
            shape=(matrix.shape[0], extent),
            l=products * count,
            batch_stride=far,
            slices=count,
            slice_stride=near,
            alignment=alignment,
            # Where the first matrix begins, modulo 256, if that is more than its lowest bit says.
            first_alignment=residue if residue > alignment else 0,
        )

    return replace(
        problem, k=k, k_last=0, l=products * count, A=part(problem.A), B=part(problem.B),
        C=part(problem.C), scales=tuple(map(part, problem.scales)),
    )  # fmt: skip


def sums_bytes(problem: GemmProblem) -> int:
    """Return the bytes of scratch that the sums of a slice of K take."""
    unit, shape = problem.C.unit, (problem.m, problem.n)
    return padded(shape[unit] * problem.accumulator.bytes) * shape[1 - unit]


def padded(row: int) -> int:
    """Return the bytes from a row in scratch to the next."""
    return max(-(-row // LINE), 1) * LINE


@lru_cache(maxsize=1024)
def _aligned(matrix: Matrix, unit: int) -> Matrix:
    """A matrix like this one in scratch, with this mode's stride 1."""
    size = matrix.element.bytes
    ld = padded(matrix.shape[unit] * size) // size
    stride = (1, ld) if unit == 0 else (ld, 1)
    made = replace(matrix, stride=stride, alignment=256, first_alignment=0, batch_stride=0)
    shared = matrix.batch_stride == 0
    step = 0 if shared else _span(made) // size
    every = 256 if (step * size) % 256 == 0 else LINE
    return replace(made, batch_stride=step, alignment=every, first_alignment=256 * (every < 256))


def _span(matrix: Matrix) -> int:
    """Bytes that all matrices of a batch take, which begin at lines."""
    each = matrix.ld * matrix.shape[1 - matrix.unit] * matrix.element.bytes
    return each * (matrix.slices if matrix.batch_stride == 0 else matrix.l)
