"""``Matrix``: shape and stride of a GEMM operand in CuTe's convention."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from cute_gemm.arrays.base import ALIGNMENT, Operand
from cute_gemm.dtypes import DTYPES, DType


def residue(address: int) -> int:
    """Return an address in bytes modulo `ALIGNMENT`, with `ALIGNMENT` in place of 0."""
    return address % ALIGNMENT or ALIGNMENT


def common_power_of_two(*numbers: int) -> int:
    """Return the largest power of two that divides all numbers; 0 if all are 0."""
    every = reduce(operator.or_, numbers)
    return every & -every


def alignments(first: int, *steps: int) -> dict[str, Any]:
    """Return the alignment fields of matrices that begin at ``first``, and ``steps`` apart.

    ``first``: an address modulo `ALIGNMENT`, or a power of two that divides it; all in bytes.
    """
    every = common_power_of_two(first, *steps)
    return {"alignment": every, "first_alignment": first if first > every else 0}


def alignment_of(operand: Operand) -> int:
    """Return the power of two, up to `ALIGNMENT`, that divides an operand's address.

    A host array is copied to its own device allocation, so its address on the host does not matter.
    """
    return common_power_of_two(ALIGNMENT, 0 if operand.device is None else operand.pointer)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A GEMM operand in CuTe's convention: A (M, K), B (N, K), C (M, N), or ``l`` such matrices.

    ``name`` is ``"A"``, ``"B"``, ``"C"`` or that of an epilogue's operand (M, N). ``shape`` and
    ``stride`` (in elements) are those of the two modes: one stride is the unit (a static 1 in
    CuTe), the other the leading dimension, 0 for a vector that is broadcast; when both are 1 the
    first is the unit. ``alignment`` is the largest power of two, up to 256, that
    divides the address of every matrix in bytes. ``conj``: the conjugate is used, as op letters C
    and H ask; False for real types.

    Matrix i of a batch begins ``i * batch_stride`` elements after the first; with 0 all share one.
    (It is also 0 if ``l`` is at most 1 or a matrix has no elements.) ``first_alignment`` is that
    of the first matrix alone if it is greater than ``alignment``, otherwise 0.

    In a batch whose products are cut along K, ``slices`` consecutive matrices are one product:
    they are ``slice_stride`` elements apart, and products ``batch_stride`` elements.
    """

    name: str
    shape: tuple[int, int]
    stride: tuple[int, int]
    dtype: str
    alignment: int
    conj: bool = False
    l: int = 1
    batch_stride: int = 0
    first_alignment: int = 0
    slices: int = 1
    slice_stride: int = 0
    #: Names of the modes of block scales, which are those of A or B: ``"MK"``.
    own_modes: str = ""

    @property
    def element(self) -> DType:
        """The row of its element type."""
        return DTYPES[self.dtype]

    @property
    def unit(self) -> int:
        """The mode with stride 1, 0 or 1; 0 if neither has it, in an epilogue's operand."""
        first, second = self.stride
        return int(first != 1 and second == 1)

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the modes whose stride is not 0."""
        return tuple(x for x, stride in zip(self.shape, self.stride, strict=True) if stride)

    @property
    def ld(self) -> int:
        """The leading dimension, in elements: the stride of the other mode."""
        return self.stride[1 - self.unit]

    @property
    def major(self) -> str:
        """The mode with the unit stride: ``"MN"`` or ``"K"``; for others ``"M"`` or ``"N"``."""
        return (("MN", "K") if self.name in ("A", "B") else ("M", "N"))[self.unit]

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of the modes: A is (M, K), B (N, K), C (M, N); for a batch also L."""
        own = tuple(self.own_modes or {"A": "MK", "B": "NK"}.get(self.name, "MN"))
        return own if self.l == 1 else (*own, "L")

    @property
    def batch_bytes(self) -> int:
        """Bytes from one matrix to the next."""
        return self.batch_stride * self.element.bytes

    @property
    def levels(self) -> tuple[tuple[int, int], ...]:
        """Numbers of products and of slices of each, with the elements from one to the next.

        The outer level comes first; levels of one matrix are left out.
        """
        both = (self.l // self.slices, self.batch_stride), (self.slices, self.slice_stride)
        return tuple(level for level in both if level[0] != 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements without padding; a shared matrix counts once."""
        elements = 1
        levels = self.levels if self.l != 1 else ()
        for count, step in (*zip(self.shape, self.stride, strict=True), *levels):
            elements *= count if step else min(count, 1)
        return elements * self.element.bytes

    @property
    def span(self) -> int:
        """Bytes from the start of the first element to the end of the last, over all matrices."""
        steps = (*zip(self.shape, self.stride, strict=True), *self.levels)
        last = sum((extent - 1) * step for extent, step in steps)
        return (last + 1) * self.element.bytes

    def of_groups(self, mode: str) -> Matrix:
        """Return the matrix of groups along a mode; groups begin anywhere, which limits alignment.

        A matrix without the mode is returned unchanged.
        """
        if mode not in self.modes or self.shape[self.modes.index(mode)] <= 1:
            return self
        step = self.stride[self.modes.index(mode)] * self.element.bytes
        return replace(self, **alignments(self.alignment, step))

    def at(self, address: int) -> Matrix:
        """Return the matrix, or the batch, with the alignments of this address."""
        return replace(
            self, **alignments(common_power_of_two(address, ALIGNMENT), self.batch_bytes)
        )

    def aligned_as(self, other: Matrix) -> Matrix:
        """Return the matrix with the alignment of another."""
        return replace(self, alignment=other.alignment, first_alignment=other.first_alignment)

    def __str__(self) -> str:
        from cute_gemm.cute.layout import Layout

        modes: list[Any] = [*zip(self.shape, self.stride, strict=True), *self.levels]
        if len(self.levels) == 2:  # one mode of two, the inner one first
            (outer, far), (inner, near) = self.levels
            modes[2:] = [((inner, outer), (near, far))]
        shape, stride = zip(*modes, strict=True)
        return str(Layout(shape, stride))
