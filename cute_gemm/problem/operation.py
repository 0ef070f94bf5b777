"""``Operation``: the computation of a kernel, like CUTLASS's ``GemmOperation``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cute_gemm.dtypes import COMPONENT_PRODUCTS, DTYPES, FAST_ACCUM, DType, factor, scalar_of
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION, Epilogue

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix


@dataclass(frozen=True)
class Operation:
    """Element types, arithmetic, layouts and epilogue of a kernel: everything but its tiling.

    Each kernel's config has one. It does not depend on extents, leading dimensions or addresses,
    except for ``bytes``.
    """

    dtypes: tuple[str, str, str]  #: Types of A, B and C.
    compute: str  #: The arithmetic of the products, as `GemmProblem.compute`.
    #: ``"K"`` or ``"MN"`` for A and for B, ``"M"`` or ``"N"`` for C: the modes with unit stride.
    majors: tuple[str, str, str]
    conj: tuple[bool, bool]  #: Whether the conjugate of A, and of B, is used.
    bytes: tuple[int, int, int]  #: Width of a gmem access of A, of B, and of C.
    epilogue: Epilogue = LINEAR_COMBINATION
    #: Rows of A, and of B, that share a scale of 128 of k: 1 or 128; 0 without such scales.
    scales: tuple[int, int] = (0, 0)
    #: ``"M"``, ``"N"`` or ``"K"``, the mode of the groups; "" without groups.
    groups: str = ""
    #: Whether C after the last group becomes zeros; part of the name in reports.
    zero_tail: bool = field(default=False, repr=False)

    @classmethod
    def of(
        cls, matrices: Sequence[Matrix], compute: str, widths: Sequence[int],
        epilogue: Epilogue = LINEAR_COMBINATION, scales: tuple[int, int] = (0, 0),
        groups: str = "", zero_tail: bool = False,
    ) -> Operation:  # fmt: skip
        """Return the operation on A, B and C, with gmem accesses of so many bytes each."""
        A, B, C = matrices
        a, b, c = widths
        return cls(
            (A.dtype, B.dtype, C.dtype), compute, (A.major, B.major, C.major), (A.conj, B.conj),
            (a, b, c), epilogue, scales, groups, zero_tail,
        )  # fmt: skip

    @property
    def a(self) -> DType:
        """The element type of A, and of B in kernels that take one type."""
        return DTYPES[self.dtypes[0]]

    @property
    def b(self) -> DType:
        """The element type of B."""
        return DTYPES[self.dtypes[1]]

    @property
    def c(self) -> DType:
        """The element type of C."""
        return DTYPES[self.dtypes[2]]

    @property
    def accumulator(self) -> DType:
        """The type of the accumulators."""
        return DTYPES[self.a.accumulator]

    @property
    def scalar(self) -> DType:
        """The type of alpha and beta, and of values of the epilogue."""
        return scalar_of(self.accumulator, self.c)

    @property
    def factors(self) -> tuple[DType, DType]:
        """The types in which elements of A and of B are multiplied, such as tf32 for float32."""
        a, b = (
            row if row.is_complex else factor(row.name, self.compute) for row in (self.a, self.b)
        )
        return a, b

    @property
    def promoted(self) -> bool:
        """Whether accumulators of each k tile are added to others in float32."""
        if self.compute in COMPONENT_PRODUCTS:
            return True
        return FAST_ACCUM in self.a.computes and self.compute != FAST_ACCUM

    @property
    def block_scales(self) -> dict[str, int]:
        """Names of the block scales, with the rows that share one of them."""
        names = zip(("scale_a", "scale_b"), self.scales, strict=True)
        return {name: rows for name, rows in names if rows}

    @property
    def component_products(self) -> int:
        """Products of components per product; 1 without components."""
        return COMPONENT_PRODUCTS.get(self.compute, 1)

    @property
    def row_major(self) -> bool:
        """Whether C is row-major."""
        return self.majors[2] == "N"

    @property
    def letters(self) -> str:
        """A letter each for A and B as stored: n, t, c (conjugated) or h (both).

        >>> types, majors = ("complex64",) * 3, ("K", "K", "M")
        >>> Operation(types, "float32", majors, conj=(True, False), bytes=(8, 8, 8)).letters
        'hn'
        """
        plain = self.majors[0] == "MN", self.majors[1] == "K"
        return "".join(
            (("n", "c") if n else ("t", "h"))[conjugated]
            for n, conjugated in zip(plain, self.conj, strict=True)
        )

    @cached_property
    def name(self) -> str:
        """Its part of a kernel's symbol: types, op, order of C, groups, non-BLAS epilogue."""
        a, b = self.factors
        parts = (
            *dict.fromkeys((a.tag, b.tag)),
            self.accumulator.tag,
            self.c.tag,
            self.letters,
            "row" if self.row_major else "col",
            self.compute if self.compute in (FAST_ACCUM, *COMPONENT_PRODUCTS) else "",
            "scales_{}_{}".format(*self.scales) if any(self.scales) else "",
            f"groups_{self.groups.lower()}" * bool(self.groups),
            "zero_tail" * self.zero_tail,
            self.epilogue.name,
        )
        return "_".join(filter(None, parts))

    @property
    def access_name(self) -> str:
        """Bits of an access to A, B and C, as in symbols: ``"v128_128_32"``."""
        return "v" + "_".join(str(8 * width) for width in self.bytes)

    @cached_property
    def transposed(self) -> Operation:
        """The operation of C^T = B^T A^T: A and B, and M and N, change places."""
        a, b, c = self.dtypes
        major_a, major_b, major_c = self.majors
        width_a, width_b, width_c = self.bytes
        turned = {"M": "N", "N": "M"}
        return replace(
            self,
            dtypes=(b, a, c),
            majors=(major_b, major_a, turned[major_c]),
            conj=self.conj[::-1],
            bytes=(width_b, width_a, width_c),
            scales=self.scales[::-1],
            groups=turned.get(self.groups, self.groups),
        )

    def only(self, name: str) -> Operation:
        """Return the part that accesses to A, B or C depend on: one width, and no epilogue.

        Accesses to an operand of the epilogue depend on the operand, and on no width.
        """
        a, b, c = (
            width if name == each else 0 for each, width in zip("ABC", self.bytes, strict=True)
        )
        epilogue = LINEAR_COMBINATION if name in ("A", "B", "C") else self.epilogue
        return replace(self, bytes=(a, b, c), epilogue=epilogue)
