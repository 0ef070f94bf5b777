"""Epilogues: functions that a kernel applies to its accumulators before it stores C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from cute_gemm.dtypes import DType


@dataclass(frozen=True, slots=True)
class EpilogueOperand:
    """A tensor that an epilogue reads in addition to C: (M, N), with stride 0 in a missing mode.

    ``name`` is the kernel's parameter; ``modes`` is ``"M"``, ``"N"``, ``"MN"`` or ``""``;
    ``unit`` the mode with stride 1, if any, and ``vector`` the number of elements along it
    that are loaded at a time. C++ knows these facts of its strides (``EpilogueTensor``).
    """

    name: str
    dtype: str
    modes: str
    unit: str = ""
    vector: int = 1
    amax: bool = False  #: Whether a result is the greatest magnitude, a single number.

    @property
    def cpp(self) -> str:
        """The template arguments of its ``EpilogueTensor`` after the element type."""
        strides = (
            "cute::_1" if mode == self.unit else "int64_t" if mode in self.modes else "cute::_0"
            for mode in "MN"
        )
        return f"{', '.join(strides)}, {self.vector}"


class EpilogueArguments(NamedTuple):
    """The arguments of an epilogue in addition to the accumulators.

    ``C`` is C before the call, (..., M, N), None if beta is 0; ``operands`` are the epilogue's
    operands by name, also numbers, which broadcast to C's shape.
    """

    C: np.ndarray | None
    alpha: complex
    beta: complex
    operands: Mapping[str, np.ndarray]


class Epilogue:
    """A function of an accumulator, C and further operands, applied to every element.

    A subclass defines the function in several forms: a C++ functor (`functor`, `source`), kernel
    parameters and memory accesses (`operands`), NumPy (`apply`) and an error bound (`bound`).
    The C++ functor is a class template over ``<Accumulator, ElementC>`` and the operands' element
    types, as described in ``templates/common/epilogue.cuh``; its ``Params`` begin with those of
    ``LinearCombination``, followed by an ``EpilogueTensor`` for each operand and each result in
    addition to C, and by the numbers. Equal epilogues have the same hash.
    """

    scales: tuple[str, ...] = ()  #: Names of row or tensor scales that it multiplies by.
    label: str = ""  #: Name in messages.
    rounds_to: tuple[str, ...] = ()  #: Types that it rounds values to before the results.
    computes: bool = False  #: Whether it has functions of many instructions, such as ``exp``.

    @property
    def name(self) -> str:
        """Part of kernels' symbols; "" for the default."""
        return ""

    @property
    def functor(self) -> str:
        """The C++ class template."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """C++ that declares the class template, or "" if ``common/epilogue.cuh`` declares it."""
        return ""

    @property
    def operands(self) -> tuple[EpilogueOperand, ...]:
        """The tensors that it reads in addition to C."""
        return ()

    @property
    def results(self) -> tuple[EpilogueOperand, ...]:
        """The tensors that it writes in addition to C."""
        return ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of numbers that are passed by value, in the accumulator's type."""
        return ()

    @property
    def pairs(self) -> str:
        """The two columns of the product that make one of C, (M, N / 2); "" if each makes its own.

        ``"pairs"``: adjacent columns; ``"halves"``: column j and column N / 2 + j.
        """
        return ""

    def apply(self, accumulator: np.ndarray, arguments: EpilogueArguments) -> np.ndarray:
        """Return the elements of C before they are rounded to its type.

        ``accumulator`` is (..., M, N), of the accumulator's type or a wider one.
        """
        raise NotImplementedError

    def apply_further(
        self, accumulator: np.ndarray, arguments: EpilogueArguments
    ) -> Iterator[np.ndarray]:
        """Yield the results in addition to C, in the order of `results`."""
        yield from ()

    def bound(
        self, accumulator: np.ndarray, error: np.ndarray, magnitude: np.ndarray, dtype: DType,
        arguments: EpilogueArguments,
    ) -> np.ndarray:  # fmt: skip
        """Return the error bound of the results of `apply`, (..., M, N).

        ``error`` bounds the error of the accumulators, ``magnitude`` is the sum of ``|a| |b|``, and
        ``dtype`` the type of the accumulators.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LinearCombination(Epilogue):
    """BLAS's ``alpha * accumulator + beta * C``."""

    functor: ClassVar[str] = "cute_gemm::LinearCombination"

    def apply(self, accumulator: np.ndarray, arguments: EpilogueArguments) -> np.ndarray:
        """Return the linear combination."""
        combined: np.ndarray = arguments.alpha * accumulator
        return combined if arguments.C is None else combined + arguments.beta * arguments.C

    def bound(
        self, accumulator: np.ndarray, error: np.ndarray, magnitude: np.ndarray, dtype: DType,
        arguments: EpilogueArguments,
    ) -> np.ndarray:  # fmt: skip
        """Return the scaled error, with two roundings of both terms if anything is scaled.

        A complex product has a relative error of at most sqrt(8) u (Higham, Accuracy and Stability
        of Numerical Algorithms, 2nd edition, section 3.6), and the sum one more.
        """
        C, alpha, beta, _ = arguments
        scaled: np.ndarray = error * abs(alpha)
        if alpha == 1 and C is None:
            return scaled
        roundings = 2 * np.sqrt(2) + 1 if dtype.is_complex else 2
        terms = abs(alpha) * magnitude + (0 if C is None else abs(beta * C))
        return scaled + roundings * dtype.roundoff * terms


#: The default epilogue.
LINEAR_COMBINATION = LinearCombination()
