"""``GemmProblem``: everything about a GEMM that a kernel may depend on, but for the addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cute_gemm.dtypes import (
    COMPONENT_PRODUCTS,
    DTYPES,
    DType,
    factor,
    scalar_of,
)
from cute_gemm.errors import (
    OptionError,
)
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, Epilogue
from cute_gemm.problem.matrix import Matrix
from cute_gemm.problem.operation import Operation


@dataclass(frozen=True, slots=True)
class Groups:
    """Products of one GEMM, which lie one behind the other along M, N or K.

    ``mode``: which; ``ends`` (l, 1): where each ends along it; ``zero_tail``: whether rows of C, or
    columns, that lie behind the last end become zeros, or are not written; ``checked``: whether
    ends that decrease or exceed are an error. Of a product without groups the mode is empty, and
    there are no ends.
    """

    mode: str = ""
    ends: Matrix | None = None
    zero_tail: bool = False
    checked: bool = False

    def __bool__(self) -> bool:
        return bool(self.mode)


#: Of a product that is not one of several.
NO_GROUPS = Groups()


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """Everything about a GEMM that a kernel may depend on, but for the addresses.

    ``op`` is as asked for, in upper case: ``"TN"``, ``"CN"``. ``m``, ``n``, ``k`` are the extents
    of each product and ``l`` is the number of products; any may be 0. ``compute`` is what products
    are made in: ``"float32"``, ``"tf32"``, ``"float64"`` or ``"int32"``; of complex numbers, what
    the products of their parts are made in. ``operands`` are those of the epilogue, in its order,
    behind them its results that are stored with C; and ``numbers`` the values of those that are
    given by value.

    With groups (`problem.parts.groups`) the extent of the mode along which its ``l`` groups
    lie is that of all of them.
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
    #: k of a product's last slice where it is less than the others'; else 0.
    k_last: int = 0
    epilogue: Epilogue = LINEAR_COMBINATION
    operands: tuple[Matrix, ...] = ()
    numbers: tuple[float, ...] = ()
    #: Scales of A's and B's rows for each 128 of k: (M, K / 128) or (M / 128, K / 128), say.
    scales: tuple[Matrix, ...] = ()
    groups: Groups = NO_GROUPS

    def with_base_offset(self, base_offset: int) -> GemmProblem:
        """Return the problem with each matrix so many elements from an aligned address.

        OptionError for what is neither 0 nor a power of two: of an address no more is described
        than the power of two that divides it.
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

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """A, B, C, block scales, the ends of groups if there are any, the epilogue's operands."""
        return self.A, self.B, self.C, *self.scales, *self.ends, *self.operands

    @property
    def ends(self) -> tuple[Matrix, ...]:
        """The ends of groups, if there are any."""
        return () if self.groups.ends is None else (self.groups.ends,)

    @property
    def extents(self) -> dict[str, int]:
        """m, n and k by the names of their modes."""
        return {"M": self.m, "N": self.n, "K": self.k}

    @property
    def results(self) -> tuple[Matrix, ...]:
        """The results beside C, in the order in which the epilogue returns them."""
        return self.operands[len(self.epilogue.operands) :]

    @property
    def columns(self) -> int:
        """Columns of C: n, or half of it where the epilogue takes pairs of them (`Epilogue`)."""
        return self.C.shape[1]

    @property
    def slices(self) -> int:
        """Of a batch, how many in a row are slices of K of one product."""
        return self.A.slices

    @property
    def blas_op(self) -> str:
        """The op that BLAS, whose matrices are column-major, would be given for this storage."""
        return "NT"[self.A.unit] + "TN"[self.B.unit]

    @property
    def dtype(self) -> str:
        """The type of A and B: ``"float16"``; ``"A's x B's"`` where there are two."""
        return " x ".join(dict.fromkeys((self.A.dtype, self.B.dtype)))

    @property
    def spelled(self) -> str:
        """`dtype`, with ``compute`` where it is not the default: ``"float32/tf32"``."""
        if self.compute in COMPONENT_PRODUCTS:  # the operands may be components already
            return DTYPES["float32"].spelled(self.compute)
        return f"{self.dtype}{self.A.element.spelled(self.compute)[len(self.A.dtype) :]}"

    @property
    def is_complex(self) -> bool:
        """Whether A and B are complex."""
        return self.A.element.is_complex

    @property
    def accumulator(self) -> DType:
        """The type of the sums."""
        return DTYPES[self.A.element.accumulator]

    @property
    def scalar(self) -> DType:
        """The type of alpha and beta, and of what the epilogue computes."""
        return scalar_of(self.accumulator, self.C.element)

    @property
    def factor(self) -> DType:
        """The type of a real product's factors, by which peaks go; the wider one of two."""
        factors = (factor(matrix.dtype, self.compute) for matrix in (self.A, self.B))
        return max(factors, key=lambda row: row.bytes)

    def operation(self, *widths: int) -> Operation:
        """Return what a kernel computes of it, with gmem accesses of so many bytes each."""
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
        """Return the rows of the operand that a scale is of: M of ``"scale_a"``, else N."""
        return self.m if scale == "scale_a" else self.n

    @property
    def products(self) -> str:
        """The type that products are rounded to, which `compute` names if it is a type."""
        return self.compute if self.compute in DTYPES else self.accumulator.name

    @property
    def component_products(self) -> int:
        """Products of components that one product is made of; 1 where it is made as it is."""
        return COMPONENT_PRODUCTS.get(self.compute, 1)

    def groups_along_unit(self, matrix: Matrix) -> bool:
        """Return whether its groups lie along the unit-stride mode of A, B or C."""
        return matrix.modes[matrix.unit] == self.groups.mode

    @property
    def types(self) -> str:
        """What people read: ``"float16 -> float32, compute float32"``."""
        return f"{self.dtype} -> {self.C.dtype}, compute {self.compute}"

    @property
    def flops(self) -> int:
        """Real operations: two for a multiplication and an addition, eight for complex ones."""
        each = 8 if self.is_complex else 2
        return each * self.m * self.n * self.k * (1 if self.groups else self.l)
