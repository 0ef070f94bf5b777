"""``GemmProblem``: everything about a GEMM that a kernel may depend on, except addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cute_gemm.dtypes import COMPONENT_PRODUCTS, DTYPES, DType, factor, scalar_of
from cute_gemm.errors import OptionError
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, Epilogue
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.operation import Operation


@dataclass(frozen=True, slots=True)
class Groups:
    """Products of one GEMM that follow each other along M, N or K.

    ``mode``: that mode; ``ends`` (l, 1): the end of each group; ``zero_tail``: whether rows or
    columns of C after the last end become zeros, or are not written; ``checked``: whether
    ends that decrease or exceed the extent are an error. Without groups the mode is empty, and
    there are no ends.
    """

    mode: str = ""
    ends: Matrix | None = None
    zero_tail: bool = False
    checked: bool = False

    def __bool__(self) -> bool:
        return bool(self.mode)


#: Groups of a product without groups.
NO_GROUPS = Groups()


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """Everything about a GEMM that a kernel may depend on, except addresses.

    ``op`` is the requested op in upper case: ``"TN"``, ``"CN"``. ``m``, ``n``, ``k`` are extents
    of each product and ``l`` is the number of products; any may be 0. ``compute`` is the type of
    the products: ``"float32"``, ``"tf32"``, ``"float64"`` or ``"int32"``; for complex numbers, of
    the products of their parts. ``operands`` are those of the epilogue in its order,
    followed by its results that are stored with C; ``numbers`` are the values of operands that
    are passed by value.

    With groups (`problem.parts.groups`) the extent of the mode of the groups is the sum over all
    ``l`` groups.
    """

    op: str
    m: int
    n: int
    k: int
    A: Matrix
    B: Matrix
    C: Matrix
    compute: str
    l: int = 1
    #: k of a product's last slice if it is smaller than the others; otherwise 0.
    k_last: int = 0
    epilogue: Epilogue = LINEAR_COMBINATION
    operands: tuple[Matrix, ...] = ()
    numbers: tuple[float, ...] = ()
    #: Scales of A's and B's rows for each 128 of k, such as (M, K / 128) or (M / 128, K / 128).
    scales: tuple[Matrix, ...] = ()
    groups: Groups = NO_GROUPS

    def with_base_offset(self, base_offset: int) -> GemmProblem:
        """Return the problem with each matrix so many elements after an aligned address.

        Raises OptionError for a value other than 0 or a power of two: descriptors only have the
        power of two that divides an address.
        """
        whole = isinstance(base_offset, (int, np.integer)) and not isinstance(base_offset, bool)
        if not whole or base_offset < 0 or base_offset & (base_offset - 1):
            raise OptionError(
                f"base_offset is {base_offset!r}; expected 0 or a power of two, in elements"
            )
        if not base_offset:
            return self
        A, B, C = (
            matrix.at(int(base_offset) * matrix.element.bytes).of_groups(self.groups.mode)
            for matrix in (self.A, self.B, self.C)
        )
        return replace(self, A=A, B=B, C=C)

    def with_matrices(self, changed: Callable[[Matrix], Matrix], **fields: Any) -> GemmProblem:
        """Return the problem with changed matrices, except for the ends of groups, and fields."""
        A, B, C = map(changed, (self.A, self.B, self.C))
        scales, operands = (tuple(map(changed, x)) for x in (self.scales, self.operands))
        return replace(self, A=A, B=B, C=C, scales=scales, operands=operands, **fields)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """A, B, C, block scales, the ends of groups if there are any, the epilogue's operands."""
        return self.A, self.B, self.C, *self.scales, *self.ends, *self.operands

    @property
    def ends(self) -> tuple[Matrix, ...]:
        """The ends of groups, if any."""
        return () if self.groups.ends is None else (self.groups.ends,)

    @property
    def extents(self) -> dict[str, int]:
        """m, n and k by the names of their modes."""
        return {"M": self.m, "N": self.n, "K": self.k}

    @property
    def results(self) -> tuple[Matrix, ...]:
        """The results in addition to C, in the order in which the epilogue returns them."""
        return self.operands[len(self.epilogue.operands) :]

    @property
    def is_empty(self) -> bool:
        """Whether an extent is 0."""
        return 0 in (self.m, self.n, self.k, self.l)

    @property
    def columns(self) -> int:
        """Columns of C: n, or n / 2 if the epilogue combines pairs of them (`Epilogue`)."""
        return self.C.shape[1]

    @property
    def slices(self) -> int:
        """Number of consecutive matrices of a batch that are slices of K of one product."""
        return self.A.slices

    @property
    def blas_op(self) -> str:
        """The op that column-major BLAS needs for this storage."""
        return "NT"[self.A.unit] + "TN"[self.B.unit]

    @property
    def dtype(self) -> str:
        """The type of A and B: ``"float16"``; ``"A's x B's"`` for two types."""
        return " x ".join(dict.fromkeys((self.A.dtype, self.B.dtype)))

    @property
    def spelled(self) -> str:
        """`dtype`, with ``compute`` if it is not the default: ``"float32/tf32"``."""
        if self.compute in COMPONENT_PRODUCTS:  # the operands may already be components
            return DTYPES["float32"].spelled(self.compute)
        return f"{self.dtype}{self.A.element.spelled(self.compute)[len(self.A.dtype) :]}"

    @property
    def is_complex(self) -> bool:
        """Whether A and B are complex."""
        return self.A.element.is_complex

    @property
    def accumulator(self) -> DType:
        """The type of the accumulators."""
        return DTYPES[self.A.element.accumulator]

    @property
    def scalar(self) -> DType:
        """The type of alpha and beta, and of values of the epilogue."""
        return scalar_of(self.accumulator, self.C.element)

    @property
    def factor(self) -> DType:
        """The type of a real product's factors, which determines peaks; the wider one of two."""
        factors = (factor(matrix.dtype, self.compute) for matrix in (self.A, self.B))
        return max(factors, key=lambda row: row.bytes)

    def operation(self, *widths: int) -> Operation:
        """Return the operation of a kernel for it, with gmem accesses of so many bytes each."""
        matrices = self.A, self.B, self.C
        return Operation.of(
            matrices, self.compute, widths, self.epilogue, self.scale_rows, self.groups.mode,
            self.groups.zero_tail,
        )  # fmt: skip

    @property
    def scale_rows(self) -> tuple[int, int]:
        """Rows of A, and of B, that share a scale of 128 of k: 1 or 128; 0 without such scales."""
        if not self.scales:
            return 0, 0
        rows = {x.name: 1 if x.shape[0] == self.rows_of(x.name) else 128 for x in self.scales}
        return rows.get("scale_a", 0), rows.get("scale_b", 0)

    def rows_of(self, scale: str) -> int:
        """Return the number of rows that a scale applies to: M for ``"scale_a"``, otherwise N."""
        return self.m if scale == "scale_a" else self.n

    @property
    def products(self) -> str:
        """The type that products are rounded to, which `compute` names if it is a type."""
        return self.compute if self.compute in DTYPES else self.accumulator.name

    @property
    def component_products(self) -> int:
        """Products of components per product; 1 without components."""
        return COMPONENT_PRODUCTS.get(self.compute, 1)

    def groups_along_unit(self, matrix: Matrix) -> bool:
        """Return whether its groups lie along the unit-stride mode of A, B or C."""
        return matrix.modes[matrix.unit] == self.groups.mode

    @property
    def types(self) -> str:
        """The types as text: ``"float16 -> float32, compute float32"``."""
        return f"{self.dtype} -> {self.C.dtype}, compute {self.compute}"

    @property
    def flops(self) -> int:
        """Real operations: two per multiply-add, eight for complex numbers."""
        each = 8 if self.is_complex else 2
        return each * self.m * self.n * self.k * (1 if self.groups else self.l)
